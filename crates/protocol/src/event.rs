//! Events on the wire: the records of JSON pages, the flat objects of SSE data, and the cursors that
//! name a place in a log. A record's payload goes out as it is stored.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::{JsonText, LogId, RunId, SessionId, Timestamp, limits};
use utoipa::{IntoParams, ToSchema};

use crate::display::{self, EventFormat};
use crate::page::{self, QueryFault};

/// The cursor that stands for the end of the log.
pub(crate) const HEAD: &str = "head";

/// One event of a JSON page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventResponse {
    /// Chosen by the producer.
    pub event_id: String,
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// Its number in the session's log, from 1, without gaps.
    pub session_seq: u64,
    /// The run.
    #[schema(value_type = Option<Uuid>, required)]
    pub run_id: Option<RunId>,
    /// The kind.
    pub kind: String,
    /// The payload.
    #[schema(value_type = Object)]
    pub payload: JsonText,
    /// The first of the numbers that a folded event stands for; null where it stands for its own.
    #[serde(default)]
    #[schema(required)]
    pub folded_from: Option<u64>,
    /// The attempt it came from.
    #[schema(required)]
    pub attempt: Option<u32>,
    /// The executor it came from.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The trace it belongs to.
    #[schema(required)]
    pub trace_id: Option<String>,
    /// When the producer made it.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When the server recorded it.
    #[schema(value_type = String, format = DateTime)]
    pub recorded_at: Timestamp,
}

impl From<&EventRecord> for EventResponse {
    fn from(record: &EventRecord) -> Self {
        Self {
            event_id: record.event_id.clone(),
            session_id: record.session_id,
            session_seq: record.session_seq,
            run_id: record.run_id,
            kind: record.kind.clone(),
            payload: record.payload.clone(),
            folded_from: record.folded_from,
            attempt: record.attempt,
            executor_id: record.executor_id.clone(),
            trace_id: record.trace_id.clone(),
            created_at: record.created_at,
            recorded_at: record.recorded_at,
        }
    }
}

/// Answer of `GET /sessions/{id}/events` as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// In order.
    pub events: Vec<EventResponse>,
    /// The last number of the page, or `after` again when it is empty: an empty page is the end.
    pub next_cursor: u64,
    /// The number of the newest event.
    pub head_seq: u64,
}

/// Query of the event endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only events after this number; `head` starts at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Events of one page, 1 to 500; 200 by default. Streams have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    pub limit: Option<String>,
    /// Only these kinds, separated by commas. With `format=display` they may be display kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kinds: Option<String>,
    /// Only events of this run; a stream then ends with the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<Uuid>)]
    pub run_id: Option<String>,
    /// `raw` (default): events as they are stored; `display`: as people see them, with tool output
    /// bounded and secrets hidden, and without events that say nothing to people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The log that `after` is of, as `stream.open` or the session named it: another one is 409
    /// `log_changed` instead of other events under the same numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<Uuid>)]
    pub log_id: Option<String>,
}

/// Where to start in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// After this number; 0 is the beginning.
    Seq(u64),
    /// At the end.
    Head,
}

/// A checked selection of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSelection {
    /// Where to start.
    pub after: After,
    /// Events of one page.
    pub limit: u32,
    /// Only these stored kinds; empty is every kind.
    pub kinds: Vec<String>,
    /// Only this run.
    pub run_id: Option<RunId>,
    /// The form to give them in.
    pub format: EventFormat,
    /// Only if this is the log.
    pub log_id: Option<LogId>,
}

impl EventsQuery {
    /// Checks every parameter. `last_event_id` is the header, which wins over `after`.
    pub fn check(&self, last_event_id: Option<&str>) -> Result<EventSelection, QueryFault> {
        let after = match last_event_id.or(self.after.as_deref()) {
            None => After::Seq(0),
            Some(HEAD) if last_event_id.is_none() => After::Head,
            Some(text) => After::Seq(parse_seq(text)?),
        };
        let most = limits::EVENT_PAGE_MAX;
        let limit = page::limit(self.limit.as_deref(), limits::PAGE_MAX, most)?;
        let run_id = page::id("run_id", self.run_id.as_deref())?;
        let format = EventFormat::check(self.format.as_deref())?;
        let kinds = kinds(self.kinds.as_deref(), format)?;
        let log_id = page::id("log_id", self.log_id.as_deref())?;
        Ok(EventSelection {
            after,
            limit,
            kinds,
            run_id,
            format,
            log_id,
        })
    }
}

