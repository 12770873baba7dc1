//! Events on their way into a sealed request. It owns the merging of deltas, the event ids and the
//! bytes that are sent; once sealed, nothing of a batch may change (rules R12).

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};
use tapedeck_client::Secret;
use tapedeck_domain::Timestamp;
use tapedeck_domain::event::uploaded;
use tapedeck_domain::limits::UPLOAD_EVENTS;

use crate::backend::{AgentEvent, EVENT_LIMIT};
use crate::held::Held;
use crate::process::Redactor;

/// Events of one batch as JSON; a single larger event makes a batch of its own.
const BATCH_BYTES: usize = 256 * 1024;

/// Merged text; six times as much as JSON at worst, which is below an event's limit.
const MERGED_TEXT: usize = 32 * 1024;

#[derive(Debug)]
struct Open {
    kind: String,
    payload: Map<String, Value>,
    bytes: usize,
    created_at: Timestamp,
}

/// What is not sealed yet.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The body up to its events, with the claim's token.
    prefix: Secret,
    attempt: u32,
    /// The number of the next event of this attempt.
    next: u64,
    events: Vec<Open>,
    bytes: usize,
}

/// A request body that never changes again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// The body without its claim, so that no token lies on the disk.
    pub(crate) events: Bytes,
    /// How many.
    pub(crate) count: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    event_id: String,
    event: &'a str,
    data: &'a Map<String, Value>,
    created_at: Timestamp,
}

