//! A day in the life of a few sessions, in which every command comes at least once, played by
//! clients that try again.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Map, json};
use tapedeck_control_plane::commands::append_tape::AppendTape;
use tapedeck_control_plane::commands::configure_session::SettingsPatch;
use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_control_plane::commands::leave_executor::LeaveExecutor;
use tapedeck_control_plane::commands::load_context::LoadContext;
use tapedeck_control_plane::commands::prompt::Admitted;
use tapedeck_control_plane::commands::release_run::ReleaseRun;
use tapedeck_control_plane::commands::save_artifacts::SaveArtifacts;
use tapedeck_control_plane::commands::save_snapshot::SaveSnapshot;
use tapedeck_control_plane::retention::Retention;
use tapedeck_control_plane::{
    Error, InteractionFilter, Outcome, PageRequest, ResumeRequest, RunFilter, StoreError,
    TapeFilter, sweep,
};
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::id::{RunKey, SessionKey};
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::interaction::{Answer, InteractionStatus, Reply, Scope};
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::Ending;
use tapedeck_domain::tape::upload::{EntryBatch, UploadedEntry};
use tapedeck_domain::token::{Role, TokenTerms};
use tapedeck_domain::{CheckpointId, Rejection, SessionId};

use crate::control::{Claim, KEEP_DELTAS_MS, NAMESPACE, TestControl, claim_request, key};
use crate::write_paths::cases::{any_shell, artifact};

/// Tries until an answer comes.
const TRIES: u32 = 60;
const DAY_MS: i64 = 24 * 3_600_000;

/// Makes a call until it has a definite answer; gives whether an answer was lost on the way.
async fn insist<T>(mut call: impl AsyncFnMut() -> Outcome<T>) -> (Outcome<T>, bool) {
    let mut lost = false;
    for _ in 0..TRIES {
        match call().await {
            Err(Error::Store(StoreError::Unavailable { .. })) => {}
            Err(Error::Store(StoreError::OutcomeUnknown { .. })) => lost = true,
            answer => return (answer, lost),
        }
    }
    panic!("no answer in {TRIES} tries");
}

/// The same where the answer must be a good one.
async fn get<T>(call: impl AsyncFnMut() -> Outcome<T>) -> T {
    insist(call).await.0.unwrap()
}

/// The same where a second time finds it done: that is an answer, too.
async fn done<T>(call: impl AsyncFnMut() -> Outcome<T>, is_done: impl Fn(&Error) -> bool) {
    match insist(call).await {
        (Ok(_), _) => {}
        (Err(error), true) if is_done(&error) => {}
        (Err(error), lost) => panic!("{error}, lost: {lost}"),
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::NotFound(_))
}

/// The sessions, and what clients remember.
pub(super) struct Script {
    t: TestControl,
    /// Keys and claim requests are numbered, so that they are the same in every run.
    number: u32,
    sessions: Vec<SessionId>,
}

impl Script {
    pub(super) fn new(t: TestControl) -> Self {
        Self {
            t,
            number: 0,
            sessions: Vec::new(),
        }
    }

    pub(super) async fn play(&mut self) {
        let session = self.create().await;
        self.configure(session).await;
        let kept = self.first_run(session).await;
        self.queue(session).await;
        self.lost_executor(session).await;
        self.restore_and_fork(session, kept).await;
        let asked = self.create().await;
        self.question_that_nobody_answers(asked).await;
        self.rules(asked).await;
        self.tokens().await;
        self.owners(asked).await;
        self.house(session).await;
        self.fleet().await;
        get(async || self.t.control.close_session(NAMESPACE, asked).await).await;
        let gone = self.create().await;
        self.prompt(gone, OnActive::Reject).await;
        let delete = async || self.t.control.delete_session(NAMESPACE, gone, true).await;
        done(delete, is_gone).await;
        self.sessions.retain(|session| *session != gone);
    }

    fn key(&mut self, operation: &str) -> IdempotencyKey {
        self.number += 1;
        key(operation, &format!("key-{}", self.number), "body")
    }

    async fn create(&mut self) -> SessionId {
        let key = self.key("create");
        let control = &self.t.control;
        let create = async || {
            let settings = SessionSettings::default();
            control
                .create_session(NAMESPACE, settings, Some(key.clone()))
                .await
        };
        let session = get(create).await.session.session_id;
        self.sessions.push(session);
        session
    }

