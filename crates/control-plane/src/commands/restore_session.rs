//! Puts an idle session back to a checkpoint in one transaction (design §4.6). Nothing is deleted:
//! later entries, runs and checkpoints are marked with the checkpoint that put them aside.

use async_trait::async_trait;
use serde_json::{Value, json};
use tapedeck_domain::checkpoint::{Remaining, check_idle, restore};
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::{CheckpointId, SessionId};
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;
use crate::{projection, settling};

/// Restores a checkpoint.
#[derive(Debug)]
pub struct RestoreSession {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// The client's key.
    pub key: Option<IdempotencyKey>,
}

#[async_trait]
impl Command for RestoreSession {
    type Output = ();
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    fn idempotency(&self) -> Option<&IdempotencyKey> {
        self.key.as_ref()
    }

    fn stored(&self, (): &()) -> Value {
        json!({})
    }

    fn restored(&self, _stored: &Value) -> Option<()> {
        Some(())
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let mut locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        let key = locked.head.session_key;
        let stored = context.tx.checkpoint(key, self.checkpoint_id).await?;
        let checkpoint = stored.ok_or(Failure::NotFound(Target::Checkpoint))?;
        check_idle(&locked.session)?;
        checkpoint.check_active()?;
        // What waits in a held queue was asked of the state that is now put aside.
        settling::cancel_queued(context, &mut locked).await?;
        projection::step_to_head(context, &locked.head).await?;
        let (seq, at, by) = (checkpoint.session_seq, context.now.wall, self.checkpoint_id);
        let superseded_entries =
            projection::supersede(context, key, checkpoint.tape_position, by).await?;
        let superseded_runs = context.tx.supersede_runs(key, seq, by, at).await?;
        context.tx.supersede_checkpoints(key, seq, by, at).await?;
        let remaining = Remaining {
            latest: context.tx.latest_settled_run(key).await?,
            last_interrupted_run_id: context.tx.latest_interrupted_run(key).await?,
            checkpoint_count: context.tx.active_checkpoint_count(key).await?,
            superseded_runs,
            superseded_entries,
        };
        let event = restore(
            &mut locked.session,
            &mut locked.head,
            &checkpoint,
            &remaining,
            context.now,
        );
        context.append(&mut locked.head, vec![event]).await?;
        context.tx.save_settings(&locked.session).await?;
        context.save(&locked).await?;
        Ok(())
    }
}
