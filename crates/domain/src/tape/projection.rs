//! The projection: events in, whole entries out, a step at a time (rules R19). What is still
//! growing waits in the tape's state, so that a step may end anywhere.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{EntryKind, EntrySource, NewEntry};
use crate::event::{EventKind, EventRecord, uploaded};
use crate::id::RunId;
use crate::limits;
use crate::time::Timestamp;

/// The projection's memory between two steps. Stored beside the tape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct TapeState {
    /// The last event that has been projected.
    pub tape_seq: u64,
    /// The last position given out.
    pub position: u64,
    /// The message that is still growing.
    pub open_text: Option<OpenText>,
    /// Tool calls without a result yet, in the order of their first event.
    pub open_calls: BTreeMap<u64, OpenCall>,
    /// Entries on the active tape.
    #[serde(default)]
    pub entries: u64,
    /// Live runs whose executors send their own entries: their uploads are not projected.
    #[serde(default)]
    pub own_tape: BTreeSet<RunId>,
    /// The calls of the present attempt that were answered last: what still comes of them is late and
    /// must not make a second entry of one call (fault 12).
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub closed_calls: VecDeque<String>,
}

/// Answered calls that are remembered. Late pieces come from calls that ran beside each other.
const CLOSED_CALLS: usize = 64;

impl TapeState {
    /// From here on the run's executor sends its own entries: what its uploads left open is
    /// dropped, and no more of them is projected.
    pub fn leave_to_executor(&mut self, run_id: RunId) {
        if self
            .open_text
            .as_ref()
            .is_some_and(|open| open.run_id == Some(run_id))
        {
            self.open_text = None;
        }
        self.open_calls
            .retain(|_, open| open.run_id != Some(run_id));
        self.own_tape.insert(run_id);
    }
}

/// A message that is still growing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenText {
    /// Thinking, or answer.
    pub thinking: bool,
    /// The agent's id of the message.
    pub message_id: Option<String>,
    /// Its text so far.
    pub text: String,
    /// The run.
    pub run_id: Option<RunId>,
    /// Its first event.
    pub first_seq: u64,
    /// When that was recorded.
    pub created_at: Timestamp,
}

/// A tool call without a result yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    /// The agent's id of the call.
    pub call_id: String,
    /// The tool.
    pub tool_name: String,
    /// Its arguments, as last reported.
    pub arguments: Value,
    /// Its result so far.
    pub result: Option<String>,
    /// Whether the result is an error.
    pub is_error: bool,
    /// Whether the call itself is complete and only its result is still to come.
    #[serde(default)]
    pub ended: bool,
    /// Whether the tool has finished; a result may still follow, until the agent speaks again.
    #[serde(default)]
    pub finished: bool,
    /// The run.
    pub run_id: Option<RunId>,
    /// When its first event was recorded.
    pub created_at: Timestamp,
}

/// What an open call gets as its answer when the run ends without one.
pub const NO_RESULT: &str = "[no result: the run ended before the tool answered]";

/// Projects the events after `state.tape_seq`, which must come in order and without gaps.
pub fn project(state: &mut TapeState, events: &[EventRecord]) -> Vec<NewEntry> {
    let mut entries = Vec::new();
    for event in events {
        step(state, event, &mut entries);
        state.tape_seq = event.session_seq;
    }
    entries
}

fn step(state: &mut TapeState, event: &EventRecord, entries: &mut Vec<NewEntry>) {
    if event.kind == EventKind::RunRequested.as_str() {
        close_text(state, entries);
        state.closed_calls.clear();
        let prompt = text_field(&event.payload.value(), "prompt");
        entries.push(entry(
            event,
            EntryKind::UserMessage,
            json!({"text": prompt}),
        ));
    } else if event.is_terminal() {
        close_run(state, event.run_id, entries);
        if let Some(run_id) = event.run_id {
            state.own_tape.remove(&run_id);
        }
        let payload = event.payload.value();
        if payload["never_requested"] == true {
            // A queued run that ends was never part of the conversation.
            return;
        }
        let end = json!({"status": payload["run_status"], "error": payload["error"]});
        entries.push(entry(event, EntryKind::RunEnd, end));
    } else if [EventKind::RunLeaseExpired, EventKind::RunReleased]
        .iter()
        .any(|kind| event.kind == kind.as_str())
    {
        close_run(state, event.run_id, entries);
        // Another attempt begins, by an executor that may not send entries.
        state.closed_calls.clear();
        if let Some(run_id) = event.run_id {
            state.own_tape.remove(&run_id);
        }
    } else if event
        .run_id
        .is_none_or(|run_id| !state.own_tape.contains(&run_id))
    {
        upload(state, event, entries);
    }
}

