//! What a follower is asked for and what it yields.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use tapedeck_domain::{RunId, SessionId, Timestamp};
use tapedeck_protocol::stream::{COMMENT_INTERVAL_MS, StreamEnd, StreamLive, StreamOpen};

use super::Broken;

/// Where to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// With the first event.
    #[default]
    Beginning,
    /// After this number.
    After(u64),
    /// At the end: only what is new.
    Head,
}

/// What to follow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Follow {
    /// Where to start.
    pub start: Start,
    /// Only this run; the stream then ends with it.
    pub run_id: Option<RunId>,
    /// Only these kinds; empty is every kind.
    pub kinds: Vec<String>,
}

/// How a stream is kept alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    /// The server's pause between two comments; after 2.5 of them without a byte the connection
    /// counts as dead.
    pub comment_interval: Duration,
    /// At most this between two tries.
    pub max_delay: Duration,
    /// Gives up after this long without a connection; `None` never does.
    pub give_up_after: Option<Duration>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            comment_interval: Duration::from_millis(COMMENT_INTERVAL_MS),
            max_delay: Duration::from_secs(10),
            give_up_after: None,
        }
    }
}

impl StreamOptions {
    /// How long a connection may be silent.
    pub(super) fn dead_after(&self) -> Duration {
        self.comment_interval.mul_f64(2.5)
    }
}

/// What a stream yields.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// A connection begins, the first or a later one: where things stand.
    Open(StreamOpen),
    /// An event.
    Event(StreamEvent),
    /// The stream has caught up.
    Live(StreamLive),
    /// Nothing follows.
    End(StreamEnd),
}

/// An event as a stream carries it: the envelope, and beside it the whole flat object.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamEvent {
    /// Its number in the session's log.
    pub session_seq: u64,
    /// The kind.
    pub kind: String,
    /// The producer's id.
    pub event_id: String,
    /// The session.
    pub session_id: SessionId,
    /// The run.
    pub run_id: Option<RunId>,
    /// When the server recorded it.
    pub timestamp: Timestamp,
    /// The payload's fields, and the envelope's under their wire names.
    pub data: Map<String, Value>,
}

impl StreamEvent {
    /// Reads an event's flat object; gives also the first number that a folded event stands for
    /// (rules R20).
    pub(super) fn read(data: Map<String, Value>) -> Result<(Self, Option<u64>), Broken> {
        let envelope = Envelope::deserialize(Value::Object(data.clone()))
            .map_err(|error| Broken::Fault(format!("an event can't be read: {error}")))?;
        let event = Self {
            session_seq: envelope.session_seq,
            kind: envelope.kind,
            event_id: envelope.event_id,
            session_id: envelope.session_id,
            run_id: envelope.run_id,
            timestamp: envelope.timestamp,
            data,
        };
        Ok((event, envelope.folded_from))
    }

    /// A text field of the payload.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.data.get(name).and_then(Value::as_str)
    }
}

/// The part of an event's flat object that every event has.
#[derive(Deserialize)]
struct Envelope {
    #[serde(rename = "type")]
    kind: String,
    session_id: SessionId,
    run_id: Option<RunId>,
    session_seq: u64,
    event_id: String,
    timestamp: Timestamp,
    folded_from: Option<u64>,
}
