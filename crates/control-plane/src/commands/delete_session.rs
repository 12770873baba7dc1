//! Deletes a session and everything of it: an explicit act, never a timer's (I23).

use async_trait::async_trait;
use tapedeck_domain::{Rejection, SessionId};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Deletes a session.
#[derive(Debug)]
pub struct DeleteSession {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
    /// Whether an active run goes with it; its executor is told that the claim is lost.
    pub force: bool,
}

#[async_trait]
impl Command for DeleteSession {
    type Output = ();
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        if let Some(run_id) = locked.session.summary.active_run_id {
            if !self.force {
                return Err(Rejection::SessionBusy {
                    active_run_id: run_id,
                }
                .into());
            }
            context.effects().runs.push(run_id);
        }
        context.tx.delete_session(locked.head.session_key).await?;
        context.effects().deleted.push(self.session_id);
        Ok(())
    }
}