impl Batch {
    /// An empty batch of this claim.
    pub(crate) fn new(held: &Held) -> Self {
        let quoted = |text: &str| Value::from(text).to_string();
        let prefix = format!(
            "{{\"executor_id\":{},\"claim_token\":{},\"events\":",
            quoted(&held.executor_id),
            quoted(held.token.expose())
        );
        Self {
            prefix: Secret::new(prefix),
            attempt: held.attempt,
            next: 1,
            events: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds an event, as a part of the one before it if both are pieces of one text.
    pub(crate) fn push(&mut self, event: AgentEvent, created_at: Timestamp) {
        let AgentEvent { kind, payload } = fitting(event);
        let payload = match payload {
            Value::Object(fields) => fields,
            other => Map::from_iter([("value".to_owned(), other)]),
        };
        if let Some(last) = self.events.last_mut()
            && let Some(added) = merge(last, &kind, &payload)
        {
            last.bytes += added;
            self.bytes += added;
            return;
        }
        let bytes = json_bytes(&payload) + kind.len();
        self.bytes += bytes;
        self.events.push(Open {
            kind,
            payload,
            bytes,
            created_at,
        });
    }

    /// Whether there is nothing to seal.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether it has to be sealed before anything is added.
    pub(crate) fn is_full(&self) -> bool {
        self.events.len() >= UPLOAD_EVENTS || self.bytes >= BATCH_BYTES
    }

    /// Forgets what is not sealed.
    pub(crate) fn clear(&mut self) {
        self.events.clear();
        self.bytes = 0;
    }

    /// Seals what fits into one request and leaves the rest.
    pub(crate) fn seal(&mut self) -> serde_json::Result<Sealed> {
        let mut bytes = 0;
        let fitting = self
            .events
            .iter()
            .take(UPLOAD_EVENTS)
            .take_while(|event| {
                bytes += event.bytes;
                bytes <= BATCH_BYTES
            })
            .count()
            .max(1);
        let sealed: Vec<Open> = self
            .events
            .drain(..fitting.min(self.events.len()))
            .collect();
        self.bytes = self.events.iter().map(|event| event.bytes).sum();
        let lines: Vec<Line<'_>> = (self.next..)
            .zip(&sealed)
            .map(|(number, event)| Line {
                event_id: format!("{}-{number}", self.attempt),
                event: &event.kind,
                data: &event.payload,
                created_at: event.created_at,
            })
            .collect();
        let events = Bytes::from(serde_json::to_vec(&lines)?);
        let count = sealed.len() as u64;
        self.next += count;
        Ok(Sealed { events, count })
    }

    /// The body of the request that sends sealed events: the same bytes for the same events.
    pub(crate) fn body(&self, events: &[u8]) -> Bytes {
        let prefix = self.prefix.expose().as_bytes();
        let mut body = Vec::with_capacity(prefix.len() + events.len() + 1);
        body.extend_from_slice(prefix);
        body.extend_from_slice(events);
        body.push(b'}');
        body.into()
    }
}

/// A backend bounds its events itself; one that did not must not end the run.
fn fitting(event: AgentEvent) -> AgentEvent {
    if json_bytes(&event.payload) <= EVENT_LIMIT {
        event
    } else {
        AgentEvent::new(&event.kind, event.payload, &Redactor::default())
    }
}

/// Appends the text of a piece to the piece before it, if nothing else differs between them. Gives
/// the number of bytes that were added.
fn merge(last: &mut Open, kind: &str, payload: &Map<String, Value>) -> Option<usize> {
    let field = match kind {
        uploaded::STREAM_DELTA => "content",
        uploaded::THINKING_DELTA => "text",
        _ => return None,
    };
    let alike = last.kind == kind
        && last.payload.len() == payload.len()
        && payload
            .iter()
            .all(|(name, value)| name == field || last.payload.get(name) == Some(value));
    if !alike {
        return None;
    }
    let added = payload.get(field)?;
    let more = added.as_str()?;
    let Value::String(text) = last.payload.get_mut(field)? else {
        return None;
    };
    if text.len() + more.len() > MERGED_TEXT {
        return None;
    }
    text.push_str(more);
    Some(json_bytes(added).saturating_sub(2))
}

fn json_bytes(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Neither JSON values nor the counter can fail.
    drop(serde_json::to_writer(&mut count, value));
    count.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tapedeck_protocol::executor::UploadRequest;

    use super::*;
    use crate::testing::claim;

    const TIME: Timestamp = Timestamp(1_000);

    fn event(kind: &str, payload: Value) -> AgentEvent {
        AgentEvent {
            kind: kind.to_owned(),
            payload,
        }
    }

    fn stream(text: &str, message: u32) -> AgentEvent {
        let payload = json!({"content": text, "role": "assistant", "message_id": message});
        event("StreamDelta", payload)
    }

    fn batch(events: impl IntoIterator<Item = AgentEvent>) -> Batch {
        let mut batch = Batch::new(&Held::new(&claim(2)));
        for event in events {
            batch.push(event, TIME);
        }
        batch
    }

    fn contents(sealed: &Sealed) -> Vec<Value> {
        let events: Vec<Value> = serde_json::from_slice(&sealed.events).unwrap();
        let text = |event: &Value| match &event["data"]["content"] {
            Value::Null => event["data"]["text"].clone(),
            content => content.clone(),
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn adjacent_pieces_of_one_message_are_merged_and_others_are_not() {
        let mut batch = batch([
            stream("a", 1),
            stream("b", 1),
            stream("c", 2),
            event("ThinkingDelta", json!({"text": "x"})),
            event("ThinkingDelta", json!({"text": "y"})),
            event("ToolCallBegin", json!({"text": "z"})),
            event("ToolCallBegin", json!({"text": "z"})),
            stream("d", 2),
        ]);
        let sealed = batch.seal().unwrap();
        assert_eq!(contents(&sealed), ["ab", "c", "xy", "z", "z", "d"]);
        assert_eq!(sealed.count, 6);
    }

    #[test]
    fn a_sealed_batch_takes_nothing_more_and_ids_go_on() {
        let mut batch = batch([stream("a", 1)]);
        let first = batch.seal().unwrap();
        batch.push(stream("b", 1), TIME);
        let second = batch.seal().unwrap();
        assert_eq!(contents(&first), ["a"]);
        assert_eq!(contents(&second), ["b"]);
        let body = batch.body(&second.events);
        let request: UploadRequest = serde_json::from_slice(&body).unwrap();
        let (_, events) = request.check().unwrap();
        assert_eq!(events[0].event_id, "2-2");
        assert_eq!(events[0].created_at, Some(TIME));
        assert_eq!(batch.body(&second.events), body);
    }

    #[test]
    fn requests_stay_within_their_bounds_and_merged_text_within_an_events() {
        let mut batch = batch((0..2_500).map(|number| stream("x", number)));
        let counts: Vec<_> =
            std::iter::from_fn(|| (!batch.is_empty()).then(|| batch.seal().unwrap().count))
                .collect();
        assert_eq!(counts, [1_000, 1_000, 500]);

        let mut batch = self::batch((0..40).map(|_| stream(&"\u{1}".repeat(10 * 1024), 1)));
        assert!(batch.is_full());
        let mut text = String::new();
        while !batch.is_empty() {
            let sealed = batch.seal().unwrap();
            assert!(sealed.events.len() < 300 * 1024, "{}", sealed.events.len());
            let body = batch.body(&sealed.events);
            serde_json::from_slice::<UploadRequest>(&body)
                .unwrap()
                .check()
                .unwrap();
            for content in contents(&sealed) {
                text.push_str(content.as_str().unwrap());
            }
        }
        assert_eq!(text.len(), 400 * 1024);
    }

    #[test]
    fn an_event_that_its_backend_did_not_bound_is_cut_and_says_so() {
        let huge = json!({"call_id": "c", "display_result": "x".repeat(600_000)});
        let mut batch = batch([event("ToolResultDelta", huge)]);
        let sealed = batch.seal().unwrap();
        let events: Value = serde_json::from_slice(&sealed.events).unwrap();
        assert_eq!(events[0]["data"]["truncated"], true);
        assert!(events[0]["data"]["original_bytes"].as_u64().unwrap() > 600_000);
        let body = batch.body(&sealed.events);
        let request: UploadRequest = serde_json::from_slice(&body).unwrap();
        request.check().unwrap();
    }
}
