//! A control plane over a fresh database with a clock that tests move, and short words for what
//! clients and executors do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tapedeck_control_plane::commands::append_events::AppendEvents;
use tapedeck_control_plane::commands::ask::Ask;
use tapedeck_control_plane::commands::claim_run::{ClaimRun, ClaimedRun};
use tapedeck_control_plane::commands::heartbeat::{Beat, ClaimProof, Heartbeat};
use tapedeck_control_plane::commands::prompt::{AdmitPrompt, Admitted};
use tapedeck_control_plane::commands::settle_run::SettleRun;
use tapedeck_control_plane::ids::TimeOrdered;
use tapedeck_control_plane::sweep::{self, Swept};
use tapedeck_control_plane::{
    ControlPlane, FollowRequest, Followed, Lifecycle, Options, Outcome, ResumeRequest, Start,
};
use tapedeck_domain::admit::{OnActive, Prompt};
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::claim::ClaimRequest;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::executor::{Contact, Report};
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::interaction::{
    Answer, Asked, FormRequest, Interaction, Question, Reply, Scope, ToolUse,
};
use tapedeck_domain::owner::{Authority, Epoch};
use tapedeck_domain::run::Run;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::{Ending, RunEnd};
use tapedeck_domain::{InteractionId, RunId, SessionId, Timing};
use tapedeck_store::{EventFilter, SessionView};

use super::stores::{Kind, TestStore};

/// The namespace of all tests.
pub(crate) const NAMESPACE: &str = "default";

/// Deltas of runs that settled so long ago may be folded, where a test says so.
pub(crate) const KEEP_DELTAS_MS: i64 = 7 * 24 * 3_600_000;

/// A control plane under test.
pub(crate) struct TestControl {
    pub(crate) control: ControlPlane,
    pub(crate) store: TestStore,
}

impl TestControl {
    /// Over a fresh database.
    pub(crate) async fn fresh(kind: Kind) -> Self {
        Self::over(TestStore::fresh(kind).await).await
    }

    /// Over this database, as the deployment's owner; credits outages as a starting server does.
    pub(crate) async fn over(store: TestStore) -> Self {
        let owner_id = format!("server:{}", store.store.reader().identity().deployment_id);
        Self::owned_by(store, &owner_id).await
    }

    /// Over this database, as this owner.
    pub(crate) async fn owned_by(store: TestStore, owner_id: &str) -> Self {
        Self::at_epoch(store, owner_id, None).await
    }

    /// Over this database, as an owner that remembers an epoch.
    pub(crate) async fn at_epoch(store: TestStore, owner_id: &str, epoch: Option<i64>) -> Self {
        let timing = Timing {
            keep_deltas_ms: Some(KEEP_DELTAS_MS),
            ..Timing::STANDARD
        };
        let control = ControlPlane::new(Options {
            store: Arc::clone(&store.store),
            authority: Authority {
                owner_id: owner_id.to_owned(),
                epoch: epoch.map(Epoch),
                lease_ms: timing.owner_lease_ms,
            },
            timing,
            ids: Arc::new(TimeOrdered),
            lifecycle: Lifecycle::new(),
            ring_events: 2,
            ring_bytes: 1 << 20,
            hints: store.hints(),
        });
        // The sweep comes when a test says so; news of other processes come by themselves.
        control.watch();
        sweep::start(&control).await.unwrap();
        Self { control, store }
    }

    /// The same database under a new control plane, as after a restart of the process.
    pub(crate) async fn restarted(self) -> Self {
        let store = self.store.reopened(self.control).await;
        Self::over(store).await
    }

    /// Lets time pass while the deployment is alive: the sweep's sign of life comes every period.
    pub(crate) async fn pass(&self, ms: i64) {
        let period = self.control.timing().sweep_ms;
        let mut left = ms;
        while left > 0 {
            let step = left.min(period);
            self.store.clock.advance(step);
            sweep::start(&self.control).await.unwrap();
            left -= step;
        }
    }

