//! Moves a session's tape one bounded step along its log (rules R19).

use async_trait::async_trait;
use tapedeck_domain::SessionId;
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;
use crate::projection;

/// One step; gives whether the tape has caught up.
#[derive(Debug, Clone)]
pub struct ProjectTape {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
}

#[async_trait]
impl Command for ProjectTape {
    type Output = bool;
    const LANE: Lane = Lane::Background;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<bool, Failure> {
        let locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        let caught_up = projection::step(context, &locked.head).await?;
        context.tx.save_head(&locked.head).await?;
        Ok(caught_up)
    }
}
