//! Events: append-only.

use async_trait::async_trait;
use tapedeck_domain::append::Known;
use tapedeck_domain::event::{EventRecord, NewEvent};
use tapedeck_domain::id::{RunKey, SessionKey};

use super::Rows;

/// Rows of `events`.
#[async_trait]
pub trait EventRows {
    /// Those of the ids that are stored for the run, in one statement.
    async fn known_events(
        &mut self,
        run: RunKey,
        event_ids: &[String],
    ) -> Rows<Vec<(String, Known)>>;
    /// Inserts numbered events in one statement; as many rows as events, or it fails.
    async fn insert_events(&mut self, session: SessionKey, events: &[NewEvent]) -> Rows<()>;
    /// Events after a number, in order, for the projection; no further one once their payloads have
    /// `max_bytes`.
    async fn events_after(
        &mut self,
        session: SessionKey,
        after: u64,
        limit: u32,
        max_bytes: usize,
    ) -> Rows<Vec<EventRecord>>;
}
