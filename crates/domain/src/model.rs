//! A small control plane over the rules alone, driven by random commands: whatever happens, no rule
//! panics, a session has one active run at most, a run ends once, and nothing is stuck (fault 7).

use std::collections::BTreeMap;

use serde_json::Map;
use uuid::Uuid;

use crate::admit::{OnActive, Prompt, QueuePlaces, admit};
use crate::cancel::{Cancel, cancel};
use crate::claim::{
    ClaimFacts, ClaimRequest, ClaimToken, Proof, prove, release, renew, replay, take,
};
use crate::digest::Digest;
use crate::expire::{Expiry, expire, hand_back};
use crate::fixture::{TIMING, after, request, run_id, session, settled};
use crate::id::{RunId, TapeEntryId};
use crate::rejection::Rejection;
use crate::resume::{Resume, ResumeMaterial, resume};
use crate::run::{LiveRun, RunState, RunStatus, SettledClaim};
use crate::session::{Session, SessionStatus};
use crate::settle::{Ending, RunEnd, promote, repeated, settle, settle_summary};
use crate::time::{LeaseInstant, Now};

#[derive(Debug, Clone, Copy)]
enum Command {
    Prompt(OnActive),
    Resume,
    Claim,
    Replay,
    Heartbeat { stale: bool },
    Output,
    Release,
    Cancel,
    CancelQueued,
    Complete { ending: Ending, stale: bool },
    Continue,
    Takeover,
    Pass(i64),
    Sweep { claimants_seen: bool },
}

/// What the store would hold of one session.
#[derive(Debug, Clone)]
struct Model {
    clock_ms: i64,
    next_id: u128,
    session: Session,
    live: BTreeMap<RunId, LiveRun>,
    settled: BTreeMap<RunId, (RunStatus, SettledClaim)>,
    /// Every token handed out, newest last, with the request that it came from.
    tokens: Vec<(RunId, ClaimToken, ClaimRequest)>,
    last_settled: Option<RunId>,
}

impl Model {
    fn new(max_attempts: u32) -> Self {
        let mut session = session();
        session.settings.run_target.constraints.max_attempts = Some(max_attempts);
        Self {
            clock_ms: 0,
            next_id: 0,
            session,
            live: BTreeMap::new(),
            settled: BTreeMap::new(),
            tokens: Vec::new(),
            last_settled: None,
        }
    }

    fn now(&self) -> Now {
        after(self.clock_ms)
    }

    fn new_id(&mut self) -> RunId {
        self.next_id += 1;
        run_id(self.next_id)
    }

    fn active(&self) -> Option<&LiveRun> {
        self.live.values().find(|run| run.status().is_active())
    }

    fn queue(&self) -> Vec<&LiveRun> {
        let mut queue = self
            .live
            .values()
            .filter(|run| !run.status().is_active())
            .collect::<Vec<_>>();
        queue.sort_by_key(|run| run.place);
        queue
    }

    fn save(&mut self, run: LiveRun) {
        self.live.insert(run.run_id, run);
        self.derive();
    }

