//! The tape and the projection's memory.

use async_trait::async_trait;
use tapedeck_domain::id::{SessionKey, TapeEntryId};
use tapedeck_domain::tape::{NewEntry, TapeEntry, TapeState};

use super::Rows;

/// Rows of `tape_entries` and `tape_states`.
#[async_trait]
pub trait TapeRows {
    /// The projection's memory; the default for a new session.
    async fn tape_state(&mut self, session: SessionKey) -> Rows<TapeState>;
    /// Writes it back.
    async fn save_tape_state(&mut self, session: SessionKey, state: &TapeState) -> Rows<()>;
    /// Inserts entries at the given positions. An entry whose (run, first number, kind) is there already is left out.
    async fn insert_tape_entries(
        &mut self,
        session: SessionKey,
        entries: &[(u64, TapeEntryId, NewEntry)],
    ) -> Rows<()>;
    /// The newest `limit` entries, oldest first.
    async fn tape_tail(&mut self, session: SessionKey, limit: u32) -> Rows<Vec<TapeEntry>>;
}
