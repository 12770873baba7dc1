//! Hands a waiting run to an executor, or the same claim again to the same request (rules R9, R2).

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::claim::{self, ClaimRequest, ClaimToken};
use tapedeck_domain::digest::Digest;
use tapedeck_domain::executor::Contact;
use tapedeck_domain::resume::follow_up;
use tapedeck_domain::run::{LiveRun, Run};
use tapedeck_domain::session::Session;
use tapedeck_domain::{Rejection, RunId, SessionId, Timestamp};
use tapedeck_store::rows::{Candidate, ClaimFilter, LockedSession};
use tapedeck_store::{Failure, Lane};

use crate::commands::resume::resume_material;
use crate::context::Context;
use crate::execute::Command;

/// Candidates looked at in one transaction.
const CANDIDATES: u32 = 16;

/// Claims a run.
#[derive(Debug, Clone)]
pub struct ClaimRun {
    /// What the executor says of itself.
    pub contact: Contact,
    /// The claim.
    pub request: ClaimRequest,
    /// Only this session.
    pub session_id: Option<SessionId>,
}

/// A claimed run with everything its executor needs.
#[derive(Debug, Clone)]
pub struct ClaimedRun {
    /// The run's record.
    pub run: Run,
    /// Its session.
    pub session: Session,
    /// The token.
    pub token: ClaimToken,
    /// The attempt.
    pub attempt: u32,
    /// When the lease ends, for display.
    pub lease_expires_at: Timestamp,
    /// How long the lease still runs, in milliseconds.
    pub lease_ttl_ms: i64,
    /// The structured context of a resume.
    pub resume_context: Option<Value>,
}

#[async_trait]
impl Command for ClaimRun {
    type Output = ClaimedRun;
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        self.session_id
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<ClaimedRun, Failure> {
        let request_hash = Digest::of_bytes(self.request.claim_request_id.as_bytes());
        if let Some(earlier) = context.tx.claim_of_request(&request_hash).await? {
            return self.replay(context, earlier.run_id, earlier.attempt).await;
        }
        if context.tx.is_draining(&self.contact.executor_id).await? {
            return Err(Rejection::NoRunAvailable.into());
        }
        let filter = ClaimFilter {
            executor_kind: self.contact.executor_kind.clone(),
            pool: self.contact.pool.clone(),
            executor_id: self.contact.executor_id.clone(),
            labels: self.contact.labels.clone(),
            session_id: self.session_id,
            owner_id: context.authority.owner_id.clone(),
        };
        for candidate in context
            .tx
            .candidates(&filter, context.now.lease, CANDIDATES)
            .await?
        {
            match self.take(context, candidate).await {
                Err(Failure::Rejected(
                    Rejection::NoRunAvailable | Rejection::OwnedElsewhere { .. },
                )) => {}
                other => return other,
            }
        }
        Err(Rejection::NoRunAvailable.into())
    }
}

impl ClaimRun {
    async fn take(
        &self,
        context: &mut Context<'_>,
        candidate: Candidate,
    ) -> Result<ClaimedRun, Failure> {
        let locked = context.own_run(candidate.run_id).await?;
        let Some(live) = locked.live else {
            return Err(Rejection::NoRunAvailable.into());
        };
        let claimed = claim::take(live, &self.request, context.now, context.timing)?;
        let run = claimed.run;
        if !context.tx.dequeue(run.key).await? {
            return Err(Rejection::NoRunAvailable.into());
        }
        let mut session = context
            .tx
            .lock_session_by_key(locked.head.session_key)
            .await?;
        session.head = locked.head;
        context.tx.save_live_run(&run).await?;
        if let Some(claim) = run.state.claim() {
            context
                .tx
                .insert_claim(run.key, claim, context.now.lease)
                .await?;
        }
        context
            .append(&mut session.head, vec![claimed.event])
            .await?;
        context.show(&mut session, &run, false).await?;
        context.save(&session).await?;
        context.tx.save_contact(&self.contact, context.now).await?;
        answer(context, session, &run, claimed.token).await
    }

    async fn replay(
        &self,
        context: &mut Context<'_>,
        run_id: RunId,
        attempt: u32,
    ) -> Result<ClaimedRun, Failure> {
        let locked = context.own_run(run_id).await?;
        let Some(live) = locked.live else {
            return Err(Rejection::ClaimLost.into());
        };
        if live
            .state
            .claim()
            .is_none_or(|claim| claim.attempt != attempt)
        {
            return Err(Rejection::ClaimLost.into());
        }
        let (run, token) = claim::replay(live, &self.request, context.now, context.timing)?;
        context.tx.save_live_run(&run).await?;
        context.tx.save_head(&locked.head).await?;
        let session = context
            .tx
            .lock_session_by_key(locked.head.session_key)
            .await?;
        answer(context, session, &run, token).await
    }
}

async fn answer(
    context: &mut Context<'_>,
    session: LockedSession,
    live: &LiveRun,
    token: ClaimToken,
) -> Result<ClaimedRun, Failure> {
    let run = context.tx.run(live.key).await?;
    let resume_context = match context.tx.resume_context(live.key).await? {
        Some(resumed) => Some(resumed),
        None => resume_material(context, &session)
            .await?
            .and_then(|past| follow_up(&past, &run)),
    };
    let expires_at = live
        .state
        .claim()
        .map_or(context.now.lease, |claim| claim.expires_at);
    Ok(ClaimedRun {
        run,
        session: session.session,
        token,
        attempt: live.attempts.attempt,
        lease_expires_at: context.now.wall_of(expires_at),
        lease_ttl_ms: expires_at.since(context.now.lease),
        resume_context,
    })
}