    /// Lets time pass while nobody is alive.
    pub(crate) fn outage(&self, ms: i64) {
        self.store.clock.advance(ms);
    }

    pub(crate) async fn sweep(&self) -> Swept {
        sweep::step(&self.control).await.unwrap()
    }

    pub(crate) async fn session(&self) -> SessionId {
        self.session_with(SessionSettings::default()).await
    }

    pub(crate) async fn session_with(&self, settings: SessionSettings) -> SessionId {
        let view = self
            .control
            .create_session(NAMESPACE, settings, None)
            .await
            .unwrap();
        view.session.session_id
    }

    pub(crate) async fn view(&self, session: SessionId) -> SessionView {
        self.control.session(NAMESPACE, session).await.unwrap()
    }

    pub(crate) async fn run(&self, run: RunId) -> Run {
        self.control.run(NAMESPACE, run).await.unwrap()
    }

    pub(crate) async fn try_prompt(
        &self,
        session: SessionId,
        on_active: OnActive,
    ) -> Outcome<Admitted> {
        self.control
            .prompt(self.prompt_command(session, "do it", on_active, None))
            .await
    }

    pub(crate) fn prompt_command(
        &self,
        session_id: SessionId,
        text: &str,
        on_active: OnActive,
        key: Option<IdempotencyKey>,
    ) -> AdmitPrompt {
        AdmitPrompt {
            namespace: NAMESPACE.to_owned(),
            session_id,
            prompt: Prompt {
                run_id: RunId::new(self.control.new_id()),
                text: text.to_owned(),
                on_active,
                metadata: Map::new(),
            },
            key,
        }
    }

    pub(crate) async fn prompt(&self, session: SessionId) -> Admitted {
        self.try_prompt(session, OnActive::Reject).await.unwrap()
    }

    pub(crate) async fn enqueue(&self, session: SessionId) -> Admitted {
        self.try_prompt(session, OnActive::Enqueue).await.unwrap()
    }

    pub(crate) async fn resume(&self, session: SessionId) -> Outcome<Admitted> {
        let request = ResumeRequest {
            reason: "user_resume".to_owned(),
            ..ResumeRequest::default()
        };
        self.control.resume(NAMESPACE, session, request).await
    }

    pub(crate) async fn try_claim(&self, executor_id: &str) -> Outcome<Claim> {
        let request_id = format!("request-{}", self.control.new_id());
        self.claim_as(claim_request(executor_id, &request_id)).await
    }

    pub(crate) async fn claim_as(&self, claim: ClaimRun) -> Outcome<Claim> {
        let executor_id = claim.contact.executor_id.clone();
        let claimed = self.control.claim(claim, Duration::ZERO).await?;
        Ok(Claim {
            proof: ClaimProof {
                run_id: claimed.run.run_id,
                session_id: None,
                executor_id,
                token: claimed.token.clone(),
            },
            claimed,
        })
    }

    pub(crate) async fn claim(&self, executor_id: &str) -> Claim {
        self.try_claim(executor_id).await.unwrap()
    }

    /// A session with a run that an executor works on.
    pub(crate) async fn running(&self, executor_id: &str) -> (SessionId, Claim) {
        let session = self.session().await;
        self.prompt(session).await;
        let claim = self.claim(executor_id).await;
        self.beat(&claim).await.unwrap();
        (session, claim)
    }

    pub(crate) async fn beat(&self, claim: &Claim) -> Outcome<Beat> {
        self.beat_with_state(claim, None).await
    }

    pub(crate) async fn beat_with_state(
        &self,
        claim: &Claim,
        agent_state: Option<Value>,
    ) -> Outcome<Beat> {
        let beat = Heartbeat {
            proof: claim.proof.clone(),
            lease_ms: None,
            report: Report::default(),
            agent_state,
        };
        self.control.heartbeat(beat, Duration::ZERO).await
    }

