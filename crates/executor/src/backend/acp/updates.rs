//! What an agent reports of a session, as events. It owns which reports count: early ones wait for
//! the session's id, replayed and late ones do not count. An unknown report must never be an error,
//! it is kept whole.

use serde_json::{Map, Value, json};
use tapedeck_domain::limits;
use tokio::time::Instant;

use super::choices::Choices;
use super::content::{content_payload, session_event};
use super::tools::Tools;
use crate::backend::{AgentEvent, naming};
use crate::process::Redactor;

/// What is kept of a line that can't be read, in characters.
const UNREAD: usize = 8 * 1024;

/// Reports that may come before their session's id is known.
const EARLY_LIMIT: usize = 1000;

#[derive(Debug)]
pub(super) struct Updates {
    stage: Stage,
    early: Vec<Value>,
    tools: Tools,
    choices: Choices,
    redactor: Redactor,
    spoke: bool,
    last: Instant,
}

#[derive(Debug)]
enum Stage {
    /// The session's id is not known yet.
    Opening,
    /// The agent repeats an earlier conversation.
    Replaying,
    Live(String),
    /// The turn's answer is there; its tool calls are not ended yet.
    Answered,
    Closed,
}

impl Updates {
    pub(super) fn new(redactor: Redactor) -> Self {
        Self {
            stage: Stage::Opening,
            early: Vec::new(),
            tools: Tools::default(),
            choices: Choices::default(),
            redactor,
            spoke: false,
            last: Instant::now(),
        }
    }

    /// A session is being opened whose id the agent will tell.
    pub(super) fn opening(&mut self) {
        self.stage = Stage::Opening;
    }

    /// From now on everything is repetition.
    pub(super) fn replaying(&mut self) {
        self.stage = Stage::Replaying;
    }

    /// From now on the reports of this session count, and those that came early. The latter are
    /// returned.
    pub(super) fn live(&mut self, session_id: &str) -> Vec<AgentEvent> {
        self.stage = Stage::Live(session_id.to_owned());
        let early = std::mem::take(&mut self.early);
        early
            .into_iter()
            .flat_map(|params| self.notified(params))
            .collect()
    }

    /// A further turn of the session that the agent has open.
    pub(super) fn again(&mut self, session_id: &str) {
        self.stage = Stage::Live(session_id.to_owned());
        self.tools = Tools::default();
    }

    /// Takes note of what a new or taken-up session offers. What the agent reported before the
    /// answer is in the answer.
    pub(super) fn offered(&mut self, answer: &Value) {
        self.choices = Choices::of(answer);
    }

    pub(super) fn choices(&self) -> &Choices {
        &self.choices
    }

    pub(super) fn choices_mut(&mut self) -> &mut Choices {
        &mut self.choices
    }

    /// When the last report came.
    pub(super) fn last(&self) -> Instant {
        self.last
    }

    /// The prompt is about to be sent; what was said before is no answer to it.
    pub(super) fn prompted(&mut self) {
        self.spoke = false;
    }

    /// Whether the agent has said or done anything.
    pub(super) fn any_output(&self) -> bool {
        self.spoke || self.tools.any()
    }

    /// The turn is answered; what comes later is late.
    pub(super) fn answered(&mut self) {
        self.stage = Stage::Answered;
    }

    /// Nothing counts any more; ends the open tool calls.
    pub(super) fn close(&mut self, status: &str) -> Vec<AgentEvent> {
        if matches!(self.stage, Stage::Closed) {
            return Vec::new();
        }
        self.stage = Stage::Closed;
        self.tools.close(status, &self.redactor)
    }

