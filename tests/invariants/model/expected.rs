//! What should be there, in memory: sessions, runs, claims, questions and checkpoints as the design
//! and the rules describe them, in as few words as possible and without the code under test. Each
//! command either changes this or is refused with the name of the rejection.

use std::collections::{BTreeMap, BTreeSet};

use tapedeck_domain::admit::OnActive;
use tapedeck_domain::interaction::InteractionStatus;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::{ApprovalPolicy, SessionStatus, TurnStatus};
use tapedeck_domain::settle::Ending;
use tapedeck_domain::{CheckpointId, InteractionId, RunId, SessionId};

use super::tape::Tape;

mod work;

pub(super) const SWEEP: i64 = 5_000;
const SHORT_LEASE: i64 = 15_000;
const LEASE: i64 = 60_000;
const CANCEL: i64 = 30_000;
const BACKOFF: i64 = 1_000;

/// The id of what the store is still to name.
pub(super) const UNKNOWN: &str = "00000000-0000-0000-0000-000000000000";

fn unknown<T: std::str::FromStr<Err: std::fmt::Debug>>() -> T {
    UNKNOWN.parse().unwrap()
}

/// The name of a rejection, or of what was not found.
pub(super) type Refusal = &'static str;
pub(super) type Answer<T> = Result<T, Refusal>;

/// Two owners: the deployment, and another one that takes over what has lapsed.
pub(super) type OwnerName = &'static str;

/// An event, as far as it is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ev {
    pub(super) kind: &'static str,
    pub(super) run: Option<usize>,
    /// Which tool call.
    pub(super) call: Option<u8>,
    /// A terminal event of a run that was never requested.
    pub(super) never: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) deleted: bool,
    pub(super) closed: bool,
    pub(super) title: u8,
    pub(super) policy: ApprovalPolicy,
    pub(super) max_attempts: u32,
    pub(super) owner: OwnerName,
    pub(super) epoch: i64,
    /// Read from the store after each command: that it never shortens is checked, what exactly
    /// extends it is not predicted.
    pub(super) owned_until: Option<i64>,
    pub(super) log: Vec<Ev>,
    pub(super) queue: Vec<usize>,
    pub(super) held: bool,
    /// Tools that an answer for the session has allowed or denied from then on.
    pub(super) rules: BTreeSet<(u8, bool)>,
    pub(super) tape: Tape,
}

/// The claim that holds a run now.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) claim: usize,
    pub(super) acknowledged: bool,
    replayed: bool,
    pub(super) until: i64,
}

#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) id: RunId,
    pub(super) session: usize,
    pub(super) status: RunStatus,
    pub(super) attempt: u32,
    used: u32,
    pub(super) unacknowledged: u32,
    max: u32,
    pub(super) ready_at: i64,
    pub(super) lease: Option<Lease>,
    deadline: Option<i64>,
    /// What was uploaded under each id.
    pub(super) uploads: BTreeMap<u8, (u8, u64)>,
    pub(super) event_count: u64,
    has_output: bool,
    /// The executor's own tape entries.
    entries: BTreeMap<u8, u8>,
    /// Under which claim and with which body it was completed.
    settled_by: Option<usize>,
    body: Option<Ending>,
    pub(super) admitted_seq: u64,
    pub(super) settled_seq: Option<u64>,
    never_requested: bool,
    pub(super) superseded: bool,
    pub(super) parent: Option<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) run: usize,
    pub(super) executor: u8,
}

#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) id: InteractionId,
    pub(super) run: usize,
    attempt: u32,
    request: u8,
    tool: u8,
    pub(super) status: InteractionStatus,
    /// The answer as it is recorded: approved, and for the whole session.
    answer: Option<(bool, bool)>,
    pub(super) deadline: i64,
}

#[derive(Debug, Clone)]
pub(super) struct Checkpoint {
    pub(super) id: CheckpointId,
    pub(super) session: usize,
    pub(super) seq: u64,
    pub(super) position: u64,
    policy: ApprovalPolicy,
    max_attempts: u32,
    pub(super) superseded: bool,
    pub(super) deleted: bool,
}

/// What a session's summary should show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) status: SessionStatus,
    pub(super) turn_status: TurnStatus,
    pub(super) active: Option<RunId>,
    pub(super) last: Option<(RunId, RunStatus)>,
    pub(super) last_interrupted: Option<RunId>,
    pub(super) resume_from: Option<String>,
    pub(super) queued: u32,
    pub(super) held: bool,
    pub(super) pending: u32,
    pub(super) checkpoints: u32,
    pub(super) latest_checkpoint: Option<CheckpointId>,
    pub(super) head_seq: u64,
    pub(super) closed: bool,
    pub(super) policy: ApprovalPolicy,
    pub(super) owner: String,
}

