//! What a person sees of a log: one stored event becomes one display event, or none. Every event is
//! looked at alone, so a live stream can show it under its own number; a piece of a message stays a
//! piece. Tool calls and outputs are bounded and secrets of known shapes are replaced here; nothing
//! here writes, and the log keeps what it was given.

mod bound;
pub mod redact;

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::event::{EventKind, EventRecord, uploaded};
use crate::id::{RunId, SessionId};
use crate::session::text_enum;
use crate::time::Timestamp;

use bound::bounded;
pub(crate) use bound::cut;

text_enum! {
    /// The kinds of display event (design §4.5).
    DisplayKind {
        /// What the person asked: `{text, previous_run_id}`.
        UserMessage = "user_message",
        /// A piece of the answer: `{text, message_id}`. Pieces of one message have its id, or none,
        /// and follow each other; a folded message comes as one piece.
        AssistantMessage = "assistant_message",
        /// A piece of reasoning: `{text, message_id}`, put together like an answer.
        Thinking = "thinking",
        /// A tool call, as far as it is known: `{call_id, tool_name, tool_kind, title, phase
        /// (begin|update|end), status, arguments, truncated, original_bytes}`.
        ToolCall = "tool_call",
        /// A tool's output or a piece of it: `{call_id, tool_name, output, is_error, truncated,
        /// original_bytes}`.
        ToolResult = "tool_result",
        /// The whole plan: `{entries}`.
        Plan = "plan",
        /// A question or its end: `{request_id, interaction_id, kind, status, call_id, tool_name,
        /// arguments, options, message, form, timeout_seconds, approved, scope, feedback, response,
        /// resolved_by}`; a question leaves the last five null, an answer those before them.
        Approval = "approval",
        /// Where the run or the session stands: `{status, text}`.
        Status = "status",
        /// How the run ended: `{status, completion_status, error, recovery_reason}`.
        Result = "result",
    }
}

/// One event as a person sees it. Its number and id are those of the stored event.
#[derive(Debug, Clone, PartialEq)]
pub struct DisplayEvent {
    /// The stored event's id.
    pub event_id: String,
    /// The session.
    pub session_id: SessionId,
    /// The stored event's number.
    pub session_seq: u64,
    /// The run.
    pub run_id: Option<RunId>,
    /// The kind.
    pub kind: DisplayKind,
    /// A flat object whose fields [`DisplayKind`] names; each is there, null if it says nothing.
    pub payload: Value,
    /// When the producer made it.
    pub created_at: Timestamp,
    /// When the server recorded it.
    pub recorded_at: Timestamp,
}

impl DisplayEvent {
    /// What a person sees of a stored event; `None` where its kind has no display form.
    pub fn of(record: &EventRecord) -> Option<Self> {
        let source = SOURCES
            .iter()
            .find(|source| source.stored == record.kind.as_str())?;
        let mut payload = record.payload.value();
        redact::json(&mut payload);
        Some(Self {
            event_id: record.event_id.clone(),
            session_id: record.session_id,
            session_seq: record.session_seq,
            run_id: record.run_id,
            kind: source.shown,
            payload: (source.payload)(&payload),
            created_at: record.created_at,
            recorded_at: record.recorded_at,
        })
    }
}

/// The kinds of stored event that have a display form.
pub fn stored_kinds() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|source| source.stored)
}

impl DisplayKind {
    /// The kinds of stored event that are shown as this one.
    pub fn stored_kinds(self) -> impl Iterator<Item = &'static str> {
        SOURCES
            .iter()
            .filter(move |source| source.shown == self)
            .map(|source| source.stored)
    }
}

/// How one kind of stored event is shown.
struct Source {
    stored: &'static str,
    shown: DisplayKind,
    payload: fn(&Value) -> Value,
}

const fn server(stored: EventKind, shown: DisplayKind, payload: fn(&Value) -> Value) -> Source {
    executor(stored.as_str(), shown, payload)
}

