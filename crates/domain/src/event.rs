//! Events: the immutable records of a session's log, numbered by `session_seq` (design §4.5).

use serde_json::{Map, Value, json};

use crate::claim::Claim;
use crate::digest::Digest;
use crate::id::{RunId, RunKey, SessionId};
use crate::json::JsonText;
use crate::run::LiveRun;
use crate::session::text_enum;
use crate::time::Timestamp;

text_enum! {
    /// The kinds that only the server writes.
    EventKind {
        /// An open question.
        ApprovalRequest = "ApprovalRequest",
        /// Its answer, or its end without one.
        ApprovalResponse = "ApprovalResponse",
        /// A checkpoint was captured.
        CheckpointCaptured = "CheckpointCaptured",
        /// The session's owner changed.
        OwnerChanged = "OwnerChanged",
        /// An executor took the run.
        RunClaimed = "RunClaimed",
        /// A claim ended without a completion.
        RunLeaseExpired = "RunLeaseExpired",
        /// The run waits behind another.
        RunQueued = "RunQueued",
        /// The executor gave the run back before any output.
        RunReleased = "RunReleased",
        /// The run waits for an executor.
        RunRequested = "RunRequested",
        /// The executor was heard of for the first time.
        RunStarted = "RunStarted",
        /// The session was closed.
        SessionClosed = "SessionClosed",
        /// The session began as a fork of another.
        SessionForked = "SessionForked",
        /// A repair brought derived columns back in line.
        SessionRepaired = "SessionRepaired",
        /// Settings changed.
        SessionConfigChanged = "SessionConfigChanged",
        /// The session was put back to a checkpoint.
        SessionRestored = "SessionRestored",
        /// A cancel was asked for.
        TurnCancelling = "TurnCancelling",
        /// The run's one terminal event.
        TurnEnd = "TurnEnd",
    }
}

/// Kinds from executors that rules look into.
pub mod uploaded {
    /// A piece of the answer, `{content, role}`.
    pub const STREAM_DELTA: &str = "StreamDelta";
    /// A piece of reasoning, `{text}`.
    pub const THINKING_DELTA: &str = "ThinkingDelta";
    /// A tool call begins, `{call_id, tool_name}`.
    pub const TOOL_CALL_BEGIN: &str = "ToolCallBegin";
    /// A tool call or a piece of it, `{call_id, tool_name, arguments}`.
    pub const TOOL_CALL_DELTA: &str = "ToolCallDelta";
    /// A tool call ends, `{call_id, status}`.
    pub const TOOL_CALL_END: &str = "ToolCallEnd";
    /// A tool's result, `{call_id, display_result, is_error}`.
    pub const TOOL_RESULT_DELTA: &str = "ToolResultDelta";
    /// A plan.
    pub const PLAN: &str = "Plan";
    /// The turn begins: no output yet.
    pub const TURN_BEGIN: &str = "TurnBegin";
    /// A status line: no output yet.
    pub const TURN_STATUS_DELTA: &str = "TurnStatusDelta";
    /// An error that the turn survives or that explains its end, `{error}`.
    pub const ERROR: &str = "Error";
}

/// Event ids with this prefix are the server's (rules R11).
pub const SERVER_ID_PREFIX: &str = "srv:";

/// Frames of this prefix are a stream's own and no events, so no event may have such a kind.
pub const STREAM_PREFIX: &str = "stream.";

/// The number that every log begins with. Folds swallow numbers and remove none, so it stays the
/// oldest one.
pub const OLDEST_SEQ: u64 = 1;

/// The id of the server's event with this number.
pub fn server_event_id(session_seq: u64) -> String {
    format!("{SERVER_ID_PREFIX}{session_seq}")
}

/// An event that is to be appended; its number comes from the locked head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The producer's id; `None` is the server's own.
    pub event_id: Option<String>,
    /// The kind.
    pub kind: String,
    /// The payload.
    pub payload: JsonText,
    /// Digest of kind and payload (rules R12); `None` for the server's own.
    pub digest: Option<Digest>,
    /// The run.
    pub run: Option<(RunKey, RunId)>,
    /// The attempt.
    pub attempt: Option<u32>,
    /// The executor.
    pub executor_id: Option<String>,
    /// The trace.
    pub trace_id: Option<String>,
    /// When the producer made it; `None` is now.
    pub created_at: Option<Timestamp>,
}

