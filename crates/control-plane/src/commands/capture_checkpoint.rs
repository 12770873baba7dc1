//! Captures a checkpoint of an idle session (design §4.6). The tape must have caught up before
//! (rules R19).

use async_trait::async_trait;
use serde_json::{Value, json};
use tapedeck_domain::checkpoint::{CaptureMaterial, capture};
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::snapshot::SnapshotFacts;
use tapedeck_domain::{CheckpointId, SessionId};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;
use crate::projection;

/// Captures a checkpoint.
#[derive(Debug)]
pub struct CaptureCheckpoint {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
    /// The checkpoint's id.
    pub checkpoint_id: CheckpointId,
    /// What the person calls it.
    pub label: Option<String>,
    /// The client's key.
    pub key: Option<IdempotencyKey>,
}

#[async_trait]
impl Command for CaptureCheckpoint {
    type Output = CheckpointId;
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    fn idempotency(&self) -> Option<&IdempotencyKey> {
        self.key.as_ref()
    }

    fn stored(&self, output: &CheckpointId) -> Value {
        json!({"checkpoint_id": output})
    }

    fn restored(&self, stored: &Value) -> Option<CheckpointId> {
        stored["checkpoint_id"].as_str()?.parse().ok()
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<CheckpointId, Failure> {
        let mut locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        let key = locked.head.session_key;
        projection::step_to_head(context, &locked.head).await?;
        let mut material = CaptureMaterial {
            tape_position: context.tx.tape_state(key).await?.position,
            ..CaptureMaterial::default()
        };
        if let Some(latest) = context.tx.latest_settled_run(key).await? {
            material.run_id = Some(latest.run_id);
            material.agent_state = context.tx.agent_state(latest.key).await?;
            let snapshot = context.tx.snapshot_facts(latest.key).await?;
            material.snapshot_id = snapshot.as_ref().map(SnapshotFacts::snapshot_id);
        }
        let (checkpoint, event) = capture(
            &mut locked.session,
            &locked.head,
            material,
            self.checkpoint_id,
            self.label.clone(),
            context.now,
        )?;
        context.tx.insert_checkpoint(key, &checkpoint).await?;
        context.append(&mut locked.head, vec![event]).await?;
        context.save(&locked).await?;
        Ok(self.checkpoint_id)
    }
}
