//! What a program's output says of its turn, as events. It owns the merged state of tool calls and
//! the program's own word on how the turn ended; it must never know in which format that was
//! written.

use serde_json::{Map, Value, json};

use crate::backend::{AgentEvent, naming};
use crate::process::Redactor;

/// Reasons can be whole requests.
const REASON_LIMIT: usize = 2000;

/// What a program has said of its turn.
#[derive(Debug)]
pub(super) struct Transcript {
    redactor: Redactor,
    events: Vec<AgentEvent>,
    calls: Vec<Call>,
    session: Option<String>,
    usage: Option<Value>,
    error: Option<String>,
    ending: Option<Ending>,
    /// It has said or done anything.
    spoke: bool,
    /// It has said a part of its answer.
    answered: bool,
}

/// A program's own word on its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// The turn is over.
    Finished,
    /// It failed, with the reason.
    Failed(String),
}

#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: Value,
    ended: bool,
}

impl Call {
    fn new(id: &str, name: String, arguments: &Value) -> Self {
        let arguments = match arguments {
            Value::Null => json!({}),
            arguments => arguments.clone(),
        };
        Self {
            id: id.to_owned(),
            name,
            arguments,
            ended: false,
        }
    }

    fn described(&self) -> Value {
        json!({"call_id": self.id, "tool_name": self.name, "arguments": self.arguments})
    }
}

impl Transcript {
    pub(super) fn new(redactor: Redactor) -> Self {
        Self {
            redactor,
            events: Vec::new(),
            calls: Vec::new(),
            session: None,
            usage: None,
            error: None,
            ending: None,
            spoke: false,
            answered: false,
        }
    }

    /// The events since the last time.
    pub(super) fn take_events(&mut self) -> Vec<AgentEvent> {
        std::mem::take(&mut self.events)
    }

    /// The answer as the end of the turn repeats it: it counts where nothing else was said.
    pub(super) fn conclude(&mut self, text: &str) {
        if !self.answered {
            self.say(text, None);
        }
    }

    /// A piece of the answer; pieces of one message share an id where there is one.
    pub(super) fn say(&mut self, text: &str, message_id: Option<&str>) {
        let mut fields = Map::from_iter([("role".to_owned(), json!("assistant"))]);
        if let Some(id) = message_id {
            fields.insert("message_id".to_owned(), json!(id));
        }
        self.answered |= !text.trim().is_empty();
        self.texts("StreamDelta", "content", text, &fields);
    }

    /// A piece of a thought.
    pub(super) fn think(&mut self, text: &str) {
        self.texts("ThinkingDelta", "text", text, &Map::new());
    }

    fn texts(&mut self, kind: &str, field: &str, text: &str, fields: &Map<String, Value>) {
        self.spoke |= !text.is_empty();
        let events = AgentEvent::texts(kind, field, text, fields, &self.redactor);
        self.events.extend(events);
    }

    /// A tool call, as far as it is known; null arguments are not known yet.
    pub(super) fn call(&mut self, id: &str, name: &str, arguments: &Value) {
        self.spoke = true;
        // The newest calls are the ones that are spoken of.
        let Some(call) = self.calls.iter_mut().rfind(|call| call.id == id) else {
            let call = Call::new(id, naming::tool_name(name, &self.redactor), arguments);
            let payload = call.described();
            self.calls.push(call);
            self.event("ToolCallBegin", payload.clone());
            if !arguments.is_null() {
                self.event("ToolCallDelta", payload);
            }
            return;
        };
        if call.ended || arguments.is_null() || call.arguments == *arguments {
            return;
        }
        call.arguments.clone_from(arguments);
        let payload = call.described();
        self.event("ToolCallDelta", payload);
    }

    /// The result of a call, which is its end. A call that was never announced is begun here.
    pub(super) fn result(&mut self, id: &str, display: &str, is_error: bool) {
        self.call(id, "", &Value::Null);
        let Some(call) = self.calls.iter_mut().rfind(|call| call.id == id) else {
            return;
        };
        if call.ended {
            let late = json!({"call_id": id, "display_result": display, "is_error": is_error});
            return self.raw(&late);
        }
        call.ended = true;
        let status = if is_error { "failed" } else { "completed" };
        let result = json!({
            "call_id": id,
            "tool_name": call.name,
            "display_result": display,
            "is_error": is_error,
        });
        let end = json!({"call_id": id, "tool_name": call.name, "status": status});
        self.event("ToolResultDelta", result);
        self.event("ToolCallEnd", end);
    }

    /// The steps that the program means to take.
    pub(super) fn plan(&mut self, entries: &Value) {
        self.event("Plan", json!({"entries": entries}));
    }

    /// What the turn has used.
    pub(super) fn usage(&mut self, usage: &Value) {
        if usage.is_object() {
            self.usage = Some(usage.clone());
            self.event("Usage", usage.clone());
        }
    }

    /// Something went wrong, which need not end the turn.
    pub(super) fn error(&mut self, text: &str) {
        let text = match text.trim() {
            "" => "the agent reports an error without saying which",
            text => text,
        };
        self.error = Some(self.reason(text));
        self.event("Error", json!({"error": text}));
    }

    /// What has no kind of its own, kept whole.
    pub(super) fn raw(&mut self, line: &Value) {
        self.event("agent.raw", json!({"line": line}));
    }

    /// The program's id of its conversation.
    pub(super) fn in_session(&mut self, id: &str) {
        if !id.is_empty() && self.session.as_deref() != Some(id) {
            self.session = Some(id.to_owned());
        }
    }

    /// The turn is over, well.
    pub(super) fn finished(&mut self) {
        self.ending = Some(Ending::Finished);
    }

    /// The turn goes on after what looked like its end.
    pub(super) fn goes_on(&mut self) {
        self.ending = None;
    }

    /// The turn is over, badly; without a reason the last error is it.
    pub(super) fn failed(&mut self, reason: &str) {
        let reason = match (reason.trim(), &self.error) {
            ("", Some(error)) => error.clone(),
            ("", None) => "the agent's turn failed".to_owned(),
            (reason, _) => self.reason(reason),
        };
        self.ending = Some(Ending::Failed(reason));
    }

    /// A reason as it may stand in a failure. Redaction comes before the cut, which might go
    /// through a secret.
    fn reason(&self, text: &str) -> String {
        let text = self.redactor.redact(text.to_owned());
        let kept: String = text.chars().take(REASON_LIMIT).collect();
        kept.replace('\0', "\u{fffd}")
    }

    /// Ends the calls that were left open.
    pub(super) fn close(&mut self, status: &str) {
        let mut left = Vec::new();
        for call in self.calls.iter_mut().filter(|call| !call.ended) {
            call.ended = true;
            left.push(json!({"call_id": call.id, "tool_name": call.name, "status": status}));
        }
        for end in left {
            self.event("ToolCallEnd", end);
        }
    }

    /// The program's word on the end of its turn; an error without a better end after it is one.
    pub(super) fn ending(&self) -> Option<Ending> {
        let of_error = || self.error.clone().map(Ending::Failed);
        self.ending.clone().or_else(of_error)
    }

    /// The program's id of its conversation.
    pub(super) fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// What the turn has used, as last told.
    pub(super) fn last_usage(&self) -> Option<&Value> {
        self.usage.as_ref()
    }

    /// Whether the program has said or done anything.
    pub(super) fn any_output(&self) -> bool {
        self.spoke
    }

    fn event(&mut self, kind: &str, payload: Value) {
        let event = AgentEvent::new(kind, payload, &self.redactor);
        self.events.push(event);
    }
}
