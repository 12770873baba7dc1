//! One step, for real and in the model.

use std::time::Duration;

use serde_json::{Map, json};
use tapedeck_control_plane::commands::configure_session::SettingsPatch;
use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_control_plane::commands::release_run::ReleaseRun;
use tapedeck_control_plane::commands::save_snapshot::SaveSnapshot;
use tapedeck_control_plane::commands::settle_run::SettleRun;
use tapedeck_control_plane::{Error, Outcome, sweep};
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::interaction::{Interaction, Scope};
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::{ApprovalPolicy, SessionSettings};
use tapedeck_domain::settle::{Ending, RunEnd};

use super::Step;
use super::drive::{Drive, Went, named, same};
use super::expected::{Answer, Expected, UNKNOWN};
use crate::control::{Claim, NAMESPACE, TestControl, claim_request};

/// Sessions that are there at once, at most.
const SESSIONS: usize = 4;
const EXECUTORS: u8 = 3;
const TOOLS: [&str; 2] = ["shell", "browser"];

/// Compares an answer with the model's; gives whether it was accepted.
pub(super) fn judge<R, E>(
    real: Outcome<R>,
    expected: Answer<E>,
    compare: impl FnOnce(R, &E) -> Went,
) -> Result<Option<E>, String> {
    match (real, expected) {
        (Ok(real), Ok(expected)) => {
            compare(real, &expected)?;
            Ok(Some(expected))
        }
        (Err(error), Err(refusal)) => {
            same("refusal", &named(&error), &refusal.to_owned())?;
            Ok(None)
        }
        (Ok(_), Err(refusal)) => Err(format!("accepted, where the model says {refusal}")),
        (Err(error), Ok(_)) => Err(format!("refused: {error}")),
    }
}

fn pick(number: u8, of: usize) -> Option<usize> {
    (of > 0).then(|| usize::from(number) % of)
}

impl Drive {
    pub(super) fn t(&self, via: usize) -> &TestControl {
        &self.processes[via]
    }

    pub(super) fn expect<T>(
        &mut self,
        via: usize,
        command: impl FnOnce(&mut Expected) -> Answer<T>,
    ) -> Answer<T> {
        self.model.attempt(via, command)
    }

    /// Mostly a session that is there.
    fn session(&self, number: u8) -> usize {
        let sessions = &self.model.sessions;
        let there: Vec<_> = (0..sessions.len())
            .filter(|at| !sessions[*at].deleted)
            .collect();
        let any = pick(number / 16, sessions.len()).unwrap();
        if number.is_multiple_of(16) {
            return any;
        }
        pick(number / 16, there.len()).map_or(any, |at| there[at])
    }

    /// Mostly one with a run that can be claimed.
    fn waiting_session(&self, via: usize, number: u8) -> usize {
        let me = Self::owner(via);
        let all = 0..self.model.sessions.len();
        let waiting: Vec<_> = all
            .filter(|at| self.model.claimable(*at, me).is_some())
            .collect();
        match pick(number / 4, waiting.len()) {
            Some(at) if !number.is_multiple_of(4) => waiting[at],
            Some(_) | None => self.session(number),
        }
    }

    /// Mostly a claim that holds its run.
    fn claim(&self, number: u8) -> Option<usize> {
        let model = &self.model;
        let held: Vec<_> = model
            .runs
            .iter()
            .filter(|run| !model.sessions[run.session].deleted)
            .filter_map(|run| run.lease.as_ref().map(|lease| lease.claim))
            .collect();
        let any = pick(number / 8, model.claims.len());
        if number.is_multiple_of(8) {
            return any;
        }
        pick(number / 8, held.len()).map(|at| held[at]).or(any)
    }

    /// Mostly one of the session's own.
    fn checkpoint(&self, session: usize, number: u8) -> Option<usize> {
        let all = &self.model.checkpoints;
        let own: Vec<_> = (0..all.len())
            .filter(|at| all[*at].session == session)
            .filter(|at| !all[*at].superseded && !all[*at].deleted)
            .collect();
        let any = pick(number / 8, all.len());
        if number.is_multiple_of(8) {
            return any;
        }
        pick(number / 8, own.len()).map(|at| own[at]).or(any)
    }

    fn name(&mut self) -> String {
        self.next_id += 1;
        format!("request-{}", self.next_id)
    }