    pub(crate) async fn upload(
        &self,
        claim: &Claim,
        events: &[(&str, Value)],
    ) -> Outcome<Vec<Option<EventRecord>>> {
        let batch = events
            .iter()
            .enumerate()
            .map(|(index, (id, data))| {
                Uploaded::check(
                    index,
                    (*id).to_owned(),
                    "StreamDelta".to_owned(),
                    data,
                    None,
                )
                .unwrap()
            })
            .collect();
        let append = AppendEvents {
            proof: claim.proof.clone(),
            batch,
        };
        let recorded = self.control.append_events(append).await?;
        Ok(recorded.events)
    }

    /// Uploads one text delta.
    pub(crate) async fn say(
        &self,
        claim: &Claim,
        id: &str,
        text: &str,
    ) -> Outcome<Vec<Option<EventRecord>>> {
        self.upload(
            claim,
            &[(id, json!({"content": text, "role": "assistant"}))],
        )
        .await
    }

    pub(crate) async fn settle(&self, claim: &Claim, ending: Ending) -> Outcome<Run> {
        let end = RunEnd {
            ending,
            result: Some(json!({"answer": 42})),
            error: (ending == Ending::Failed).then(|| "it broke".to_owned()),
            recovery_reason: None,
            body_digest: Some(Digest::of_bytes(ending.as_str().as_bytes())),
        };
        self.settle_with(claim, end, None).await
    }

    pub(crate) async fn settle_with(
        &self,
        claim: &Claim,
        end: RunEnd,
        event_count: Option<u64>,
    ) -> Outcome<Run> {
        let command = SettleRun {
            proof: claim.proof.clone(),
            end,
            event_count,
            agent_state: None,
            tape_id: None,
            tape: None,
        };
        self.control.settle_run(command).await
    }

    pub(crate) async fn settle_with_state(
        &self,
        claim: &Claim,
        ending: Ending,
        agent_state: Option<Value>,
    ) -> Run {
        let end = RunEnd {
            ending,
            result: None,
            error: None,
            recovery_reason: None,
            body_digest: None,
        };
        let command = SettleRun {
            proof: claim.proof.clone(),
            end,
            event_count: None,
            agent_state,
            tape_id: None,
            tape: None,
        };
        self.control.settle_run(command).await.unwrap()
    }

    pub(crate) async fn complete(&self, claim: &Claim) -> Run {
        self.settle(claim, Ending::Completed).await.unwrap()
    }

    pub(crate) async fn ask(&self, claim: &Claim, request_id: &str) -> Outcome<Interaction> {
        self.ask_for(claim, request_id, "shell").await
    }

    pub(crate) async fn ask_for(
        &self,
        claim: &Claim,
        request_id: &str,
        tool: &str,
    ) -> Outcome<Interaction> {
        self.control
            .ask(self.ask_command(claim, request_id, tool), Duration::ZERO)
            .await
    }

    pub(crate) fn ask_command(&self, claim: &Claim, request_id: &str, tool: &str) -> Ask {
        Ask {
            proof: claim.proof.clone(),
            interaction_id: InteractionId::new(self.control.new_id()),
            question: Question {
                request_id: request_id.to_owned(),
                timeout_seconds: 3_600,
                asked: Asked::Approval(ToolUse {
                    tool_name: tool.to_owned(),
                    tool_kind: None,
                    call_id: Some("call-1".to_owned()),
                    arguments: json!({"command": "date"}),
                    options: json!([]),
                }),
            },
        }
    }

    /// Asks for a form with the one field `branch`.
    pub(crate) async fn ask_form(&self, claim: &Claim, request_id: &str) -> Outcome<Interaction> {
        let schema = json!({
            "type": "object",
            "properties": {"branch": {"type": "string"}},
            "required": ["branch"],
        });
        let mut ask = self.ask_command(claim, request_id, "");
        ask.question.asked = Asked::Form(FormRequest {
            message: "Which branch?".to_owned(),
            schema,
            call_id: None,
        });
        self.control.ask(ask, Duration::ZERO).await
    }

    pub(crate) async fn reply(
        &self,
        interaction: InteractionId,
        reply: Reply,
    ) -> Outcome<Interaction> {
        let answer = Answer {
            reply,
            feedback: None,
        };
        self.control
            .resolve(NAMESPACE, interaction, answer, "client:test")
            .await
    }