    fn derive(&mut self) {
        let active = self.active().map(LiveRun::status);
        self.session.summary.derive(active, false);
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Prompt(on_active) => self.prompt(on_active),
            Command::Resume => self.resume(),
            Command::Claim => self.claim(),
            Command::Replay => self.replay(),
            Command::Heartbeat { stale } => self.heartbeat(stale),
            Command::Output => self.output(),
            Command::Release => self.release(),
            Command::Cancel => {
                if let Some(run) = self.active().cloned() {
                    self.cancel(&run);
                }
            }
            Command::CancelQueued => {
                if let Some(run) = self.queue().first().copied().cloned() {
                    self.cancel(&run);
                }
            }
            Command::Complete { ending, stale } => self.complete(ending, stale),
            Command::Continue => {
                if self.active().is_none() {
                    self.promote();
                }
            }
            Command::Takeover => self.takeover(),
            Command::Pass(ms) => self.clock_ms += ms,
            Command::Sweep { claimants_seen } => self.sweep(claimants_seen),
        }
    }

    fn prompt(&mut self, on_active: OnActive) {
        let prompt = Prompt {
            run_id: self.new_id(),
            text: "x".to_owned(),
            on_active,
            metadata: Map::new(),
        };
        let queue = self.queue();
        let places = QueuePlaces {
            first: queue.first().map(|run| run.place),
            last: queue.last().map(|run| run.place),
        };
        let active = self.active().cloned();
        let now = self.now();
        match admit(&mut self.session, places, prompt, 1, now) {
            Ok(admission) => {
                self.save(admission.live);
                if admission.cancel_active {
                    self.cancel(&active.unwrap());
                }
            }
            Err(Rejection::SessionBusy { active_run_id }) => {
                assert_eq!(active.map(|run| run.run_id), Some(active_run_id));
                assert_eq!(on_active, OnActive::Reject);
            }
            Err(why) => panic!("{why}"),
        }
    }

    fn resume(&mut self) {
        let previous = self.last_settled.map(|_| settled(RunStatus::Interrupted));
        let material = ResumeMaterial {
            previous,
            tail: Vec::new(),
            tape_entry_count: 0,
            agent_state: None,
            snapshot: None,
        };
        let request = Resume {
            run_id: self.new_id(),
            text: None,
            reason: "user_resume".to_owned(),
            metadata: Map::new(),
            anchor_id: TapeEntryId::new(Uuid::from_u128(1)),
        };
        let resumable = self.session.summary.resumable();
        let now = self.now();
        let resumed = resume(&mut self.session, &material, request, 1, now);
        assert_eq!(resumed.is_ok(), resumable, "the summary promised otherwise");
        if let Ok(resumed) = resumed {
            self.save(resumed.live);
        }
    }

    fn claim(&mut self) {
        let Some(run) = self.active().cloned() else {
            return;
        };
        let request = ClaimRequest {
            claim_request_id: format!("request-{}", self.tokens.len()),
            ..request()
        };
        let attempt = run.attempts.attempt;
        if let Ok(taken) = take(run, &request, self.now(), &TIMING) {
            assert_eq!(taken.run.attempts.attempt, attempt + 1);
            self.tokens.push((taken.run.run_id, taken.token, request));
            self.save(taken.run);
        }
    }

    fn replay(&mut self) {
        let Some((run_id, token, request)) = self.tokens.last().cloned() else {
            return;
        };
        let Some(run) = self.live.get(&run_id).cloned() else {
            return;
        };
        if let Ok((run, again)) = replay(run, &request, self.now(), &TIMING) {
            assert_eq!(again, token);
            self.save(run);
        }
    }

    /// The run whose claim the newest token proves, or an earlier token must not prove.
    fn proved(&self, stale: bool) -> Option<(RunId, Proof)> {
        let mut tokens = self.tokens.iter().rev();
        let (run_id, token, _) = if stale {
            tokens.nth(1)?
        } else {
            tokens.next()?
        };
        let newest = self
            .tokens
            .iter()
            .rfind(|(run, _, _)| run == run_id)
            .map(|(_, token, _)| token);
        let facts = ClaimFacts {
            live: self.live.get(run_id),
            settled: self.settled.get(run_id).map(|(_, claim)| claim),
            earlier_hash: Some(token.hash()),
        };
        let proof = prove(&facts, token, "executor-1", self.now()).ok()?;
        assert_eq!(
            newest,
            Some(token),
            "an earlier attempt's token proves nothing (fault 6)"
        );
        Some((*run_id, proof))
    }

    fn held(&self, stale: bool) -> Option<LiveRun> {
        let (run_id, proof) = self.proved(stale)?;
        (proof == Proof::Live).then(|| self.live[&run_id].clone())
    }

    fn heartbeat(&mut self, stale: bool) {
        let Some(run) = self.held(stale) else { return };
        let renewed = renew(run, None, self.now()).run;
        if let RunState::Cancelling { claim, deadline } = &renewed.state {
            assert!(claim.expires_at <= *deadline);
        }
        self.save(renewed);
    }

    fn output(&mut self) {
        let Some(run) = self.held(false) else { return };
        let mut run = renew(run, None, self.now()).run;
        run.has_output = true;
        self.save(run);
    }

    fn release(&mut self) {
        let Some(run) = self.held(false) else { return };
        if let Ok((run, _)) = release(run, self.now()) {
            assert_eq!(run.status(), RunStatus::Requested);
            self.save(run);
        }
    }

    fn cancel(&mut self, run: &LiveRun) {
        match cancel(run.clone(), "person", self.now(), &TIMING) {
            Cancel::Settle(end) => self.settle(run, end),
            Cancel::Ask(run, _) => self.save(run),
            Cancel::Asked => {}
        }
    }

    fn complete(&mut self, ending: Ending, stale: bool) {
        let body = Digest::of_bytes(ending.as_str().as_bytes());
        match self.proved(stale) {
            Some((run_id, Proof::Live)) => {
                let run = self.live[&run_id].clone();
                let end = RunEnd {
                    ending,
                    result: None,
                    error: None,
                    recovery_reason: None,
                    body_digest: Some(body),
                };
                match hand_back(&run, None, self.now()).filter(|_| ending == Ending::Interrupted) {
                    Some((run, _)) => self.save(run),
                    None => self.settle(&run, end),
                }
            }
            Some((run_id, Proof::Settled)) => {
                let (status, claim) = &self.settled[&run_id];
                let same = claim.body_digest == Some(body);
                assert_eq!(repeated(claim, *status, body).is_ok(), same);
            }
            None => {}
        }
    }

    fn takeover(&mut self) {
        let queued = self.queue().into_iter().cloned().collect::<Vec<_>>();
        for run in queued {
            self.cancel(&run);
        }
        if let Some(run) = self.active().cloned() {
            self.settle(
                &run,
                RunEnd::by_server(Ending::Interrupted, "owner_takeover", "taken"),
            );
        }
    }

    fn sweep(&mut self, claimants_seen: bool) {
        let Some(run) = self.active().cloned() else {
            return;
        };
        match expire(run.clone(), claimants_seen, self.now(), &TIMING) {
            Expiry::Nothing | Expiry::Cancel => {}
            Expiry::Requeue { run, .. } => self.save(run),
            Expiry::Settle { end, .. } => self.settle(&run, end),
        }
    }

    fn settle(&mut self, run: &LiveRun, end: RunEnd) {
        let settlement = settle(run, end, self.now());
        let known = self
            .settled
            .insert(run.run_id, (settlement.status, settlement.claim));
        assert_eq!(known, None, "a run ends once");
        self.live.remove(&run.run_id);
        settle_summary(&mut self.session.summary, run, settlement.status, 1);
        if run.status().is_active() {
            self.last_settled = Some(run.run_id);
            if !self.session.summary.queue_held {
                self.promote();
            }
        }
        self.derive();
    }

    fn promote(&mut self) {
        let Some(run) = self.queue().first().copied().cloned() else {
            return;
        };
        let now = self.now();
        let (run, _) = promote(run, "x", &mut self.session.summary, now);
        self.save(run);
    }

    fn check(&self) {
        let active = self
            .live
            .values()
            .filter(|run| run.status().is_active())
            .collect::<Vec<_>>();
        assert!(active.len() <= 1, "one active run at most: {active:?}");
        let summary = &self.session.summary;
        assert_eq!(summary.active_run_id, active.first().map(|run| run.run_id));
        assert_eq!(summary.queued_runs as usize, self.queue().len());
        assert!(!summary.queue_held || (summary.queued_runs > 0 && active.is_empty()));
        let waiting = active.is_empty() && summary.queued_runs > 0;
        assert_eq!(
            waiting, summary.queue_held,
            "a queue that waits for nothing is shown as held"
        );
        assert_eq!(summary.status == SessionStatus::Running, !active.is_empty());
        for run in self.live.values() {
            assert!(!self.settled.contains_key(&run.run_id));
            assert!(run.attempts.used <= run.attempts.max);
            assert!(run.attempts.used <= run.attempts.attempt);
        }
    }

    /// The moment from which no lease, back-off or deadline of the run holds any more.
    fn latest(run: &LiveRun) -> Option<LeaseInstant> {
        match &run.state {
            RunState::Queued => None,
            RunState::Requested { ready_at } => Some(*ready_at),
            RunState::Claimed(claim) | RunState::Running(claim) => Some(claim.expires_at),
            RunState::Cancelling { claim, deadline } => Some(claim.expires_at.min(*deadline)),
        }
    }

    /// Lets time pass until a sweep has something to decide, and sweeps once.
    fn pass_and_sweep(&mut self) {
        if let Some(latest) = self.active().and_then(Self::latest) {
            self.clock_ms += latest.since(self.now().lease).max(0);
        }
        self.sweep(false);
        self.check();
    }
}

#[cfg(test)]
mod tests;