    pub(super) async fn step(&mut self, via: usize, step: &Step) -> Went {
        if self.model.sessions.iter().all(|session| session.deleted) {
            return self.create(via, ApprovalPolicy::Interactive, 1).await;
        }
        match *step {
            Step::Create {
                policy,
                max_attempts,
            } => self.create(via, policy, max_attempts).await,
            Step::Title { session, title } => self.configure(via, session, Some(title), None).await,
            Step::Policy { session, policy } => {
                self.configure(via, session, None, Some(policy)).await
            }
            Step::Prompt { session, on_active } => self.prompt(via, session, on_active).await,
            Step::Resume { session } => self.resume(via, session).await,
            Step::ClaimAny { executor } => self.claim_run(via, executor, None).await,
            Step::ClaimOf { executor, session } => {
                let session = self.waiting_session(via, session);
                self.claim_run(via, executor, Some(session)).await
            }
            Step::Capture { session } => self.capture(via, session).await,
            Step::Fork {
                session,
                checkpoint,
            } => self.fork(via, session, checkpoint).await,
            Step::Sweep => self.sweep(via).await,
            Step::Pass { ms } => {
                self.pass(ms).await;
                Ok(())
            }
            Step::Outage { ms } => {
                self.outage(ms);
                Ok(())
            }
            Step::Restart => {
                self.restart().await;
                Ok(())
            }
            Step::Close { session }
            | Step::Delete { session, .. }
            | Step::Continue { session }
            | Step::CancelSession { session }
            | Step::DeleteCheckpoint { session, .. }
            | Step::Restore { session, .. }
            | Step::Acquire { session }
            | Step::Renew { session }
            | Step::LetGo { session }
            | Step::Repair { session } => self.of_session(via, session, step).await,
            Step::Replay { claim, .. }
            | Step::Beat { claim }
            | Step::Append { claim, .. }
            | Step::OwnTape { claim, .. }
            | Step::Snapshot { claim }
            | Step::Ask { claim, .. }
            | Step::Complete { claim, .. }
            | Step::Release { claim } => match self.claim(claim) {
                Some(claim) => self.of_claim(via, claim, step).await,
                None => self.claim_run(via, 0, None).await,
            },
            Step::Answer {
                question,
                approved,
                for_session,
            } => self.answer(via, question, approved, for_session).await,
            Step::CancelRun { run } => self.cancel_run(via, run).await,
        }
    }

    async fn create(&mut self, via: usize, policy: ApprovalPolicy, attempts: u32) -> Went {
        let there = self
            .model
            .sessions
            .iter()
            .filter(|session| !session.deleted);
        if there.count() >= SESSIONS {
            return Ok(());
        }
        let mut settings = SessionSettings {
            title: Some("0".to_owned()),
            approval_policy: policy,
            ..SessionSettings::default()
        };
        settings.run_target.constraints.max_attempts = Some(attempts);
        self.model.note(via);
        let id = self.t(via).session_with(settings).await;
        self.model.create(id, Self::owner(via), policy, attempts);
        Ok(())
    }

    async fn configure(
        &mut self,
        via: usize,
        session: u8,
        title: Option<u8>,
        policy: Option<ApprovalPolicy>,
    ) -> Went {
        let at = self.session(session);
        let id = self.model.sessions[at].id;
        let patch = SettingsPatch {
            title: title.map(|title| Some(title.to_string())),
            approval_policy: policy,
            ..SettingsPatch::default()
        };
        let me = Self::owner(via);
        let expected = self.expect(via, |model| model.configure(at, me, title, policy));
        let real = self
            .t(via)
            .control
            .configure_session(NAMESPACE, id, patch)
            .await;
        judge(real, expected, |_, ()| Ok(())).map(drop)
    }

    async fn prompt(&mut self, via: usize, session: u8, on_active: OnActive) -> Went {
        let at = self.session(session);
        let id = self.model.sessions[at].id;
        let command = self.t(via).prompt_command(id, "do it", on_active, None);
        let (me, run) = (Self::owner(via), command.prompt.run_id);
        let expected = self.expect(via, |model| model.prompt(at, me, on_active, run));
        let real = self.t(via).control.prompt(command).await;
        let judged = judge(real, expected, |real, expected| {
            same("admitted", &(real.status, real.session_seq), expected)
        });
        judged.map(drop)
    }

    async fn resume(&mut self, via: usize, session: u8) -> Went {
        let at = self.session(session);
        let id = self.model.sessions[at].id;
        let me = Self::owner(via);
        let expected = self.expect(via, |model| model.resume(at, me));
        let real = self.t(via).resume(id).await;
        let model = &mut self.model;
        let judged = judge(real, expected, |real, run| {
            model.runs[*run].id = real.run_id;
            same("status", &real.status, &RunStatus::Requested)
        });
        judged.map(drop)
    }

