//! What can end a turn from outside: a lost claim, a cancel, silence, too long a turn. It owns the
//! clocks of a turn; it must never end anything itself, the backend does that in its own way.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Activity, Failure, FailureCode, TurnIo, TurnLimits};

/// Why a turn has to end.
#[derive(Debug)]
pub(crate) enum Interrupt {
    Killed,
    Cancelled,
    TimedOut(Failure),
}

/// Watches over one turn.
#[derive(Debug)]
pub(crate) struct Vigil {
    kill: CancellationToken,
    cancel: CancellationToken,
    events: tokio::sync::mpsc::Sender<super::AgentEvent>,
    activity: Activity,
    limits: TurnLimits,
    begun: Instant,
    open_questions: watch::Receiver<usize>,
}

impl Vigil {
    /// While `open_questions` is not zero the agent may be silent.
    pub(crate) fn new(
        io: &TurnIo,
        limits: TurnLimits,
        open_questions: watch::Receiver<usize>,
    ) -> Self {
        io.activity.touch();
        Self {
            kill: io.kill.clone(),
            cancel: io.cancel.clone(),
            events: io.events.clone(),
            activity: io.activity.clone(),
            limits,
            begun: Instant::now(),
            open_questions,
        }
    }

    /// Waits until the turn has to end.
    pub(crate) async fn interrupted(&self) -> Interrupt {
        tokio::select! {
            biased;
            () = self.killed() => Interrupt::Killed,
            () = self.cancel.cancelled() => Interrupt::Cancelled,
            failure = self.idle() => Interrupt::TimedOut(failure),
            failure = self.overdue() => Interrupt::TimedOut(failure),
        }
    }

    /// Waits until the claim is lost, or nobody is left to take the events.
    pub(crate) async fn killed(&self) {
        tokio::select! {
            () = self.kill.cancelled() => {}
            () = self.events.closed() => {}
        }
    }

    async fn idle(&self) -> Failure {
        let Some(limit) = self.limits.idle else {
            return pending().await;
        };
        let mut questions = self.open_questions.clone();
        loop {
            // The time runs anew from the answer; a sender that is gone means no more questions.
            let waited = *questions.borrow_and_update() > 0;
            let _ = questions.wait_for(|open| *open == 0).await;
            if waited {
                self.activity.touch();
            }
            // A full event queue keeps the agent from being heard; that is not its silence.
            if self.events.capacity() == 0 {
                self.activity.touch();
            }
            let due = self.activity.last() + limit;
            if due <= Instant::now() {
                let text = format!("the agent wrote nothing for {}", seconds(limit));
                return Failure::new(FailureCode::AgentIdle, text);
            }
            tokio::select! {
                () = sleep_until(due) => {}
                // A question was opened.
                Ok(()) = questions.changed() => {}
            }
        }
    }

    async fn overdue(&self) -> Failure {
        let Some(limit) = self.limits.total else {
            return pending().await;
        };
        sleep_until(self.begun + limit).await;
        let text = format!("the turn took longer than {}", seconds(limit));
        Failure::new(FailureCode::TurnTimeout, text)
    }
}

fn seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs_f64())
}