impl Draft {
    /// An event of the server's own.
    pub fn server(kind: EventKind, payload: Value) -> Self {
        Self {
            event_id: None,
            kind: kind.as_str().to_owned(),
            payload: payload.into(),
            digest: None,
            run: None,
            attempt: None,
            executor_id: None,
            trace_id: None,
            created_at: None,
        }
    }

    /// Links it to a run.
    #[must_use]
    pub fn of_run(mut self, run: &LiveRun) -> Self {
        self.run = Some((run.key, run.run_id));
        self
    }

    /// Links it to a run by its ids.
    #[must_use]
    pub const fn of(mut self, key: RunKey, run_id: RunId) -> Self {
        self.run = Some((key, run_id));
        self
    }

    /// Names the claim it comes from.
    #[must_use]
    pub fn by(mut self, claim: &Claim) -> Self {
        self.attempt = Some(claim.attempt);
        self.executor_id = Some(claim.executor_id.clone());
        self
    }

    /// Gives it the next number of the log.
    pub fn record(self, session_id: SessionId, session_seq: u64, now: Timestamp) -> NewEvent {
        let event_id = self
            .event_id
            .unwrap_or_else(|| server_event_id(session_seq));
        NewEvent {
            run_key: self.run.map(|(key, _)| key),
            digest: self.digest,
            record: EventRecord {
                event_id,
                session_id,
                session_seq,
                run_id: self.run.map(|(_, run_id)| run_id),
                kind: self.kind,
                payload: self.payload,
                folded_from: None,
                attempt: self.attempt,
                executor_id: self.executor_id,
                trace_id: self.trace_id,
                created_at: self.created_at.unwrap_or(now),
                recorded_at: now,
            },
        }
    }
}

/// A numbered event on its way into the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// The run's row number.
    pub run_key: Option<RunKey>,
    /// Digest of kind and payload, for uploads.
    pub digest: Option<Digest>,
    /// What readers will see.
    pub record: EventRecord,
}

/// One event as readers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Chosen by the producer.
    pub event_id: String,
    /// The session.
    pub session_id: SessionId,
    /// Its number in the session's log, from 1, without gaps.
    pub session_seq: u64,
    /// The run.
    pub run_id: Option<RunId>,
    /// The kind.
    pub kind: String,
    /// The payload.
    pub payload: JsonText,
    /// The first of the numbers that a folded event stands for (rules R20); `None` where it stands
    /// for its own only.
    pub folded_from: Option<u64>,
    /// The attempt it came from.
    pub attempt: Option<u32>,
    /// The executor it came from.
    pub executor_id: Option<String>,
    /// The trace it belongs to.
    pub trace_id: Option<String>,
    /// When the producer made it.
    pub created_at: Timestamp,
    /// When the server recorded it.
    pub recorded_at: Timestamp,
}

impl EventRecord {
    /// The first number it stands for: its own, unless it was folded.
    pub fn first_seq(&self) -> u64 {
        self.folded_from.unwrap_or(self.session_seq)
    }

    /// Whether it is a run's terminal event.
    pub fn is_terminal(&self) -> bool {
        self.kind == EventKind::TurnEnd.as_str()
    }
}

/// The payload of `RunRequested` and `RunQueued` (design §4.5).
pub fn requested_payload(
    status: &str,
    prompt: &str,
    previous: Option<RunId>,
    from_event: Option<&str>,
) -> Value {
    let mut payload = Map::new();
    payload.insert("status".to_owned(), json!(status));
    payload.insert("prompt".to_owned(), json!(prompt));
    if let Some(previous) = previous {
        payload.insert("previous_run_id".to_owned(), json!(previous));
        payload.insert("resume_from_run_id".to_owned(), json!(previous));
    }
    if let Some(from_event) = from_event {
        payload.insert("resume_from_event_id".to_owned(), json!(from_event));
    }
    Value::Object(payload)
}
