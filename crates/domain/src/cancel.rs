//! A cancel in each state (design §4.3; rules R14).

use serde_json::json;

use crate::event::{Draft, EventKind};
use crate::run::{LiveRun, RunState};
use crate::settle::{Ending, RunEnd};
use crate::time::Now;
use crate::timing::Timing;

/// What a cancel does.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one value a command, matched at once"
)]
pub enum Cancel {
    /// Nobody holds the run: it is settled at once.
    Settle(RunEnd),
    /// Its executor is asked to stop.
    Ask(LiveRun, Draft),
    /// That has been asked before.
    Asked,
}

/// Decides a cancel. `by` says who asked, in one word.
pub fn cancel(mut run: LiveRun, by: &str, now: Now, timing: &Timing) -> Cancel {
    let draft = |run: &LiveRun| {
        Draft::server(
            EventKind::TurnCancelling,
            json!({"turn_id": run.run_id, "requested_by": by}),
        )
        .of_run(run)
    };
    let deadline = now.lease.plus_ms(timing.cancel_deadline_ms);
    run.state = match run.state {
        RunState::Queued | RunState::Requested { .. } => {
            return Cancel::Settle(RunEnd {
                ending: Ending::Cancelled,
                result: None,
                error: None,
                recovery_reason: None,
                body_digest: None,
            });
        }
        RunState::Cancelling { .. } => return Cancel::Asked,
        RunState::Claimed(mut claim) | RunState::Running(mut claim) => {
            // A renewal may have carried the lease beyond the deadline; the sweep looks at leases.
            claim.expires_at = claim.expires_at.min(deadline);
            run.deadline = None;
            RunState::Cancelling { claim, deadline }
        }
    };
    let event = draft(&run);
    Cancel::Ask(run, event)
}

#[cfg(test)]
mod tests;
