//! What a person is told while a run waits for an executor that doesn't come.

use std::time::Duration;

use tapedeck_client::Client;
use tapedeck_domain::RunId;
use tapedeck_domain::queue::Unservable;
use tokio::time::{Interval, MissedTickBehavior, interval_at};

/// Between two looks at a run that waits.
const PERIOD: Duration = Duration::from_secs(5);

/// Looks at a run from time to time until an executor has it.
#[derive(Debug)]
pub(crate) struct Waiting {
    run_id: RunId,
    ticks: Interval,
    told: Option<String>,
    is_over: bool,
}

impl Waiting {
    /// Begins to wait.
    pub(crate) fn new(run_id: RunId) -> Self {
        let mut ticks = interval_at(tokio::time::Instant::now() + PERIOD, PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            run_id,
            ticks,
            told: None,
            is_over: false,
        }
    }

    /// An event of this kind came: once an executor has the run there is nothing to wait for, until it
    /// is given back.
    pub(crate) fn seen(&mut self, kind: &str) {
        match kind {
            "RunClaimed" | "TurnEnd" => self.is_over = true,
            "RunReleased" | "RunLeaseExpired" => self.is_over = false,
            _ => {}
        }
    }

    /// Whether an executor has the run.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// When to look again.
    pub(crate) async fn tick(&mut self) {
        if self.is_over {
            std::future::pending::<()>().await;
        }
        self.ticks.tick().await;
    }

    /// What to say of why nobody takes the run, whenever that changes. A server that doesn't answer is the
    /// stream's affair.
    pub(crate) async fn look(&mut self, client: &Client) -> Option<String> {
        let run = client.run(self.run_id).await.ok()?;
        if run.unservable == self.told {
            return None;
        }
        self.told = run.unservable;
        self.told.as_deref().map(sentence)
    }
}

fn sentence(reason: &str) -> String {
    // A later server may have further reasons.
    let known = reason.parse().ok().map(Unservable::explanation);
    format!("the run waits: {}", known.unwrap_or(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_sentence() {
        for reason in Unservable::ALL {
            let text = sentence(reason.as_str());
            assert!(
                !text.contains(reason.as_str()) || text.contains(' '),
                "{text}"
            );
            assert_ne!(text, format!("the run waits: {reason}"), "{reason}");
        }
    }
}