const fn executor(
    stored: &'static str,
    shown: DisplayKind,
    payload: fn(&Value) -> Value,
) -> Source {
    Source {
        stored,
        shown,
        payload,
    }
}

/// A kind is shown as one kind always, so that a page or a stream can be selected by stored kinds.
const SOURCES: &[Source] = &[
    server(EventKind::RunRequested, DisplayKind::UserMessage, |event| {
        json!({
            "text": words(event, "prompt"),
            "previous_run_id": event["previous_run_id"],
        })
    }),
    executor(
        uploaded::STREAM_DELTA,
        DisplayKind::AssistantMessage,
        |event| piece(event, "content"),
    ),
    executor(uploaded::THINKING_DELTA, DisplayKind::Thinking, |event| {
        piece(event, "text")
    }),
    executor(uploaded::TOOL_CALL_BEGIN, DisplayKind::ToolCall, |event| {
        call(event, "begin")
    }),
    executor(uploaded::TOOL_CALL_DELTA, DisplayKind::ToolCall, |event| {
        call(event, "update")
    }),
    executor(uploaded::TOOL_CALL_END, DisplayKind::ToolCall, |event| {
        call(event, "end")
    }),
    executor(uploaded::TOOL_RESULT_DELTA, DisplayKind::ToolResult, result),
    executor(uploaded::PLAN, DisplayKind::Plan, plan),
    server(EventKind::ApprovalRequest, DisplayKind::Approval, question),
    server(EventKind::ApprovalResponse, DisplayKind::Approval, answer),
    server(EventKind::RunQueued, DisplayKind::Status, |_| {
        status("queued", Some("waits behind another run".into()))
    }),
    server(EventKind::RunClaimed, DisplayKind::Status, |event| {
        let by = event["executor_id"].as_str().unwrap_or("an executor");
        status("claimed", Some(format!("claimed by {by}").into()))
    }),
    server(EventKind::RunStarted, DisplayKind::Status, |_| {
        status("running", None)
    }),
    server(EventKind::RunReleased, DisplayKind::Status, |event| {
        let text = if event["reason"] == "handed_back" {
            "the executor gave the run back; it waits for another"
        } else {
            "the executor gave the run back before any output"
        };
        status("requested", Some(text.into()))
    }),
    server(EventKind::RunLeaseExpired, DisplayKind::Status, |event| {
        let text = if event["requeued"] == true {
            "the executor's lease ran out; the run waits for another"
        } else {
            "the executor's lease ran out"
        };
        status("lease_expired", Some(text.into()))
    }),
    server(EventKind::TurnCancelling, DisplayKind::Status, |_| {
        status("cancelling", None)
    }),
    server(EventKind::SessionClosed, DisplayKind::Status, |_| {
        status("closed", Some("the session takes no more runs".into()))
    }),
    server(
        EventKind::SessionConfigChanged,
        DisplayKind::Status,
        |event| {
            let changed: Vec<&str> = items(&event["changed"]).filter_map(Value::as_str).collect();
            let text = (!changed.is_empty()).then(|| changed.join(", ").into());
            status("settings_changed", text)
        },
    ),
    server(EventKind::SessionRestored, DisplayKind::Status, |event| {
        status("restored", event["label"].as_str().map(Cow::from))
    }),
    server(
        EventKind::CheckpointCaptured,
        DisplayKind::Status,
        |event| status("checkpoint", event["label"].as_str().map(Cow::from)),
    ),
    server(EventKind::SessionRepaired, DisplayKind::Status, |_| {
        status("repaired", None)
    }),
    server(EventKind::SessionForked, DisplayKind::Status, |event| {
        let source = event["forked_from_session_id"].as_str();
        let text = source.map(|source| format!("forked from {source}").into());
        status("forked", text)
    }),
    server(EventKind::OwnerChanged, DisplayKind::Status, |event| {
        let owner = event["owner_id"].as_str().unwrap_or("another process");
        let text = format!("the session is now {owner}'s");
        status("owner_changed", Some(text.into()))
    }),
    executor(uploaded::TURN_STATUS_DELTA, DisplayKind::Status, |event| {
        let said = ["text", "message", "reason"];
        let text = said.iter().find_map(|name| event[*name].as_str());
        status(
            event["status"].as_str().unwrap_or("status"),
            text.map(Cow::from),
        )
    }),
    executor(uploaded::ERROR, DisplayKind::Status, |event| {
        status("error", Some(words(event, "error")))
    }),
    server(EventKind::TurnEnd, DisplayKind::Result, |event| {
        json!({
            "status": event["run_status"],
            "completion_status": event["completion_status"],
            "error": event["error"],
            "recovery_reason": event["recovery_reason"],
        })
    }),
];

