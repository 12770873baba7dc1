//! Drops a checkpoint from the active list; its row stays for audits (design §4.6).

use async_trait::async_trait;
use tapedeck_domain::checkpoint::delete;
use tapedeck_domain::{CheckpointId, SessionId};
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;

/// Deletes a checkpoint.
#[derive(Debug)]
pub struct DeleteCheckpoint {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
}

#[async_trait]
impl Command for DeleteCheckpoint {
    type Output = ();
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let mut locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        let key = locked.head.session_key;
        let stored = context.tx.checkpoint(key, self.checkpoint_id).await?;
        let checkpoint = stored.ok_or(Failure::NotFound(Target::Checkpoint))?;
        if !checkpoint.is_active() {
            return Err(Failure::NotFound(Target::Checkpoint));
        }
        let at = context.now.wall;
        context
            .tx
            .mark_checkpoint_deleted(self.checkpoint_id, at)
            .await?;
        let latest = context.tx.latest_checkpoint(key).await?;
        delete(&mut locked.session, latest.as_ref(), context.now);
        context.save(&locked).await?;
        Ok(())
    }
}
