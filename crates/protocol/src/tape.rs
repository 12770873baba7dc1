//! The tape on the wire: entries of a session's settled conversation, with what restores have put
//! aside where that is asked for.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tapedeck_domain::tape::{EntryKind, TapeEntry};
use tapedeck_domain::{CheckpointId, RunId, SessionId, TapeEntryId, Timestamp};
use utoipa::ToSchema;

use crate::schema;

/// One entry of the tape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TapeEntryResponse {
    /// Its place; positions rise for ever.
    pub position: u64,
    /// The identifier.
    #[schema(value_type = Uuid)]
    pub entry_id: TapeEntryId,
    /// The kind.
    #[schema(value_type = schema::EntryKind)]
    pub kind: EntryKind,
    /// The payload.
    #[schema(value_type = Object)]
    pub payload: Value,
    /// The executor's notes.
    #[schema(value_type = Option<Object>, required)]
    pub meta: Option<Value>,
    /// The type, for anchors.
    #[schema(required)]
    pub anchor_type: Option<String>,
    /// The run.
    #[schema(value_type = Option<Uuid>, required)]
    pub run_id: Option<RunId>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// The checkpoint whose restore put it aside.
    #[schema(value_type = Option<Uuid>, required)]
    pub superseded_by_checkpoint_id: Option<CheckpointId>,
}

impl From<&TapeEntry> for TapeEntryResponse {
    fn from(entry: &TapeEntry) -> Self {
        Self {
            position: entry.position,
            entry_id: entry.entry_id,
            kind: entry.kind,
            payload: entry.payload.clone(),
            meta: entry.meta.clone(),
            anchor_type: entry.anchor_type.clone(),
            run_id: entry.run_id,
            created_at: entry.created_at,
            superseded_by_checkpoint_id: entry.superseded_by_checkpoint_id,
        }
    }
}

/// Answer of `GET /sessions/{id}/tape`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TapePage {
    /// In the order of their positions.
    pub entries: Vec<TapeEntryResponse>,
    /// The next page; null at the end.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// A transcript as JSON: the whole tape, without secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TranscriptResponse {
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// Its title.
    #[schema(required)]
    pub title: Option<String>,
    /// In the order of their positions.
    pub entries: Vec<TapeEntryResponse>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tapedeck_domain::tape::EntrySource;
    use tapedeck_domain::transcript;

    #[test]
    fn an_entry_has_the_same_fields_here_and_in_a_transcript() {
        let id = "01890000-0000-7000-8000-000000000001";
        let entry = TapeEntry {
            position: 3,
            entry_id: id.parse().unwrap(),
            kind: EntryKind::Anchor,
            payload: json!({"a": 1}),
            anchor_type: Some("mark".to_owned()),
            run_id: Some(id.parse().unwrap()),
            first_seq: 2,
            created_at: Timestamp(0),
            source: EntrySource::Executor,
            meta: Some(json!({"b": 2})),
            superseded_by_checkpoint_id: Some(id.parse().unwrap()),
        };
        let response = serde_json::to_value(TapeEntryResponse::from(&entry)).unwrap();
        assert_eq!(
            response,
            json!({
                "position": 3, "entry_id": id, "kind": "anchor", "payload": {"a": 1},
                "meta": {"b": 2}, "anchor_type": "mark", "run_id": id,
                "created_at": "1970-01-01T00:00:00.000Z", "superseded_by_checkpoint_id": id,
            })
        );
        assert_eq!(response, transcript::value(&entry));
    }
}
