//! Claims: tokens, leases, and the one check that every executor write passes (rules R9, R10, R14;
//! stores §2).

use crate::digest::{Digest, hmac_hex};
use crate::event::{Draft, EventKind};
use crate::id::RunId;
use crate::rejection::Rejection;
use crate::run::{Attempts, LiveRun, RunState, SettledClaim};
use crate::session::Constraints;
use crate::time::{LeaseInstant, Now};
use crate::timing::Timing;
use serde_json::json;

/// An executor's lease on one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Which claim of the run this is, from 1.
    pub attempt: u32,
    /// The hash of its token.
    pub token_hash: Digest,
    /// The executor's stable name.
    pub executor_id: String,
    /// The executor's process; ownership is by instance, never by name.
    pub instance_id: Option<String>,
    /// The hash of the `claim_request_id` that made it, for replays.
    pub request_hash: Digest,
    /// Whether a heartbeat or an event has come since.
    pub acknowledged: bool,
    /// Whether a replay has started the short lease once more; it does so only once (R9).
    pub replayed: bool,
    /// When the lease ends.
    pub expires_at: LeaseInstant,
    /// How long a renewal extends it, in milliseconds on the server's scale.
    pub lease_ms: i64,
}

impl Claim {
    /// Whether the lease still runs at `at`.
    pub const fn is_live(&self, at: LeaseInstant) -> bool {
        self.expires_at.0 > at.0
    }
}

/// The secret an executor proves its claim with. Never stored, never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct ClaimToken(String);

impl std::fmt::Debug for ClaimToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClaimToken(…)")
    }
}

impl ClaimToken {
    /// Derives the token of a claim: `{attempt}.` and an HMAC under the claim request's id, so that
    /// a replay finds it again though only its hash is kept (R9).
    pub fn derive(claim_request_id: &str, run_id: RunId, attempt: u32) -> Self {
        let message = format!("{run_id}\0{attempt}");
        Self(format!(
            "{attempt}.{}",
            hmac_hex(claim_request_id.as_bytes(), message.as_bytes())
        ))
    }

    /// Takes what a request carried.
    pub fn presented(text: String) -> Self {
        Self(text)
    }

    /// The text, for the answer to a claim.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// The hash that is stored.
    pub fn hash(&self) -> Digest {
        Digest::of_bytes(self.0.as_bytes())
    }

    /// The attempt it names, if it has the form of a token.
    pub fn attempt(&self) -> Option<u32> {
        self.0.split_once('.')?.0.parse().ok()
    }
}

/// Everything a claim check may need to say why it fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimFacts<'a> {
    /// The live run; `None` once settled.
    pub live: Option<&'a LiveRun>,
    /// Who settled it.
    pub settled: Option<&'a SettledClaim>,
    /// The stored token hash of the attempt that the presented token names, if it is an earlier one.
    pub earlier_hash: Option<Digest>,
}

/// What a presented token proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// It holds the live claim.
    Live,
    /// It held the claim that the run was settled under.
    Settled,
}

/// Decides what a presented token proves (api.md, Errors): a token that was never this run's is
/// `ClaimTokenInvalid`; an earlier attempt's or an expired one `ClaimLost`.
pub fn prove(
    facts: &ClaimFacts<'_>,
    token: &ClaimToken,
    executor_id: &str,
    now: Now,
) -> Result<Proof, Rejection> {
    let hash = token.hash();
    if let Some(claim) = facts.live.and_then(|run| run.state.claim())
        && claim.token_hash.matches(&hash)
    {
        if claim.executor_id != executor_id {
            return Err(Rejection::ClaimTokenInvalid);
        }
        return if claim.is_live(now.judged) {
            Ok(Proof::Live)
        } else {
            Err(Rejection::ClaimLost)
        };
    }
    if let Some(settled) = facts.settled
        && settled.token_hash.is_some_and(|known| known.matches(&hash))
    {
        return Ok(Proof::Settled);
    }
    match facts.earlier_hash {
        Some(known) if known.matches(&hash) => Err(Rejection::ClaimLost),
        Some(_) | None => Err(Rejection::ClaimTokenInvalid),
    }
}