    async fn claim_run(&mut self, via: usize, executor: u8, of: Option<usize>) -> Went {
        let (me, executor) = (Self::owner(via), executor % EXECUTORS);
        self.model.note(via);
        let all = 0..self.model.sessions.len();
        let now = self.model.now;
        let foreign = all.clone().any(|at| {
            let session = &self.model.sessions[at];
            let lapsed = session.owned_until.is_none_or(|until| until <= now);
            !session.deleted && session.owner != me && lapsed
        });
        let may: Vec<_> = match of {
            Some(session) => vec![session],
            // Whoever claims anything may take over what has lapsed on its way; that is looked at
            // session by session.
            None if foreign => {
                self.model.mark_alive(via);
                let alive = sweep::start(&self.t(via).control).await;
                return alive.map(drop).map_err(|error| error.to_string());
            }
            None => all.collect(),
        };
        let may: Vec<_> = may
            .into_iter()
            .filter_map(|session| self.model.claimable(session, me))
            .collect();
        let request = self.name();
        let mut command = claim_request(&format!("executor-{executor}"), &request);
        command.session_id = of.map(|session| self.model.sessions[session].id);
        match self.t(via).claim_as(command).await {
            Ok(claim) => {
                let run = may
                    .iter()
                    .find(|run| self.model.runs[**run].id == claim.run_id());
                let run = run.ok_or_else(|| format!("{} was not to be had", claim.run_id()))?;
                let attempt = self.model.claim(*run, executor);
                self.claims.push((claim.clone(), request));
                same("attempt", &claim.claimed.attempt, &attempt)
            }
            Err(error) if may.is_empty() => {
                same("refusal", &named(&error), &"NoRunAvailable".to_owned())
            }
            Err(error) => Err(format!("{error}, but {} runs wait", may.len())),
        }
    }

    async fn capture(&mut self, via: usize, session: u8) -> Went {
        let at = self.session(session);
        let id = self.model.sessions[at].id;
        let me = Self::owner(via);
        let expected = self.expect(via, |model| model.capture(at, me));
        let control = &self.processes[via].control;
        let real = control.capture_checkpoint(NAMESPACE, id, None, None).await;
        let model = &mut self.model;
        let judged = judge(real, expected, |real, checkpoint| {
            model.checkpoints[*checkpoint].id = real.checkpoint_id;
            Ok(())
        });
        judged.map(drop)
    }

    async fn fork(&mut self, via: usize, session: u8, checkpoint: Option<u8>) -> Went {
        let at = self.session(session);
        let there = self
            .model
            .sessions
            .iter()
            .filter(|session| !session.deleted);
        if there.count() >= SESSIONS {
            return Ok(());
        }
        let from = match checkpoint {
            Some(number) => match self.checkpoint(at, number) {
                Some(checkpoint) => Some(checkpoint),
                None => return Ok(()),
            },
            None => None,
        };
        let id = self.model.sessions[at].id;
        let point = from.map_or(ForkPoint::Head, |checkpoint| {
            ForkPoint::Checkpoint(self.model.checkpoints[checkpoint].id)
        });
        let me = Self::owner(via);
        let expected = self.expect(via, |model| model.fork(at, me, from));
        let control = &self.processes[via].control;
        let real = control.fork_session(NAMESPACE, id, point, None, None).await;
        let model = &mut self.model;
        let judged = judge(real, expected, |real, fork| {
            model.sessions[*fork].id = real.session.session_id;
            Ok(())
        });
        judged.map(drop)
    }

    async fn sweep(&mut self, via: usize) -> Went {
        let suspicious = self.model.suspicious();
        self.t(via).sweep().await;
        let mut blamed = Vec::new();
        for run in suspicious {
            let id = self.model.runs[run].id;
            let found = self.t(via).control.run(NAMESPACE, id).await;
            let failed = found.is_ok_and(|run| {
                let reason = run.recovery.map(|recovery| recovery.reason);
                run.status == RunStatus::Failed && reason.as_deref() == Some("claim_poison")
            });
            blamed.extend(failed.then_some(run));
        }
        self.model.sweep(via, Self::owner(via), &blamed);
        // Idle sessions are let go.
        self.lets_go = true;
        Ok(())
    }