    async fn configure(&mut self, session: SessionId) {
        let patch = SettingsPatch {
            title: Some(Some("a title".to_owned())),
            ..SettingsPatch::default()
        };
        let control = &self.t.control;
        get(async || {
            control
                .configure_session(NAMESPACE, session, patch.clone())
                .await
        })
        .await;
    }

    async fn prompt(&mut self, session: SessionId, on_active: OnActive) -> Admitted {
        let key = self.key("prompt");
        let t = &self.t;
        get(async || {
            let command = t.prompt_command(session, "do it", on_active, Some(key.clone()));
            t.control.prompt(command).await
        })
        .await
    }

    async fn claim(&mut self, session: SessionId) -> Claim {
        self.number += 1;
        let mut command = claim_request("e", &format!("request-{}", self.number));
        command.session_id = Some(session);
        get(async || self.t.claim_as(command.clone()).await).await
    }

    async fn beat(&self, claim: &Claim) {
        get(async || self.t.beat(claim).await).await;
    }

    async fn say(&self, claim: &Claim, id: &str) {
        get(async || self.t.say(claim, id, "words ").await).await;
    }

    async fn settle(&self, claim: &Claim, ending: Ending) {
        get(async || self.t.settle(claim, ending).await).await;
    }

    /// Time, with the deployment alive.
    async fn pass(&self, ms: i64) {
        let period = self.t.control.timing().sweep_ms;
        let mut left = ms;
        while left > 0 {
            self.t.store.clock.advance(left.min(period));
            get(async || sweep::start(&self.t.control).await).await;
            left -= period;
        }
    }

    /// Sweeps until one pass had no failure.
    async fn sweep(&self) {
        for _ in 0..TRIES {
            let swept = get(async || sweep::step(&self.t.control).await).await;
            if swept.failed == 0 {
                return;
            }
        }
        panic!("no sweep without a failure");
    }

    /// Everything that an executor does.
    async fn first_run(&mut self, session: SessionId) -> CheckpointId {
        self.prompt(session, OnActive::Reject).await;
        let claim = self.claim(session).await;
        self.beat(&claim).await;
        for id in ["a", "b", "c"] {
            self.say(&claim, id).await;
        }
        let asked = get(async || self.t.ask(&claim, "question").await).await;
        let answer = Answer {
            reply: Reply::Approval {
                approved: true,
                scope: Scope::Session,
            },
            feedback: None,
        };
        let id = asked.interaction_id;
        let control = &self.t.control;
        get(async || {
            control
                .resolve(NAMESPACE, id, answer.clone(), "client:test")
                .await
        })
        .await;
        let answered = get(async || self.t.ask(&claim, "question").await).await;
        assert_eq!(answered.status, InteractionStatus::Approved);
        get(async || {
            let command = SaveSnapshot {
                proof: claim.proof.clone(),
                messages: vec![json!({"role": "user", "content": "do it"})],
                metadata: Map::new(),
                weight: 100,
            };
            control.save_snapshot(command).await
        })
        .await;
        get(async || {
            let command = SaveArtifacts {
                proof: claim.proof.clone(),
                artifacts: vec![artifact("run.patch", "a patch")],
            };
            control.save_artifacts(command).await
        })
        .await;
        get(async || control.check_claim(claim.proof.clone()).await).await;
        self.settle(&claim, Ending::Completed).await;
        let kept = self.capture(session).await;
        let gone = self.capture(session).await;
        let control = &self.t.control;
        let delete = async || control.delete_checkpoint(NAMESPACE, session, gone).await;
        done(delete, is_gone).await;
        kept
    }

    async fn capture(&mut self, session: SessionId) -> CheckpointId {
        let key = self.key("capture");
        let control = &self.t.control;
        let captured = get(async || {
            control
                .capture_checkpoint(NAMESPACE, session, None, Some(key.clone()))
                .await
        });
        captured.await.checkpoint_id
    }

    /// Runs that wait, one that is cancelled, and a queue that is held.
    async fn queue(&mut self, session: SessionId) {
        self.prompt(session, OnActive::Reject).await;
        let cancelled = self.prompt(session, OnActive::Enqueue).await;
        let next = self.prompt(session, OnActive::Enqueue).await;
        let claim = self.claim(session).await;
        self.own_tape(&claim).await;
        let control = &self.t.control;
        let waiting = cancelled.run_id;
        get(async || control.cancel_run(NAMESPACE, waiting, "client").await).await;
        self.settle(&claim, Ending::Interrupted).await;
        get(async || control.continue_queue(NAMESPACE, session).await).await;
        let claim = self.claim(session).await;
        assert_eq!(claim.run_id(), next.run_id);
        self.say(&claim, "a").await;
        let control = &self.t.control;
        get(async || control.cancel_run(NAMESPACE, next.run_id, "client").await).await;
        self.settle(&claim, Ending::Cancelled).await;
    }