/// Kinds of one selection.
const MAX_KINDS: usize = 50;

/// Reads a query's `kinds` as stored kinds.
pub(crate) fn kinds(text: Option<&str>, format: EventFormat) -> Result<Vec<String>, QueryFault> {
    let kinds = text.unwrap_or_default().split(',');
    let kinds: Vec<String> = kinds
        .map(str::trim)
        .filter(|kind| !kind.is_empty())
        .map(str::to_owned)
        .collect();
    let fits =
        |kind: &String| kind.chars().count() <= limits::EVENT_KIND_CHARS && !kind.contains('\0');
    if kinds.len() > MAX_KINDS || !kinds.iter().all(fits) {
        let message = format!(
            "must be at most {MAX_KINDS} kinds of at most {} characters",
            limits::EVENT_KIND_CHARS
        );
        return Err(QueryFault::parameter("kinds", message));
    }
    match format {
        EventFormat::Raw => Ok(kinds),
        EventFormat::Display => display::stored_kinds(&kinds),
    }
}

fn parse_seq(text: &str) -> Result<u64, QueryFault> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // Stores count in signed 64 bits.
    let seq = text.parse().ok().filter(|seq| i64::try_from(*seq).is_ok());
    match seq {
        Some(seq) if digits => Ok(seq),
        Some(_) | None => Err(QueryFault::Cursor(
            "the cursor must be the number of an event of this session".to_owned(),
        )),
    }
}

/// The `data` of an event's SSE frame: one line, flat, the envelope's names win over the payload's.
pub fn sse_data(record: &EventRecord) -> String {
    flat_raw(record).unwrap_or_else(|| flat_parsed(record))
}

fn envelope(record: &EventRecord) -> [(&'static str, Value); 6] {
    [
        ("event_id", json!(record.event_id)),
        ("run_id", json!(record.run_id)),
        ("session_id", json!(record.session_id)),
        ("session_seq", json!(record.session_seq)),
        ("timestamp", json!(record.recorded_at)),
        ("type", json!(record.kind)),
    ]
}

/// Only a fold's frame has it, whatever a payload says: readers tell by it which numbers they have.
const FOLDED_FROM: &str = "folded_from";

/// Splices the payload's fields as they are stored, without parsing their values.
fn flat_raw(record: &EventRecord) -> Option<String> {
    let text = record.payload.as_str();
    // A frame's data is one line; stored payloads are compact, but nothing here enforces it.
    if text.contains(['\n', '\r']) {
        return None;
    }
    let mut fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(text).ok()?;
    fields.remove(FOLDED_FROM);
    let folded_from = record.folded_from.map(|seq| (FOLDED_FROM, json!(seq)));
    let own: Vec<(&str, Box<RawValue>)> = envelope(record)
        .into_iter()
        .chain(folded_from)
        .map(|(name, value)| Some((name, RawValue::from_string(value.to_string()).ok()?)))
        .collect::<Option<_>>()?;
    for (name, value) in &own {
        fields.insert(Cow::Borrowed(name), value);
    }
    serde_json::to_string(&fields).ok()
}

fn flat_parsed(record: &EventRecord) -> String {
    let payload = record.payload.value();
    let mut fields = match payload.as_object() {
        Some(fields) => fields.clone(),
        None => Map::from_iter([("payload".to_owned(), payload)]),
    };
    fields.remove(FOLDED_FROM);
    let folded_from = record.folded_from.map(|seq| (FOLDED_FROM, json!(seq)));
    for (name, value) in envelope(record).into_iter().chain(folded_from) {
        fields.insert(name.to_owned(), value);
    }
    Value::Object(fields).to_string()
}

#[cfg(test)]
mod tests;