/// What a claim proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    Live,
    Settled,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    pub(super) now: i64,
    /// The deployment's last sign of life.
    alive: Option<i64>,
    /// What each process remembers of it.
    pub(super) processes: Vec<Option<i64>>,
    pub(super) sessions: Vec<Session>,
    pub(super) runs: Vec<Run>,
    pub(super) claims: Vec<Claim>,
    pub(super) questions: Vec<Question>,
    pub(super) checkpoints: Vec<Checkpoint>,
}

/// Time and owners.
impl Expected {
    /// What precedes every command of a process: a gap in which nobody was alive is credited.
    pub(super) fn note(&mut self, process: usize) {
        let known = self.processes[process];
        if known.is_none_or(|at| self.now - at > 2 * SWEEP) {
            self.mark_alive(process);
        }
    }

    pub(super) fn mark_alive(&mut self, process: usize) {
        let gap = self.alive.map_or(0, |at| self.now - at);
        if gap > 2 * SWEEP {
            self.credit(self.now - gap, gap);
        }
        self.alive = Some(self.now);
        self.processes[process] = Some(self.now);
    }

    fn credit(&mut self, alive: i64, gap: i64) {
        let shift = |at: &mut i64| *at += if *at > alive { gap } else { 0 };
        for session in &mut self.sessions {
            session.owned_until.iter_mut().for_each(shift);
        }
        for run in &mut self.runs {
            // A back-off ends with the gap.
            run.ready_at = run.ready_at.min(alive + gap);
            let Some(lease) = &mut run.lease else {
                continue;
            };
            if lease.until > alive {
                lease.until += gap;
                run.deadline.iter_mut().for_each(|at| *at += gap);
            }
        }
        for question in &mut self.questions {
            shift(&mut question.deadline);
        }
    }

    /// A command of one process: all of it happens, or nothing.
    pub(super) fn attempt<T>(
        &mut self,
        process: usize,
        command: impl FnOnce(&mut Self) -> Answer<T>,
    ) -> Answer<T> {
        self.note(process);
        let mut next = self.clone();
        let answer = command(&mut next)?;
        *self = next;
        Ok(answer)
    }

    /// The authority check; another owner's lapsed session is taken over.
    pub(super) fn own(&mut self, session: usize, me: OwnerName) -> Answer<()> {
        let now = self.now;
        let found = &mut self.sessions[session];
        if found.deleted {
            return Err("NotFound(Session)");
        }
        let live = found.owned_until.is_some_and(|until| until > now);
        match (found.owner == me, live) {
            (true, _) => {}
            (false, true) => return Err("OwnedElsewhere"),
            (false, false) => {
                found.owner = me;
                self.say(session, "OwnerChanged", None);
                self.cancel_queue(session);
                if let Some(run) = self.active(session) {
                    self.settle(run, Ending::Interrupted, None);
                }
            }
        }
        Ok(())
    }

    pub(super) fn renew_owner(&self, session: usize, me: OwnerName) -> Answer<()> {
        let found = &self.sessions[session];
        match found.owned_until {
            _ if found.deleted => Err("NotFound(Session)"),
            _ if found.owner != me => Err("StaleEpoch"),
            Some(until) if until > self.now => Ok(()),
            Some(_) | None => Err("OwnerLeaseExpired"),
        }
    }

    pub(super) fn release_owner(&mut self, session: usize, me: OwnerName) -> Answer<()> {
        let found = &mut self.sessions[session];
        match found.owner {
            _ if found.deleted => Err("NotFound(Session)"),
            owner if owner != me => Err("StaleEpoch"),
            _ => {
                found.owned_until = None;
                Ok(())
            }
        }
    }

    pub(super) fn repair(&mut self, session: usize) -> Answer<()> {
        let found = &self.sessions[session];
        if found.deleted {
            return Err("NotFound(Session)");
        }
        if found.owned_until.is_some_and(|until| until > self.now) {
            return Err("OwnedElsewhere");
        }
        self.say(session, "SessionRepaired", None);
        Ok(())
    }
}

/// Look-ups.
impl Expected {
    pub(super) fn say(&mut self, session: usize, kind: &'static str, run: Option<usize>) -> u64 {
        let ev = Ev {
            kind,
            run,
            call: None,
            never: false,
        };
        self.sessions[session].log.push(ev);
        self.sessions[session].log.len() as u64
    }

    pub(super) fn catch_up(&mut self, session: usize) {
        let found = &mut self.sessions[session];
        found.tape.catch_up(&found.log);
    }

    pub(super) fn active(&self, session: usize) -> Option<usize> {
        (0..self.runs.len())
            .find(|at| self.runs[*at].session == session && self.runs[*at].status.is_active())
    }