    async fn own_tape(&self, claim: &Claim) {
        let entry = UploadedEntry {
            entry_id: None,
            kind: "assistant_message".to_owned(),
            payload: json!({"text": "mine"}),
            meta: None,
            anchor_type: None,
        };
        let batch = EntryBatch::check(claim.run_id(), vec![entry]).unwrap();
        get(async || {
            let command = AppendTape {
                proof: claim.proof.clone(),
                batch: batch.clone(),
                weight: 100,
            };
            self.t.control.append_tape(command).await
        })
        .await;
    }

    /// A run that is handed back, taken again, and lost.
    async fn lost_executor(&mut self, session: SessionId) {
        let key = self.key("resume");
        get(async || {
            let request = ResumeRequest {
                reason: "user_resume".to_owned(),
                key: Some(key.clone()),
                ..ResumeRequest::default()
            };
            self.t.control.resume(NAMESPACE, session, request).await
        })
        .await;
        let claim = self.claim(session).await;
        let proof = || ReleaseRun {
            proof: claim.proof.clone(),
        };
        let control = &self.t.control;
        done(
            async || control.release_run(proof()).await,
            |error| matches!(error, Error::Rejected(Rejection::ClaimLost)),
        )
        .await;
        let claim = self.claim(session).await;
        self.say(&claim, "lost").await;
        self.pass(61_000).await;
        self.sweep().await;
    }

    async fn restore_and_fork(&mut self, session: SessionId, kept: CheckpointId) {
        let (restore, fork) = (self.key("restore"), self.key("fork"));
        let control = &self.t.control;
        get(async || {
            control
                .restore_session(NAMESPACE, session, kept, Some(restore.clone()))
                .await
        })
        .await;
        let fork = get(async || {
            let point = ForkPoint::Checkpoint(kept);
            control
                .fork_session(NAMESPACE, session, point, None, Some(fork.clone()))
                .await
        });
        let fork = fork.await.session.session_id;
        self.sessions.push(fork);
        let admitted = self.prompt(fork, OnActive::Reject).await;
        get(async || {
            let command = LoadContext {
                run_id: admitted.run_id,
            };
            self.t.control.run_alone(command.into()).await
        })
        .await;
    }

    async fn question_that_nobody_answers(&mut self, session: SessionId) {
        self.prompt(session, OnActive::Reject).await;
        let claim = self.claim(session).await;
        get(async || {
            let mut ask = self.t.ask_command(&claim, "question", "browser");
            ask.question.timeout_seconds = 20;
            self.t.control.ask(ask, Duration::ZERO).await
        })
        .await;
        self.pass(25_000).await;
        self.sweep().await;
        self.settle(&claim, Ending::Failed).await;
    }