/// What a claim asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The executor's stable name.
    pub executor_id: String,
    /// The executor's process.
    pub instance_id: Option<String>,
    /// The id that makes the claim replayable.
    pub claim_request_id: String,
    /// The lease after acknowledgement, in milliseconds on the server's scale.
    pub lease_ms: i64,
}

/// A claimed run with what must be written for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The run as it is now.
    pub run: LiveRun,
    /// The token to hand out.
    pub token: ClaimToken,
    /// The event to append.
    pub event: Draft,
}

/// Takes a requested run (design §4.3). The short lease holds until the executor is heard of.
pub fn take(
    mut run: LiveRun,
    request: &ClaimRequest,
    now: Now,
    timing: &Timing,
) -> Result<Claimed, Rejection> {
    let RunState::Requested { ready_at } = run.state else {
        return Err(Rejection::NoRunAvailable);
    };
    if ready_at > now.lease {
        return Err(Rejection::NoRunAvailable);
    }
    run.attempts.attempt += 1;
    run.has_output = false;
    // The executor counts what it sent under its own claim, so an earlier attempt's events would
    // make every later completion fail.
    run.event_count = 0;
    let token = ClaimToken::derive(&request.claim_request_id, run.run_id, run.attempts.attempt);
    let claim = Claim {
        attempt: run.attempts.attempt,
        token_hash: token.hash(),
        executor_id: request.executor_id.clone(),
        instance_id: request.instance_id.clone(),
        request_hash: Digest::of_bytes(request.claim_request_id.as_bytes()),
        acknowledged: false,
        replayed: false,
        expires_at: now
            .lease
            .plus_ms(timing.unacknowledged_lease_ms.min(request.lease_ms)),
        lease_ms: request.lease_ms,
    };
    let event = Draft::server(
        EventKind::RunClaimed,
        json!({
            "executor_id": claim.executor_id,
            "worker_instance_id": claim.instance_id,
            "attempt": claim.attempt,
        }),
    )
    .of_run(&run)
    .by(&claim);
    run.state = RunState::Claimed(claim);
    Ok(Claimed { run, token, event })
}

/// When the server itself ends a run that is claimed now and goes on beyond its session's bound: the
/// executor has the bound from the claim, and a while to keep it.
pub fn deadline(constraints: &Constraints, now: Now, timing: &Timing) -> Option<LeaseInstant> {
    let bound = constraints.max_run_seconds?;
    let ms = timing.seconds(bound).saturating_add(timing.overrun_ms);
    Some(now.lease.plus_ms(ms))
}

/// Answers a replay of the claim request that made the live claim: the token again, and the short
/// lease started once more if nobody acknowledged it yet (R9).
pub fn replay(
    mut run: LiveRun,
    request: &ClaimRequest,
    now: Now,
    timing: &Timing,
) -> Result<(LiveRun, ClaimToken), Rejection> {
    let Some(claim) = run.state.claim() else {
        return Err(Rejection::ClaimLost);
    };
    let request_hash = Digest::of_bytes(request.claim_request_id.as_bytes());
    if !claim.is_live(now.judged)
        || claim.executor_id != request.executor_id
        || !claim.request_hash.matches(&request_hash)
    {
        return Err(Rejection::ClaimLost);
    }
    let token = ClaimToken::derive(&request.claim_request_id, run.run_id, claim.attempt);
    if !claim.acknowledged && !claim.replayed {
        let restarted = now
            .lease
            .plus_ms(timing.unacknowledged_lease_ms.min(claim.lease_ms));
        // As a renewal, a replay never carries a cancelling claim beyond its deadline (R14).
        let expires_at = match run.state {
            RunState::Cancelling { deadline, .. } => restarted.min(deadline),
            RunState::Queued
            | RunState::Requested { .. }
            | RunState::Claimed(_)
            | RunState::Running(_) => restarted,
        };
        run.state = with_claim(run.state, |claim| {
            claim.expires_at = claim.expires_at.max(expires_at);
            claim.replayed = true;
        });
    }
    Ok((run, token))
}