    /// The newest settled run that counts, of a kind.
    fn newest(&self, session: usize, which: impl Fn(&Run) -> bool) -> Option<usize> {
        let counts = |run: &Run| {
            run.session == session
                && run.settled_seq.is_some()
                && !run.superseded
                && !run.never_requested
        };
        (0..self.runs.len())
            .filter(|at| counts(&self.runs[*at]) && which(&self.runs[*at]))
            .max_by_key(|at| self.runs[*at].settled_seq)
    }

    fn idle(&self, session: usize) -> Answer<()> {
        if self.sessions[session].closed {
            return Err("SessionClosed");
        }
        self.active(session).map_or(Ok(()), |_| Err("SessionBusy"))
    }

    fn pending(&self, run: usize) -> Vec<usize> {
        let open = |at: &usize| {
            let question = &self.questions[*at];
            question.run == run && question.status == InteractionStatus::Pending
        };
        (0..self.questions.len()).filter(open).collect()
    }

    fn active_checkpoints(&self, session: usize) -> Vec<usize> {
        let of = |at: &usize| {
            let checkpoint = &self.checkpoints[*at];
            checkpoint.session == session && !checkpoint.superseded && !checkpoint.deleted
        };
        (0..self.checkpoints.len()).filter(of).collect()
    }

    /// What can be claimed by an owner, in one session.
    pub(super) fn claimable(&self, session: usize, me: OwnerName) -> Option<usize> {
        let found = &self.sessions[session];
        if found.deleted || found.owner != me {
            return None;
        }
        self.active(session).filter(|run| {
            let run = &self.runs[*run];
            run.status == RunStatus::Requested && run.ready_at <= self.now
        })
    }

    pub(super) fn seen(&self, session: usize) -> Seen {
        let found = &self.sessions[session];
        let active = self.active(session);
        let latest = self.newest(session, |_| true);
        let pending = active.map_or(0, |run| self.pending(run).len());
        let (status, turn_status) = self.status(session, active, latest, pending);
        let checkpoints = self.active_checkpoints(session);
        let newest_checkpoint = checkpoints
            .iter()
            .max_by_key(|at| (self.checkpoints[**at].seq, **at));
        let interrupted = self.newest(session, |run| run.status == RunStatus::Interrupted);
        Seen {
            status,
            turn_status,
            active: active.map(|run| self.runs[run].id),
            last: active
                .or(latest)
                .map(|run| (self.runs[run].id, self.runs[run].status)),
            last_interrupted: interrupted.map(|run| self.runs[run].id),
            resume_from: latest
                .and_then(|run| self.runs[run].settled_seq)
                .map(|seq| format!("srv:{seq}")),
            queued: u32::try_from(found.queue.len()).unwrap(),
            held: found.held,
            pending: u32::try_from(pending).unwrap(),
            checkpoints: u32::try_from(checkpoints.len()).unwrap(),
            latest_checkpoint: newest_checkpoint.map(|at| self.checkpoints[*at].id),
            head_seq: found.log.len() as u64,
            closed: found.closed,
            policy: found.policy,
            owner: found.owner.to_owned(),
        }
    }

    fn status(
        &self,
        session: usize,
        active: Option<usize>,
        latest: Option<usize>,
        pending: usize,
    ) -> (SessionStatus, TurnStatus) {
        let found = &self.sessions[session];
        match active.map(|run| self.runs[run].status) {
            Some(RunStatus::Cancelling) => (SessionStatus::Running, TurnStatus::Cancelling),
            Some(_) if pending > 0 => (SessionStatus::WaitingApproval, TurnStatus::WaitingApproval),
            Some(RunStatus::Requested) => (SessionStatus::Running, TurnStatus::Queued),
            Some(_) => (SessionStatus::Running, TurnStatus::Running),
            None if found.closed => (SessionStatus::Closed, TurnStatus::Idle),
            None => {
                let status = match latest.map(|run| self.runs[run].status) {
                    Some(RunStatus::Completed) => SessionStatus::Completed,
                    Some(RunStatus::Failed) => SessionStatus::Failed,
                    Some(RunStatus::Cancelled) => SessionStatus::Cancelled,
                    Some(RunStatus::Interrupted) => SessionStatus::Interrupted,
                    _ => SessionStatus::Created,
                };
                let waits = !found.queue.is_empty();
                (
                    status,
                    if waits {
                        TurnStatus::Queued
                    } else {
                        TurnStatus::Idle
                    },
                )
            }
        }
    }
}

