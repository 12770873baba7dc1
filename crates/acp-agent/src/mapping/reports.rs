//! What an agent reports of its session besides the conversation. What the protocol's types don't
//! take is left out: it was a report, and no part of the conversation is lost.

use agent_client_protocol::v1::schema::{MessageId, Notice, NoticeSeverity, SessionUpdate};
use serde_json::{Map, Value, json};

use super::Wants;
use super::messages::text_chunk;

/// The update for a report.
pub(super) fn update(kind: &str, data: &Map<String, Value>, wants: Wants) -> Option<SessionUpdate> {
    let field = |name: &str| data.get(name).cloned().unwrap_or_default();
    let update = match kind {
        "Plan" => json!({"sessionUpdate": "plan", "entries": field("entries")}),
        "Usage" => json!({"sessionUpdate": "usage_update", "used": field("used"),
            "size": field("size"), "cost": field("cost")}),
        "agent.commands" => json!({"sessionUpdate": "available_commands_update",
            "availableCommands": field("commands")}),
        "agent.session" => session_info(data),
        "agent.notice" if wants.notices => json!({"sessionUpdate": "notice",
            "severity": field("severity"), "title": field("title"),
            "description": field("description")}),
        "agent.compaction" if wants.compaction => compaction(data),
        _ => return None,
    };
    serde_json::from_value(update).ok()
}

/// A line of ours: a notice where the client takes them, else a message.
pub(super) fn remark(id: &str, text: &str, wants: Wants) -> SessionUpdate {
    if wants.notices {
        return SessionUpdate::Notice(Notice::new(NoticeSeverity::Warning, text));
    }
    let id = MessageId::from(id.to_owned());
    SessionUpdate::AgentMessageChunk(text_chunk(text).message_id(id))
}

fn session_info(data: &Map<String, Value>) -> Value {
    let names = [("title", "title"), ("updated_at", "updatedAt")];
    renamed("session_info_update", data, &names)
}

/// The two reports of a compaction share a kind of event; only one of them has a status.
fn compaction(data: &Map<String, Value>) -> Value {
    let is_summary = data.contains_key("content");
    let word = if is_summary {
        "compaction_summary_chunk"
    } else {
        "compaction_update"
    };
    let names = [
        ("compaction_id", "compactionId"),
        ("status", "status"),
        ("summary", "summary"),
        ("error", "error"),
        ("content", "content"),
    ];
    renamed(word, data, &names)
}

/// An update of this kind with the fields that are there, under the protocol's names.
fn renamed(kind: &str, data: &Map<String, Value>, names: &[(&str, &str)]) -> Value {
    let mut update = json!({"sessionUpdate": kind});
    for (ours, theirs) in names {
        if let Some(value) = data.get(*ours) {
            update[*theirs] = value.clone();
        }
    }
    update
}