/// A field as text, whatever an executor put there.
fn words<'a>(event: &'a Value, name: &str) -> Cow<'a, str> {
    match &event[name] {
        Value::String(text) => text.into(),
        Value::Null => "".into(),
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            other.to_string().into()
        }
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn status(word: &str, text: Option<Cow<'_, str>>) -> Value {
    json!({"status": word, "text": text.map(Cow::into_owned)})
}

fn piece(event: &Value, field: &str) -> Value {
    json!({"text": words(event, field), "message_id": event["message_id"]})
}

fn call(event: &Value, phase: &str) -> Value {
    let arguments = bounded(&event["arguments"]);
    json!({
        "call_id": event["call_id"],
        "tool_name": event["tool_name"],
        "tool_kind": event["kind"],
        "title": event["title"],
        "phase": phase,
        "status": event["status"],
        "truncated": arguments.is_cut() || was_cut(event),
        "original_bytes": original_bytes(event, arguments.original_bytes),
        "arguments": arguments.value,
    })
}

fn result(event: &Value) -> Value {
    let output = words(event, "display_result");
    let (shown, original) = cut(&output);
    json!({
        "call_id": event["call_id"],
        "tool_name": event["tool_name"],
        "output": shown,
        "is_error": event["is_error"] == true,
        "truncated": original.is_some() || was_cut(event),
        "original_bytes": original_bytes(event, original),
    })
}

/// Whether the executor has already cut the payload.
fn was_cut(event: &Value) -> bool {
    event["truncated"] == true
}

/// The size before the first cut: the executor's word, if it was the first.
fn original_bytes(event: &Value, here: Option<usize>) -> Value {
    let told = &event["original_bytes"];
    if was_cut(event) && told.is_number() {
        told.clone()
    } else {
        json!(here)
    }
}

fn plan(event: &Value) -> Value {
    let entries = Value::Array(items(&event["entries"]).cloned().collect());
    json!({"entries": bounded(&entries).value})
}

fn question(event: &Value) -> Value {
    let call = &event["tool_call"];
    json!({
        "request_id": event["request_id"],
        "interaction_id": event["interaction_id"],
        "kind": kind(event),
        "status": event["status"],
        "call_id": call["call_id"],
        "tool_name": call["tool_name"],
        "arguments": bounded(&call["arguments"]).value,
        "options": bounded(&event["options"]).value,
        "message": event["message"],
        "form": event["form"],
        "timeout_seconds": event["timeout_seconds"],
        "approved": null,
        "scope": null,
        "feedback": null,
        "response": null,
        "resolved_by": null,
    })
}

/// Events of earlier versions name no kind: there were approvals only.
fn kind(event: &Value) -> Value {
    match &event["kind"] {
        Value::Null => json!("approval"),
        kind @ (Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => kind.clone(),
    }
}

fn answer(event: &Value) -> Value {
    json!({
        "request_id": event["request_id"],
        "interaction_id": event["interaction_id"],
        "kind": kind(event),
        "status": event["status"],
        "call_id": null,
        "tool_name": null,
        "arguments": null,
        "options": null,
        "message": null,
        "form": null,
        "timeout_seconds": null,
        "approved": event["approved"],
        "scope": event["scope"],
        "feedback": event["feedback"],
        "response": bounded(&event["response"]).value,
        "resolved_by": event["resolved_by"],
    })
}

#[cfg(test)]
mod tests;