    async fn of_session(&mut self, via: usize, session: u8, step: &Step) -> Went {
        let at = self.session(session);
        let id = self.model.sessions[at].id;
        let me = Self::owner(via);
        let control = self.t(via).control.clone();
        match *step {
            Step::Close { .. } => {
                let expected = self.expect(via, |model| model.close(at, me));
                let real = control.close_session(NAMESPACE, id).await;
                judge(real, expected, |_, ()| Ok(())).map(drop)
            }
            Step::Delete { force, .. } => {
                let expected = self.expect(via, |model| model.delete(at, me, force));
                let real = control.delete_session(NAMESPACE, id, force).await;
                judge(real, expected, |(), ()| Ok(())).map(drop)
            }
            Step::Continue { .. } => {
                let expected = self.expect(via, |model| model.go_on(at, me));
                let real = control.continue_queue(NAMESPACE, id).await;
                judge(real, expected, |_, ()| Ok(())).map(drop)
            }
            Step::CancelSession { .. } => {
                let expected = self.expect(via, |model| model.cancel_session(at, me));
                let real = control.cancel_session(NAMESPACE, id, "client").await;
                let compare = |real: tapedeck_control_plane::commands::cancel_run::Cancelled,
                               expected: &Option<RunStatus>| {
                    same("status", &real.status, expected)
                };
                judge(real, expected, compare).map(drop)
            }
            Step::Acquire { .. } => {
                let expected = self.expect(via, |model| model.own(at, me));
                let real = control.acquire_owner(NAMESPACE, id).await;
                judge(real, expected, |_, ()| Ok(())).map(drop)
            }
            Step::Renew { .. } => {
                let expected = self.expect(via, |model| model.renew_owner(at, me));
                let real = control.renew_owner(NAMESPACE, id).await;
                judge(real, expected, |_, ()| Ok(())).map(drop)
            }
            Step::LetGo { .. } => {
                let expected = self.expect(via, |model| model.release_owner(at, me));
                let real = control.release_owner(NAMESPACE, id).await;
                judge(real, expected, |(), ()| Ok(())).map(drop)
            }
            Step::Repair { .. } => {
                let expected = self.expect(via, |model| model.repair(at));
                let real = control.repair_session(NAMESPACE, id, "test").await;
                judge(real, expected, |changed, ()| {
                    same("repaired", &changed, &Vec::new())
                })
                .map(drop)
            }
            Step::DeleteCheckpoint { checkpoint, .. } => {
                let Some(checkpoint) = self.checkpoint(at, checkpoint) else {
                    return Ok(());
                };
                let target = self.model.checkpoints[checkpoint].id;
                let expected =
                    self.expect(via, |model| model.delete_checkpoint(at, me, checkpoint));
                let real = control.delete_checkpoint(NAMESPACE, id, target).await;
                judge(real, expected, |(), ()| Ok(())).map(drop)
            }
            Step::Restore { checkpoint, .. } => {
                let Some(checkpoint) = self.checkpoint(at, checkpoint) else {
                    return Ok(());
                };
                let target = self.model.checkpoints[checkpoint].id;
                let expected = self.expect(via, |model| model.restore(at, me, checkpoint));
                let real = control.restore_session(NAMESPACE, id, target, None).await;
                judge(real, expected, |_, ()| Ok(())).map(drop)
            }
            _ => unreachable!("{step:?} is no step of a session"),
        }
    }

    async fn of_claim(&mut self, via: usize, claim: usize, step: &Step) -> Went {
        let me = Self::owner(via);
        let (held, request) = self.claims[claim].clone();
        let control = self.t(via).control.clone();
        match *step {
            Step::Replay { executor, .. } => {
                let known = self.model.claims[claim].executor;
                let executor = executor.map_or(known, |executor| executor % EXECUTORS);
                let run = &self.model.runs[self.model.claims[claim].run];
                let mut command = claim_request(&format!("executor-{executor}"), &request);
                command.session_id = Some(self.model.sessions[run.session].id);
                let expected = self.expect(via, |model| model.replay(claim, me, executor));
                let real = self.t(via).claim_as(command).await;
                let token = held.proof.token.secret().to_owned();
                let compare = |real: Claim, attempt: &u32| {
                    same("token", &real.proof.token.secret().to_owned(), &token)?;
                    same("attempt", &real.claimed.attempt, attempt)
                };
                judge(real, expected, compare).map(drop)
            }
            Step::Beat { .. } => {
                let expected = self.expect(via, |model| model.beat(claim, me));
                let real = self.t(via).beat(&held).await;
                judge(real, expected, |real, status| {
                    same("status", &real.status, status)
                })
                .map(drop)
            }
            Step::Append { ref uploads, .. } => self.append(via, claim, uploads).await,
            Step::OwnTape { entry, content, .. } => self.own_tape(via, claim, entry, content).await,
            Step::Snapshot { .. } => {
                let command = SaveSnapshot {
                    proof: held.proof,
                    messages: vec![json!({"role": "user", "content": "do it"})],
                    metadata: Map::new(),
                    weight: 100,
                };
                let expected = self.expect(via, |model| model.snapshot(claim, me));
                let real = control.save_snapshot(command).await;
                judge(real, expected, |facts, ()| {
                    same("messages", &facts.message_count, &1)
                })
                .map(drop)
            }
            Step::Ask {
                request,
                tool,
                short,
                ..
            } => self.ask(via, claim, (request, tool == 7, short)).await,
            Step::Complete {
                ending, miscount, ..
            } => self.complete(via, claim, ending, miscount).await,
            Step::Release { .. } => {
                let expected = self.expect(via, |model| model.release(claim, me));
                let real = control.release_run(ReleaseRun { proof: held.proof }).await;
                judge(real, expected, |real, status| {
                    same("status", &real.status, status)
                })
                .map(drop)
            }
            _ => unreachable!("{step:?} is no step of a claim"),
        }
    }