/// Sessions.
impl Expected {
    pub(super) fn create(
        &mut self,
        id: SessionId,
        me: OwnerName,
        policy: ApprovalPolicy,
        max_attempts: u32,
    ) -> usize {
        self.sessions.push(Session {
            id,
            deleted: false,
            closed: false,
            title: 0,
            policy,
            max_attempts,
            owner: me,
            epoch: 1,
            owned_until: Some(self.now + LEASE),
            log: Vec::new(),
            queue: Vec::new(),
            held: false,
            rules: BTreeSet::new(),
            tape: Tape::default(),
        });
        self.sessions.len() - 1
    }

    pub(super) fn configure(
        &mut self,
        session: usize,
        me: OwnerName,
        title: Option<u8>,
        policy: Option<ApprovalPolicy>,
    ) -> Answer<()> {
        self.own(session, me)?;
        if policy.is_some() && self.active(session).is_some() {
            return Err("SessionBusy");
        }
        let found = &mut self.sessions[session];
        let before = (found.title, found.policy);
        found.title = title.unwrap_or(found.title);
        found.policy = policy.unwrap_or(found.policy);
        if before != (found.title, found.policy) {
            self.say(session, "SessionConfigChanged", None);
        }
        Ok(())
    }

    pub(super) fn close(&mut self, session: usize, me: OwnerName) -> Answer<()> {
        self.own(session, me)?;
        if self.sessions[session].closed {
            return Ok(());
        }
        self.idle(session)?;
        self.cancel_queue(session);
        self.sessions[session].closed = true;
        self.say(session, "SessionClosed", None);
        Ok(())
    }

    pub(super) fn delete(&mut self, session: usize, me: OwnerName, force: bool) -> Answer<()> {
        self.own(session, me)?;
        if !force && self.active(session).is_some() {
            return Err("SessionBusy");
        }
        self.sessions[session].deleted = true;
        Ok(())
    }

    pub(super) fn go_on(&mut self, session: usize, me: OwnerName) -> Answer<()> {
        self.own(session, me)?;
        if self.sessions[session].held {
            self.sessions[session].held = false;
            self.promote(session);
        }
        Ok(())
    }
}

/// Admission and settling.
impl Expected {
    fn add_run(&mut self, session: usize, id: RunId, queued: bool, seq: u64) -> usize {
        self.runs.push(Run {
            id,
            session,
            status: if queued {
                RunStatus::Queued
            } else {
                RunStatus::Requested
            },
            attempt: 0,
            used: 0,
            unacknowledged: 0,
            max: self.sessions[session].max_attempts,
            ready_at: self.now,
            lease: None,
            deadline: None,
            uploads: BTreeMap::new(),
            event_count: 0,
            has_output: false,
            entries: BTreeMap::new(),
            settled_by: None,
            body: None,
            admitted_seq: seq,
            settled_seq: None,
            never_requested: false,
            superseded: false,
            parent: None,
        });
        self.runs.len() - 1
    }

    /// Gives the run's status and the number that the client is told.
    pub(super) fn prompt(
        &mut self,
        session: usize,
        me: OwnerName,
        on_active: OnActive,
        id: RunId,
    ) -> Answer<(RunStatus, u64)> {
        self.own(session, me)?;
        if self.sessions[session].closed {
            return Err("SessionClosed");
        }
        if on_active == OnActive::Interrupt
            && let Some(run) = self.active(session)
        {
            // Whoever interrupts goes first: nothing that waits is promoted in between.
            let waiting = std::mem::take(&mut self.sessions[session].queue);
            self.cancel(run);
            self.sessions[session].queue = waiting;
        }
        let queued = self.active(session).is_some();
        if queued && on_active == OnActive::Reject {
            return Err("SessionBusy");
        }
        let kind = if queued { "RunQueued" } else { "RunRequested" };
        let run = self.runs.len();
        let seq = self.say(session, kind, Some(run));
        self.add_run(session, id, queued, seq);
        let found = &mut self.sessions[session];
        match (queued, on_active) {
            (false, _) => found.held = false,
            (true, OnActive::Interrupt) => found.queue.insert(0, run),
            (true, OnActive::Enqueue | OnActive::Reject) => found.queue.push(run),
        }
        Ok((self.runs[run].status, seq))
    }

    pub(super) fn resume(&mut self, session: usize, me: OwnerName) -> Answer<usize> {
        self.own(session, me)?;
        self.idle(session)?;
        let previous = self.newest(session, |_| true).ok_or("NothingToResume")?;
        self.sessions[session].held = false;
        self.catch_up(session);
        let run = self.runs.len();
        let seq = self.say(session, "RunRequested", Some(run));
        self.add_run(session, unknown(), false, seq);
        self.runs[run].parent = Some(previous);
        self.sessions[session].tape.write_anchor(run);
        Ok(run)
    }
}
