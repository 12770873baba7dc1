//! The tool calls of a turn. It owns their merged state: agents report them in any order and by
//! three kinds of messages, so each is an upsert by id. A status must never move backwards, and a
//! call must never end twice.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::backend::{AgentEvent, naming};
use crate::process::Redactor;

#[derive(Debug, Default)]
pub(super) struct Tools {
    calls: HashMap<String, Call>,
    /// In the order of their beginning, to close them in it.
    order: Vec<String>,
}

#[derive(Debug, Default)]
struct Call {
    name: String,
    fields: Map<String, Value>,
    ended: bool,
}

impl Call {
    fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }

    fn arguments(&self) -> Value {
        match self.fields.get("rawInput") {
            Some(input) => input.clone(),
            None => json!({}),
        }
    }
}

/// Statuses in their order; the agent's own words are something in between.
fn rank(status: &str) -> u8 {
    match status {
        "pending" => 0,
        "completed" | "failed" => 2,
        _ => 1,
    }
}

impl Tools {
    /// Merges what a message says about a call. `None` if it names no call.
    pub(super) fn upsert(
        &mut self,
        message: &Value,
        redactor: &Redactor,
    ) -> Option<Vec<AgentEvent>> {
        let id = &naming::call_id(message["toolCallId"].as_str()?, redactor);
        let mut events = Vec::new();
        let begun = self.calls.contains_key(id);
        let call = self.calls.entry(id.clone()).or_default();
        if call.ended {
            let late = json!({"update": message});
            return Some(vec![AgentEvent::new("agent.raw", late, redactor)]);
        }
        let changed = merge(&mut call.fields, message);
        if !begun || message["name"].is_string() {
            call.name = name_of(call, redactor);
        }
        if !begun {
            self.order.push(id.clone());
            events.push(AgentEvent::new(
                "ToolCallBegin",
                begin_payload(id, call),
                redactor,
            ));
        }
        let status = call.text("status").unwrap_or("pending").to_owned();
        let has_input = call.fields.contains_key("rawInput");
        if (begun && changed) || (!begun && has_input) {
            events.push(AgentEvent::new(
                "ToolCallDelta",
                begin_payload(id, call),
                redactor,
            ));
        }
        if rank(&status) == 2 {
            call.ended = true;
            events.push(AgentEvent::new(
                "ToolResultDelta",
                result_payload(id, call),
                redactor,
            ));
            let end = json!({"call_id": id, "tool_name": call.name, "status": status});
            events.push(AgentEvent::new("ToolCallEnd", end, redactor));
        }
        Some(events)
    }

    /// The name and arguments to ask about.
    pub(super) fn subject(&self, id: &str) -> Option<(String, Value)> {
        let call = self.calls.get(id)?;
        let mut arguments = call.arguments();
        if !call.fields.contains_key("rawInput") {
            // Without input the description is all that a person can judge by.
            let known = ["title", "kind", "locations", "content"];
            arguments = known
                .iter()
                .filter_map(|field| Some(((*field).to_owned(), call.fields.get(*field)?.clone())))
                .collect::<Map<_, _>>()
                .into();
        }
        Some((call.name.clone(), arguments))
    }

    /// Whether the agent says that this call only reads.
    pub(super) fn only_reads(&self, id: &str) -> bool {
        matches!(self.kind(id), Some("read" | "search" | "think"))
    }

    /// What kind of tool it is, in the agent's words.
    pub(super) fn kind(&self, id: &str) -> Option<&str> {
        self.calls.get(id)?.text("kind")
    }

    /// Ends the calls that the agent left open.
    pub(super) fn close(&mut self, status: &str, redactor: &Redactor) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        for id in &self.order {
            if let Some(call) = self.calls.get_mut(id).filter(|call| !call.ended) {
                call.ended = true;
                if call.fields.contains_key("content") || call.fields.contains_key("rawOutput") {
                    let shown = result_payload(id, call);
                    events.push(AgentEvent::new("ToolResultDelta", shown, redactor));
                }
                let end = json!({"call_id": id, "tool_name": call.name, "status": status});
                events.push(AgentEvent::new("ToolCallEnd", end, redactor));
            }
        }
        events
    }

    pub(super) fn any(&self) -> bool {
        !self.calls.is_empty()
    }
}