    async fn owners(&self, session: SessionId) {
        let control = &self.t.control;
        get(async || control.acquire_owner(NAMESPACE, session).await).await;
        get(async || control.renew_owner(NAMESPACE, session).await).await;
        get(async || control.release_owner(NAMESPACE, session).await).await;
        // Every repair leaves its event, so it is made again only where nothing was written.
        for _ in 0..TRIES {
            match control.repair_session(NAMESPACE, session, "test").await {
                Err(Error::Store(StoreError::Unavailable { .. })) => {}
                Ok(_) | Err(Error::Store(StoreError::OutcomeUnknown { .. })) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A rule is made, and revoked.
    async fn rules(&mut self, session: SessionId) {
        let key = self.key("rule");
        let control = &self.t.control;
        let made = get(async || {
            let key = Some(key.clone());
            let by = "client:test";
            control
                .create_rule(NAMESPACE, Some(session), any_shell(), by, key)
                .await
        })
        .await;
        get(async || {
            control
                .revoke_rule(NAMESPACE, made.rule_id, "client:test")
                .await
        })
        .await;
    }

    /// A token is made, and revoked.
    async fn tokens(&mut self) {
        let key = self.key("token");
        let control = &self.t.control;
        let made = get(async || {
            let terms = TokenTerms {
                name: "ci".to_owned(),
                role: Role::Client,
                namespace: None,
                expires_in_seconds: None,
            };
            control
                .create_token(terms, "client:test", Some(key.clone()))
                .await
        })
        .await;
        let id = made.token.token_id;
        get(async || control.revoke_token(id, "client:test").await).await;
    }

    /// Old deltas are folded.
    async fn house(&self, session: SessionId) {
        get(async || {
            let filter = Self::tape_of(session);
            self.t.control.tape(NAMESPACE, filter).await
        })
        .await;
        self.t.outage(KEEP_DELTAS_MS + DAY_MS);
        self.sweep().await;
        for _ in 0..TRIES {
            let mut retention = Retention::default();
            let folded = get(async || retention.pass(&self.t.control).await).await;
            if folded.failed == 0 {
                return;
            }
        }
        panic!("no pass of the retention without a failure");
    }

    /// The executor is drained, is not, says that it goes, and is forgotten at once.
    async fn fleet(&self) {
        let control = &self.t.control;
        for draining in [true, false] {
            get(async || control.drain_executor("e", draining).await).await;
        }
        let executor = get(async || control.executor("e").await).await;
        let leave = || LeaveExecutor {
            executor_id: "e".to_owned(),
            instance_id: executor.contact.instance_id.clone(),
        };
        get(async || control.leave_executor(leave()).await).await;
        done(async || control.forget_executor("e").await, is_gone).await;
    }

    fn tape_of(session_id: SessionId) -> TapeFilter {
        TapeFilter {
            session_id,
            after: 0,
            limit: 500,
            max_bytes: 1 << 20,
            include_superseded: true,
        }
    }

    /// All that can be seen, with ids in the order in which they come.
    pub(super) async fn everything(&self) -> Vec<String> {
        let control = &self.t.control;
        let page = || PageRequest {
            before: None,
            limit: 200,
        };
        let mut seen = Vec::new();
        let listed = control.sessions(NAMESPACE, page()).await.unwrap().items;
        assert_eq!(listed.len(), self.sessions.len());
        for session_id in &self.sessions {
            let view = self.t.view(*session_id).await;
            let (session, head) = (view.session, view.head);
            seen.push(format!("{:?}", session.summary));
            seen.push(format!("{:?} {:?}", session.settings, session.closed_at));
            let epoch = head.owner.map(|owner| owner.epoch);
            seen.push(format!(
                "{} {} {epoch:?}",
                head.head_seq, head.projection_epoch
            ));
            let log = self.t.log(*session_id).await;
            seen.extend(log.iter().map(|event| format!("{event:?}")));
            let filter = RunFilter {
                session_id: Some(*session_id),
                include_superseded: true,
                unservable: false,
            };
            for mut run in control.runs(NAMESPACE, filter, page()).await.unwrap().items {
                (run.key, run.session_key) = (RunKey(0), SessionKey(0));
                seen.push(format!("{run:?}"));
            }
            let filter = Self::tape_of(*session_id);
            let tape = control.store().reader().tape(&filter).await.unwrap();
            seen.extend(tape.iter().map(|entry| format!("{entry:?}")));
            let checkpoints = control.checkpoints(NAMESPACE, *session_id, true, page());
            let checkpoints = checkpoints.await.unwrap().items;
            seen.extend(
                checkpoints
                    .iter()
                    .map(|checkpoint| format!("{checkpoint:?}")),
            );
            let filter = InteractionFilter {
                session_id: Some(*session_id),
                ..InteractionFilter::default()
            };
            let questions = control
                .interactions(NAMESPACE, &filter, page())
                .await
                .unwrap();
            for mut question in questions.items {
                question.run_key = RunKey(0);
                seen.push(format!("{question:?}"));
            }
        }
        let mut names = HashMap::new();
        seen.iter().map(|text| named(text, &mut names)).collect()
    }
}

/// Every id as a number of its own.
fn named(text: &str, names: &mut HashMap<String, usize>) -> String {
    const LENGTH: usize = 36;
    let is_id = |part: &str| {
        part.char_indices().all(|(at, letter)| match at {
            8 | 13 | 18 | 23 => letter == '-',
            _ => letter.is_ascii_hexdigit(),
        })
    };
    let (mut out, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let taken = if let Some(id) = rest.get(..LENGTH).filter(|part| is_id(part)) {
            let next = names.len();
            let number = *names.entry(id.to_owned()).or_insert(next);
            out.extend(["#", &number.to_string()]);
            LENGTH
        } else {
            out.push(first);
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
    out
}
