//! Renews an owner's lease without acquiring: keeps the epoch, fails once it has ended.

use async_trait::async_trait;
use tapedeck_domain::SessionId;
use tapedeck_domain::owner::{Owner, renew};
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;

/// Renews a session's owner lease.
#[derive(Debug)]
pub struct RenewOwner {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
}

#[async_trait]
impl Command for RenewOwner {
    type Output = Owner;
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Owner, Failure> {
        let locked = context
            .tx
            .lock_session(&self.namespace, self.session_id)
            .await?;
        let mut head = locked.ok_or(Failure::NotFound(Target::Session))?.head;
        let owner = renew(head.owner.as_ref(), context.authority, context.now)?;
        head.owner = Some(owner.clone());
        context.tx.save_head(&head).await?;
        Ok(owner)
    }
}