    /// Whether a turn is under way.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Live(_))
    }

    /// The events of one `session/update`.
    pub(super) fn notified(&mut self, mut params: Value) -> Vec<AgentEvent> {
        self.last = Instant::now();
        // What is chosen is no repetition, whenever it is told.
        self.choices.note(&params["update"]);
        match &self.stage {
            Stage::Opening => {
                if self.early.len() < EARLY_LIMIT {
                    self.early.push(params);
                }
                Vec::new()
            }
            Stage::Replaying | Stage::Answered | Stage::Closed => Vec::new(),
            Stage::Live(session) if params["sessionId"].as_str() == Some(session.as_str()) => {
                let update = params
                    .get_mut("update")
                    .map(Value::take)
                    .unwrap_or_default();
                self.update(&update)
            }
            // Of a session within the session, for example.
            Stage::Live(_) => vec![self.event("agent.raw", params)],
        }
    }

    /// The tool call that a question is about: its events, name and arguments, and whether it only
    /// reads. `None` if no turn is under way or no call is named.
    pub(super) fn asked_about(&mut self, tool_call: &Value) -> Option<Asked> {
        let Stage::Live(_) = self.stage else {
            return None;
        };
        let events = self.tools.upsert(tool_call, &self.redactor)?;
        let call_id = naming::call_id(tool_call["toolCallId"].as_str()?, &self.redactor);
        let (tool_name, arguments) = self.tools.subject(&call_id)?;
        let only_reads = self.tools.only_reads(&call_id);
        let kind = self.tools.kind(&call_id);
        let tool_kind = kind.filter(|kind| kind.chars().count() <= limits::NAME_CHARS);
        Some(Asked {
            events,
            arguments: AgentEvent::arguments(arguments, &self.redactor),
            tool_kind: tool_kind.map(|kind| naming::short(kind, &self.redactor)),
            call_id,
            tool_name,
            only_reads,
        })
    }

    /// A message that can't be read. It leaves a trace where a turn is under way.
    pub(super) fn unread(&self, line: &str) -> Vec<AgentEvent> {
        // Redaction comes before the cut, which might go through a secret.
        let line = self.redactor.redact(line.to_owned());
        let line: String = line.chars().take(UNREAD).collect();
        self.trace(json!({"line": line, "reason": "it can't be read"}))
    }

    /// A request that says too little to be asked, and what it was told.
    pub(super) fn refused(&self, method: &str, params: &Value, reason: &str) -> Vec<AgentEvent> {
        let request = json!({"method": method, "params": params});
        self.trace(json!({"request": request, "reason": reason}))
    }

    fn trace(&self, payload: Value) -> Vec<AgentEvent> {
        match self.stage {
            Stage::Live(_) => vec![self.event("agent.raw", payload)],
            Stage::Opening | Stage::Replaying | Stage::Answered | Stage::Closed => Vec::new(),
        }
    }

    fn update(&mut self, update: &Value) -> Vec<AgentEvent> {
        match update["sessionUpdate"].as_str() {
            // The prompt is known already.
            Some("user_message_chunk") => Vec::new(),
            Some("agent_message_chunk") => {
                self.chunk("StreamDelta", "content", "assistant", update)
            }
            Some("agent_thought_chunk") => self.chunk("ThinkingDelta", "text", "thought", update),
            Some("tool_call" | "tool_call_update") => {
                match self.tools.upsert(update, &self.redactor) {
                    Some(events) => events,
                    None => self.raw(update),
                }
            }
            Some(kind) => match session_event(kind, update) {
                Some((kind, payload)) => vec![self.event(kind, payload)],
                None => self.raw(update),
            },
            None => self.raw(update),
        }
    }

    /// A piece of a message: text, or a picture, a sound or a resource within it.
    fn chunk(&mut self, kind: &str, field: &str, role: &str, update: &Value) -> Vec<AgentEvent> {
        let mut fields = Map::new();
        if role == "assistant" {
            fields.insert("role".to_owned(), json!(role));
        }
        if let Some(id) = update["messageId"].as_str() {
            fields.insert("message_id".to_owned(), json!(id));
        }
        if let Some(text) = update["content"]["text"].as_str() {
            self.spoke |= !text.is_empty();
            return AgentEvent::texts(kind, field, text, &fields, &self.redactor);
        }
        self.spoke = true;
        match content_payload(&update["content"]) {
            Some(content) => {
                fields.insert("role".to_owned(), json!(role));
                fields.extend(content);
                vec![self.event("agent.content", Value::Object(fields))]
            }
            None => self.raw(update),
        }
    }

    fn raw(&self, update: &Value) -> Vec<AgentEvent> {
        vec![self.event("agent.raw", json!({"update": update}))]
    }

    fn event(&self, kind: &str, payload: Value) -> AgentEvent {
        AgentEvent::new(kind, payload, &self.redactor)
    }
}

