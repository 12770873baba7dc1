//! Takes a run back from an executor before its agent has put anything out (design §4.3).

use async_trait::async_trait;
use serde_json::json;
use tapedeck_domain::claim::release;
use tapedeck_domain::event::{Draft, EventKind};
use tapedeck_domain::run::Run;
use tapedeck_domain::{Rejection, SessionId};
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
        let Some(claim) = live.state.claim().cloned() else {
            return Err(Rejection::ClaimLost.into());
        };
        let mut locked = context.lock_with(head).await?;
        let run = release(live.clone(), context.now)?;
        let payload = json!({"executor_id": claim.executor_id, "attempt": claim.attempt});
        let event = Draft::server(EventKind::RunReleased, payload)
            .of_run(&run)
            .by(&claim);
        settling::requeue(context, &mut locked, &live, (run, event)).await?;
        context.save(&locked).await?;
        Ok(context.tx.run(live.key).await?)
    }
}
