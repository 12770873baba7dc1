//! Runs on the wire: prompt, resume, cancel and the record of a run. What is checked here is the
//! shape; whether a session takes a run is the domain's decision.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tapedeck_domain::admit::{self, OnActive};
use tapedeck_domain::limits;
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::run::{Run, RunStatus};
use tapedeck_domain::{CheckpointId, Rejection, RunId, SessionId, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::check::Faults;
use crate::schema;
use crate::session::check_command_id;

/// The reason of a resume where the client names none.
const USER_RESUME: &str = "user_resume";

/// Body of `POST /sessions/{id}/prompt`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PromptRequest {
    /// What the person asks: not blank, at most 256 KiB.
    #[schema(required)]
    pub prompt: Option<String>,
    /// What to do while a run is active; `reject` by default.
    #[schema(value_type = Option<schema::OnActive>)]
    pub on_active: Option<OnActive>,
    /// The client's own notes.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// Whether the run is cancelled when this request's stream breaks; false by default.
    pub cancel_on_disconnect: Option<bool>,
    /// An idempotency key, for clients that can't set the header.
    pub command_id: Option<String>,
}

/// A checked prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedPrompt {
    /// What the person asks.
    pub text: String,
    /// What to do while a run is active.
    pub on_active: OnActive,
    /// The client's own notes.
    pub metadata: Map<String, Value>,
    /// Whether a broken stream cancels the run.
    pub cancel_on_disconnect: bool,
}

/// Query of `POST /sessions/{id}/prompt`: what older clients say there instead of in the body.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PromptQuery {
    /// What to ask the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

impl PromptRequest {
    /// Checks every field.
    pub fn check(self) -> Result<CheckedPrompt, Vec<FieldError>> {
        let mut faults = Faults::default();
        match &self.prompt {
            Some(text) => check_prompt(&mut faults, text),
            None => faults.add("prompt", "must be given"),
        }
        let metadata = self.metadata.unwrap_or_default();
        faults.object("metadata", &metadata);
        check_command_id(&mut faults, self.command_id.as_deref());
        faults.finish(CheckedPrompt {
            text: self.prompt.unwrap_or_default(),
            on_active: self.on_active.unwrap_or(OnActive::Reject),
            metadata,
            cancel_on_disconnect: self.cancel_on_disconnect.unwrap_or(false),
        })
    }
}

/// Body of `POST /sessions/{id}/resume`. Everything is optional.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResumeRequest {
    /// What the person asks; without it the agent continues.
    pub prompt: Option<String>,
    /// Why, in a word; `user_resume` by default.
    pub resume_reason: Option<String>,
    /// The client's own notes.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// Whether the run is cancelled when this request's stream breaks; false by default.
    pub cancel_on_disconnect: Option<bool>,
    /// An idempotency key, for clients that can't set the header.
    pub command_id: Option<String>,
}

/// A checked resume.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedResume {
    /// What the person asks.
    pub text: Option<String>,
    /// Why, in a word.
    pub reason: String,
    /// The client's own notes.
    pub metadata: Map<String, Value>,
    /// Whether a broken stream cancels the run.
    pub cancel_on_disconnect: bool,
}

impl ResumeRequest {
    /// Checks every field.
    pub fn check(self) -> Result<CheckedResume, Vec<FieldError>> {
        let mut faults = Faults::default();
        if let Some(text) = &self.prompt {
            check_prompt(&mut faults, text);
        }
        let reason = self.resume_reason.unwrap_or_else(|| USER_RESUME.to_owned());
        faults.name("resume_reason", &reason, limits::NAME_CHARS);
        let metadata = self.metadata.unwrap_or_default();
        faults.object("metadata", &metadata);
        check_command_id(&mut faults, self.command_id.as_deref());
        faults.finish(CheckedResume {
            text: self.prompt,
            reason,
            metadata,
            cancel_on_disconnect: self.cancel_on_disconnect.unwrap_or(false),
        })
    }
}

fn check_prompt(faults: &mut Faults, text: &str) {
    if let Err(Rejection::Invalid(errors)) = admit::check_text(text) {
        faults.extend(errors);
    }
}

/// Body of requests that say nothing: close, cancel, drain and the like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EmptyRequest {}

