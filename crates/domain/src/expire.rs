//! What becomes of a claim whose lease has ended (design §4.3; rules R10, R14). The sweep asks for
//! each candidate again under the head's lock, so a run that ended meanwhile is left alone.

use serde_json::json;

use crate::event::{Draft, EventKind};
use crate::queue::Unservable;
use crate::run::{LiveRun, RunState};
use crate::settle::{Ending, RunEnd};
use crate::time::Now;
use crate::timing::Timing;

/// Un-acknowledged claims in a row before a run is given up.
pub const POISON_CLAIMS: u32 = 3;

/// What an expired claim leads to.
#[derive(Debug, Clone, PartialEq)]
pub enum Expiry {
    /// The lease still runs, or nobody holds the run.
    Nothing,
    /// The executor lives, and lets the run go on for longer than its session allows: it is asked to
    /// stop, as by a person.
    Cancel,
    /// Requested again at its old place.
    Requeue {
        /// The run.
        run: LiveRun,
        /// `RunLeaseExpired`.
        event: Draft,
        /// Shown to operators: `unacknowledged` (R10).
        unservable: Option<&'static str>,
    },
    /// It ends.
    Settle {
        /// `RunLeaseExpired`; a cancel that ran out has none.
        event: Option<Draft>,
        /// How.
        end: RunEnd,
    },
}

/// Decides for one run. `claimants_seen` says whether the instances behind the un-acknowledged
/// claims have been in touch since or are proved dead: only then the run itself is to blame.
pub fn expire(mut run: LiveRun, claimants_seen: bool, now: Now, timing: &Timing) -> Expiry {
    let Some(claim) = run.state.claim().cloned() else {
        return Expiry::Nothing;
    };
    let deadline_passed = match run.state {
        RunState::Cancelling { deadline, .. } => deadline <= now.judged,
        RunState::Queued
        | RunState::Requested { .. }
        | RunState::Claimed(_)
        | RunState::Running(_) => false,
    };
    // A lease may reach beyond the deadline where an outage was added to it (R6); the deadline holds.
    if claim.is_live(now.judged) && !deadline_passed {
        let overran =
            !run.state.is_cancelling() && run.deadline.is_some_and(|end| end <= now.judged);
        return if overran {
            Expiry::Cancel
        } else {
            Expiry::Nothing
        };
    }
    if run.state.is_cancelling() {
        return Expiry::Settle {
            event: None,
            end: cancelled(deadline_passed && claim.acknowledged),
        };
    }
    if !claim.acknowledged {
        run.attempts.unacknowledged += 1;
    }
    let spent = claim.acknowledged && run.attempts.used >= run.attempts.max;
    let poisoned = run.attempts.unacknowledged >= POISON_CLAIMS && claimants_seen;
    let event = Draft::server(
        EventKind::RunLeaseExpired,
        json!({
            "executor_id": claim.executor_id,
            "attempt": claim.attempt,
            "acknowledged": claim.acknowledged,
            "requeued": !spent && !poisoned,
        }),
    )
    .of_run(&run)
    .by(&claim);
    if poisoned {
        let end = RunEnd::by_server(
            Ending::Failed,
            "claim_poison",
            "claim_poison: three executors in a row took the run and were not heard of again",
        );
        return Expiry::Settle {
            event: Some(event),
            end,
        };
    }
    if spent {
        let end = RunEnd::by_server(
            Ending::Interrupted,
            "lease_expired",
            format!(
                "executor `{}` was lost: its lease ended without a heartbeat",
                claim.executor_id
            ),
        );
        return Expiry::Settle {
            event: Some(event),
            end,
        };
    }
    let backoff = i64::from(run.attempts.unacknowledged) * timing.requeue_backoff_ms;
    run.request_again(now.lease.plus_ms(backoff));
    let unservable = (run.attempts.unacknowledged >= POISON_CLAIMS)
        .then_some(Unservable::Unacknowledged.as_str());
    Expiry::Requeue {
        run,
        event,
        unservable,
    }
}

/// What becomes of a run that its executor gives back after its agent's first output: requested
/// again at its old place where the session allows another attempt (ADR 25), with `RunReleased`.
/// `None` where it ends. A claim that was never acknowledged is so by this.
pub fn hand_back(run: &LiveRun, why: Option<&str>, now: Now) -> Option<(LiveRun, Draft)> {
    let claim = run.state.claim().filter(|_| !run.state.is_cancelling())?;
    let used = run.attempts.used + u32::from(!claim.acknowledged);
    if used >= run.attempts.max {
        return None;
    }
    let event = Draft::server(
        EventKind::RunReleased,
        json!({
            "executor_id": claim.executor_id,
            "attempt": claim.attempt,
            "reason": "handed_back",
            "error": why,
        }),
    )
    .of_run(run)
    .by(claim);
    let mut run = run.clone();
    run.attempts.used = used;
    run.attempts.unacknowledged = 0;
    run.request_again(now.lease);
    Some((run, event))
}

/// The end of a run that was asked to stop, by an executor that is still there or was lost.
fn cancelled(is_there: bool) -> RunEnd {
    let (reason, error) = if is_there {
        ("cancel_deadline", "the executor did not stop in time")
    } else {
        (
            "executor_lost",
            "the executor was lost while it was asked to stop",
        )
    };
    RunEnd::by_server(Ending::Cancelled, reason, error)
}

#[cfg(test)]
mod tests;
