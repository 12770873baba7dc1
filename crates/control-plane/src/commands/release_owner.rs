//! Releases a session: the row and its epoch stay, the lease ends (design §4.8).

use async_trait::async_trait;
use tapedeck_domain::SessionId;
use tapedeck_domain::owner::release;
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;

/// Releases a session.
#[derive(Debug)]
pub struct ReleaseOwner {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
}

#[async_trait]
impl Command for ReleaseOwner {
    type Output = ();
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let locked = context
            .tx
            .lock_session(&self.namespace, self.session_id)
            .await?;
        let mut head = locked.ok_or(Failure::NotFound(Target::Session))?.head;
        let Some(owner) = &head.owner else {
            return Ok(());
        };
        head.owner = Some(release(owner, context.authority)?);
        context.tx.save_head(&head).await?;
        Ok(())
    }
}