/// What a renewal changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    /// The run as it is now.
    pub run: LiveRun,
    /// `RunStarted`, where this was the claim's first sign of life.
    pub started: Option<Draft>,
}

/// Extends a live claim's lease and acknowledges it. A cancelling claim is never carried beyond its
/// deadline (R14). `lease_ms` replaces the claim's own duration where given.
pub fn renew(mut run: LiveRun, lease_ms: Option<i64>, now: Now) -> Renewed {
    let first = run.state.claim().is_some_and(|claim| !claim.acknowledged);
    if first {
        run.attempts = Attempts {
            used: run.attempts.used + 1,
            unacknowledged: 0,
            ..run.attempts
        };
    }
    let extend = |claim: &mut Claim, bound: Option<LeaseInstant>| {
        if let Some(lease_ms) = lease_ms {
            claim.lease_ms = lease_ms;
        }
        claim.acknowledged = true;
        let wanted = claim.expires_at.max(now.lease.plus_ms(claim.lease_ms));
        claim.expires_at = bound.map_or(wanted, |bound| wanted.min(bound));
    };
    let mut started = None;
    run.state = match run.state {
        RunState::Claimed(mut claim) | RunState::Running(mut claim) => {
            extend(&mut claim, None);
            RunState::Running(claim)
        }
        RunState::Cancelling {
            mut claim,
            deadline,
        } => {
            extend(&mut claim, Some(deadline));
            RunState::Cancelling { claim, deadline }
        }
        state @ (RunState::Queued | RunState::Requested { .. }) => state,
    };
    if first && let Some(claim) = run.state.claim() {
        let draft = Draft::server(
            EventKind::RunStarted,
            json!({
                "executor_id": claim.executor_id,
                "attempt": claim.attempt,
            }),
        );
        started = Some(draft.of_run(&run).by(claim));
    }
    Renewed { run, started }
}

fn with_claim(state: RunState, change: impl FnOnce(&mut Claim)) -> RunState {
    match state {
        RunState::Claimed(mut claim) => {
            change(&mut claim);
            RunState::Claimed(claim)
        }
        RunState::Running(mut claim) => {
            change(&mut claim);
            RunState::Running(claim)
        }
        RunState::Cancelling {
            mut claim,
            deadline,
        } => {
            change(&mut claim);
            RunState::Cancelling { claim, deadline }
        }
        state @ (RunState::Queued | RunState::Requested { .. }) => state,
    }
}

/// Gives a run back before the agent's first output (design §4.3): requested again at its old
/// place, with `RunReleased`, and the attempt is not counted as used. A run that nobody holds can't
/// be given back.
pub fn release(mut run: LiveRun, now: Now) -> Result<(LiveRun, Draft), Rejection> {
    let Some(claim) = run.state.claim() else {
        return Err(Rejection::ClaimLost);
    };
    if run.state.is_cancelling() {
        return Err(Rejection::RunCancelling);
    }
    if run.has_output {
        return Err(Rejection::RunHasOutput);
    }
    let event = Draft::server(
        EventKind::RunReleased,
        json!({"executor_id": claim.executor_id, "attempt": claim.attempt}),
    )
    .of_run(&run)
    .by(claim);
    if claim.acknowledged {
        run.attempts.used = run.attempts.used.saturating_sub(1);
    }
    run.attempts.unacknowledged = 0;
    run.request_again(now.lease);
    Ok((run, event))
}

#[cfg(test)]
mod tests;
