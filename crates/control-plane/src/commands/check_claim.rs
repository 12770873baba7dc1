//! Checks a claim and writes nothing: an executor whose request is broken learns first that it has
//! lost the run (api.md, Errors).

use async_trait::async_trait;
use tapedeck_domain::SessionId;
use tapedeck_store::{Failure, Lane};

use crate::commands::heartbeat::ClaimProof;
use crate::context::Context;
use crate::execute::Command;

/// Checks a claim.
#[derive(Debug)]
pub struct CheckClaim {
    /// Who.
    pub proof: ClaimProof,
}

#[async_trait]
impl Command for CheckClaim {
    type Output = ();
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        self.proof.session_id
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let proof = &self.proof;
        let claimed = context
            .hold_claim(proof.run_id, &proof.executor_id, &proof.token)
            .await?;
        claimed.live()?;
        Ok(())
    }
}
