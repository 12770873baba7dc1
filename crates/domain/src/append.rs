//! An uploaded batch becomes records or a rejection (design §4.5; rules R1, R11, R12). Numbers go
//! only to events proved absent under the head's lock, so the log has no gaps.

use std::collections::HashMap;
use std::hash::BuildHasher;

use serde_json::Value;

use crate::digest::Digest;
use crate::event::{Draft, EventKind, EventRecord, SERVER_ID_PREFIX, STREAM_PREFIX, uploaded};
use crate::json::{JsonText, storable, storable_text};
use crate::limits;
use crate::rejection::{FieldError, Rejection};
use crate::time::Timestamp;

/// One event as an executor uploaded it, checked at the edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uploaded {
    /// The producer's id.
    pub event_id: String,
    /// The kind.
    pub kind: String,
    /// The payload.
    pub payload: JsonText,
    /// Digest of kind and payload.
    pub digest: Digest,
    /// When the producer made it.
    pub created_at: Option<Timestamp>,
}

impl Uploaded {
    /// Checks one event of a batch; `index` names it in the message.
    pub fn check(
        index: usize,
        event_id: String,
        kind: String,
        data: &Value,
        created_at: Option<Timestamp>,
    ) -> Result<Self, FieldError> {
        let at = |field: &str, message: String| {
            FieldError::new(format!("events[{index}].{field}"), message)
        };
        if event_id.is_empty() || event_id.chars().count() > limits::EVENT_ID_CHARS {
            return Err(at(
                "event_id",
                format!("must have 1 to {} characters", limits::EVENT_ID_CHARS),
            ));
        }
        if event_id.starts_with(SERVER_ID_PREFIX) {
            return Err(at(
                "event_id",
                format!("must not start with `{SERVER_ID_PREFIX}`: those ids are the server's"),
            ));
        }
        if kind.is_empty() || kind.chars().count() > limits::EVENT_KIND_CHARS {
            return Err(at(
                "event",
                format!("must have 1 to {} characters", limits::EVENT_KIND_CHARS),
            ));
        }
        if kind.chars().any(char::is_control) {
            return Err(at("event", "must not hold control characters".to_owned()));
        }
        for (field, text) in [("event_id", &event_id), ("event", &kind)] {
            storable_text(text).map_err(|why| at(field, why.to_string()))?;
        }
        if kind != EventKind::TurnEnd.as_str() && kind.parse::<EventKind>().is_ok() {
            return Err(at(
                "event",
                format!("`{kind}` is written by the server only"),
            ));
        }
        if kind.starts_with(STREAM_PREFIX) {
            return Err(at(
                "event",
                format!("must not start with `{STREAM_PREFIX}`: those frames are the stream's own"),
            ));
        }
        if !data.is_object() {
            return Err(at("data", "must be an object".to_owned()));
        }
        storable(data).map_err(|why| at("data", why.to_string()))?;
        let payload = JsonText::from(data);
        if payload.as_str().len() > limits::EVENT_BYTES {
            return Err(at(
                "data",
                format!(
                    "has {} bytes of JSON; {} are allowed",
                    payload.as_str().len(),
                    limits::EVENT_BYTES
                ),
            ));
        }
        let digest = Digest::of_json(&kind, data);
        Ok(Self {
            event_id,
            kind,
            payload,
            digest,
            created_at,
        })
    }

    /// `TurnEnd` is acknowledged and not recorded: older clients send it before they complete.
    pub fn is_ignored(&self) -> bool {
        self.kind == EventKind::TurnEnd.as_str()
    }

    /// Whether it is the agent's own output, after which a run can't be released.
    pub fn is_output(&self) -> bool {
        !matches!(
            self.kind.as_str(),
            uploaded::TURN_BEGIN | uploaded::TURN_STATUS_DELTA | "TurnEnd"
        )
    }
}

/// A stored event of the same run, by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its digest; `None` for the server's own.
    pub digest: Option<Digest>,
    /// The record.
    pub record: EventRecord,
}

/// Where each event of a batch ends up, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// Index into [`Plan::new`].
    New(usize),
    /// Stored before.
    Known(EventRecord),
    /// Acknowledged, not recorded.
    Ignored,
}

/// What an append writes and answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The events that are really new, in order.
    pub new: Vec<Draft>,
    /// The answer's order.
    pub slots: Vec<Slot>,
    /// Whether any new event is the agent's own output.
    pub has_output: bool,
}

/// Plans an append: stored events come back as they are, the same id with another content refuses
/// the whole batch, and an id that comes twice in one batch counts once.
pub fn plan<S: BuildHasher>(
    batch: Vec<Uploaded>,
    known: &HashMap<String, Known, S>,
) -> Result<Plan, Rejection> {
    let mut fresh: HashMap<String, (Digest, usize)> = HashMap::new();
    let mut plan = Plan {
        new: Vec::new(),
        slots: Vec::with_capacity(batch.len()),
        has_output: false,
    };
    for event in batch {
        if event.is_ignored() {
            plan.slots.push(Slot::Ignored);
            continue;
        }
        // What a fold stands for can't be told any more, so it proves nothing of an upload. Only
        // settled runs are folded, and they take no new event (rules R20, R11).
        let stored = known.get(&event.event_id);
        if let Some(stored) = stored.filter(|stored| stored.record.folded_from.is_none()) {
            if stored.digest != Some(event.digest) {
                return Err(Rejection::EventIdConflict {
                    event_id: event.event_id,
                });
            }
            plan.slots.push(Slot::Known(stored.record.clone()));
            continue;
        }
        if let Some((digest, index)) = fresh.get(&event.event_id) {
            if *digest != event.digest {
                return Err(Rejection::EventIdConflict {
                    event_id: event.event_id,
                });
            }
            plan.slots.push(Slot::New(*index));
            continue;
        }
        fresh.insert(event.event_id.clone(), (event.digest, plan.new.len()));
        plan.slots.push(Slot::New(plan.new.len()));
        plan.has_output |= event.is_output();
        plan.new.push(Draft {
            event_id: Some(event.event_id),
            kind: event.kind,
            payload: event.payload,
            digest: Some(event.digest),
            run: None,
            attempt: None,
            executor_id: None,
            trace_id: None,
            created_at: event.created_at,
        });
    }
    Ok(plan)
}

#[cfg(test)]
mod tests;
