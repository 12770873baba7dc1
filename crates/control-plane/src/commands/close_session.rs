//! Closes a session: no more runs, everything stays readable (api.md). Queued runs are cancelled
//! in the same transaction (rules R16); an active one must end first.

use async_trait::async_trait;
use serde_json::json;
use tapedeck_domain::event::{Draft, EventKind};
use tapedeck_domain::{Rejection, SessionId};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;
use crate::settling;

/// Closes a session; closing it again changes nothing.
#[derive(Debug)]
pub struct CloseSession {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
}

#[async_trait]
impl Command for CloseSession {
    type Output = ();
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let mut locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        if locked.session.closed_at.is_some() {
            return Ok(());
        }
        if let Some(active_run_id) = locked.session.summary.active_run_id {
            return Err(Rejection::SessionBusy { active_run_id }.into());
        }
        settling::cancel_queued(context, &mut locked).await?;
        locked.session.closed_at = Some(context.now.wall);
        let event = Draft::server(EventKind::SessionClosed, json!({}));
        context.append(&mut locked.head, vec![event]).await?;
        settling::refresh(context, &mut locked).await?;
        context.tx.save_settings(&locked.session).await?;
        context.save(&locked).await?;
        Ok(())
    }
}
