//! Resumes a session: a new run linked to the newest settled one, the boundary anchor on the tape,
//! all in one transaction (design §4.4). The tape must have caught up before (rules R19).

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::SessionId;
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::limits::RESUME_TAIL_ENTRIES;
use tapedeck_domain::resume::{Resume, ResumeMaterial, resume};
use tapedeck_store::rows::LockedSession;
use tapedeck_store::{Failure, Lane};

use crate::commands::prompt::Admitted;
use crate::context::Context;
use crate::execute::Command;
use crate::{projection, settling};

/// Resumes a session.
#[derive(Debug)]
pub struct ResumeSession {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
    /// The resume.
    pub resume: Resume,
    /// The client's key.
    pub key: Option<IdempotencyKey>,
}

#[async_trait]
impl Command for ResumeSession {
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
        64 * 1024
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Admitted, Failure> {
        let mut locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        let key = locked.head.session_key;
        // A few events may have come since the tape was caught up.
        projection::step_to_head(context, &locked.head).await?;
        let material = resume_material(context, &locked).await?.unwrap_or_default();
        let admitted_seq = locked.head.head_seq + 1;
        let resumed = resume(
            &mut locked.session,
            &material,
            self.resume.clone(),
            admitted_seq,
            context.now,
        )?;
        let mut live = resumed.live;
        live.key = context.tx.insert_run(key, &resumed.run).await?;
        context.tx.insert_live_run(&live).await?;
        context
            .append(&mut locked.head, vec![resumed.event.of_run(&live)])
            .await?;
        let anchor = (self.resume.anchor_id, resumed.anchor);
        projection::write_anchor(context, &locked.head, anchor, live.run_id).await?;
        locked.head.active_run = Some(live.key);
        context.enqueue(&locked, &live).await?;
        settling::refresh(context, &mut locked).await?;
        context.save(&locked).await?;
        Ok(Admitted {
            session_id: self.session_id,
            run_id: live.run_id,
            status: live.status(),
            session_seq: admitted_seq,
        })
    }
}

/// What a locked session's past offers to its next run, from a tape that has caught up; `None` where
/// it has none, neither its own nor as a fork.
pub(crate) async fn resume_material(
    context: &mut Context<'_>,
    locked: &LockedSession,
) -> Result<Option<ResumeMaterial>, Failure> {
    let key = locked.head.session_key;
    let previous = match &locked.session.summary.resume_from_event_id {
        Some(_) => context.tx.latest_settled_run(key).await?,
        None => None,
    };
    if previous.is_none() && locked.session.forked_from.is_none() {
        return Ok(None);
    }
    let (mut agent_state, mut snapshot) = (None, None);
    if let Some(previous) = &previous {
        agent_state = context.tx.agent_state(previous.key).await?;
        snapshot = context.tx.snapshot_facts(previous.key).await?;
    }
    let tail_length = u32::try_from(RESUME_TAIL_ENTRIES).unwrap_or(u32::MAX);
    Ok(Some(ResumeMaterial {
        agent_state,
        snapshot,
        previous,
        tail: context.tx.tape_tail(key, tail_length).await?,
        tape_entry_count: context.tx.tape_state(key).await?.entries,
    }))
}
