//! Extends a claim's lease and tells the executor what is wanted of it.

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::claim::{ClaimToken, renew};
use tapedeck_domain::executor::Report;
use tapedeck_domain::owner::cover_claim;
use tapedeck_domain::run::{LiveRun, RunStatus};
use tapedeck_domain::{RunId, SessionId, Timestamp};
use tapedeck_store::rows::LockedSession;
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Who writes for a run: every executor write carries it.
#[derive(Debug, Clone)]
pub struct ClaimProof {
    /// The run.
    pub run_id: RunId,
    /// Its session, where this process knows it: commands of one session keep their order.
    pub session_id: Option<SessionId>,
    /// The executor's stable name.
    pub executor_id: String,
    /// The claim's token.
    pub token: ClaimToken,
}

/// Renews a claim.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// Who.
    pub proof: ClaimProof,
    /// Replaces the claim's lease duration, in milliseconds on the server's scale.
    pub lease_ms: Option<i64>,
    /// What the executor says of itself.
    pub report: Report,
    /// The agent's own state so far; `None` keeps what was reported before.
    pub agent_state: Option<Value>,
}

/// What a heartbeat tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// The run.
    pub run_id: RunId,
    /// Its status.
    pub status: RunStatus,
    /// The attempt.
    pub attempt: u32,
    /// Whether the executor is to stop.
    pub cancel_requested: bool,
    /// When the lease ends, for display.
    pub lease_expires_at: Timestamp,
    /// How long the lease runs from now, in milliseconds.
    pub lease_ttl_ms: i64,
    /// Whether the executor is to take no new work.
    pub drain: bool,
}

#[async_trait]
impl Command for Heartbeat {
    type Output = Beat;
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        self.proof.session_id
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Beat, Failure> {
        let proof = &self.proof;
        let claimed = context
            .hold_claim(proof.run_id, &proof.executor_id, &proof.token)
            .await?;
        let (head, live) = claimed.live()?;
        let (run, _) = renew_held(context, head, live, self.lease_ms).await?;
        let mut report = self.report.clone();
        if report.instance_id.is_none() {
            let claim = run.state.claim();
            report.instance_id = claim.and_then(|claim| claim.instance_id.clone());
        }
        if let Some(state) = &self.agent_state {
            context.tx.save_agent_state(run.key, state).await?;
        }
        let now = context.now;
        context
            .tx
            .touch_executor(&proof.executor_id, &report, now)
            .await?;
        let drain = context.tx.is_draining(&proof.executor_id).await?;
        let expires_at = run
            .state
            .claim()
            .map_or(context.now.lease, |claim| claim.expires_at);
        Ok(Beat {
            run_id: run.run_id,
            status: run.status(),
            attempt: run.attempts.attempt,
            cancel_requested: run.state.is_cancelling(),
            lease_expires_at: context.now.wall_of(expires_at),
            lease_ttl_ms: expires_at.since(context.now.lease),
            drain,
        })
    }
}

/// Renews the claim of a claimed run and writes run, head and the executor's last contact. On the
/// claim's first sign of life the record and the session's summary move to `running` as well; later
/// ones touch hot rows only.
pub(crate) async fn renew_held(
    context: &mut Context<'_>,
    mut head: tapedeck_domain::owner::SessionHead,
    live: LiveRun,
    lease_ms: Option<i64>,
) -> Result<(LiveRun, tapedeck_domain::owner::SessionHead), Failure> {
    let renewed = renew(live, lease_ms, context.now);
    let run = renewed.run;
    if let (Some(owner), Some(claim)) = (&mut head.owner, run.state.claim()) {
        cover_claim(owner, claim.expires_at);
    }
    context.tx.save_live_run(&run).await?;
    if let Some(started) = renewed.started {
        let mut locked = context.lock_with(head).await?;
        context.append(&mut locked.head, vec![started]).await?;
        context.show(&mut locked, &run, true).await?;
        context.save(&locked).await?;
        let LockedSession { head, .. } = locked;
        return Ok((run, head));
    }
    context.tx.save_head(&head).await?;
    Ok((run, head))
}
