//! The tape and the projection's memory.

use async_trait::async_trait;
use tapedeck_domain::id::{CheckpointId, RunId, SessionKey, TapeEntryId};
use tapedeck_domain::tape::upload::KnownEntry;
use tapedeck_domain::tape::{NewEntry, TapeEntry, TapeState};

use super::Rows;

/// Rows of `tape_entries` and `tape_states`.
#[async_trait]
pub trait TapeRows {
    /// The projection's memory; the default for a new session.
    async fn tape_state(&mut self, session: SessionKey) -> Rows<TapeState>;
    /// Writes it back.
    async fn save_tape_state(&mut self, session: SessionKey, state: &TapeState) -> Rows<()>;
    /// Inserts entries at the given positions. A projected entry whose (run, first number, kind) is
    /// there already is left out.
    async fn insert_tape_entries(
        &mut self,
        session: SessionKey,
        entries: &[(u64, TapeEntryId, NewEntry)],
    ) -> Rows<()>;
    /// The newest `limit` active entries, oldest first.
    async fn tape_tail(&mut self, session: SessionKey, limit: u32) -> Rows<Vec<TapeEntry>>;
    /// Those of the ids that are stored on any tape, in one statement.
    async fn known_tape_entries(&mut self, ids: &[TapeEntryId]) -> Rows<Vec<KnownEntry>>;
    /// Marks the active entries that were projected from a run's uploads (neither its prompt nor its
    /// end) as replaced by the executor's own. Gives how many.
    async fn replace_projected(&mut self, session: SessionKey, run: RunId) -> Rows<u64>;
    /// Marks active entries after a position as put aside by a restore. Gives how many.
    async fn supersede_tape(
        &mut self,
        session: SessionKey,
        after_position: u64,
        by: CheckpointId,
    ) -> Rows<u64>;
    /// The position of the entry that ends the newest run settled at `session_seq` or before, on the
    /// active tape; 0 where there is none. What a fork was made with counts as settled before all.
    async fn settled_position(&mut self, session: SessionKey, session_seq: u64) -> Rows<u64>;
    /// Copies the active entries up to a position to the tape of a new session, under new ids. Gives
    /// how many. The cost grows with them: a fork is an explicit act.
    async fn copy_tape(
        &mut self,
        from: SessionKey,
        to: SessionKey,
        through_position: u64,
    ) -> Rows<u64>;
}
