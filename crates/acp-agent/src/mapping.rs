//! A session's events as the protocol's updates. It owns the ids of messages and tool calls, which
//! are the same each time a session is told, and the bounds of what one update carries. It sends
//! nothing.

mod calls;
mod messages;
mod reports;

use agent_client_protocol::v1::schema::{SessionUpdate, ToolCallUpdate};
use serde_json::Value;
use tapedeck_client::StreamEvent;
use tapedeck_domain::RunId;

use calls::Calls;
use messages::{Messages, Voice};

/// The text of one update, in bytes; six times as much as JSON at worst.
const PIECE: usize = 128 * 1024;

/// What the client wants to be told beside the conversation itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wants {
    /// Information for the person that is no part of the conversation.
    pub(crate) notices: bool,
    /// Compactions of the agent's context.
    pub(crate) compaction: bool,
    /// Forms to fill in.
    pub(crate) forms: bool,
}

/// A session's events on their way to the editor.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    wants: Wants,
    messages: Messages,
    calls: Calls,
}

impl Mapping {
    pub(crate) fn new(wants: Wants) -> Self {
        Self {
            wants,
            ..Self::default()
        }
    }

    /// The updates for an event. `is_own` says that the editor sent the prompt itself, and gets the
    /// run's failure as the answer to it.
    pub(crate) fn event(&mut self, event: &StreamEvent, is_own: bool) -> Vec<SessionUpdate> {
        let Some(run_id) = event.run_id else {
            return Vec::new();
        };
        match event.kind.as_str() {
            "StreamDelta" => self.messages.piece(event, Voice::Agent, "content"),
            "ThinkingDelta" => self.messages.piece(event, Voice::Thought, "text"),
            "RunRequested" if is_own => Vec::new(),
            "RunRequested" => self.messages.prompt(run_id, event.text("prompt")),
            "agent.content" => self.messages.content(event),
            "TurnEnd" => self.turn_end(run_id, event, is_own),
            "TurnStatusDelta" => self.status(event),
            kind => {
                let updates = match kind {
                    "ToolCallBegin" | "ToolCallDelta" => self.calls.described(run_id, &event.data),
                    "ToolResultDelta" => self.calls.result(run_id, &event.data),
                    "ToolCallEnd" => self.calls.ended(run_id, &event.data),
                    _ => reports::update(kind, &event.data, self.wants)
                        .into_iter()
                        .collect(),
                };
                if !updates.is_empty() {
                    // What comes after a tool call is another message.
                    self.messages.interrupt();
                }
                updates
            }
        }
    }

    /// The tool call that a question is about, and, if the editor doesn't know it yet, the update
    /// that tells.
    pub(crate) fn asked_about(
        &mut self,
        run_id: RunId,
        tool_call: &Value,
    ) -> (ToolCallUpdate, Option<SessionUpdate>) {
        self.messages.interrupt();
        self.calls.asked_about(run_id, tool_call)
    }

    /// A line of ours for the person at the editor.
    pub(crate) fn remark(&mut self, id: &str, text: &str) -> SessionUpdate {
        self.messages.interrupt();
        reports::remark(id, text, self.wants)
    }

    /// A status that has a reason: that of one without is in what else comes.
    fn status(&mut self, event: &StreamEvent) -> Vec<SessionUpdate> {
        let (Some(status), Some(reason)) = (event.text("status"), event.text("reason")) else {
            return Vec::new();
        };
        let text = format!("{}: {reason}", status.replace('_', " "));
        vec![self.remark(&format!("{}/status", event.session_seq), &text)]
    }

    fn turn_end(&mut self, run_id: RunId, event: &StreamEvent, is_own: bool) -> Vec<SessionUpdate> {
        self.messages.interrupt();
        let mut updates = self.calls.close(run_id);
        let status = event.text("run_status").unwrap_or_default();
        if !is_own && matches!(status, "failed" | "interrupted") {
            let error = event.text("error").unwrap_or("no reason is known");
            let text = format!("The run {}: {error}", ended(status));
            updates.push(self.remark(&format!("{run_id}/end"), &text));
        }
        updates
    }
}

fn ended(status: &str) -> &'static str {
    match status {
        "interrupted" => "was interrupted",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests;