/// Present fields replace, null ones do not count. `true` if the description changed; content,
/// output and the last status are reported once, with the result.
fn merge(fields: &mut Map<String, Value>, message: &Value) -> bool {
    let mut changed = false;
    for (name, value) in message.as_object().into_iter().flatten() {
        if value.is_null() || matches!(name.as_str(), "sessionUpdate" | "toolCallId" | "_meta") {
            continue;
        }
        if name == "status" {
            let new = rank(value.as_str().unwrap_or_default());
            let old = fields.get("status").and_then(Value::as_str).map_or(0, rank);
            if new < old {
                continue;
            }
        }
        let same = fields.get(name) == Some(value);
        let with_result = match name.as_str() {
            "content" | "rawOutput" => true,
            "status" => rank(value.as_str().unwrap_or_default()) == 2,
            _ => false,
        };
        changed |= !same && !with_result;
        fields.insert(name.clone(), value.clone());
    }
    changed
}

fn name_of(call: &Call, redactor: &Redactor) -> String {
    let name = call
        .text("name")
        .or(call.text("title"))
        .or(call.text("kind"));
    naming::tool_name(name.unwrap_or_default(), redactor)
}

fn begin_payload(id: &str, call: &Call) -> Value {
    let mut payload = Map::new();
    payload.insert("call_id".to_owned(), json!(id));
    payload.insert("tool_name".to_owned(), json!(call.name));
    payload.insert("arguments".to_owned(), call.arguments());
    for field in ["title", "kind", "status", "locations"] {
        if let Some(value) = call.fields.get(field) {
            payload.insert(field.to_owned(), value.clone());
        }
    }
    payload.into()
}

fn result_payload(id: &str, call: &Call) -> Value {
    let content = call.fields.get("content").and_then(Value::as_array);
    let blocks: Vec<String> = content.into_iter().flatten().map(display).collect();
    let output = call.fields.get("rawOutput");
    let display = match (blocks.is_empty(), output) {
        (false, _) => blocks.join("\n"),
        (true, Some(Value::String(text))) => text.clone(),
        (true, Some(output)) => output.to_string(),
        (true, None) => String::new(),
    };
    let mut payload = json!({
        "call_id": id,
        "tool_name": call.name,
        "display_result": display,
        "is_error": call.text("status") == Some("failed"),
    });
    let plain = |block: &Value| block["type"] == "content" && block["content"]["type"] == "text";
    if let Some(content) = content.filter(|blocks| !blocks.iter().all(plain)) {
        payload["content"] = json!(content);
    }
    payload
}

