//! The processes and executors of a walk: every step is made for real and in the model, and what
//! can be seen afterwards is compared.

use std::collections::BTreeMap;
use std::fmt::Debug;

use tapedeck_control_plane::{Error, PageRequest, RunFilter, TapeFilter};
use tapedeck_domain::owner::Owner;
use tapedeck_store::read::InteractionFilter;
use tapedeck_store::{AuditRequest, Check};

use super::Step;
use super::expected::{Expected, OwnerName, SWEEP, Seen};
use crate::control::{Claim, NAMESPACE, TestControl};
use crate::stores::{Kind, TestStore};

pub(super) const DEPLOYMENT: OwnerName = "deployment";
pub(super) const OTHER: OwnerName = "server:other";
/// Two of the deployment, and one of another owner.
const PROCESSES: usize = 3;
/// Between two looks at everything.
const LOOK: usize = 20;

pub(super) type Went = Result<(), String>;

/// A walk under way.
pub(super) struct Drive {
    pub(super) processes: Vec<TestControl>,
    pub(super) model: Expected,
    /// What executors hold, in the order of the model's claims.
    pub(super) claims: Vec<(Claim, String)>,
    /// The numbers that events of the model's names have.
    pub(super) next_id: u64,
    /// Whether leases may have ended early in this step: somebody let go.
    pub(super) lets_go: bool,
}

impl Drive {
    /// Walks over a fresh database; `at` is the step that it has come to.
    pub(super) async fn walk(kind: Kind, steps: &[(u8, Step)], at: &mut usize) -> Went {
        let mut drive = Self::begin(kind).await;
        for (number, (via, step)) in steps.iter().enumerate() {
            *at = number;
            let via = Self::process(*via);
            let went = drive.step(via, step).await;
            went.map_err(|why| format!("step {number}, {step:?} via {via}: {why}"))?;
            let looked = drive.look_at_sessions().await;
            looked.map_err(|why| format!("after step {number}, {step:?} via {via}: {why}"))?;
            if number % LOOK == LOOK - 1 {
                let looked = drive.look_at_all().await;
                looked.map_err(|why| format!("after step {number}: {why}"))?;
                // A look at the tape renews leases.
                drive.look_at_sessions().await?;
            }
        }
        drive.look_at_all().await?;
        drive.audit("after the walk").await?;
        drive.come_to_rest().await?;
        drive.audit("at rest").await
    }

    async fn begin(kind: Kind) -> Self {
        let first = TestControl::fresh(kind).await;
        let mut drive = Self {
            processes: vec![first],
            model: Expected::default(),
            claims: Vec::new(),
            next_id: 0,
            lets_go: false,
        };
        drive.model.now = drive.processes[0].store.clock.lease();
        drive.start_processes().await;
        drive
    }

    /// All processes but the first, which is there.
    async fn start_processes(&mut self) {
        self.model.processes = vec![None; PROCESSES];
        self.model.note(0);
        let first = &self.processes[0].store;
        let second: TestStore = match first.kind {
            Kind::Sqlite => first.shared(),
            Kind::Postgres | Kind::PostgresWithoutHints => first.another_instance().await,
        };
        let other = first.shared();
        self.processes.push(TestControl::over(second).await);
        self.model.note(1);
        self.processes
            .push(TestControl::owned_by(other, OTHER).await);
        self.model.note(2);
    }

    pub(super) async fn restart(&mut self) {
        let mut processes = std::mem::take(&mut self.processes);
        let first = processes.remove(0);
        for process in processes {
            let lifecycle = process.control.lifecycle().clone();
            lifecycle.finish(std::time::Duration::from_secs(5)).await;
            if first.store.kind != Kind::Sqlite
                && process.control.authority() == first.control.authority()
            {
                process.store.store.close().await;
            }
        }
        self.processes.push(first.restarted().await);
        self.start_processes().await;
    }

    fn process(via: u8) -> usize {
        match via % 16 {
            0..8 => 0,
            8..15 => 1,
            _ => 2,
        }
    }

    pub(super) fn owner(via: usize) -> OwnerName {
        if via == 2 { OTHER } else { DEPLOYMENT }
    }

