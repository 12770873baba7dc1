//! The tool calls of a session's runs. Agents number their calls anew in each run, so an id has its
//! run's in it; each call ends once, at the latest with its run.

use std::collections::HashMap;

use agent_client_protocol::v1::schema::{
    Content, ContentBlock, SessionUpdate, TextContent, ToolCall, ToolCallContent, ToolCallId,
    ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tapedeck_domain::RunId;

/// What an editor gets of a tool's output, in bytes.
const OUTPUT: usize = 64 * 1024;

type Fields = Map<String, Value>;

#[derive(Debug, Default)]
pub(super) struct Calls {
    open: HashMap<(RunId, String), Call>,
    begun: u64,
}

#[derive(Debug)]
struct Call {
    /// Its place among the calls.
    order: u64,
    /// What the editor was told of it last.
    known: ToolCallUpdateFields,
    ended: bool,
    is_error: Option<bool>,
}

impl Calls {
    /// A call begins, or more is known about it.
    pub(super) fn described(&mut self, run_id: RunId, fields: &Fields) -> Vec<SessionUpdate> {
        let Some(call_id) = text(fields, "call_id") else {
            return Vec::new();
        };
        let id = id_of(run_id, call_id);
        let known = ToolCallUpdateFields::new()
            .title(title(fields))
            .kind(read::<ToolKind>(fields, "kind"))
            .status(text(fields, "status").map(open_status))
            .locations(read::<Vec<ToolCallLocation>>(fields, "locations"))
            .raw_input(arguments(fields));
        let Some(call) = self.open.get_mut(&(run_id, call_id.to_owned())) else {
            let call = ToolCall::new(id, title(fields))
                .kind(known.kind.unwrap_or(ToolKind::Other))
                .status(known.status.unwrap_or_default())
                .locations(known.locations.clone().unwrap_or_default())
                .raw_input(known.raw_input.clone());
            self.begin(run_id, call_id, known);
            return vec![SessionUpdate::ToolCall(call)];
        };
        if call.ended || call.known == known {
            return Vec::new();
        }
        call.known = known.clone();
        vec![update(id, known)]
    }

    /// What a call shows.
    pub(super) fn result(&mut self, run_id: RunId, fields: &Fields) -> Vec<SessionUpdate> {
        let Some(call_id) = text(fields, "call_id") else {
            return Vec::new();
        };
        let mut updates = self.told(run_id, call_id, fields);
        if let Some(call) = self.open.get_mut(&(run_id, call_id.to_owned())) {
            call.is_error = fields.get("is_error").and_then(Value::as_bool);
        }
        let content = content(fields);
        if !content.is_empty() {
            let shown = ToolCallUpdateFields::new().content(content);
            updates.push(update(id_of(run_id, call_id), shown));
        }
        updates
    }

    /// A call ends.
    pub(super) fn ended(&mut self, run_id: RunId, fields: &Fields) -> Vec<SessionUpdate> {
        let Some(call_id) = text(fields, "call_id") else {
            return Vec::new();
        };
        let mut updates = self.told(run_id, call_id, fields);
        let key = (run_id, call_id.to_owned());
        if let Some(call) = self.open.get_mut(&key).filter(|call| !call.ended) {
            call.ended = true;
            let status = match text(fields, "status") {
                Some("completed") => ToolCallStatus::Completed,
                Some(_) => ToolCallStatus::Failed,
                None => last_status(call),
            };
            let fields = ToolCallUpdateFields::new().status(status);
            updates.push(update(id_of(run_id, call_id), fields));
        }
        updates
    }

    /// Ends what a run has left open, and forgets its calls.
    pub(super) fn close(&mut self, run_id: RunId) -> Vec<SessionUpdate> {
        let of_run = self.open.extract_if(|(run, _), _| *run == run_id);
        let mut left: Vec<(String, Call)> = of_run
            .filter(|(_, call)| !call.ended)
            .map(|((_, id), call)| (id, call))
            .collect();
        left.sort_by_key(|(_, call)| call.order);
        left.iter()
            .map(|(id, call)| {
                let fields = ToolCallUpdateFields::new().status(last_status(call));
                update(id_of(run_id, id), fields)
            })
            .collect()
    }

    /// The call that a question is about; it is told first if it wasn't yet. Without an id of its own
    /// the question stands for it.
    pub(super) fn asked_about(
        &mut self,
        run_id: RunId,
        request: &Value,
    ) -> (ToolCallUpdate, Option<SessionUpdate>) {
        let empty = Map::new();
        let fields = request["tool_call"].as_object().unwrap_or(&empty);
        let request_id = request["request_id"].as_str().unwrap_or("question");
        let call_id = text(fields, "call_id").unwrap_or(request_id).to_owned();
        let kind = read::<ToolKind>(fields, "tool_kind");
        let told = self
            .told(run_id, &call_id, fields)
            .pop()
            .map(|update| match update {
                SessionUpdate::ToolCall(call) => {
                    SessionUpdate::ToolCall(call.kind(kind.unwrap_or(ToolKind::Other)))
                }
                other => other,
            });
        let described = ToolCallUpdateFields::new()
            .title(title(fields))
            .kind(kind)
            .status(ToolCallStatus::Pending)
            .raw_input(arguments(fields));
        (
            ToolCallUpdate::new(id_of(run_id, &call_id), described),
            told,
        )
    }

    /// Tells a call that hasn't been told yet.
    fn told(&mut self, run_id: RunId, call_id: &str, fields: &Fields) -> Vec<SessionUpdate> {
        if self.open.contains_key(&(run_id, call_id.to_owned())) {
            return Vec::new();
        }
        self.begin(run_id, call_id, ToolCallUpdateFields::new());
        let call =
            ToolCall::new(id_of(run_id, call_id), title(fields)).raw_input(arguments(fields));
        vec![SessionUpdate::ToolCall(call)]
    }

    fn begin(&mut self, run_id: RunId, call_id: &str, known: ToolCallUpdateFields) {
        self.begun += 1;
        let call = Call {
            order: self.begun,
            known,
            ended: false,
            is_error: None,
        };
        self.open.insert((run_id, call_id.to_owned()), call);
    }
}

fn id_of(run_id: RunId, call_id: &str) -> ToolCallId {
    ToolCallId::from(format!("{run_id}/{call_id}"))
}

fn update(id: ToolCallId, fields: ToolCallUpdateFields) -> SessionUpdate {
    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields))
}

