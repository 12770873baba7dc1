//! Uploads of events. The batch is checked as a whole: one broken event refuses it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::{JsonText, RunId, SessionId, Timestamp, limits};
use utoipa::ToSchema;

use super::lease::{Presented, PresentedFields};
use crate::check::Faults;

/// One event of an upload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UploadEvent {
    /// Chosen by the executor, unique within the run, at most 200 characters.
    pub event_id: String,
    /// The kind, at most 100 characters.
    pub event: String,
    /// The payload, an object of at most 256 KiB.
    #[schema(value_type = Object)]
    pub data: Value,
    /// When the executor made it.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub created_at: Option<Timestamp>,
}

/// Body of `POST /executor/runs/{id}/events`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UploadRequest {
    /// Who holds the claim.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// What proves it.
    #[schema(required)]
    pub claim_token: Option<String>,
    /// 1 to 1000 events.
    #[schema(required)]
    pub events: Vec<UploadEvent>,
}

impl UploadRequest {
    /// Checks every event and gives the claim and the batch.
    pub fn check(self) -> Result<(Presented, Vec<Uploaded>), Vec<FieldError>> {
        let mut faults = Faults::default();
        let fields = PresentedFields {
            executor_id: self.executor_id,
            worker_id: self.worker_id,
            claim_token: self.claim_token,
        };
        let claim = fields.check(&mut faults);
        if self.events.is_empty() || self.events.len() > limits::UPLOAD_EVENTS {
            faults.add(
                "events",
                format!("must hold 1 to {} events", limits::UPLOAD_EVENTS),
            );
            return faults.finish((claim, Vec::new()));
        }
        let mut batch = Vec::with_capacity(self.events.len());
        for (index, event) in self.events.into_iter().enumerate() {
            let UploadEvent {
                event_id,
                event,
                data,
                created_at,
            } = event;
            match Uploaded::check(index, event_id, event, &data, created_at) {
                Ok(uploaded) => batch.push(uploaded),
                Err(error) => faults.extend(vec![error]),
            }
        }
        faults.finish((claim, batch))
    }
}

/// Where an uploaded event ended up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadedEventResponse {
    /// Chosen by the executor.
    pub event_id: String,
    /// Whether the log holds it; an uploaded `TurnEnd` is acknowledged and not recorded.
    pub recorded: bool,
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// Its number in the session's log.
    #[schema(required)]
    pub session_seq: Option<u64>,
    /// The run.
    #[schema(value_type = Option<Uuid>, required)]
    pub run_id: Option<RunId>,
    /// The kind.
    pub kind: String,
    /// The payload.
    #[schema(value_type = Object)]
    pub payload: JsonText,
    /// The first of the numbers that a folded event stands for.
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
    /// When the executor made it.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub created_at: Option<Timestamp>,
    /// When the server recorded it.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub recorded_at: Option<Timestamp>,
}

impl From<&EventRecord> for UploadedEventResponse {
    fn from(record: &EventRecord) -> Self {
        Self {
            event_id: record.event_id.clone(),
            recorded: true,
            session_id: record.session_id,
            session_seq: Some(record.session_seq),
            run_id: record.run_id,
            kind: record.kind.clone(),
            payload: record.payload.clone(),
            folded_from: record.folded_from,
            attempt: record.attempt,
            executor_id: record.executor_id.clone(),
            trace_id: record.trace_id.clone(),
            created_at: Some(record.created_at),
            recorded_at: Some(record.recorded_at),
        }
    }
}

impl UploadedEventResponse {
    /// An event that is acknowledged and not recorded.
    pub fn ignored(event: &Uploaded, session_id: SessionId, run_id: RunId) -> Self {
        Self {
            event_id: event.event_id.clone(),
            recorded: false,
            session_id,
            session_seq: None,
            run_id: Some(run_id),
            kind: event.kind.clone(),
            payload: event.payload.clone(),
            folded_from: None,
            attempt: None,
            executor_id: None,
            trace_id: None,
            created_at: event.created_at,
            recorded_at: None,
        }
    }
}

/// Answer of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadResponse {
    /// The run.
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    /// In the order of the request.
    pub events: Vec<UploadedEventResponse>,
}
