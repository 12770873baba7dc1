//! Checkpoints, restores and forks as clients ask for them: the tape catches up first, outside the
//! command's transaction (rules R19).

use tapedeck_domain::checkpoint::{Checkpoint, Fork};
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::{CheckpointId, SessionId, TapeId};
use tapedeck_store::{Page, PageRequest, SessionView, Target};

use crate::ControlPlane;
use crate::commands::capture_checkpoint::CaptureCheckpoint;
use crate::commands::delete_checkpoint::DeleteCheckpoint;
use crate::commands::fork_session::{ForkPoint, ForkSession};
use crate::commands::repair_session::RepairSession;
use crate::commands::restore_session::RestoreSession;
use crate::error::Outcome;

impl ControlPlane {
    /// Captures a checkpoint.
    pub async fn capture_checkpoint(
        &self,
        namespace: &str,
        session_id: SessionId,
        label: Option<String>,
        key: Option<IdempotencyKey>,
    ) -> Outcome<Checkpoint> {
        self.ready_session(namespace, session_id).await?;
        let command = CaptureCheckpoint {
            namespace: namespace.to_owned(),
            session_id,
            checkpoint_id: CheckpointId::new(self.new_id()),
            label,
            key,
        };
        let id = self.inner.execute(command).await?;
        self.checkpoint(namespace, id).await
    }

    /// Drops a checkpoint from the active list.
    pub async fn delete_checkpoint(
        &self,
        namespace: &str,
        session_id: SessionId,
        checkpoint_id: CheckpointId,
    ) -> Outcome<()> {
        self.inner
            .execute(DeleteCheckpoint {
                namespace: namespace.to_owned(),
                session_id,
                checkpoint_id,
            })
            .await
    }

    /// Puts a session back to a checkpoint.
    pub async fn restore_session(
        &self,
        namespace: &str,
        session_id: SessionId,
        checkpoint_id: CheckpointId,
        key: Option<IdempotencyKey>,
    ) -> Outcome<SessionView> {
        self.ready_session(namespace, session_id).await?;
        let command = RestoreSession {
            namespace: namespace.to_owned(),
            session_id,
            checkpoint_id,
            key,
        };
        self.inner.execute(command).await?;
        self.session(namespace, session_id).await
    }

    /// Forks a session; gives the new one.
    pub async fn fork_session(
        &self,
        namespace: &str,
        source: SessionId,
        point: ForkPoint,
        title: Option<String>,
        key: Option<IdempotencyKey>,
    ) -> Outcome<SessionView> {
        self.ready_session(namespace, source).await?;
        let command = ForkSession {
            namespace: namespace.to_owned(),
            source,
            point,
            fork: Fork {
                session_id: SessionId::new(self.new_id()),
                tape_id: TapeId::new(self.new_id()),
                title,
            },
            key,
        };
        let session_id = self.inner.execute(command).await?;
        self.session(namespace, session_id).await
    }

    /// Repairs what is derived of a session, where no live owner exists. Gives what was wrong.
    pub async fn repair_session(
        &self,
        namespace: &str,
        session_id: SessionId,
        by: &str,
    ) -> Outcome<Vec<&'static str>> {
        self.inner
            .execute(RepairSession {
                namespace: namespace.to_owned(),
                session_id,
                by: by.to_owned(),
            })
            .await
    }

    /// One checkpoint.
    pub async fn checkpoint(&self, namespace: &str, id: CheckpointId) -> Outcome<Checkpoint> {
        Self::found(
            self.inner.store.reader().checkpoint(namespace, id).await?,
            Target::Checkpoint,
        )
    }

    /// A page of a session's checkpoints, newest first.
    pub async fn checkpoints(
        &self,
        namespace: &str,
        session_id: SessionId,
        include_superseded: bool,
        page: PageRequest,
    ) -> Outcome<Page<Checkpoint>> {
        self.session(namespace, session_id).await?;
        let reader = self.inner.store.reader();
        Ok(reader
            .checkpoints(namespace, session_id, include_superseded, page)
            .await?)
    }
}