    pub(super) async fn pass(&mut self, ms: i64) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(SWEEP);
            self.model.now += step;
            self.model.note(0);
            self.model.mark_alive(0);
            left -= step;
        }
        self.processes[0].pass(ms).await;
    }

    pub(super) fn outage(&mut self, ms: i64) {
        self.model.now += ms;
        self.processes[0].outage(ms);
    }

    /// Every session as lists show it.
    async fn look_at_sessions(&mut self) -> Went {
        let lets_go = std::mem::take(&mut self.lets_go);
        for at in 0..self.model.sessions.len() {
            let expected = &self.model.sessions[at];
            let id = expected.id;
            let view = self.processes[0].control.session(NAMESPACE, id).await;
            if expected.deleted {
                if view.is_ok() {
                    return Err(format!("session {at} is deleted and still there"));
                }
                continue;
            }
            let view = view.map_err(|error| format!("session {at}: {error}"))?;
            let (session, head) = (view.session, view.head);
            let summary = session.summary;
            let owner = head.owner.ok_or("a session without an owner")?;
            let seen = Seen {
                status: summary.status,
                turn_status: summary.turn_status,
                active: summary.active_run_id,
                last: summary.last_run_id.zip(summary.last_run_status),
                last_interrupted: summary.last_interrupted_run_id,
                resume_from: summary.resume_from_event_id,
                queued: summary.queued_runs,
                held: summary.queue_held,
                pending: summary.pending_interactions,
                checkpoints: summary.checkpoint_count,
                latest_checkpoint: summary.latest_checkpoint_id,
                head_seq: head.head_seq,
                closed: session.closed_at.is_some(),
                policy: session.settings.approval_policy,
                owner: if owner.owner_id == OTHER {
                    OTHER
                } else {
                    DEPLOYMENT
                }
                .to_owned(),
            };
            same(&format!("session {at}"), &seen, &self.model.seen(at))?;
            self.take_owner(at, &owner, lets_go)?;
        }
        Ok(())
    }

    /// Leases are read, not predicted; but an epoch rises only with a lapse, and no lease shortens.
    fn take_owner(&mut self, at: usize, owner: &Owner, lets_go: bool) -> Went {
        let session = &mut self.model.sessions[at];
        let known = session
            .owned_until
            .is_some_and(|until| until > self.model.now);
        let until = owner.expires_at.map(|at| at.0);
        let (epoch, before) = (owner.epoch.0, session.epoch);
        if epoch != before && (known || epoch != before + 1) {
            return Err(format!(
                "session {at}: epoch {before} became {epoch}, live: {known}"
            ));
        }
        if until < session.owned_until && !lets_go {
            let before = session.owned_until;
            return Err(format!(
                "session {at}: the owner's lease went from {before:?} to {until:?}"
            ));
        }
        (session.epoch, session.owned_until) = (epoch, until);
        Ok(())
    }

    /// Every run, event, question, checkpoint and entry.
    async fn look_at_all(&mut self) -> Went {
        for at in 0..self.model.sessions.len() {
            if !self.model.sessions[at].deleted {
                self.look_at_log(at).await?;
                self.look_at_runs(at).await?;
                self.look_at_tape(at).await?;
            }
        }
        let t = &self.processes[0];
        let page = |limit| PageRequest {
            before: None,
            limit,
        };
        let all = InteractionFilter::default();
        let found = t.control.interactions(NAMESPACE, &all, page(200)).await;
        let found: BTreeMap<_, _> = found
            .map_err(shown)?
            .items
            .into_iter()
            .map(|question| (question.interaction_id, question.status))
            .collect();
        let there = |run: usize| !self.model.sessions[self.model.runs[run].session].deleted;
        let expected = self
            .model
            .questions
            .iter()
            .filter(|question| there(question.run));
        let expected: BTreeMap<_, _> = expected
            .map(|question| (question.id, question.status))
            .collect();
        if expected.len() < 200 {
            same("questions", &found, &expected)?;
        }
        for checkpoint in &self.model.checkpoints {
            if self.model.sessions[checkpoint.session].deleted {
                continue;
            }
            let found = t
                .control
                .checkpoint(NAMESPACE, checkpoint.id)
                .await
                .map_err(shown)?;
            let seen = (
                found.session_seq,
                found.tape_position,
                found.superseded_at.is_some(),
                found.deleted_at.is_some(),
            );
            let (seq, position) = (checkpoint.seq, checkpoint.position);
            let expected = (seq, position, checkpoint.superseded, checkpoint.deleted);
            same("checkpoint", &seen, &expected)?;
        }
        Ok(())
    }

    async fn look_at_log(&self, at: usize) -> Went {
        let expected = &self.model.sessions[at];
        let log = self.processes[1].log(expected.id).await;
        let log: Vec<_> = log
            .into_iter()
            .map(|event| (event.session_seq, event.kind, event.run_id))
            .collect();
        let events = expected.log.iter().zip(1..);
        let events: Vec<_> = events
            .map(|(ev, seq)| {
                (
                    seq,
                    ev.kind.to_owned(),
                    ev.run.map(|run| self.model.runs[run].id),
                )
            })
            .collect();
        same(&format!("the log of session {at}"), &log, &events)
    }

    async fn look_at_runs(&self, at: usize) -> Went {
        let filter = RunFilter {
            session_id: Some(self.model.sessions[at].id),
            include_superseded: true,
            unservable: false,
        };
        let page = PageRequest {
            before: None,
            limit: 200,
        };
        let found = self.processes[0]
            .control
            .runs(NAMESPACE, filter, page)
            .await;
        let mut found: Vec<_> = found
            .map_err(shown)?
            .items
            .into_iter()
            .map(|run| {
                let superseded = run.superseded_at.is_some();
                let number = (run.attempt, run.admitted_seq, run.settled_seq);
                (
                    run.run_id,
                    run.status,
                    number,
                    superseded,
                    run.parent_run_id,
                )
            })
            .collect();
        let runs = self.model.runs.iter().filter(|run| run.session == at);
        let mut expected: Vec<_> = runs
            .map(|run| {
                let parent = run.parent.map(|parent| self.model.runs[parent].id);
                let number = (run.attempt, run.admitted_seq, run.settled_seq);
                (run.id, run.status, number, run.superseded, parent)
            })
            .collect();
        found.sort_by_key(|run| run.0);
        expected.sort_by_key(|run| run.0);
        same(&format!("the runs of session {at}"), &found, &expected)
    }

    async fn look_at_tape(&mut self, at: usize) -> Went {
        self.model.catch_up(at);
        let filter = TapeFilter {
            session_id: self.model.sessions[at].id,
            after: 0,
            limit: 500,
            max_bytes: 1 << 20,
            include_superseded: false,
        };
        // Whoever looks must not take over.
        let owner = self.model.sessions[at].owner;
        let via = if owner == OTHER { 2 } else { 0 };
        self.model.note(via);
        let tape = self.processes[via]
            .control
            .tape(NAMESPACE, filter)
            .await
            .map_err(shown)?;
        let kinds: Vec<_> = tape.iter().map(|entry| entry.kind.as_str()).collect();
        let expected = self.model.sessions[at].tape.active();
        same(&format!("the tape of session {at}"), &kinds, &expected)
    }

    async fn audit(&self, when: &str) -> Went {
        let request = AuditRequest {
            // The walk sweeps when it wants to.
            patience_ms: i64::MAX / 4,
            ..AuditRequest::of(Check::ALL)
        };
        let checked = self.processes[0].store.audit().audit(&request).await;
        for checked in checked.map_err(|error| error.to_string())? {
            if !checked.findings.is_empty() {
                return Err(format!("{when}: {checked:?}"));
            }
        }
        Ok(())
    }

    /// Once everybody is silent, time and the sweep bring every run to its end or to where it can be
    /// claimed; what is claimed then can be completed, and the session takes a prompt (fault 7).
    async fn come_to_rest(&mut self) -> Went {
        let t = &self.processes[0];
        let long = t.control.timing().unacknowledged_lease_ms + 120_000;
        for _ in 0..2 {
            t.pass(long).await;
            t.sweep().await;
        }
        t.pass(60_000).await;
        for (at, session) in self.model.sessions.iter().enumerate() {
            if session.deleted {
                continue;
            }
            for _ in 0..200 {
                let summary = t.view(session.id).await.session.summary;
                if summary.queue_held {
                    t.control
                        .continue_queue(NAMESPACE, session.id)
                        .await
                        .map_err(shown)?;
                    continue;
                }
                if summary.active_run_id.is_none() && summary.queued_runs == 0 {
                    break;
                }
                let mut command =
                    crate::control::claim_request("late", &t.control.new_id().to_string());
                command.session_id = Some(session.id);
                let claim = t.claim_as(command).await;
                let claim = claim
                    .map_err(|error| format!("session {at} is stuck: {error}, {summary:?}"))?;
                t.complete(&claim).await;
            }
            if !session.closed {
                let prompted = t
                    .try_prompt(session.id, tapedeck_domain::admit::OnActive::Reject)
                    .await;
                prompted.map_err(|error| format!("session {at} takes no prompt: {error}"))?;
            }
        }
        Ok(())
    }
}

pub(super) fn shown(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The name of an error as the model says it.
pub(super) fn named(error: &Error) -> String {
    match error {
        Error::Rejected(rejection) => {
            let text = format!("{rejection:?}");
            let end = text.find([' ', '(', '{']).unwrap_or(text.len());
            text[..end].to_owned()
        }
        Error::NotFound(target) => format!("NotFound({target:?})"),
        Error::Cursor(_) | Error::Draining | Error::Store(_) => format!("{error:?}"),
    }
}

pub(super) fn same<T: PartialEq + Debug>(what: &str, found: &T, expected: &T) -> Went {
    if found == expected {
        Ok(())
    } else {
        Err(format!(
            "{what}:\n  found    {found:?}\n  expected {expected:?}"
        ))
    }
}
