//! Keeps artifacts of a run that its executor sends before it completes. The same ones again are
//! stored already.

use async_trait::async_trait;
use tapedeck_domain::artifact::{self, Artifact, NewArtifact};
use tapedeck_domain::{Rejection, SessionId};
use tapedeck_store::{Failure, Lane};

use crate::commands::heartbeat::{ClaimProof, renew_held};
use crate::context::Context;
use crate::execute::Command;

/// Keeps artifacts.
#[derive(Debug)]
pub struct SaveArtifacts {
    /// Who.
    pub proof: ClaimProof,
    /// What.
    pub artifacts: Vec<NewArtifact>,
}

#[async_trait]
impl Command for SaveArtifacts {
    type Output = ();
    const LANE: Lane = Lane::Append;

    fn session(&self) -> Option<SessionId> {
        self.proof.session_id
    }

    fn weight(&self) -> usize {
        let contents = self.artifacts.iter();
        512 + contents
            .map(|artifact| artifact.content.len())
            .sum::<usize>()
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let proof = &self.proof;
        let claimed = context
            .hold_claim(proof.run_id, &proof.executor_id, &proof.token)
            .await?;
        let (head, mut live) = claimed.live()?;
        let Some(attempt) = live.state.claim().map(|claim| claim.attempt) else {
            return Err(Rejection::ClaimLost.into());
        };
        // They exist because an agent worked, so the run can't be released any more.
        live.has_output = true;
        let (key, run_id) = (live.key, live.run_id);
        let stored = context.tx.artifact_facts(key).await?;
        let places = artifact::plan(&stored, attempt, &self.artifacts)?;
        let (_, head) = renew_held(context, head, live, None).await?;
        for place in places {
            let artifact = Artifact {
                run_id,
                attempt,
                sent: self.artifacts[place].clone(),
                created_at: context.now.wall,
            };
            context
                .tx
                .save_artifact(head.session_key, key, &artifact)
                .await?;
        }
        Ok(())
    }
}
