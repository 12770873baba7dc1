//! A claim as this process holds it: the lease on our own clock, what the server wants, and why the
//! agent has to stop. It must never believe in a lease longer than the server's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tapedeck_client::Secret;
use tapedeck_domain::RunId;
use tapedeck_protocol::executor::ClaimResponse;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::guard::boot_clock_ms;

/// Time for killing a tree before the lease's real end, at most.
const MARGIN: Duration = Duration::from_secs(5);

/// Why a run's agent is stopped before its own end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The claim is gone. Nothing more may be sent.
    Lost(String),
    /// The lease could not be renewed in time. The run may still be handed back.
    Lapsed,
    /// The executor shuts down and hands the run back.
    Drained,
    /// What the agent puts out can't be kept; the run fails.
    Unrecorded(String),
}

#[derive(Debug, Default)]
struct State {
    acknowledged: bool,
    /// The run's end is on its way to the server.
    reported: bool,
    stop: Option<Stop>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    /// The whole lease as last granted, for intervals and margins.
    length: Duration,
    /// When the request of the newest renewal was sent.
    sent: Instant,
    end: Instant,
    /// The same end on the clock that goes on while the machine sleeps.
    boot_end: u64,
}

/// What proves a claim.
#[derive(Debug, Clone)]
pub(crate) struct ClaimKey {
    pub(crate) run_id: RunId,
    pub(crate) executor_id: String,
    pub(crate) token: Secret,
    pub(crate) attempt: u32,
}

/// A claim that this process holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) run_id: RunId,
    pub(crate) executor_id: String,
    pub(crate) token: Secret,
    pub(crate) attempt: u32,
    /// The server wants the run to end in good order.
    pub(crate) cancel: CancellationToken,
    /// The agent has to die now.
    pub(crate) kill: CancellationToken,
    state: watch::Sender<State>,
    lease: Mutex<Lease>,
    deadline: watch::Sender<Instant>,
    output: AtomicBool,
}

impl Held {
    /// A claim just granted: until the first heartbeat there is no lease to build on.
    pub(crate) fn new(claim: &ClaimResponse) -> Self {
        Self::of(ClaimKey {
            run_id: claim.run_id,
            executor_id: claim.executor_id.clone(),
            token: Secret::new(claim.claim_token.clone()),
            attempt: claim.attempt,
        })
    }

    /// A claim of which nothing is known but what proves it.
    pub(crate) fn of(key: ClaimKey) -> Self {
        let now = Instant::now();
        Self {
            run_id: key.run_id,
            executor_id: key.executor_id,
            token: key.token,
            attempt: key.attempt,
            cancel: CancellationToken::new(),
            kill: CancellationToken::new(),
            state: watch::Sender::default(),
            lease: Mutex::new(Lease {
                length: Duration::ZERO,
                sent: now,
                end: now,
                boot_end: 0,
            }),
            deadline: watch::Sender::new(now),
            output: AtomicBool::new(false),
        }
    }

    /// Takes note of an accepted renewal. The server counted from later than `sent`, so counting
    /// from there is on the safe side.
    pub(crate) fn renewed(&self, sent: Sent, ttl: Duration, cancelling: bool) {
        let mut lease = self.lease.lock();
        lease.length = lease.length.max(ttl);
        let (end, boot_end) = (sent.at + ttl, sent.boot_ms.saturating_add(millis(ttl)));
        // A cancel may shorten a lease (its deadline bounds it); a plain renewal never does, and
        // answers may overtake each other.
        let newest = sent.at >= lease.sent;
        let longer = end > lease.end && (newest || !cancelling);
        let shorter = end < lease.end && cancelling;
        if longer || shorter {
            lease.end = end;
            lease.boot_end = boot_end;
        }
        lease.sent = lease.sent.max(sent.at);
        let deadline = lease.end - margin(lease.length);
        drop(lease);
        self.deadline.send_replace(deadline);
        self.state.send_modify(|state| state.acknowledged = true);
        if cancelling {
            self.cancel.cancel();
        }
    }

    /// When killing the agent has to begin; moves on with each renewal.
    pub(crate) fn deadline(&self) -> watch::Receiver<Instant> {
        self.deadline.subscribe()
    }

    /// The whole lease as last granted.
    pub(crate) fn lease_length(&self) -> Duration {
        self.lease.lock().length
    }

