//! Problem documents (RFC 9457): the one shape of every error answer. It never holds the source of
//! an internal fault, only what the caller may know.

use std::fmt;

use serde::{Deserialize, Serialize};
use tapedeck_domain::rejection::{FieldError, sentences};
use tapedeck_domain::{CheckpointId, LogId, Rejection, RunId, TapeEntryId, Timestamp};
use utoipa::ToSchema;

use crate::error::ErrorCode;
use crate::interaction::InteractionResponse;

/// The media type of a problem document.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// One broken rule and its place in the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldErrorBody {
    /// Where, e.g. `events[3].data`.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
}

/// The sentence about it.
impl fmt::Display for FieldErrorBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        FieldError::new(&self.path, &self.message).fmt(f)
    }
}

impl From<&FieldError> for FieldErrorBody {
    fn from(error: &FieldError) -> Self {
        Self {
            path: error.path.clone(),
            message: error.message.clone(),
        }
    }
}

/// Why a request was refused (RFC 9457). Members that don't apply are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A URI that names the kind of problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// A short text that is the same for every occurrence.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened this time, and what to do.
    pub detail: String,
    /// The kind of problem in one word.
    pub code: ErrorCode,
    /// Whether the same request may succeed later.
    #[serde(default)]
    pub retryable: bool,
    /// When to try again, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Names the request in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Each broken rule with its place in the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldErrorBody>,
    /// What some codes say besides.
    #[serde(flatten)]
    pub extensions: Extensions,
}

/// Extension members of problem documents; each belongs to the codes that its sentence names.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Extensions {
    /// `session_busy`: the active run.
    #[schema(value_type = Option<Uuid>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_run_id: Option<RunId>,
    /// `session_busy`: the values of `on_active` that would be accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_active_allowed: Option<Vec<String>>,
    /// `owned_elsewhere`: the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// `owned_elsewhere`: when its lease ends.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_until: Option<Timestamp>,
    /// `cursor_expired`: the oldest number that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_seq: Option<u64>,
    /// `cursor_expired`: the cursor to start again from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_after: Option<u64>,
    /// `cursor_future`: the newest number there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_seq: Option<u64>,
    /// `log_changed`: the present log.
    #[schema(value_type = Option<Uuid>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_id: Option<LogId>,
    /// `already_resolved`: the interaction with the recorded answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interaction: Option<Box<InteractionResponse>>,
    /// `already_resolved`, `run_settled`: the state it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_status: Option<String>,
    /// `event_id_conflict`: the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// `entry_id_conflict`: the tape entry.
    #[schema(value_type = Option<Uuid>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<TapeEntryId>,
    /// `checkpoint_superseded`: the checkpoint.
    #[schema(value_type = Option<Uuid>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_id: Option<CheckpointId>,
    /// `events_missing`: events the executor counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_events: Option<u64>,
    /// `events_missing`: events that are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_events: Option<u64>,
    /// `body_too_large`, `queue_full`, `rule_limit`: the bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

impl Problem {
    /// A problem of this code, with what happened in a sentence.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:tapedeck:problem:{code}"),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail.into(),
            code,
            retryable: code.retryable(),
            retry_after_ms: None,
            request_id: None,
            errors: Vec::new(),
            extensions: Extensions::default(),
        }
    }

    /// A request whose fields break rules.
    pub fn invalid(errors: &[FieldError]) -> Self {
        Self::of_fields(ErrorCode::InvalidRequest, errors)
    }

    /// A path or a query whose values can't be used.
    pub fn malformed(errors: &[FieldError]) -> Self {
        Self::of_fields(ErrorCode::MalformedRequest, errors)
    }

    fn of_fields(code: ErrorCode, errors: &[FieldError]) -> Self {
        Self {
            errors: errors.iter().map(FieldErrorBody::from).collect(),
            ..Self::new(code, sentences(errors))
        }
    }

    /// Says when to try again.
    #[must_use]
    pub const fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }

    /// Adds extension members.
    #[must_use]
    pub fn extended(mut self, extensions: Extensions) -> Self {
        self.extensions = extensions;
        self
    }
}

impl From<&Rejection> for Problem {
    fn from(rejection: &Rejection) -> Self {
        let mut extensions = Extensions::default();
        match rejection {
            Rejection::Invalid(errors) => return Self::invalid(errors),
            Rejection::AlreadyResolved {
                interaction_id: _,
                status,
            } => {
                extensions.current_status = Some(status.to_string());
            }
            Rejection::CheckpointSuperseded { checkpoint_id } => {
                extensions.checkpoint_id = Some(*checkpoint_id);
            }
            Rejection::EntryIdConflict { entry_id } => {
                extensions.entry_id = Some(*entry_id);
            }
            Rejection::EventIdConflict { event_id } => {
                extensions.event_id = Some(event_id.clone());
            }
            Rejection::EventsMissing { expected, stored } => {
                extensions.expected_events = Some(*expected);
                extensions.stored_events = Some(*stored);
            }
            Rejection::ExecutorNotOffline {
                executor_id: _,
                status,
            } => {
                extensions.current_status = Some(status.to_string());
            }
            Rejection::OwnedElsewhere { owner_id, until } => {
                extensions.owner_id = Some(owner_id.clone());
                extensions.owner_until = Some(*until);
            }
            Rejection::QueueFull { limit } | Rejection::RuleLimit { limit } => {
                extensions.limit = Some(u64::from(*limit));
            }
            Rejection::RunSettled { status } => {
                extensions.current_status = Some(status.to_string());
            }
            Rejection::SessionBusy { active_run_id } => {
                extensions.active_run_id = Some(*active_run_id);
            }
            Rejection::ArtifactConflict { .. }
            | Rejection::ClaimLost
            | Rejection::ClaimTokenInvalid
            | Rejection::ExecutorDraining { .. }
            | Rejection::ExecutorFull { .. }
            | Rejection::IdempotencyConflict
            | Rejection::NoRunAvailable
            | Rejection::NothingToResume
            | Rejection::OwnerLeaseExpired
            | Rejection::RequestIdConflict { .. }
            | Rejection::RunCancelling
            | Rejection::RunHasOutput
            | Rejection::SessionClosed
            | Rejection::StaleEpoch
            | Rejection::TokenNameTaken { .. } => {}
        }
        Self::new(ErrorCode::of(rejection), rejection.to_string()).extended(extensions)
    }
}
