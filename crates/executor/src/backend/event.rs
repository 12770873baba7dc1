//! Events on their way out of a backend, made fit for the log: no secret, no NUL, not too deep, not
//! too large. It owns those bounds; it must never drop an event or cut an agent's message, which is
//! split instead.

use serde_json::{Map, Value, json};

use tapedeck_domain::event::uploaded;
use tapedeck_domain::text::pieces;

use crate::process::Redactor;

/// The largest payload of one event, as JSON.
pub const EVENT_LIMIT: usize = 256 * 1024;

/// Room for what the executor adds to a payload.
const PAYLOAD_LIMIT: usize = EVENT_LIMIT - 4 * 1024;

/// The arguments that a question shows; its options need room, too.
const ARGUMENTS_LIMIT: usize = 192 * 1024;

/// Pieces of messages; six times as much as JSON at worst.
const TEXT_PIECE: usize = 32 * 1024;

/// The server takes 128 levels for a whole request.
pub(super) const DEPTH_LIMIT: usize = 64;

const PREVIEW: usize = 8 * 1024;

/// An event of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentEvent {
    /// Its kind.
    pub kind: String,
    /// Its payload, an object of at most [`EVENT_LIMIT`] bytes as JSON.
    pub payload: Value,
}

impl AgentEvent {
    /// An event of any kind; a payload that is too large is cut and says so.
    pub(crate) fn new(kind: &str, mut payload: Value, redactor: &Redactor) -> Self {
        clean(&mut payload, redactor, 0);
        Self {
            kind: kind.to_owned(),
            payload: bounded(payload, PAYLOAD_LIMIT),
        }
    }

    /// What a person is asked goes the same way as an event: bounded and without secrets.
    pub(crate) fn arguments(mut arguments: Value, redactor: &Redactor) -> Value {
        // They are cut where the events of the call cut them, in which they are a field.
        clean(&mut arguments, redactor, 1);
        bounded(arguments, ARGUMENTS_LIMIT)
    }

    /// The agent has lost the conversation that it was to go on with, and begins anew.
    pub(crate) fn continuity_broken(reason: &str, redactor: &Redactor) -> Self {
        let payload = json!({"status": "continuity_broken", "reason": reason});
        Self::new(uploaded::TURN_STATUS_DELTA, payload, redactor)
    }

    /// A message or thought, in as many events as its length needs. `fields` is the rest of each
    /// payload.
    pub(crate) fn texts(
        kind: &str,
        text_field: &str,
        text: &str,
        fields: &Map<String, Value>,
        redactor: &Redactor,
    ) -> Vec<Self> {
        let text = redactor.redact(text.to_owned());
        pieces(&text, TEXT_PIECE)
            .map(|piece| {
                let mut payload = fields.clone();
                payload.insert(text_field.to_owned(), json!(piece));
                Self::new(kind, Value::Object(payload), redactor)
            })
            .collect()
    }
}

