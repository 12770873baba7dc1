//! Lets a held queue go on after an interrupted run (rules R16).

use async_trait::async_trait;
use tapedeck_domain::SessionId;
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;
use crate::settling;

/// Continues the queue; where it isn't held, nothing changes.
#[derive(Debug)]
pub struct ContinueQueue {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
}

#[async_trait]
impl Command for ContinueQueue {
    type Output = ();
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let mut locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        if !locked.session.summary.queue_held {
            return Ok(());
        }
        locked.session.summary.queue_held = false;
        settling::promote(context, &mut locked).await?;
        settling::refresh(context, &mut locked).await?;
        context.save(&locked).await?;
        Ok(())
    }
}
