//! Display events on the wire: what people see of a log, under the numbers of its events. The
//! projection itself is the domain's; here are its records, its SSE data and its selection.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tapedeck_domain::display::{self, DisplayEvent, DisplayKind};
use tapedeck_domain::{RunId, SessionId, Timestamp};
use utoipa::ToSchema;

use crate::event::EventPage;
use crate::page::QueryFault;
use crate::schema;

/// One display event of a JSON page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DisplayEventRecord {
    /// The id of the event it shows.
    pub event_id: String,
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// The number of the event it shows.
    pub session_seq: u64,
    /// The run.
    #[schema(value_type = Option<Uuid>, required)]
    pub run_id: Option<RunId>,
    /// The kind.
    #[schema(value_type = schema::DisplayKind)]
    pub kind: DisplayKind,
    /// A flat object whose fields depend on the kind only.
    #[schema(value_type = Object)]
    pub payload: Value,
    /// When the producer made it.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When the server recorded it.
    #[schema(value_type = String, format = DateTime)]
    pub recorded_at: Timestamp,
}

impl From<DisplayEvent> for DisplayEventRecord {
    fn from(event: DisplayEvent) -> Self {
        Self {
            event_id: event.event_id,
            session_id: event.session_id,
            session_seq: event.session_seq,
            run_id: event.run_id,
            kind: event.kind,
            payload: event.payload,
            created_at: event.created_at,
            recorded_at: event.recorded_at,
        }
    }
}

/// Answer of the event endpoints as JSON with `format=display`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DisplayEventPage {
    /// In order.
    pub events: Vec<DisplayEventRecord>,
    /// Where the next page starts: an empty page is the end, and its cursor is past all that has no
    /// display form.
    pub next_cursor: u64,
    /// The number of the newest event.
    pub head_seq: u64,
}

/// Answer of the event endpoints as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EventsResponse {
    /// With `format=raw`, the default.
    Raw(EventPage),
    /// With `format=display`.
    Display(DisplayEventPage),
}

/// The form in which events are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventFormat {
    /// As they are stored.
    #[default]
    Raw,
    /// As people see them.
    Display,
}

impl EventFormat {
    /// Reads the query's `format`.
    pub(crate) fn check(text: Option<&str>) -> Result<Self, QueryFault> {
        match text {
            None | Some("raw") => Ok(Self::Raw),
            Some("display") => Ok(Self::Display),
            Some(_) => Err(QueryFault::parameter(
                "format",
                "must be `raw` or `display`",
            )),
        }
    }
}

/// The stored kinds to read for a selection of display events: kinds may be named as they are shown
/// or as they are stored, and none names all.
pub(crate) fn stored_kinds(named: &[String]) -> Result<Vec<String>, QueryFault> {
    if named.is_empty() {
        return Ok(display::stored_kinds().map(str::to_owned).collect());
    }
    let mut stored: Vec<String> = Vec::new();
    for name in named {
        if let Ok(kind) = name.parse::<DisplayKind>() {
            stored.extend(kind.stored_kinds().map(str::to_owned));
        } else if display::stored_kinds().any(|kind| kind == name.as_str()) {
            stored.push(name.clone());
        } else {
            let name: String = name.chars().take(64).collect();
            let message = format!("`{name}` is no kind of display event and has no display form");
            return Err(QueryFault::parameter("kinds", message));
        }
    }
    Ok(stored)
}

/// The `data` of a display event's SSE frame: one line, flat, the envelope's names win.
pub fn sse_data(event: DisplayEvent) -> String {
    let envelope = [
        ("event_id", json!(event.event_id)),
        ("run_id", json!(event.run_id)),
        ("session_id", json!(event.session_id)),
        ("session_seq", json!(event.session_seq)),
        ("timestamp", json!(event.recorded_at)),
        ("type", json!(event.kind)),
    ];
    // A display event's payload is an object.
    let mut fields = if let Value::Object(fields) = event.payload {
        fields
    } else {
        Map::new()
    };
    for (name, value) in envelope {
        fields.insert(name.to_owned(), value);
    }
    Value::Object(fields).to_string()
}

#[cfg(test)]
mod tests;