    /// With `other`, it is another question than before, if it comes under the same id.
    async fn ask(
        &mut self,
        via: usize,
        claim: usize,
        (request, other, short): (u8, bool, bool),
    ) -> Went {
        let (me, held) = (Self::owner(via), self.claims[claim].0.clone());
        let seconds: u8 = if short { 20 } else { 200 };
        let (name, tool) = (format!("question-{request}"), u8::from(other));
        let t = self.t(via);
        let mut ask = t.ask_command(&held, &name, TOOLS[usize::from(tool)]);
        ask.question.timeout_seconds = u32::from(seconds);
        let asked = (request, tool, i64::from(seconds));
        let expected = self.expect(via, |model| model.ask(claim, me, asked));
        let real = self.t(via).control.ask(ask, Duration::ZERO).await;
        let model = &mut self.model;
        let compare = |real: Interaction, at: &usize| {
            let question = &mut model.questions[*at];
            if question.id.to_string() == UNKNOWN {
                question.id = real.interaction_id;
            }
            let found = (real.interaction_id, real.status);
            same("question", &found, &(question.id, question.status))
        };
        judge(real, expected, compare).map(drop)
    }

    async fn complete(&mut self, via: usize, claim: usize, ending: Ending, miscount: bool) -> Went {
        let (me, held) = (Self::owner(via), self.claims[claim].0.clone());
        let counted = miscount.then_some(99);
        let end = RunEnd {
            ending,
            result: Some(json!({"answer": 42})),
            error: (ending == Ending::Failed).then(|| "it broke".to_owned()),
            recovery_reason: None,
            body_digest: Some(Digest::of_bytes(ending.as_str().as_bytes())),
        };
        let command = SettleRun {
            proof: held.proof,
            end,
            event_count: counted,
            agent_state: None,
            tape_id: None,
            tape: None,
        };
        let expected = self.expect(via, |model| model.complete(claim, me, ending, counted));
        let real = self.t(via).control.settle_run(command).await;
        judge(real, expected, |real, status| {
            same("status", &real.status, status)
        })
        .map(drop)
    }

    async fn answer(&mut self, via: usize, number: u8, approved: bool, for_session: bool) -> Went {
        // Mostly one of the newest.
        let count = self.model.questions.len();
        let Some(back) = pick(number, count.min(3)) else {
            return Ok(());
        };
        let at = count - 1 - back;
        let id = self.model.questions[at].id;
        let scope = if for_session {
            Scope::Session
        } else {
            Scope::Once
        };
        let me = Self::owner(via);
        let session = self.model.runs[self.model.questions[at].run].session;
        let expected = if self.model.sessions[session].deleted {
            // A look-up finds that, before any command.
            Err("NotFound(Interaction)")
        } else {
            self.expect(via, |model| model.resolve(at, me, (approved, for_session)))
        };
        let real = self.t(via).answer_in_scope(id, approved, scope).await;
        judge(real, expected, |real, status| {
            same("status", &real.status, status)
        })
        .map(drop)
    }

    async fn cancel_run(&mut self, via: usize, number: u8) -> Went {
        // Mostly one of the newest.
        let count = self.model.runs.len();
        let Some(back) = pick(number, count.min(4)) else {
            return Ok(());
        };
        let run = count - 1 - back;
        let id = self.model.runs[run].id;
        let me = Self::owner(via);
        let session = self.model.runs[run].session;
        let expected = if self.model.sessions[session].deleted {
            Err("NotFound(Run)")
        } else {
            self.expect(via, |model| model.cancel_run(run, me))
        };
        let real: Result<_, Error> = self
            .t(via)
            .control
            .cancel_run(NAMESPACE, id, "client")
            .await;
        judge(real, expected, |real, status| {
            same("status", &real.status, &Some(*status))
        })
        .map(drop)
    }
}
