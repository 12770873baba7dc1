//! Admits a prompt as a run.

use async_trait::async_trait;
use serde_json::{Value, json};
use tapedeck_domain::admit::{self, OnActive, Prompt};
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_store::rows::LockedSession;
use tapedeck_store::{Failure, Lane};

use crate::commands::cancel_run;
use crate::context::Context;
use crate::execute::Command;

/// An admitted run, for prompts and resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// The session.
    pub session_id: SessionId,
    /// The run.
    pub run_id: RunId,
    /// `requested` or `queued`.
    pub status: RunStatus,
    /// The number of the event that admits it.
    pub session_seq: u64,
}

impl Admitted {
    pub(crate) fn stored(&self) -> Value {
        json!({
            "session_id": self.session_id,
            "run_id": self.run_id,
            "status": self.status,
            "session_seq": self.session_seq,
        })
    }

    pub(crate) fn restored(stored: &Value) -> Option<Self> {
        Some(Self {
            session_id: stored["session_id"].as_str()?.parse().ok()?,
            run_id: stored["run_id"].as_str()?.parse().ok()?,
            status: stored["status"].as_str()?.parse().ok()?,
            session_seq: stored["session_seq"].as_u64()?,
        })
    }
}

/// Admits a prompt.
#[derive(Debug)]
pub struct AdmitPrompt {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
    /// The prompt.
    pub prompt: Prompt,
    /// The client's key.
    pub key: Option<IdempotencyKey>,
}

#[async_trait]
impl Command for AdmitPrompt {
    type Output = Admitted;
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    fn idempotency(&self) -> Option<&IdempotencyKey> {
        self.key.as_ref()
    }

    fn stored(&self, output: &Admitted) -> Value {
        output.stored()
    }

    fn restored(&self, stored: &Value) -> Option<Admitted> {
        Admitted::restored(stored)
    }

    fn weight(&self) -> usize {
        512 + 2 * self.prompt.text.len()
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Admitted, Failure> {
        let mut locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        let places = if locked.session.summary.queued_runs > 0 {
            context.tx.queue_places(locked.head.session_key).await?
        } else {
            admit::QueuePlaces::default()
        };
        if self.prompt.on_active == OnActive::Interrupt {
            self.interrupt(context, &mut locked).await?;
        }
        let admitted_seq = locked.head.head_seq + 1;
        let admission = admit::admit(
            &mut locked.session,
            places,
            self.prompt.clone(),
            admitted_seq,
            context.now,
        )?;
        let mut live = admission.live;
        live.key = context
            .tx
            .insert_run(locked.head.session_key, &admission.run)
            .await?;
        context.tx.insert_live_run(&live).await?;
        context
            .append(&mut locked.head, vec![admission.event.of_run(&live)])
            .await?;
        if live.status() == RunStatus::Requested {
            locked.head.active_run = Some(live.key);
            context.enqueue(&locked, &live).await?;
        }
        crate::settling::refresh(context, &mut locked).await?;
        context.save(&locked).await?;
        Ok(Admitted {
            session_id: self.session_id,
            run_id: self.prompt.run_id,
            status: live.status(),
            session_seq: admitted_seq,
        })
    }
}

impl AdmitPrompt {
    /// Cancels the active run before the new one takes its place or waits at the queue's front. What is queued
    /// already must not be promoted in between, so the queue is held for the moment.
    async fn interrupt(
        &self,
        context: &mut Context<'_>,
        locked: &mut LockedSession,
    ) -> Result<(), Failure> {
        let Some(key) = locked.head.active_run else {
            return Ok(());
        };
        let Some(run) = context.tx.live_run(key).await? else {
            return Ok(());
        };
        let held = locked.session.summary.queued_runs > 0;
        cancel_run::cancel_locked(context, locked, run, "interrupt", held).await?;
        Ok(())
    }
}
