//! Acquires a session for this control plane's owner (design §4.8).

use async_trait::async_trait;
use tapedeck_domain::SessionId;
use tapedeck_domain::owner::Owner;
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Acquires a session.
#[derive(Debug)]
pub struct AcquireOwner {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
}

#[async_trait]
impl Command for AcquireOwner {
    type Output = Option<Owner>;
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Option<Owner>, Failure> {
        let locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        context.tx.save_head(&locked.head).await?;
        Ok(locked.head.owner)
    }
}