/// What a question is about.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) events: Vec<AgentEvent>,
    pub(super) call_id: String,
    pub(super) tool_name: String,
    pub(super) tool_kind: Option<String>,
    pub(super) arguments: Value,
    pub(super) only_reads: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(session: &str, text: &str) -> Value {
        json!({"sessionId": session, "update": {"sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": text}, "messageId": "m"}})
    }

    #[test]
    fn early_reports_of_the_session_count_once_its_id_is_known() {
        let mut updates = Updates::new(Redactor::default());
        assert!(updates.notified(chunk("s", "early")).is_empty());
        let events = updates.live("s");
        let expected = json!({"content": "early", "role": "assistant", "message_id": "m"});
        assert_eq!(events.len(), 1);
        assert_eq!(
            (events[0].kind.as_str(), &events[0].payload),
            ("StreamDelta", &expected)
        );
        assert!(updates.any_output());
    }

    #[test]
    fn replayed_and_late_reports_do_not_count() {
        let mut updates = Updates::new(Redactor::default());
        updates.replaying();
        assert!(updates.notified(chunk("s", "old")).is_empty());
        assert!(updates.live("s").is_empty());
        assert!(!updates.any_output());
        updates.answered();
        assert!(updates.notified(chunk("s", "late")).is_empty());
        updates.close("unknown");
        assert!(updates.notified(chunk("s", "late")).is_empty());
    }

    #[test]
    fn unknown_reports_are_kept_whole() {
        let mut updates = Updates::new(Redactor::default());
        updates.live("s");
        let update = json!({"sessionUpdate": "brand_new", "x": [1, {"y": null}]});
        let events = updates.notified(json!({"sessionId": "s", "update": update}));
        assert_eq!(events[0].kind, "agent.raw");
        assert_eq!(events[0].payload, json!({"update": update}));
        let odd = json!({"sessionUpdate": "tool_call"});
        let events = updates.notified(json!({"sessionId": "s", "update": odd}));
        assert_eq!(events[0].payload, json!({"update": odd}));
        assert_eq!(
            updates.notified(json!({"sessionId": "s"}))[0].kind,
            "agent.raw"
        );
        assert_eq!(updates.notified(chunk("other", "x"))[0].kind, "agent.raw");
    }

    #[test]
    fn plans_usage_and_thoughts_have_their_kinds_and_an_echoed_prompt_is_dropped() {
        let mut updates = Updates::new(Redactor::default());
        updates.live("s");
        let mut event = |update: Value| {
            let mut events = updates.notified(json!({"sessionId": "s", "update": update}));
            events.pop().map(|event| (event.kind, event.payload))
        };
        let entries = json!([{"content": "a", "priority": "low", "status": "pending"}]);
        assert_eq!(
            event(json!({"sessionUpdate": "plan", "entries": entries})),
            Some(("Plan".to_owned(), json!({"entries": entries})))
        );
        assert_eq!(
            event(json!({"sessionUpdate": "usage_update", "used": 5, "size": 10})),
            Some(("Usage".to_owned(), json!({"used": 5, "size": 10})))
        );
        let text = json!({"type": "text", "text": "hm"});
        assert_eq!(
            event(json!({"sessionUpdate": "agent_thought_chunk", "content": text})),
            Some(("ThinkingDelta".to_owned(), json!({"text": "hm"})))
        );
        assert_eq!(
            event(json!({"sessionUpdate": "user_message_chunk", "content": text})),
            None
        );
        let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        assert_eq!(
            event(
                json!({"sessionUpdate": "agent_message_chunk", "content": image,
                "messageId": "m"})
            ),
            Some((
                "agent.content".to_owned(),
                json!({"role": "assistant", "message_id": "m", "content": image})
            ))
        );
        let mode = json!({"sessionUpdate": "current_mode_update", "currentModeId": "plan"});
        let expected = json!({"mode": "plan"});
        assert_eq!(event(mode), Some(("agent.mode".to_owned(), expected)));
        assert!(updates.choices().summary()["mode"] == "plan");
    }
}
