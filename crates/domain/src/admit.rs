//! A prompt becomes a run, under `on_active` (design §4.3; rules R16).

use serde_json::{Map, Value};

use crate::event::{Draft, EventKind, requested_payload};
use crate::id::{RunId, RunKey};
use crate::limits;
use crate::rejection::Rejection;
use crate::run::{Attempts, LiveRun, NewRun, RunState, RunStatus};
use crate::session::{Session, text_enum};
use crate::settle::activate;
use crate::time::Now;

text_enum! {
    /// What to do with a prompt while a run is active.
    OnActive {
        /// Refuse it.
        Reject = "reject",
        /// Let it wait.
        Enqueue = "enqueue",
        /// Cancel the active run, then run it first.
        Interrupt = "interrupt",
    }
}

/// A prompt, checked at the edge.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// The new run's id.
    pub run_id: RunId,
    /// What the person asks.
    pub text: String,
    /// What to do while a run is active.
    pub on_active: OnActive,
    /// The client's notes.
    pub metadata: Map<String, Value>,
}

/// The places that queued runs of a session hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueuePlaces {
    /// The first; `None` when nothing waits.
    pub first: Option<i64>,
    /// The last.
    pub last: Option<i64>,
}

/// What an admission writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// The run's record.
    pub run: NewRun,
    /// Its live part, before the store has given it a key.
    pub live: LiveRun,
    /// `RunRequested` or `RunQueued`, to be linked to the run's key.
    pub event: Draft,
    /// Whether the active run is to be cancelled as well.
    pub cancel_active: bool,
}

/// Checks a prompt's text.
pub fn check_text(text: &str) -> Result<(), Rejection> {
    if text.trim().is_empty() {
        return Err(Rejection::invalid("prompt", "must not be blank"));
    }
    if text.len() > limits::PROMPT_BYTES {
        return Err(Rejection::invalid(
            "prompt",
            format!(
                "has {} bytes; {} are allowed",
                text.len(),
                limits::PROMPT_BYTES
            ),
        ));
    }
    crate::json::storable_text(text).map_err(|why| Rejection::invalid("prompt", why.to_string()))
}

/// Decides a prompt. Updates the session's summary; `admitted_seq` is the number its event will get.
pub fn admit(
    session: &mut Session,
    places: QueuePlaces,
    prompt: Prompt,
    admitted_seq: u64,
    now: Now,
) -> Result<Admission, Rejection> {
    if session.closed_at.is_some() {
        return Err(Rejection::SessionClosed);
    }
    let active = session.summary.active_run_id;
    let queued = match (active, prompt.on_active) {
        (None, _) => false,
        (Some(active_run_id), OnActive::Reject) => {
            return Err(Rejection::SessionBusy { active_run_id });
        }
        (Some(_), OnActive::Enqueue | OnActive::Interrupt) => true,
    };
    if queued && session.summary.queued_runs >= limits::QUEUED_RUNS {
        return Err(Rejection::QueueFull {
            limit: limits::QUEUED_RUNS,
        });
    }
    let place = match prompt.on_active {
        OnActive::Interrupt => places.first.map_or(0, |first| first - 1),
        OnActive::Reject | OnActive::Enqueue => places.last.map_or(0, |last| last + 1),
    };
    let (status, kind) = if queued {
        (RunStatus::Queued, EventKind::RunQueued)
    } else {
        (RunStatus::Requested, EventKind::RunRequested)
    };
    let live = new_live_run(session, prompt.run_id, place, queued, now);
    if queued {
        session.summary.queued_runs += 1;
    } else {
        activate(&mut session.summary, &live);
        session.summary.queue_held = false;
    }
    let event = Draft::server(
        kind,
        requested_payload(status.as_str(), &prompt.text, None, None),
    );
    Ok(Admission {
        run: NewRun {
            run_id: prompt.run_id,
            parent_run_id: None,
            prompt: prompt.text,
            metadata: prompt.metadata,
            resume_context: None,
            status,
            admitted_seq,
            requested_at: now.wall,
        },
        live,
        event,
        cancel_active: queued && prompt.on_active == OnActive::Interrupt,
    })
}

/// A live run that nobody has claimed. Its key is the store's to give.
pub(crate) fn new_live_run(
    session: &Session,
    run_id: RunId,
    place: i64,
    queued: bool,
    now: Now,
) -> LiveRun {
    let max_attempts = session
        .settings
        .run_target
        .constraints
        .max_attempts
        .unwrap_or(1)
        .max(1);
    LiveRun {
        key: RunKey(0),
        run_id,
        session_key: session.key,
        session_id: session.session_id,
        state: if queued {
            RunState::Queued
        } else {
            RunState::Requested {
                ready_at: now.lease,
            }
        },
        attempts: Attempts::new(max_attempts),
        place,
        event_count: 0,
        has_output: false,
        pending_interactions: 0,
        turn: None,
        deadline: None,
    }
}

#[cfg(test)]
mod tests;
