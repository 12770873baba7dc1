//! Takes a run back from an executor before its agent has put anything out (design §4.3).

use async_trait::async_trait;
use tapedeck_domain::claim::release;
use tapedeck_domain::run::Run;
use tapedeck_domain::SessionId;
use tapedeck_store::{Failure, Lane};

use crate::commands::heartbeat::ClaimProof;
use crate::context::Context;
use crate::execute::Command;
use crate::settling;

/// Releases a claim.
#[derive(Debug)]
pub struct ReleaseRun {
    /// Who.
    pub proof: ClaimProof,
}

#[async_trait]
impl Command for ReleaseRun {
    type Output = Run;
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        self.proof.session_id
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Run, Failure> {
        let proof = &self.proof;
        let claimed = context
            .hold_claim(proof.run_id, &proof.executor_id, &proof.token)
            .await?;
        let (head, live) = claimed.live()?;
        let mut locked = context.lock_with(head).await?;
        let released = release(live.clone(), context.now)?;
        settling::requeue(context, &mut locked, &live, released).await?;
        context.save(&locked).await?;
        Ok(context.tx.run(live.key).await?)
    }
}
