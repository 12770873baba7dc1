//! Creates a session; its creator owns it with epoch 1. A create that fails leaves nothing (I19).

use async_trait::async_trait;
use serde_json::{Value, json};
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::session::{Session, SessionSettings, SessionSummary};
use tapedeck_domain::{SessionId, SessionKey, TapeId};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Creates a session.
#[derive(Debug)]
pub struct CreateSession {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its id.
    pub session_id: SessionId,
    /// Its tape's id.
    pub tape_id: TapeId,
    /// What the client set.
    pub settings: SessionSettings,
    /// The client's key.
    pub key: Option<IdempotencyKey>,
}

#[async_trait]
impl Command for CreateSession {
    type Output = SessionId;
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    fn idempotency(&self) -> Option<&IdempotencyKey> {
        self.key.as_ref()
    }

    fn stored(&self, output: &SessionId) -> Value {
        json!({"session_id": output})
    }

    fn restored(&self, stored: &Value) -> Option<SessionId> {
        stored["session_id"].as_str()?.parse().ok()
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<SessionId, Failure> {
        let now = context.now.wall;
        let session = Session {
            key: SessionKey(0),
            session_id: self.session_id,
            namespace: self.namespace.clone(),
            settings: self.settings.clone(),
            tape_id: self.tape_id,
            summary: SessionSummary::empty(),
            forked_from: None,
            restored_seq: None,
            folded_seq: None,
            created_at: now,
            updated_at: now,
            last_activity_at: now,
            closed_at: None,
        };
        let key = context.tx.insert_session(&session).await?;
        let head = SessionHead::new(key, self.session_id, context.authority, context.now);
        context.tx.insert_head(&head).await?;
        Ok(self.session_id)
    }
}