/// Answer of a prompt or a resume as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedResponse {
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// The new run.
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    /// `requested` or `queued`.
    #[schema(value_type = schema::RunStatus)]
    pub status: RunStatus,
    /// The number of the event that admitted it; a stream opened just before it misses nothing.
    pub session_seq: u64,
}

/// Answer of a cancel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelResponse {
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// The run that is being cancelled; null if nothing was active.
    #[schema(value_type = Option<Uuid>, required)]
    pub run_id: Option<RunId>,
    /// `cancelling`; `idle` if nothing was active; a run's own status if it is settled.
    pub status: String,
}

impl CancelResponse {
    /// A run is being cancelled.
    pub fn cancelling(session_id: SessionId, run_id: RunId) -> Self {
        Self {
            session_id,
            run_id: Some(run_id),
            status: RunStatus::Cancelling.to_string(),
        }
    }

    /// Nothing was active.
    pub fn idle(session_id: SessionId) -> Self {
        Self {
            session_id,
            run_id: None,
            status: "idle".to_owned(),
        }
    }
}

/// The record of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunResponse {
    /// The identifier.
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// The run it continues.
    #[schema(value_type = Option<Uuid>, required)]
    pub parent_run_id: Option<RunId>,
    /// The status.
    #[schema(value_type = schema::RunStatus)]
    pub status: RunStatus,
    /// Claims so far.
    pub attempt: u32,
    /// What the person asked.
    pub prompt: String,
    /// The client's notes, and the facts of a resume.
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// What the executor reported at the end.
    #[schema(value_type = Option<Value>, required)]
    pub result: Option<Value>,
    /// Why it did not end well; never empty.
    #[schema(required)]
    pub error: Option<String>,
    /// Who holds or held it.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// When it was admitted.
    #[schema(value_type = String, format = DateTime)]
    pub requested_at: Timestamp,
    /// When it was last claimed.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub claimed_at: Option<Timestamp>,
    /// When its executor was first heard of.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub settled_at: Option<Timestamp>,
    /// Whether resuming an interrupted run makes sense.
    pub reclaimable: bool,
    /// Why it was interrupted, or settled by the server, in a word.
    #[schema(required)]
    pub recovery_reason: Option<String>,
    /// When that was.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub recovered_at: Option<Timestamp>,
    /// Why no executor seems able to serve it.
    #[schema(required)]
    pub unservable: Option<String>,
    /// The number of the event that admitted it.
    pub admitted_seq: u64,
    /// The number of its terminal event.
    #[schema(required)]
    pub settled_seq: Option<u64>,
    /// When a restore put it aside.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub superseded_at: Option<Timestamp>,
    /// By which checkpoint.
    #[schema(value_type = Option<Uuid>, required)]
    pub superseded_by_checkpoint_id: Option<CheckpointId>,
}

impl From<&Run> for RunResponse {
    fn from(run: &Run) -> Self {
        let recovery = run.recovery.as_ref();
        Self {
            run_id: run.run_id,
            session_id: run.session_id,
            parent_run_id: run.parent_run_id,
            status: run.status,
            attempt: run.attempt,
            prompt: run.prompt.clone(),
            metadata: run.metadata.clone(),
            result: run.result.clone(),
            error: run.error.clone(),
            executor_id: run.executor_id.clone(),
            requested_at: run.requested_at,
            claimed_at: run.claimed_at,
            started_at: run.started_at,
            settled_at: run.settled_at,
            reclaimable: recovery.is_some_and(|recovery| recovery.reclaimable),
            recovery_reason: recovery.map(|recovery| recovery.reason.clone()),
            recovered_at: recovery.map(|recovery| recovery.recovered_at),
            unservable: run.unservable.clone(),
            admitted_seq: run.admitted_seq,
            settled_seq: run.settled_seq,
            superseded_at: run.superseded_at,
            superseded_by_checkpoint_id: run.superseded_by_checkpoint_id,
        }
    }
}

/// Answer of `GET /sessions/{id}/runs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    /// Newest first.
    pub runs: Vec<RunResponse>,
    /// The next page; null at the end.
    #[schema(required)]
    pub next_cursor: Option<String>,
}