fn upload(state: &mut TapeState, event: &EventRecord, entries: &mut Vec<NewEntry>) {
    match event.kind.as_str() {
        uploaded::STREAM_DELTA => grow(state, event, false, "content", entries),
        uploaded::THINKING_DELTA => grow(state, event, true, "text", entries),
        uploaded::TOOL_CALL_BEGIN | uploaded::TOOL_CALL_DELTA => {
            close_text(state, entries);
            call(state, event);
        }
        uploaded::TOOL_RESULT_DELTA => result(state, event),
        uploaded::TOOL_CALL_END => {
            close_text(state, entries);
            call_end(state, event, entries);
        }
        uploaded::PLAN => {
            close_text(state, entries);
            close_answered(state, entries);
            entries.push(entry(event, EntryKind::Plan, event.payload.value()));
        }
        _ => {}
    }
}

fn entry(event: &EventRecord, kind: EntryKind, payload: Value) -> NewEntry {
    NewEntry {
        kind,
        payload,
        run_id: event.run_id,
        first_seq: event.first_seq(),
        created_at: event.recorded_at,
        anchor_type: None,
        source: EntrySource::Projection,
        meta: None,
    }
}

fn text_field(payload: &Value, name: &str) -> String {
    payload
        .get(name)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn grow(
    state: &mut TapeState,
    event: &EventRecord,
    thinking: bool,
    field: &str,
    entries: &mut Vec<NewEntry>,
) {
    let payload = event.payload.value();
    let piece = text_field(&payload, field);
    let message_id = payload
        .get("message_id")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let continues = state.open_text.as_ref().is_some_and(|open| {
        open.thinking == thinking
            && open.run_id == event.run_id
            && open.message_id == message_id
            && open.text.len() + piece.len() <= limits::EVENT_BYTES
    });
    if !continues {
        close_text(state, entries);
        close_answered(state, entries);
    }
    state
        .open_text
        .get_or_insert_with(|| OpenText {
            thinking,
            message_id,
            text: String::new(),
            run_id: event.run_id,
            first_seq: event.first_seq(),
            created_at: event.recorded_at,
        })
        .text
        .push_str(&piece);
}

fn close_text(state: &mut TapeState, entries: &mut Vec<NewEntry>) {
    let Some(open) = state.open_text.take() else {
        return;
    };
    // Providers refuse a message without text.
    if open.text.is_empty() {
        return;
    }
    entries.push(NewEntry {
        kind: if open.thinking {
            EntryKind::Thinking
        } else {
            EntryKind::AssistantMessage
        },
        payload: json!({"text": open.text}),
        run_id: open.run_id,
        first_seq: open.first_seq,
        created_at: open.created_at,
        anchor_type: None,
        source: EntrySource::Projection,
        meta: None,
    });
}

/// Closes ended calls that have their result, and finished ones without any: once the agent speaks
/// again, no more of it comes.
fn close_answered(state: &mut TapeState, entries: &mut Vec<NewEntry>) {
    close_calls(state, entries, |open| {
        open.ended && (open.finished || open.result.is_some())
    });
}

fn open_call(state: &TapeState, call_id: &str) -> Option<u64> {
    state
        .open_calls
        .iter()
        .find(|(_, open)| open.call_id == call_id)
        .map(|(seq, _)| *seq)
}

fn call(state: &mut TapeState, event: &EventRecord) {
    let payload = event.payload.value();
    let call_id = text_field(&payload, "call_id");
    let seq = match open_call(state, &call_id) {
        Some(seq) => seq,
        // An agent may use an id again, and says so by beginning.
        None if event.kind == uploaded::TOOL_CALL_BEGIN => {
            state.closed_calls.retain(|closed| *closed != call_id);
            event.first_seq()
        }
        None if state.closed_calls.contains(&call_id) => return,
        None => event.first_seq(),
    };
    let open = state.open_calls.entry(seq).or_insert_with(|| OpenCall {
        call_id,
        tool_name: String::new(),
        arguments: Value::Null,
        result: None,
        is_error: false,
        ended: false,
        finished: false,
        run_id: event.run_id,
        created_at: event.recorded_at,
    });
    if let Some(name) = payload
        .get("tool_name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
    {
        name.clone_into(&mut open.tool_name);
    }
    if let Some(arguments) = payload
        .get("arguments")
        .filter(|arguments| !arguments.is_null())
    {
        open.arguments = arguments.clone();
    }
}

/// With a result before it the call is answered. Without one it waits: some agents only say that the
/// arguments are complete, and some that the tool has finished before they show what it gave. Either
/// way the result belongs to the same entry.
fn call_end(state: &mut TapeState, event: &EventRecord, entries: &mut Vec<NewEntry>) {
    let payload = event.payload.value();
    let call_id = text_field(&payload, "call_id");
    let Some(seq) = open_call(state, &call_id) else {
        return;
    };
    let finished = payload.get("status").is_some_and(Value::is_string);
    match state.open_calls.get_mut(&seq) {
        Some(open) if open.result.is_none() => {
            open.ended = true;
            open.finished |= finished;
        }
        Some(_) | None => close_calls(state, entries, |open| open.call_id == call_id),
    }
}

fn result(state: &mut TapeState, event: &EventRecord) {
    let payload = event.payload.value();
    let call_id = text_field(&payload, "call_id");
    if open_call(state, &call_id).is_none() {
        call(state, event);
    }
    let Some(open) = open_call(state, &call_id).and_then(|seq| state.open_calls.get_mut(&seq))
    else {
        return;
    };
    let piece = match payload.get("display_result") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    let result = open.result.get_or_insert_with(String::new);
    if result.len() + piece.len() <= limits::EVENT_BYTES {
        result.push_str(&piece);
    }
    open.is_error |= payload
        .get("is_error")
        .and_then(Value::as_bool)
        .unwrap_or(false);
}

/// Closes what a run left open. A queued run may end while another one is working, and must leave
/// that one's message and calls alone.
fn close_run(state: &mut TapeState, run_id: Option<RunId>, entries: &mut Vec<NewEntry>) {
    if state
        .open_text
        .as_ref()
        .is_some_and(|open| open.run_id == run_id)
    {
        close_text(state, entries);
    }
    close_calls(state, entries, |open| open.run_id == run_id);
}

fn close_calls(
    state: &mut TapeState,
    entries: &mut Vec<NewEntry>,
    which: impl Fn(&OpenCall) -> bool,
) {
    let closed = state.open_calls.extract_if(.., |_, open| which(open));
    for (seq, open) in closed {
        if state.closed_calls.len() == CLOSED_CALLS {
            state.closed_calls.pop_front();
        }
        state.closed_calls.push_back(open.call_id.clone());
        entries.push(open.closed(seq));
    }
}

impl OpenCall {
    fn closed(self, first_seq: u64) -> NewEntry {
        let answered = self.result.is_some();
        NewEntry {
            kind: EntryKind::ToolCall,
            payload: json!({
                "call_id": self.call_id,
                "tool_name": self.tool_name,
                "arguments": self.arguments,
                "result": self.result.unwrap_or_else(|| NO_RESULT.to_owned()),
                "is_error": self.is_error || !answered,
            }),
            run_id: self.run_id,
            first_seq,
            created_at: self.created_at,
            anchor_type: None,
            source: EntrySource::Projection,
            meta: None,
        }
    }
}
