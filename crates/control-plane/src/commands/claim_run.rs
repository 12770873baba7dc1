//! Hands a waiting run to an executor, or the same claim again to the same request (rules R9, R2).

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::claim::{self, ClaimRequest, ClaimToken};
use tapedeck_domain::digest::Digest;
use tapedeck_domain::executor::{Contact, may_claim};
use tapedeck_domain::limits::RESUME_SNAPSHOT_BYTES;
use tapedeck_domain::resume::follow_up;
use tapedeck_domain::run::{LiveRun, Run};
use tapedeck_domain::session::{ExecutorTarget, Session};
use tapedeck_domain::snapshot::answered;
use tapedeck_domain::{Rejection, RunId, SessionId, Timestamp};
use tapedeck_store::rows::{Candidate, ClaimFilter, LockedRun, LockedSession};
use tapedeck_store::{Failure, Lane};

use crate::commands::resume::resume_material;
use crate::context::Context;
use crate::execute::Command;
use crate::projection;

/// Candidates looked at in one transaction.
const CANDIDATES: u32 = 16;
/// How often a poll looks for candidates. Where many poll at once, the first ones are gone before it
/// has them, and to send it away would have it wait beside work.
const ROUNDS: u32 = 4;

/// Claims a run.
#[derive(Debug, Clone)]
pub struct ClaimRun {
    /// What the executor says of itself. The name is that of the request.
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
    /// Whether that context is still to be composed: the tape has not caught up.
    pub(crate) context_is_behind: bool,
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
        let now = context.now;
        let standing = context.tx.standing(&self.contact, now).await?;
        may_claim(&self.contact, standing)?;
        let filter = ClaimFilter {
            executor_kind: self.contact.executor_kind.clone(),
            pool: self.contact.pool.clone(),
            executor_id: self.contact.executor_id.clone(),
            labels: self.contact.labels.clone(),
            session_id: self.session_id,
            owner_id: context.authority.owner_id.clone(),
        };
        let mut has_locked = false;
        for round in 0..ROUNDS {
            let candidates = context
                .tx
                .candidates(&filter, now.lease, CANDIDATES)
                .await?;
            if candidates.is_empty() {
                break;
            }
            if round == 0 {
                // Most polls find nothing, and those lock nothing and write nothing. Here it is
                // decided again.
                let standing = context.tx.lock_executor(&self.contact, now).await?;
                may_claim(&self.contact, standing)?;
            }
            if let Some(claimed) = self.first(context, candidates, &mut has_locked).await? {
                return Ok(claimed);
            }
        }
        Err(Rejection::NoRunAvailable.into())
    }
}

/// A candidate that can't be taken is no failure of the claim.
fn passed<T>(failure: Failure) -> Result<Option<T>, Failure> {
    match failure {
        Failure::Rejected(Rejection::NoRunAvailable | Rejection::OwnedElsewhere { .. })
        | Failure::NotFound(_) => Ok(None),
        Failure::Rejected(_) | Failure::Store(_) => Err(failure),
    }
}

impl ClaimRun {
    /// Takes the first candidate that can be had. `has_locked` says whether this transaction has
    /// locked a session on the way.
    async fn first(
        &self,
        context: &mut Context<'_>,
        candidates: Vec<Candidate>,
        has_locked: &mut bool,
    ) -> Result<Option<ClaimedRun>, Failure> {
        // What somebody else holds now is passed by, and so is what has gone; the next one is as
        // good (rules R2).
        let mut held = None;
        for candidate in candidates {
            let run = match context.own_run_if_free(candidate.run_id).await {
                Ok(Some(run)) => Some(run),
                Ok(None) => {
                    held = held.or(Some(candidate));
                    continue;
                }
                Err(failure) => passed(failure)?,
            };
            *has_locked = true;
            if let Some(run) = run
                && let Some(claimed) = self.take(context, run).await.map(Some).or_else(passed)?
            {
                return Ok(Some(claimed));
            }
        }
        // A sweep or a reader of settings may hold the only run for a moment: to say that there is
        // none would send the poll away from waiting work. Nothing is locked yet, so it is safe to
        // wait for the first.
        if let Some(candidate) = held.filter(|_| !*has_locked) {
            *has_locked = true;
            let run = context
                .own_run(candidate.run_id)
                .await
                .map(Some)
                .or_else(passed)?;
            if let Some(run) = run {
                return self.take(context, run).await.map(Some).or_else(passed);
            }
        }
        Ok(None)
    }

    async fn take(
        &self,
        context: &mut Context<'_>,
        locked: LockedRun,
    ) -> Result<ClaimedRun, Failure> {
        let Some(live) = locked.live else {
            return Err(Rejection::NoRunAvailable.into());
        };
        let claimed = claim::take(live, &self.request, context.now, context.timing)?;
        let mut run = claimed.run;
        let Some(turn) = context.tx.dequeue(run.key).await? else {
            return Err(Rejection::NoRunAvailable.into());
        };
        let mut session = context.lock_with(locked.head).await?;
        let target = &session.session.settings.run_target;
        run.turn = Some(turn);
        run.deadline = claim::deadline(&target.constraints, context.now, context.timing);
        let ExecutorTarget {
            executor_kind,
            pool,
            ..
        } = &target.executor;
        context.tx.serve_turn(executor_kind, pool, turn).await?;
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
    let composed = compose(context, &session, &run).await?;
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
        context_is_behind: composed == Composed::Behind,
        resume_context: match composed {
            Composed::Ready(context) => context,
            Composed::Behind => None,
        },
    })
}

/// The context of a claimed run.
#[derive(Debug, PartialEq)]
pub(crate) enum Composed {
    /// As it is; `None` where the session has no past.
    Ready(Option<Value>),
    /// The tape has to catch up first, outside this transaction (rules R19).
    Behind,
}

/// Composes what a claimed run's executor gets of the session's past: the context that a resume
/// stored, or a follow-up's, with the messages of the snapshot that it names.
pub(crate) async fn compose(
    context: &mut Context<'_>,
    session: &LockedSession,
    run: &Run,
) -> Result<Composed, Failure> {
    let stored = context.tx.resume_context(run.key).await?;
    let resumed = if let Some(stored) = stored {
        Some(stored)
    } else {
        let Some(_) = resume_material(context, session).await? else {
            return Ok(Composed::Ready(None));
        };
        if !projection::step(context, &session.head).await? {
            return Ok(Composed::Behind);
        }
        let past = resume_material(context, session).await?;
        past.and_then(|past| follow_up(&session.session, &past, run))
    };
    let Some(mut resumed) = resumed else {
        return Ok(Composed::Ready(None));
    };
    let named = resumed["message_snapshot"]["run_id"]
        .as_str()
        .and_then(|id| id.parse().ok());
    if let Some(named) = named
        && let Some(previous) = context
            .tx
            .latest_settled_run(session.head.session_key)
            .await?
        && previous.run_id == named
    {
        let facts = context.tx.snapshot_facts(previous.key).await?;
        if facts.is_some_and(|facts| facts.bytes <= RESUME_SNAPSHOT_BYTES)
            && let Some(snapshot) = context.tx.snapshot(previous.key).await?
        {
            resumed["message_snapshot"]["messages"] = Value::Array(answered(&snapshot.messages));
        }
    }
    Ok(Composed::Ready(Some(resumed)))
}