fn display(block: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match block["type"].as_str() {
        Some("content") if block["content"]["type"] == "text" => text(&block["content"]["text"]),
        Some("content") => format!("[{}]", text(&block["content"]["type"])),
        Some("terminal") if block["output"].is_string() => text(&block["output"]),
        Some("diff") => format!("[changed `{}`]", text(&block["path"])),
        Some(other) => format!("[{other}]"),
        None => block.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(messages: &[Value]) -> Vec<(String, Value)> {
        let mut tools = Tools::default();
        let redactor = Redactor::default();
        let mut events: Vec<_> = messages
            .iter()
            .flat_map(|message| tools.upsert(message, &redactor).unwrap())
            .collect();
        events.extend(tools.close("unknown", &redactor));
        events
            .into_iter()
            .map(|event| (event.kind, event.payload))
            .collect()
    }

    #[test]
    fn an_update_before_its_call_and_a_status_that_falls_back_make_one_call() {
        let events = run(&[
            json!({"toolCallId": "t", "status": "in_progress", "title": "ls"}),
            json!({"toolCallId": "t", "status": "pending", "title": "ls"}),
            json!({"toolCallId": "t", "status": "completed",
                "content": [{"type": "content", "content": {"type": "text", "text": "a b"}}]}),
        ]);
        let kinds: Vec<_> = events.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds, ["ToolCallBegin", "ToolResultDelta", "ToolCallEnd"]);
        assert_eq!(events[0].1["status"], "in_progress");
        let result = json!({"call_id": "t", "tool_name": "ls", "display_result": "a b",
            "is_error": false});
        assert_eq!(events[1].1, result);
        assert_eq!(
            events[2].1,
            json!({"call_id": "t", "tool_name": "ls", "status": "completed"})
        );
    }

    #[test]
    fn a_call_has_one_name_and_one_id_in_all_that_is_told_of_it() {
        let mut tools = Tools::default();
        let (redactor, long) = (Redactor::default(), "x".repeat(300));
        let mut called = |id: &str| {
            let message = json!({"toolCallId": id, "title": "a\0b", "status": "in_progress"});
            let events = tools.upsert(&message, &redactor).unwrap();
            let event = &events[0].payload;
            assert_eq!(event["call_id"], naming::call_id(id, &redactor));
            let asked = tools.subject(&naming::call_id(id, &redactor)).unwrap();
            assert_eq!(event["tool_name"], asked.0);
            asked.0
        };
        assert_eq!(called(&long), "a\u{fffd}b");
        assert_eq!(called("a\0b"), "a\u{fffd}b");
    }

    #[test]
    fn a_diff_is_kept_whole_beside_its_display() {
        let diff = json!({"type": "diff", "path": "/a", "oldText": "x", "newText": "y"});
        let events = run(&[json!({"toolCallId": "t", "status": "failed", "content": [diff]})]);
        assert_eq!(events[1].1["display_result"], "[changed `/a`]");
        assert_eq!(events[1].1["is_error"], true);
        assert_eq!(events[1].1["content"], json!([diff]));
    }

    #[test]
    fn a_call_ends_once_and_what_comes_later_is_kept_raw() {
        let events = run(&[
            json!({"toolCallId": "t", "status": "completed", "rawOutput": {"code": 0}}),
            json!({"toolCallId": "t", "status": "failed"}),
            json!({"toolCallId": "open", "status": "waiting_for_godot"}),
        ]);
        let kinds: Vec<_> = events.iter().map(|(kind, _)| kind.as_str()).collect();
        let expected = [
            "ToolCallBegin",
            "ToolResultDelta",
            "ToolCallEnd",
            "agent.raw",
            "ToolCallBegin",
            "ToolCallEnd",
        ];
        assert_eq!(kinds, expected);
        assert_eq!(events[1].1["display_result"], r#"{"code":0}"#);
        assert_eq!(events[4].1["status"], "waiting_for_godot");
        assert_eq!(events[5].1["status"], "unknown");
    }

    #[test]
    fn what_an_open_call_has_shown_is_kept_when_it_is_closed() {
        let terminal = json!({"type": "terminal", "terminalId": "terminal-1", "output": "half"});
        let events = run(&[json!({"toolCallId": "t", "title": "make", "content": [terminal]})]);
        assert_eq!(events[1].0, "ToolResultDelta");
        assert_eq!(events[1].1["display_result"], "half");
        assert_eq!(events[1].1["content"], json!([terminal]));
        assert_eq!(events[2].1["status"], "unknown");
    }

    #[test]
    fn arguments_are_reported_when_they_come_or_change() {
        let events = run(&[
            json!({"toolCallId": "t", "name": "bash", "title": "Run", "rawInput": {"c": "l"}}),
            json!({"toolCallId": "t", "rawInput": {"c": "ls"}}),
            json!({"toolCallId": "t", "rawInput": {"c": "ls"}}),
        ]);
        let deltas: Vec<_> = events
            .iter()
            .filter(|(kind, _)| kind == "ToolCallDelta")
            .collect();
        assert_eq!(deltas.len(), 2);
        assert_eq!(deltas[1].1["arguments"], json!({"c": "ls"}));
        assert_eq!(deltas[1].1["tool_name"], "bash");
    }
}
