//! The tape: the settled conversation, projected from the log step by step (design §4.6; rules
//! R19). Deltas become whole messages; a tool call and its result are one entry, so no call can
//! stand there without an answer (fault 12).

mod projection;
pub mod upload;

use serde_json::{Value, json};

use crate::id::{CheckpointId, RunId, TapeEntryId};
use crate::limits;
use crate::session::text_enum;
use crate::time::Timestamp;

pub use projection::{NO_RESULT, OpenCall, OpenText, TapeState, project};

/// The anchor type that a resume writes.
pub const RESUME_BOUNDARY: &str = "resume_boundary";

text_enum! {
    /// The kinds of tape entry.
    EntryKind {
        /// What the person asked.
        UserMessage = "user_message",
        /// What the agent answered.
        AssistantMessage = "assistant_message",
        /// What the agent thought.
        Thinking = "thinking",
        /// A tool call with its result.
        ToolCall = "tool_call",
        /// A plan.
        Plan = "plan",
        /// A mark.
        Anchor = "anchor",
        /// How a run ended.
        RunEnd = "run_end",
    }
}

text_enum! {
    /// Where an entry comes from.
    EntrySource {
        /// Projected from the log.
        Projection = "projection",
        /// Sent by the run's executor instead.
        Executor = "executor",
        /// Written by a command, e.g. an anchor.
        Server = "server",
    }
}

/// An entry that is to be written. Its position comes from the tape's state.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEntry {
    /// The kind.
    pub kind: EntryKind,
    /// The payload.
    pub payload: Value,
    /// The run it belongs to.
    pub run_id: Option<RunId>,
    /// The number of the first event it was made from; with the run it is its key (R19).
    pub first_seq: u64,
    /// When that event was recorded.
    pub created_at: Timestamp,
    /// The type, for anchors.
    pub anchor_type: Option<String>,
    /// Where it comes from.
    pub source: EntrySource,
    /// The executor's notes.
    pub meta: Option<Value>,
}

/// Cuts a text to [`limits::RESUME_TEXT_BYTES`], at a character's end, and says so.
pub(crate) fn clip(text: &str) -> String {
    if text.len() <= limits::RESUME_TEXT_BYTES {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(limits::RESUME_TEXT_BYTES);
    format!("{} … [{} bytes cut]", &text[..end], text.len() - end)
}

fn clip_texts(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > limits::RESUME_TEXT_BYTES => *text = clip(text),
        Value::Array(items) => items.iter_mut().for_each(clip_texts),
        Value::Object(fields) => fields.values_mut().for_each(clip_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// An entry as it stands on the tape.
#[derive(Debug, Clone, PartialEq)]
pub struct TapeEntry {
    /// Rises for ever.
    pub position: u64,
    /// The identifier.
    pub entry_id: TapeEntryId,
    /// The kind.
    pub kind: EntryKind,
    /// The payload.
    pub payload: Value,
    /// The type, for anchors.
    pub anchor_type: Option<String>,
    /// The run.
    pub run_id: Option<RunId>,
    /// The first event it was made from.
    pub first_seq: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// Where it comes from.
    pub source: EntrySource,
    /// The executor's notes.
    pub meta: Option<Value>,
    /// The checkpoint whose restore put it aside.
    pub superseded_by_checkpoint_id: Option<CheckpointId>,
}

impl TapeEntry {
    /// A new entry at its place.
    pub fn placed(position: u64, entry_id: TapeEntryId, entry: NewEntry) -> Self {
        Self {
            position,
            entry_id,
            kind: entry.kind,
            payload: entry.payload,
            anchor_type: entry.anchor_type,
            run_id: entry.run_id,
            first_seq: entry.first_seq,
            created_at: entry.created_at,
            source: entry.source,
            meta: entry.meta,
            superseded_by_checkpoint_id: None,
        }
    }

    /// The entry in a form for structured contexts.
    pub fn shown(&self) -> Value {
        json!({
            "position": self.position,
            "entry_id": self.entry_id,
            "kind": self.kind,
            "payload": self.payload,
            "run_id": self.run_id,
        })
    }

    /// The entry with every text in its payload cut to [`limits::RESUME_TEXT_BYTES`].
    #[must_use]
    pub fn clipped(&self) -> Self {
        let mut entry = self.clone();
        clip_texts(&mut entry.payload);
        entry
    }

    /// One or more lines for a context note.
    pub fn text(&self) -> String {
        let field = |name: &str| {
            self.payload
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        match self.kind {
            EntryKind::UserMessage => format!("User: {}", field("text")),
            EntryKind::AssistantMessage => format!("Assistant: {}", field("text")),
            EntryKind::Thinking => format!("Assistant (thinking): {}", field("text")),
            EntryKind::ToolCall => format!(
                "Tool `{}` {} -> {}",
                field("tool_name"),
                self.payload.get("arguments").unwrap_or(&Value::Null),
                field("result"),
            ),
            EntryKind::Plan => format!("Plan: {}", self.payload),
            EntryKind::Anchor => {
                format!("-- {} --", self.anchor_type.as_deref().unwrap_or("anchor"))
            }
            EntryKind::RunEnd => format!("Run ended as `{}` {}", field("status"), field("error")),
        }
    }
}

#[cfg(test)]
mod tests;
