//! Cancels a run, or whatever is active in a session (design §4.3; rules R14).

use async_trait::async_trait;
use tapedeck_domain::cancel::{Cancel, cancel};
use tapedeck_domain::run::{LiveRun, RunStatus};
use tapedeck_domain::{RunId, SessionId};
use tapedeck_store::rows::LockedSession;
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;
use crate::settling;

/// What to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelTarget {
    /// The session's active run.
    Active(SessionId),
    /// One run, queued ones too.
    Run {
        /// Its session.
        session_id: SessionId,
        /// The run.
        run_id: RunId,
    },
}

/// What a cancel found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled {
    /// The session.
    pub session_id: SessionId,
    /// The run; `None` where nothing was active.
    pub run_id: Option<RunId>,
    /// Its status now; `None` where nothing was active.
    pub status: Option<RunStatus>,
}

/// Cancels.
#[derive(Debug)]
pub struct CancelRun {
    /// The namespace.
    pub namespace: String,
    /// What.
    pub target: CancelTarget,
    /// Who asks, in one word.
    pub by: String,
}

#[async_trait]
impl Command for CancelRun {
    type Output = Cancelled;
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id())
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Cancelled, Failure> {
        let session_id = self.session_id();
        let mut locked = context.own_session(&self.namespace, session_id).await?;
        let run = match self.target {
            CancelTarget::Active(_) => match locked.head.active_run {
                Some(key) => context.tx.live_run(key).await?,
                None => None,
            },
            CancelTarget::Run { run_id, .. } => {
                let found = context.tx.lock_run(run_id).await?;
                let found = found.filter(|run| run.head.session_id == session_id);
                let found = found.ok_or(Failure::NotFound(Target::Run))?;
                if found.live.is_none() {
                    return Ok(Cancelled {
                        session_id,
                        run_id: Some(run_id),
                        status: Some(found.status),
                    });
                }
                found.live
            }
        };
        let Some(run) = run else {
            return Ok(Cancelled {
                session_id,
                run_id: None,
                status: None,
            });
        };
        let run_id = Some(run.run_id);
        let status = cancel_locked(context, &mut locked, run, &self.by, false).await?;
        context.save(&locked).await?;
        Ok(Cancelled {
            session_id,
            run_id,
            status: Some(status),
        })
    }
}

impl CancelRun {
    const fn session_id(&self) -> SessionId {
        match self.target {
            CancelTarget::Active(session_id) | CancelTarget::Run { session_id, .. } => session_id,
        }
    }
}

/// Cancels a live run of a locked session; the caller saves the session. With `hold`, a settlement
/// promotes nothing.
pub(crate) async fn cancel_locked(
    context: &mut Context<'_>,
    locked: &mut LockedSession,
    run: LiveRun,
    by: &str,
    hold: bool,
) -> Result<RunStatus, Failure> {
    match cancel(run.clone(), by, context.now, context.timing) {
        Cancel::Asked => Ok(RunStatus::Cancelling),
        Cancel::Settle(end) => {
            // A closed queue for the duration of the settlement: whoever interrupts goes first.
            let waiting = locked.session.summary.queued_runs;
            if hold {
                locked.session.summary.queued_runs = 0;
            }
            let status = settling::settle(context, locked, run, end, None).await?;
            if hold {
                locked.session.summary.queued_runs = waiting;
            }
            Ok(status)
        }
        Cancel::Ask(mut asked, event) => {
            let mut drafts = settling::end_questions(context, &asked, None).await?;
            asked.pending_interactions = 0;
            drafts.insert(0, event);
            context.append(&mut locked.head, drafts).await?;
            context.tx.save_live_run(&asked).await?;
            context.show(locked, &asked, false).await?;
            Ok(RunStatus::Cancelling)
        }
    }
}
