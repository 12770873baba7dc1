//! Ends an open question whose time is over.

use async_trait::async_trait;
use tapedeck_domain::InteractionId;
use tapedeck_domain::interaction::{InteractionStatus, end};
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;

/// Expires one question, if it is still open and its time is really over.
#[derive(Debug)]
pub struct ExpireInteraction {
    /// The candidate.
    pub interaction_id: InteractionId,
}

#[async_trait]
impl Command for ExpireInteraction {
    type Output = bool;
    const LANE: Lane = Lane::Urgent;

    async fn apply(&self, context: &mut Context<'_>) -> Result<bool, Failure> {
        let found = context.tx.interaction(self.interaction_id).await?;
        let candidate = found.ok_or(Failure::NotFound(Target::Interaction))?;
        let locked_run = context.own_run(candidate.run_id).await?;
        // Read again: what was read before the lock may have changed (rules R1).
        let found = context.tx.interaction(self.interaction_id).await?;
        let stored = found.ok_or(Failure::NotFound(Target::Interaction))?;
        if stored.status != InteractionStatus::Pending || stored.deadline > context.now.judged {
            return Ok(false);
        }
        let (ended, event) = end(
            stored,
            InteractionStatus::Expired,
            "system:timeout",
            context.now,
        );
        context.tx.save_interaction(&ended).await?;
        let mut locked = context.lock_with(locked_run.head).await?;
        context.append(&mut locked.head, vec![event]).await?;
        if let Some(mut run) = locked_run.live {
            run.pending_interactions = run.pending_interactions.saturating_sub(1);
            context.tx.save_live_run(&run).await?;
            context.show(&mut locked, &run, false).await?;
        }
        context.save(&locked).await?;
        Ok(true)
    }
}