    /// Whether the lease has ended by the clock that goes on while the machine sleeps.
    pub(crate) fn slept_through(&self) -> bool {
        let lease = *self.lease.lock();
        boot_clock_ms().saturating_add(millis(margin(lease.length))) >= lease.boot_end
    }

    /// Stops the agent. A loss outweighs any other reason; of the others the first one counts.
    pub(crate) fn stop(&self, stop: Stop) {
        self.state.send_if_modified(|state| {
            let lost = matches!(state.stop, Some(Stop::Lost(_)));
            let counts = state.stop.is_none() || (matches!(stop, Stop::Lost(_)) && !lost);
            if counts {
                if state.reported {
                    // As a rule heartbeats were told of the end before its own report was answered.
                    tracing::debug!(run.id = %self.run_id, reason = ?stop, "heartbeats stop");
                } else {
                    tracing::info!(run.id = %self.run_id, reason = ?stop, "run stops");
                }
                state.stop = Some(stop);
            }
            counts
        });
        self.kill.cancel();
    }

    /// The run's end is being reported: that the claim ends is no news from here on.
    pub(crate) fn note_report(&self) {
        self.state.send_modify(|state| state.reported = true);
    }

    /// Why the agent was stopped.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.state.borrow().stop.clone()
    }

    /// Waits for the first accepted heartbeat; `false` if the claim came to nothing.
    pub(crate) async fn acknowledged(&self) -> bool {
        let mut state = self.state.subscribe();
        let settled = state
            .wait_for(|state| state.acknowledged || state.stop.is_some())
            .await;
        settled.is_ok_and(|state| state.stop.is_none())
    }

    /// Waits until the claim is gone.
    pub(crate) async fn lost(&self) {
        let mut state = self.state.subscribe();
        // The sender is ours, so there is always somebody to wait for.
        let gone = |state: &State| matches!(state.stop, Some(Stop::Lost(_)));
        drop(state.wait_for(gone).await);
    }

    /// Whether the claim is gone.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.state.borrow().stop, Some(Stop::Lost(_)))
    }

    /// The agent put something out or asked something: from here on the run can't be released.
    pub(crate) fn note_output(&self) {
        self.output.store(true, Ordering::Release);
    }

    /// Whether the agent put anything out.
    pub(crate) fn has_output(&self) -> bool {
        self.output.load(Ordering::Acquire)
    }
}

/// When a request was sent, on both clocks. The boot clock is read first: a sleep between the two
/// readings makes the lease end earlier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    boot_ms: u64,
    pub(crate) at: Instant,
}

impl Sent {
    pub(crate) fn now() -> Self {
        let boot_ms = boot_clock_ms();
        Self {
            boot_ms,
            at: Instant::now(),
        }
    }
}

fn margin(length: Duration) -> Duration {
    MARGIN.min(length / 5)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::claim;

    fn at(seconds: u64, origin: Sent) -> Sent {
        Sent {
            boot_ms: origin.boot_ms + seconds * 1_000,
            at: origin.at + Duration::from_secs(seconds),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_counts_from_when_the_renewal_was_sent() {
        let held = Held::new(&claim(1));
        let origin = Sent::now();
        let end = |held: &Held| *held.deadline().borrow() - origin.at;
        let minute = Duration::from_mins(1);
        held.renewed(origin, minute, false);
        assert_eq!(end(&held), Duration::from_secs(55));
        held.renewed(at(20, origin), minute, false);
        assert_eq!(end(&held), Duration::from_secs(75));
        // A held answer that was overtaken takes nothing away.
        held.renewed(at(10, origin), minute, false);
        assert_eq!(end(&held), Duration::from_secs(75));
        // A cancel bounds the lease.
        held.renewed(at(30, origin), Duration::from_secs(30), true);
        assert_eq!(end(&held), Duration::from_secs(55));
        assert!(held.cancel.is_cancelled());
        assert!(!held.kill.is_cancelled());
    }

    #[tokio::test]
    async fn a_loss_outweighs_other_reasons_and_the_first_of_those_counts() {
        let held = Held::new(&claim(1));
        held.stop(Stop::Drained);
        held.stop(Stop::Lapsed);
        assert_eq!(held.stopped(), Some(Stop::Drained));
        let lost = Stop::Lost("claim_lost".to_owned());
        held.stop(lost.clone());
        held.stop(Stop::Lapsed);
        assert_eq!(held.stopped(), Some(lost));
        assert!(held.kill.is_cancelled());
    }
}