/// A call that has shown a result and got no end of its own has ended as that says.
fn last_status(call: &Call) -> ToolCallStatus {
    match call.is_error {
        Some(false) => ToolCallStatus::Completed,
        Some(true) | None => ToolCallStatus::Failed,
    }
}

/// The end of a call comes by itself, after its result.
fn open_status(word: &str) -> ToolCallStatus {
    match word {
        "pending" => ToolCallStatus::Pending,
        _ => ToolCallStatus::InProgress,
    }
}

fn title(fields: &Fields) -> String {
    let title = text(fields, "title").or(text(fields, "tool_name"));
    title.unwrap_or("tool").to_owned()
}

fn arguments(fields: &Fields) -> Option<Value> {
    fields
        .get("arguments")
        .filter(|value| !value.is_null())
        .cloned()
}

fn text<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str)
}

fn read<T: DeserializeOwned>(fields: &Fields, name: &str) -> Option<T> {
    serde_json::from_value(fields.get(name)?.clone()).ok()
}

/// Blocks as the agent gave them; what they show as text is bounded.
fn content(fields: &Fields) -> Vec<ToolCallContent> {
    if let Some(blocks) = fields.get("content").and_then(Value::as_array) {
        return blocks.iter().filter_map(block).collect();
    }
    match text(fields, "display_result") {
        Some(shown) if !shown.is_empty() => vec![shown_text(shown)],
        _ => Vec::new(),
    }
}

fn block(block: &Value) -> Option<ToolCallContent> {
    // A terminal was the executor's: the editor has none of that name.
    if block["type"] == "terminal" {
        return Some(shown_text(block["output"].as_str()?));
    }
    if let Some(text) = block["content"]["text"].as_str() {
        return Some(shown_text(text));
    }
    serde_json::from_value(block.clone()).ok()
}

fn shown_text(text: &str) -> ToolCallContent {
    let at = text.floor_char_boundary(OUTPUT);
    let mut shown = text[..at].to_owned();
    if at < text.len() {
        let more = format!("\n[{} more bytes]", text.len() - at);
        shown.push_str(&more);
    }
    ToolCallContent::Content(Content::new(ContentBlock::Text(TextContent::new(shown))))
}