    pub(crate) async fn answer(
        &self,
        interaction: InteractionId,
        approved: bool,
    ) -> Outcome<Interaction> {
        self.answer_in_scope(interaction, approved, Scope::Once)
            .await
    }

    pub(crate) async fn answer_in_scope(
        &self,
        interaction: InteractionId,
        approved: bool,
        scope: Scope,
    ) -> Outcome<Interaction> {
        self.reply(interaction, Reply::Approval { approved, scope })
            .await
    }

    /// The whole log of a session.
    pub(crate) async fn log(&self, session_id: SessionId) -> Vec<EventRecord> {
        let mut log: Vec<EventRecord> = Vec::new();
        loop {
            let after = log.last().map_or(0, |event| event.session_seq);
            let filter = EventFilter {
                session_id,
                after,
                limit: 500,
                max_bytes: 1 << 20,
                run_id: None,
                kinds: Vec::new(),
            };
            let page = self.control.events(NAMESPACE, filter).await.unwrap();
            if page.events.is_empty() {
                return log;
            }
            log.extend(page.events);
        }
    }

    /// The kinds of a session's log, in order.
    pub(crate) async fn kinds(&self, session: SessionId) -> Vec<String> {
        self.log(session)
            .await
            .into_iter()
            .map(|event| event.kind)
            .collect()
    }

    /// Follows a run from its first event to its end; gives the numbers seen.
    pub(crate) async fn follow_run(&self, session_id: SessionId, run_id: RunId) -> Vec<u64> {
        let request = FollowRequest {
            namespace: NAMESPACE.to_owned(),
            session_id,
            start: Start::After(0),
            run_id: Some(run_id),
            kinds: Vec::new(),
        };
        let mut follower = self.control.follow(request).await.unwrap();
        let mut seen = Vec::new();
        while let Some(item) = follower.next().await.unwrap() {
            if let Followed::Events(events) = item {
                seen.extend(events.iter().map(|event| event.record.session_seq));
            }
        }
        seen
    }
}

/// A claim that a test's executor holds.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) proof: ClaimProof,
    pub(crate) claimed: ClaimedRun,
}

impl Claim {
    pub(crate) fn run_id(&self) -> RunId {
        self.proof.run_id
    }
}

/// What an executor of this name sends to claim.
pub(crate) fn claim_request(executor_id: &str, request_id: &str) -> ClaimRun {
    ClaimRun {
        contact: contact(executor_id),
        request: ClaimRequest {
            executor_id: executor_id.to_owned(),
            instance_id: Some(format!("{executor_id}-instance")),
            claim_request_id: request_id.to_owned(),
            lease_ms: 60_000,
        },
        session_id: None,
    }
}

/// What an executor of this name says of itself.
pub(crate) fn contact(executor_id: &str) -> Contact {
    Contact {
        executor_id: executor_id.to_owned(),
        instance_id: Some(format!("{executor_id}-instance")),
        executor_kind: "local_cli".to_owned(),
        pool: "default".to_owned(),
        labels: BTreeMap::new(),
        process_id: Some(1),
        version: Some("test".to_owned()),
        capabilities: None,
        workspace: None,
        max_runs: Some(1_000),
    }
}

/// A key of the test's own.
pub(crate) fn key(operation: &str, key: &str, body: &str) -> IdempotencyKey {
    IdempotencyKey {
        namespace: NAMESPACE.to_owned(),
        principal: "client:test".to_owned(),
        operation: operation.to_owned(),
        key: key.to_owned(),
        body_digest: Digest::of_bytes(body.as_bytes()),
    }
}

/// Asserts that an outcome is the given rejection.
#[macro_export]
macro_rules! assert_rejected {
    ($outcome:expr, $pattern:pat $(if $guard:expr)?) => {
        match $outcome {
            Err(tapedeck_control_plane::Error::Rejected($pattern)) $(if $guard)? => {}
            other => panic!("expected {}, got {other:?}", stringify!($pattern)),
        }
    };
}
