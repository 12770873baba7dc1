//! The updates and questions of the protocol, as values. It owns their wording and which kind a
//! tool's name stands for, and must never send anything.

use agent_client_protocol::v1::schema::{
    Content, ContentBlock, ContentChunk, MessageId, PermissionOption, PermissionOptionKind, Plan,
    PlanEntry, PlanEntryPriority, PlanEntryStatus, RequestPermissionRequest, SessionId,
    SessionUpdate, TextContent, ToolCall, ToolCallContent, ToolCallId, ToolCallStatus,
    ToolCallUpdate, ToolCallUpdateFields, ToolKind, UsageUpdate,
};
use serde_json::Value;

use super::script::Call;

const ALLOW_ONCE: &str = "allow-once";
const ALLOW_ALWAYS: &str = "allow-always";
const REJECT_ONCE: &str = "reject-once";

/// A piece of the message `id`.
pub(super) fn message(id: &MessageId, text: &str) -> SessionUpdate {
    SessionUpdate::AgentMessageChunk(chunk(text).message_id(id.clone()))
}

pub(super) fn thought(text: &str) -> SessionUpdate {
    SessionUpdate::AgentThoughtChunk(chunk(text))
}

/// An earlier prompt, told again.
pub(super) fn prompt(text: &str) -> SessionUpdate {
    SessionUpdate::UserMessageChunk(chunk(text))
}

fn chunk(text: &str) -> ContentChunk {
    ContentChunk::new(ContentBlock::Text(TextContent::new(text)))
}

/// A plan of which the first `done` entries are.
pub(super) fn plan(entries: &[String], done: usize) -> SessionUpdate {
    let entry = |(at, text): (usize, &String)| {
        let status = match at.cmp(&done) {
            std::cmp::Ordering::Less => PlanEntryStatus::Completed,
            std::cmp::Ordering::Equal => PlanEntryStatus::InProgress,
            std::cmp::Ordering::Greater => PlanEntryStatus::Pending,
        };
        PlanEntry::new(text.clone(), PlanEntryPriority::Medium, status)
    };
    SessionUpdate::Plan(Plan::new(entries.iter().enumerate().map(entry).collect()))
}

pub(super) fn usage(used: u64) -> SessionUpdate {
    SessionUpdate::UsageUpdate(UsageUpdate::new(used, 200_000))
}

/// A tool call that has been thought of and not begun.
pub(super) fn tool_pending(id: &ToolCallId, call: &Call) -> SessionUpdate {
    SessionUpdate::ToolCall(
        ToolCall::new(id.clone(), call.tool.clone())
            .kind(kind(&call.tool))
            .status(ToolCallStatus::Pending)
            .raw_input(call.arguments.clone()),
    )
}

pub(super) fn tool_running(id: &ToolCallId) -> SessionUpdate {
    let fields = ToolCallUpdateFields::new().status(ToolCallStatus::InProgress);
    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id.clone(), fields))
}

/// The end of a tool call: what it shows, and what it gave.
pub(super) fn tool_ended(
    id: &ToolCallId,
    status: ToolCallStatus,
    shown: Vec<ToolCallContent>,
    output: Option<Value>,
) -> SessionUpdate {
    let fields = ToolCallUpdateFields::new()
        .status(status)
        .content(shown)
        .raw_output(output);
    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id.clone(), fields))
}

pub(super) fn shown_text(text: &str) -> Vec<ToolCallContent> {
    vec![ToolCallContent::Content(Content::new(ContentBlock::Text(
        TextContent::new(text),
    )))]
}

/// The question whether `call` may be made.
pub(super) fn question(
    session: &SessionId,
    id: &ToolCallId,
    call: &Call,
) -> RequestPermissionRequest {
    let fields = ToolCallUpdateFields::new()
        .title(call.tool.clone())
        .kind(kind(&call.tool))
        .status(ToolCallStatus::Pending)
        .raw_input(call.arguments.clone());
    let options = vec![
        PermissionOption::new(ALLOW_ONCE, "Allow once", PermissionOptionKind::AllowOnce),
        PermissionOption::new(
            ALLOW_ALWAYS,
            "Always allow",
            PermissionOptionKind::AllowAlways,
        ),
        PermissionOption::new(REJECT_ONCE, "Reject", PermissionOptionKind::RejectOnce),
    ];
    let call = ToolCallUpdate::new(id.clone(), fields);
    RequestPermissionRequest::new(session.clone(), call, options)
}

/// Whether the chosen option lets the call happen; an option that was never offered does not.
pub(super) fn allows(option: &str) -> bool {
    option == ALLOW_ONCE || option == ALLOW_ALWAYS
}

fn kind(tool: &str) -> ToolKind {
    let word = tool.split(['_', '-', '.', '/']).next().unwrap_or(tool);
    match word.to_ascii_lowercase().as_str() {
        "read" | "list" | "ls" | "cat" | "view" => ToolKind::Read,
        "write" | "edit" | "patch" | "create" => ToolKind::Edit,
        "delete" | "rm" | "remove" => ToolKind::Delete,
        "move" | "mv" | "rename" => ToolKind::Move,
        "grep" | "search" | "find" | "glob" => ToolKind::Search,
        "bash" | "sh" | "shell" | "run" | "exec" => ToolKind::Execute,
        "fetch" | "web" => ToolKind::Fetch,
        _ => ToolKind::Other,
    }
}
