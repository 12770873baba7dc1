//! Checkpoints. None is ever deleted but with its session: a restore or a person only marks them.

use async_trait::async_trait;
use tapedeck_domain::checkpoint::Checkpoint;
use tapedeck_domain::id::{CheckpointId, SessionKey};
use tapedeck_domain::time::Timestamp;

use super::Rows;

/// Rows of `checkpoints`.
#[async_trait]
pub trait CheckpointRows {
    /// Inserts a checkpoint.
    async fn insert_checkpoint(&mut self, session: SessionKey, checkpoint: &Checkpoint)
    -> Rows<()>;
    /// One checkpoint of a locked session, active or not; another session's is none.
    async fn checkpoint(
        &mut self,
        session: SessionKey,
        id: CheckpointId,
    ) -> Rows<Option<Checkpoint>>;
    /// The newest active one.
    async fn latest_checkpoint(&mut self, session: SessionKey) -> Rows<Option<Checkpoint>>;
    /// How many are active.
    async fn active_checkpoint_count(&mut self, session: SessionKey) -> Rows<u32>;
    /// Marks one as deleted by a person.
    async fn mark_checkpoint_deleted(&mut self, id: CheckpointId, at: Timestamp) -> Rows<()>;
    /// Marks active ones captured after `session_seq` as put aside by a restore. Gives how many.
    async fn supersede_checkpoints(
        &mut self,
        session: SessionKey,
        session_seq: u64,
        by: CheckpointId,
        at: Timestamp,
    ) -> Rows<u64>;
}
