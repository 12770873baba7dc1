//! Records the provider messages of a run as its executor last reports them (design §4.6).

use async_trait::async_trait;
use serde_json::{Map, Value};
use tapedeck_domain::snapshot::{MessageSnapshot, SnapshotFacts};
use tapedeck_domain::{Rejection, SessionId};
use tapedeck_store::{Failure, Lane};

use crate::commands::heartbeat::{ClaimProof, renew_held};
use crate::context::Context;
use crate::execute::Command;

/// Records a snapshot.
#[derive(Debug)]
pub struct SaveSnapshot {
    /// Who.
    pub proof: ClaimProof,
    /// The messages, in the provider's own form.
    pub messages: Vec<Value>,
    /// The executor's notes.
    pub metadata: Map<String, Value>,
    /// Bytes of the request, for the writer's batches.
    pub weight: usize,
}

#[async_trait]
impl Command for SaveSnapshot {
    type Output = SnapshotFacts;
    const LANE: Lane = Lane::Append;

    fn session(&self) -> Option<SessionId> {
        self.proof.session_id
    }

    fn weight(&self) -> usize {
        512 + self.weight
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<SnapshotFacts, Failure> {
        let proof = &self.proof;
        let claimed = context
            .hold_claim(proof.run_id, &proof.executor_id, &proof.token)
            .await?;
        let (head, mut live) = claimed.live()?;
        let Some(attempt) = live.state.claim().map(|claim| claim.attempt) else {
            return Err(Rejection::ClaimLost.into());
        };
        // Messages exist because an agent works, so the run can't be released any more.
        live.has_output = true;
        let snapshot = MessageSnapshot {
            run_id: live.run_id,
            messages: self.messages.clone(),
            metadata: self.metadata.clone(),
            attempt,
            created_at: context.now.wall,
            updated_at: context.now.wall,
        };
        let key = live.key;
        let (_, head) = renew_held(context, head, live, None).await?;
        context
            .tx
            .save_snapshot(head.session_key, key, &snapshot)
            .await?;
        let facts = context.tx.snapshot_facts(key).await?;
        Ok(facts.unwrap_or(SnapshotFacts {
            run_id: snapshot.run_id,
            message_count: snapshot.messages.len() as u64,
            bytes: 0,
        }))
    }
}
