//! Forks a session: a new one that starts from a checkpoint's or a number's settled conversation
//! (design §4.6). The source is not changed.

use async_trait::async_trait;
use serde_json::{Value, json};
use tapedeck_domain::checkpoint::{Checkpoint, Fork, ForkOrigin, fork};
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::tape::TapeState;
use tapedeck_domain::{CheckpointId, Rejection, SessionId};
use tapedeck_store::rows::LockedSession;
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;
use crate::projection;

/// From where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkPoint {
    /// A checkpoint.
    Checkpoint(CheckpointId),
    /// What had settled by this event.
    Seq(u64),
    /// What has settled by now.
    Head,
}

/// Forks a session.
#[derive(Debug)]
pub struct ForkSession {
    /// The namespace.
    pub namespace: String,
    /// The source.
    pub source: SessionId,
    /// From where.
    pub point: ForkPoint,
    /// The new session.
    pub fork: Fork,
    /// The client's key.
    pub key: Option<IdempotencyKey>,
}

#[async_trait]
impl Command for ForkSession {
    type Output = SessionId;
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.source)
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
        let source = context.own_session(&self.namespace, self.source).await?;
        projection::step_to_head(context, &source.head).await?;
        let (checkpoint, origin, through) = self.cut(context, &source).await?;
        let (session, event) = fork(
            &source.session,
            checkpoint.as_ref(),
            origin,
            &self.fork,
            context.now,
        );
        let key = context.tx.insert_session(&session).await?;
        let mut head =
            SessionHead::new(key, session.session_id, context.authority, context.now);
        context.tx.insert_head(&head).await?;
        context.append(&mut head, vec![event]).await?;
        let entries = context
            .tx
            .copy_tape(source.head.session_key, key, through)
            .await?;
        let state = TapeState {
            tape_seq: head.head_seq,
            position: through,
            entries,
            ..TapeState::default()
        };
        context.tx.save_tape_state(key, &state).await?;
        context.tx.save_head(&head).await?;
        context.tx.save_head(&source.head).await?;
        Ok(self.fork.session_id)
    }
}

impl ForkSession {
    /// What the fork begins with: the checkpoint, the origin, and the last position of its tape.
    async fn cut(
        &self,
        context: &mut Context<'_>,
        source: &LockedSession,
    ) -> Result<(Option<Checkpoint>, ForkOrigin, u64), Failure> {
        let key = source.head.session_key;
        let origin = |checkpoint_id, session_seq| ForkOrigin {
            session_id: self.source,
            checkpoint_id,
            session_seq,
        };
        let head_seq = source.head.head_seq;
        let seq = match self.point {
            ForkPoint::Checkpoint(id) => {
                let stored = context.tx.checkpoint(key, id).await?;
                let checkpoint = stored.ok_or(Failure::NotFound(Target::Checkpoint))?;
                checkpoint.check_active()?;
                let origin = origin(Some(id), checkpoint.session_seq);
                let position = checkpoint.tape_position;
                return Ok((Some(checkpoint), origin, position));
            }
            ForkPoint::Seq(seq) if seq > head_seq => {
                let message = format!("lies after the newest event {head_seq}");
                return Err(Rejection::invalid("session_seq", message).into());
            }
            ForkPoint::Seq(seq) => seq,
            ForkPoint::Head => head_seq,
        };
        let position = context.tx.settled_position(key, seq).await?;
        Ok((None, origin(None, seq), position))
    }
}
