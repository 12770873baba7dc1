//! Message snapshots: the provider messages of a run as last reported (design §4.6). They are kept
//! as they came; what the next run gets answers each tool call exactly once (fault 12).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::id::RunId;
use crate::tape::NO_RESULT;
use crate::time::Timestamp;

/// The provider messages of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageSnapshot {
    /// The run.
    pub run_id: RunId,
    /// The messages, in the provider's own form.
    pub messages: Vec<Value>,
    /// The executor's notes.
    pub metadata: Map<String, Value>,
    /// The attempt that reported it.
    pub attempt: u32,
    /// When the run first reported one.
    pub created_at: Timestamp,
    /// When it was last reported.
    pub updated_at: Timestamp,
}

/// What is known of a snapshot without its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotFacts {
    /// The run.
    pub run_id: RunId,
    /// How many messages.
    pub message_count: u64,
    /// Bytes of their JSON.
    pub bytes: u64,
}

/// The id of a run's snapshot.
pub fn snapshot_id(run_id: RunId) -> String {
    format!("{run_id}:latest")
}

impl SnapshotFacts {
    /// The snapshot's id.
    pub fn snapshot_id(&self) -> String {
        snapshot_id(self.run_id)
    }
}

/// The messages with every tool call answered exactly once, right after the message that made it:
/// missing answers are added, second ones and those to no call are left out. Both common forms are
/// known: `tool_calls` answered by messages of role `tool`, and content blocks `tool_use` answered by
/// `tool_result` blocks of the next user message. Messages of any other form pass as they are.
pub fn answered(messages: &[Value]) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    let mut open = OpenCalls::default();
    for message in messages {
        match message.get("role").and_then(Value::as_str) {
            Some("tool") => {
                let id = text(message, "tool_call_id");
                if id.is_some_and(|id| open.tools.remove(id)) {
                    out.push(message.clone());
                }
                continue;
            }
            Some("user") if has_block(message, "tool_result") || !open.blocks.is_empty() => {
                open.close_tools(&mut out);
                let message = open.close_blocks(message);
                if message
                    .get("content")
                    .is_some_and(|content| !is_empty(content))
                {
                    out.push(message);
                }
                continue;
            }
            Some(_) | None => {}
        }
        open.close(&mut out);
        open = OpenCalls::of(message);
        out.push(message.clone());
    }
    open.close(&mut out);
    out
}

/// Calls of the newest assistant message that wait for their answers.
#[derive(Default)]
struct OpenCalls {
    tools: BTreeSet<String>,
    blocks: BTreeSet<String>,
}

impl OpenCalls {
    fn of(message: &Value) -> Self {
        let calls = message.get("tool_calls").and_then(Value::as_array);
        let blocks = message.get("content").and_then(Value::as_array);
        Self {
            tools: calls
                .into_iter()
                .flatten()
                .filter_map(|call| text(call, "id").map(str::to_owned))
                .collect(),
            blocks: blocks
                .into_iter()
                .flatten()
                .filter(|block| text(block, "type") == Some("tool_use"))
                .filter_map(|block| text(block, "id").map(str::to_owned))
                .collect(),
        }
    }

    fn close_tools(&mut self, out: &mut Vec<Value>) {
        for id in std::mem::take(&mut self.tools) {
            out.push(json!({"role": "tool", "tool_call_id": id, "content": NO_RESULT}));
        }
    }

    /// Answers what is still open where no user message follows that could hold the answers.
    fn close(&mut self, out: &mut Vec<Value>) {
        self.close_tools(out);
        if !self.blocks.is_empty() {
            out.push(self.close_blocks(&json!({"role": "user", "content": []})));
        }
    }

    /// The user message with exactly the answers that are waited for, which come first in it.
    fn close_blocks(&mut self, message: &Value) -> Value {
        let given = match message.get("content") {
            Some(Value::Array(blocks)) => blocks.clone(),
            Some(Value::String(said)) => vec![json!({"type": "text", "text": said})],
            Some(_) | None => Vec::new(),
        };
        let (mut answers, mut rest) = (Vec::new(), Vec::new());
        for block in given {
            if text(&block, "type") != Some("tool_result") {
                rest.push(block);
            } else if text(&block, "tool_use_id").is_some_and(|id| self.blocks.remove(id)) {
                answers.push(block);
            }
        }
        for id in std::mem::take(&mut self.blocks) {
            answers.push(json!({
                "type": "tool_result", "tool_use_id": id, "content": NO_RESULT, "is_error": true,
            }));
        }
        answers.extend(rest);
        let mut message = message.clone();
        message["content"] = Value::Array(answers);
        message
    }
}

fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str)
}

fn has_block(message: &Value, kind: &str) -> bool {
    message
        .get("content")
        .and_then(Value::as_array)
        .is_some_and(|blocks| blocks.iter().any(|block| text(block, "type") == Some(kind)))
}

fn is_empty(content: &Value) -> bool {
    content.as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests;