/// The server refuses NUL and deep nesting, and it must not learn secrets.
fn clean(value: &mut Value, redactor: &Redactor, depth: usize) {
    match value {
        Value::String(text) => *text = clean_text(std::mem::take(text), redactor),
        Value::Array(_) | Value::Object(_) if depth >= DEPTH_LIMIT => {
            *value = Value::String(clean_text(value.to_string(), redactor));
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| clean(item, redactor, depth + 1)),
        Value::Object(fields) => {
            let old = std::mem::take(fields);
            fields.extend(old.into_iter().map(|(name, mut item)| {
                clean(&mut item, redactor, depth + 1);
                (clean_text(name, redactor), item)
            }));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn clean_text(text: String, redactor: &Redactor) -> String {
    let text = redactor.redact(text);
    if text.contains('\0') {
        text.replace('\0', "\u{fffd}")
    } else {
        text
    }
}

/// Cuts the longest strings until the whole fits; if it is not strings that fill it, only a preview
/// and the short fields remain.
fn bounded(payload: Value, most: usize) -> Value {
    let original = payload.to_string().len();
    if original <= most {
        return payload;
    }
    let mut limit = most / 2;
    while limit >= 256 {
        let mut cut = payload.clone();
        cut_strings(&mut cut, limit);
        let cut = marked_cut(cut, original);
        if cut.to_string().len() <= most {
            return cut;
        }
        limit /= 2;
    }
    let text = payload.to_string();
    let mut kept: Map<String, Value> = match payload {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(name, value)| name.len() + value.to_string().len() <= 1024)
            .take(16)
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    };
    kept.insert(
        "preview".to_owned(),
        json!(text[..text.floor_char_boundary(PREVIEW)]),
    );
    marked_cut(Value::Object(kept), original)
}

fn cut_strings(value: &mut Value, limit: usize) {
    match value {
        Value::String(text) => text.truncate(text.floor_char_boundary(limit)),
        Value::Array(items) => items.iter_mut().for_each(|item| cut_strings(item, limit)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|item| cut_strings(item, limit)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What has no fields stands in one, or nobody could tell that it is not the whole.
fn marked_cut(value: Value, original: usize) -> Value {
    let mut fields = match value {
        Value::Object(fields) => fields,
        other => Map::from_iter([("value".to_owned(), other)]),
    };
    fields.insert("truncated".to_owned(), json!(true));
    fields.insert("original_bytes".to_owned(), json!(original));
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Environment;

    fn plain() -> Redactor {
        Redactor::default()
    }

    #[test]
    fn a_long_tool_output_is_cut_and_says_so() {
        let payload = json!({"call_id": "c", "display_result": "é".repeat(400_000)});
        let event = AgentEvent::new("ToolResultDelta", payload, &plain());
        assert!(event.payload.to_string().len() <= EVENT_LIMIT);
        assert_eq!(event.payload["call_id"], "c");
        assert_eq!(event.payload["truncated"], true);
        assert!(event.payload["original_bytes"].as_u64().unwrap() > 800_000);
        assert!(event.payload["display_result"].as_str().unwrap().len() > 60_000);
    }

    #[test]
    fn a_payload_of_many_small_values_is_cut_to_a_preview() {
        let payload = json!({"call_id": "c", "content": vec![1; 300_000]});
        let event = AgentEvent::new("agent.raw", payload, &plain());
        assert!(event.payload.to_string().len() <= EVENT_LIMIT);
        assert_eq!(event.payload["call_id"], "c");
        assert!(event.payload["preview"].as_str().unwrap().starts_with('{'));
    }

    #[test]
    fn arguments_that_are_cut_say_so_whatever_they_are() {
        let long = "l".repeat(600_000);
        let cut = AgentEvent::arguments(json!({"command": long}), &plain());
        assert_eq!(cut["truncated"], true);
        assert!(cut["command"].as_str().unwrap().len() > 60_000);
        for whole in [json!(long), json!([long, "x"])] {
            let cut = AgentEvent::arguments(whole, &plain());
            assert_eq!(cut["truncated"], true, "{cut}");
            assert!(cut["value"].is_string() || cut["value"][1] == "x");
            assert!(cut.to_string().len() <= ARGUMENTS_LIMIT);
        }
        let short = json!(["ls"]);
        assert_eq!(AgentEvent::arguments(short.clone(), &plain()), short);
    }

    #[test]
    fn a_long_message_is_split_and_nothing_of_it_is_lost() {
        let text = "ä\u{1}".repeat(150_000);
        let fields = Map::from_iter([("role".to_owned(), json!("assistant"))]);
        let events = AgentEvent::texts("StreamDelta", "content", &text, &fields, &plain());
        assert!(
            events
                .iter()
                .all(|event| event.payload.to_string().len() <= EVENT_LIMIT)
        );
        assert!(
            events
                .iter()
                .all(|event| event.payload["role"] == "assistant")
        );
        let joined: String = events
            .iter()
            .map(|event| event.payload["content"].as_str().unwrap())
            .collect();
        assert_eq!(joined, text);
    }

    #[test]
    fn nul_depth_and_secrets_do_not_pass() {
        let pairs = [("API_KEY".to_owned(), "sk-secret".to_owned())];
        let redactor = Environment::select([], &[], &pairs).redactor();
        let mut deep = json!("sk-secret");
        for _ in 0..100 {
            deep = json!([deep]);
        }
        let event = AgentEvent::new("x", json!({"a\0": "b\0sk-secret", "deep": deep}), &redactor);
        let text = event.payload.to_string();
        assert_eq!(event.payload["a\u{fffd}"], "b\u{fffd}[redacted]");
        assert!(!text.contains("sk-secret"));
        assert!(text.contains(&"[".repeat(DEPTH_LIMIT - 1)));
        assert!(serde_json::from_str::<Value>(&text).is_ok());
    }
}
