//! The end of a run, and the promotion of the next (design §4.3; rules R11, R16).

use serde_json::{Value, json};

use crate::digest::Digest;
use crate::event::{Draft, EventKind, requested_payload, server_event_id};
use crate::limits;
use crate::rejection::Rejection;
use crate::run::{LiveRun, Recovery, RunState, RunStatus, SettledClaim};
use crate::session::{SessionSummary, text_enum};
use crate::time::Now;

text_enum! {
    /// How a run ends.
    Ending {
        /// Well.
        Completed = "completed",
        /// With an error.
        Failed = "failed",
        /// By a cancel.
        Cancelled = "cancelled",
        /// By a loss, or handed back.
        Interrupted = "interrupted",
    }
}

impl Ending {
    /// The run status of that name.
    pub const fn status(self) -> RunStatus {
        match self {
            Self::Completed => RunStatus::Completed,
            Self::Failed => RunStatus::Failed,
            Self::Cancelled => RunStatus::Cancelled,
            Self::Interrupted => RunStatus::Interrupted,
        }
    }
}

/// The end of a run as somebody asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEnd {
    /// How.
    pub ending: Ending,
    /// What the executor reports.
    pub result: Option<Value>,
    /// Why, where it did not end well.
    pub error: Option<String>,
    /// One word about an interruption or the sweep's own settlement.
    pub recovery_reason: Option<&'static str>,
    /// The digest of the `complete` body.
    pub body_digest: Option<Digest>,
}

impl RunEnd {
    /// An end that the server itself decides, with the reason in one word and in a sentence.
    pub fn by_server(ending: Ending, reason: &'static str, error: impl Into<String>) -> Self {
        Self {
            ending,
            result: None,
            error: Some(error.into()),
            recovery_reason: Some(reason),
            body_digest: None,
        }
    }
}

/// What settling writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Settlement {
    /// The final status.
    pub status: RunStatus,
    /// The result.
    pub result: Option<Value>,
    /// The error; never an empty string.
    pub error: Option<String>,
    /// Facts about an interruption.
    pub recovery: Option<Recovery>,
    /// Under which claim, for a repeated `complete`.
    pub claim: SettledClaim,
    /// The terminal event.
    pub turn_end: Draft,
}

/// Settles a live run. Every state may end: no state absorbs a run for ever (fault 7). A run whose
/// cancel is under way ends as cancelled where it would have been interrupted (R14).
pub fn settle(run: &LiveRun, end: RunEnd, now: Now) -> Settlement {
    let ending = match end.ending {
        Ending::Interrupted if run.state.is_cancelling() => Ending::Cancelled,
        Ending::Completed | Ending::Failed | Ending::Cancelled | Ending::Interrupted => end.ending,
    };
    let status = ending.status();
    let error = match ending {
        Ending::Completed => None,
        Ending::Failed | Ending::Cancelled | Ending::Interrupted => end
            .error
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty()),
    };
    let error = match (ending, error) {
        (Ending::Failed, None) => Some("the run failed without saying why".to_owned()),
        (Ending::Interrupted, None) => Some("the run was interrupted".to_owned()),
        (_, error) => error,
    };
    let recovery_reason = end.recovery_reason.or(match ending {
        Ending::Interrupted => Some("handed_back"),
        Ending::Completed | Ending::Failed | Ending::Cancelled => None,
    });
    let recovery = recovery_reason.map(|reason| Recovery {
        reclaimable: ending == Ending::Interrupted,
        reason: reason.to_owned(),
        recovered_at: now.wall,
    });
    let completion_status = match ending {
        Ending::Completed => "completed",
        Ending::Failed => "error",
        Ending::Cancelled | Ending::Interrupted => "blocked",
    };
    let claim = run.state.claim();
    let mut payload = json!({
        "turn_id": run.run_id,
        "completion_status": completion_status,
        "run_status": status,
        "error": error,
        "recovery_reason": recovery_reason,
        "never_requested": matches!(run.state, RunState::Queued),
    });
    // Why the agent stopped: a turn that was cut short has completed as well.
    let stop_reason = end
        .result
        .as_ref()
        .and_then(|result| result["stop_reason"].as_str());
    if let Some(reason) = stop_reason.filter(|reason| reason.len() <= limits::NAME_CHARS) {
        payload["stop_reason"] = json!(reason);
    }
    let turn_end = Draft::server(EventKind::TurnEnd, payload).of_run(run);
    Settlement {
        status,
        result: end.result,
        error,
        recovery,
        claim: SettledClaim {
            attempt: run.attempts.attempt,
            token_hash: claim.map(|claim| claim.token_hash),
            body_digest: end.body_digest,
        },
        turn_end: match claim {
            Some(claim) => turn_end.by(claim),
            None => turn_end,
        },
    }
}

/// Checks a completion by the claim's holder: all events it sent have arrived (R11).
pub fn check_complete(run: &LiveRun, event_count: Option<u64>) -> Result<(), Rejection> {
    match event_count {
        Some(expected) if expected != run.event_count => Err(Rejection::EventsMissing {
            expected,
            stored: run.event_count,
        }),
        Some(_) | None => Ok(()),
    }
}

/// Decides a completion of a run that is settled already: the same attempt, token and body get the
/// stored answer (R11).
pub fn repeated(
    settled: &SettledClaim,
    status: RunStatus,
    body_digest: Digest,
) -> Result<(), Rejection> {
    if settled.body_digest == Some(body_digest) {
        Ok(())
    } else {
        Err(Rejection::RunSettled { status })
    }
}

/// Updates the summary for a settled run. `settled_seq` is the number of its terminal event.
/// Queued runs that end leave the session's own state alone.
pub fn settle_summary(
    summary: &mut SessionSummary,
    run: &LiveRun,
    status: RunStatus,
    settled_seq: u64,
) {
    if matches!(run.state, RunState::Queued) {
        summary.queued_runs = summary.queued_runs.saturating_sub(1);
        summary.queue_held &= summary.queued_runs > 0;
        return;
    }
    summary.active_run_id = None;
    summary.pending_interactions = 0;
    summary.last_run_id = Some(run.run_id);
    summary.last_run_status = Some(status);
    summary.resume_from_event_id = Some(server_event_id(settled_seq));
    if status == RunStatus::Interrupted {
        summary.last_interrupted_run_id = Some(run.run_id);
    }
    summary.queue_held = status == RunStatus::Interrupted && summary.queued_runs > 0;
}

/// Makes the first queued run the active one: `RunRequested` is written with the promotion (R16).
pub fn promote(
    mut run: LiveRun,
    prompt: &str,
    summary: &mut SessionSummary,
    now: Now,
) -> (LiveRun, Draft) {
    run.state = RunState::Requested {
        ready_at: now.lease,
    };
    summary.queued_runs = summary.queued_runs.saturating_sub(1);
    summary.queue_held = false;
    activate(summary, &run);
    let draft = Draft::server(
        EventKind::RunRequested,
        requested_payload("requested", prompt, None, None),
    )
    .of_run(&run);
    (run, draft)
}

/// Shows a run as the session's active one.
pub fn activate(summary: &mut SessionSummary, run: &LiveRun) {
    summary.active_run_id = Some(run.run_id);
    summary.last_run_id = Some(run.run_id);
    summary.last_run_status = Some(run.status());
}

#[cfg(test)]
mod tests;
