//! Whole runs against the real server over a real store, with real agents under real guards.

#![expect(clippy::unwrap_used, reason = "test code outside of test functions")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use support::{Fixture, eventually, processes_with, unique, unique_seconds};
use tapedeck_client::Client;
use tapedeck_control_plane::ids::TimeOrdered;
use tapedeck_control_plane::{ControlPlane, Hints, Lifecycle, Options as ControlOptions};
use tapedeck_domain::owner::Authority;
use tapedeck_domain::{RunId, SessionId, Timing};
use tapedeck_executor::backend::acp::{AcpBackend, AcpOptions};
use tapedeck_executor::backend::command::{CommandBackend, CommandOptions};
use tapedeck_executor::backend::{
    AgentEvent, Answer, Backend, Outcome, OutcomeStatus, Question, Scope, Turn, TurnIo,
};
use tapedeck_executor::{Drained, EveryRun, Executor, ExecutorError, Options, Shutdown};
use tapedeck_protocol::event::EventsQuery;
use tapedeck_protocol::run::RunResponse;
use tapedeck_server::{ServerState, router};
use tapedeck_store_sqlite::{Mode, Options as StoreOptions, SqliteStore};
use tokio::task::JoinHandle;
use tokio::time::Instant;

struct Server {
    client: Client,
    _dir: tempfile::TempDir,
}

impl Server {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions::new(dir.path(), Mode::Server);
        let store = SqliteStore::open(options).await.unwrap();
        let timing = Timing::STANDARD;
        let control = ControlPlane::new(ControlOptions {
            store: Arc::new(store),
            authority: Authority {
                owner_id: "server:test".to_owned(),
                epoch: None,
                lease_ms: timing.owner_lease_ms,
            },
            timing,
            ids: Arc::new(TimeOrdered),
            lifecycle: Lifecycle::new(),
            ring_events: 256,
            ring_bytes: 1024 * 1024,
            hints: Hints::Sent,
        });
        control.start().await.unwrap();
        let service = router(ServerState::local(control, "0.0.0-test"));
        Self {
            client: Client::in_process(service, None).unwrap(),
            _dir: dir,
        }
    }

    /// A new session in this workspace and the run of its first prompt.
    async fn prompt(&self, fixture: &Fixture, prompt: &str) -> (SessionId, RunId) {
        let session_id = self.session(fixture, &json!({})).await;
        (session_id, self.again(session_id, prompt).await)
    }

    async fn session(&self, fixture: &Fixture, agent: &Value) -> SessionId {
        let session = json!({"repo_path": fixture.workspace, "agent": agent});
        let session = serde_json::from_value(session).unwrap();
        let created = self.client.create_session(&session).await.unwrap();
        created.session_id
    }

    async fn again(&self, session_id: SessionId, prompt: &str) -> RunId {
        let prompt = serde_json::from_value(json!({"prompt": prompt})).unwrap();
        let accepted = self.client.prompt(session_id, &prompt).await.unwrap();
        accepted.run_id
    }

    async fn settled(&self, run_id: RunId) -> RunResponse {
        let mut look = tokio::time::interval(Duration::from_millis(10));
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let run = self.client.run(run_id).await.unwrap();
            if run.settled_at.is_some() {
                return run;
            }
            assert!(Instant::now() < until, "{run:?}");
            look.tick().await;
        }
    }

    async fn events(&self, session_id: SessionId) -> Vec<Value> {
        let query = EventsQuery::default();
        let page = self.client.events(session_id, &query).await.unwrap();
        let page = serde_json::to_value(page).unwrap();
        page["events"].as_array().unwrap().clone()
    }

    /// Waits for an event of this kind.
    async fn saw(&self, session_id: SessionId, kind: &str) -> Value {
        let mut look = tokio::time::interval(Duration::from_millis(10));
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let events = self.events(session_id).await;
            if let Some(event) = events.iter().find(|event| event["kind"] == kind) {
                return event.clone();
            }
            assert!(Instant::now() < until, "{events:?}");
            look.tick().await;
        }
    }
}

struct Running {
    shutdown: Shutdown,
    task: JoinHandle<Result<Drained, ExecutorError>>,
}

fn start(server: &Server, fixture: &Fixture, backend: Arc<dyn Backend>) -> Running {
    let state = fixture.launcher.state_dir.clone();
    let backends = Arc::new(EveryRun(backend));
    let options = Options {
        max_runs: 2,
        workspace_roots: vec![fixture.workspace.clone()],
        instance_id: fixture.launcher.executor_instance.clone(),
        ..Options::new(server.client.clone(), unique("box"), state, backends)
    };
    let shutdown = Shutdown::default();
    let run = Executor::new(options).unwrap().run(shutdown.clone());
    Running {
        shutdown,
        task: tokio::runtime::Handle::current().spawn(run),
    }
}

impl Running {
    async fn stop(self) -> Drained {
        self.shutdown.now.cancel();
        self.task.await.unwrap().unwrap()
    }
}

/// A program that is run for each prompt.
fn program(fixture: &Fixture, script: &str) -> Arc<dyn Backend> {
    let command = shell_words::join(["sh", "-c", script]);
    let launcher = fixture.launcher.clone();
    let backend = CommandBackend::new(
        &command,
        Fixture::environment(),
        launcher,
        CommandOptions::default(),
    );
    Arc::new(backend.unwrap())
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["kind"].as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_answers_a_prompt_and_its_output_is_in_the_log() {
    let (server, fixture) = (Server::start().await, Fixture::new());
    let running = start(&server, &fixture, program(&fixture, "cat; echo; pwd"));
    let (session_id, run_id) = server.prompt(&fixture, "say this").await;
    let run = server.settled(run_id).await;
    assert_eq!(run.status.as_str(), "completed", "{run:?}");
    let events = server.events(session_id).await;
    let kinds = kinds(&events);
    assert_eq!(
        kinds[..4],
        ["RunRequested", "RunClaimed", "RunStarted", "TurnBegin"]
    );
    assert_eq!(kinds.last(), Some(&"TurnEnd"));
    let deltas = events.iter().filter(|event| event["kind"] == "StreamDelta");
    let text: String = deltas
        .map(|event| event["payload"]["content"].as_str().unwrap())
        .collect();
    let expected = format!("say this\n{}\n", fixture.workspace.display());
    assert_eq!(text, expected);
    assert_eq!(running.stop().await, Drained::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_program_fails_the_run_with_its_name() {
    let (server, fixture) = (Server::start().await, Fixture::new());
    let launcher = fixture.launcher.clone();
    let missing = CommandBackend::new(
        "no-such-agent",
        Fixture::environment(),
        launcher,
        CommandOptions::default(),
    );
    let running = start(&server, &fixture, Arc::new(missing.unwrap()));
    let (_, run_id) = server.prompt(&fixture, "go").await;
    let run = server.settled(run_id).await;
    assert_eq!(run.status.as_str(), "failed");
    assert!(run.error.unwrap().contains("no-such-agent"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_the_program_and_settles_soon() {
    let (server, fixture) = (Server::start().await, Fixture::new());
    let seconds = unique_seconds();
    let script = format!("echo begun; exec sleep {seconds}");
    let running = start(&server, &fixture, program(&fixture, &script));
    let (session_id, run_id) = server.prompt(&fixture, "go").await;
    server.saw(session_id, "StreamDelta").await;
    let cancelled = Instant::now();
    server.client.cancel_run(run_id).await.unwrap();
    let run = server.settled(run_id).await;
    assert_eq!(run.status.as_str(), "cancelled", "{run:?}");
    assert!(cancelled.elapsed() < Duration::from_secs(10));
    assert!(processes_with(&seconds).is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_for_a_busy_workspace_says_so() {
    let (server, fixture) = (Server::start().await, Fixture::new());
    let seconds = unique_seconds();
    let script = format!("read what; echo $what; [ $what = go ] || exec sleep {seconds}");
    let running = start(&server, &fixture, program(&fixture, &script));
    let (first_session, first) = server.prompt(&fixture, "stay").await;
    server.saw(first_session, "StreamDelta").await;
    let (session_id, run_id) = server.prompt(&fixture, "go").await;
    let told = server.saw(session_id, "TurnStatusDelta").await;
    assert_eq!(told["payload"]["status"], "waiting");
    server.client.cancel_run(first).await.unwrap();
    assert_eq!(server.settled(first).await.status.as_str(), "cancelled");
    let run = server.settled(run_id).await;
    assert_eq!(run.status.as_str(), "completed", "{run:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_kills_the_program_and_interrupts_its_run() {
    let (server, fixture) = (Server::start().await, Fixture::new());
    let seconds = unique_seconds();
    let script = format!("echo begun; setsid sleep {seconds} & exec sleep {seconds}");
    let running = start(&server, &fixture, program(&fixture, &script));
    let (session_id, run_id) = server.prompt(&fixture, "go").await;
    server.saw(session_id, "StreamDelta").await;
    eventually("the tree", || processes_with(&seconds).len() >= 2).await;
    let drained = running.stop().await;
    assert_eq!(drained.handed_back, 1);
    assert!(processes_with(&seconds).is_empty());
    let run = server.client.run(run_id).await.unwrap();
    assert_eq!(run.status.as_str(), "interrupted");
    assert!(run.reclaimable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_released_by_one_executor_is_completed_by_the_next() {
    let (server, fixture) = (Server::start().await, Fixture::new());
    let seconds = unique_seconds();
    let running = start(
        &server,
        &fixture,
        program(&fixture, &format!("exec sleep {seconds}")),
    );
    let (session_id, run_id) = server.prompt(&fixture, "go").await;
    server.saw(session_id, "TurnBegin").await;
    assert_eq!(running.stop().await.handed_back, 1);
    let run = server.client.run(run_id).await.unwrap();
    assert_eq!(run.status.as_str(), "requested");

    // The second attempt counts its own events only, the first one's stay in the log.
    let running = start(&server, &fixture, program(&fixture, "echo done"));
    let run = server.settled(run_id).await;
    assert_eq!(run.status.as_str(), "completed", "{run:?}");
    assert_eq!(run.attempt, 2);
    let events = server.events(session_id).await;
    let begun = kinds(&events)
        .iter()
        .filter(|kind| **kind == "TurnBegin")
        .count();
    assert_eq!(begun, 2);
    running.stop().await;
}

#[derive(Debug)]
struct Asking;

#[async_trait]
impl Backend for Asking {
    async fn run(&self, _turn: Turn, io: TurnIo) -> Outcome {
        let question = Question {
            request_id: "permission-1".to_owned(),
            tool_name: "shell".to_owned(),
            tool_kind: None,
            call_id: None,
            arguments: json!({"command": "ls"}),
            options: Vec::new(),
        };
        let answer = io.questions.ask(question).await;
        let approved = Answer::Approved { scope: Scope::Once };
        let said = if answer == approved { "yes" } else { "no" };
        let event = AgentEvent {
            kind: "StreamDelta".to_owned(),
            payload: json!({"content": said, "role": "assistant"}),
        };
        drop(io.events.send(event).await);
        Outcome {
            status: OutcomeStatus::Completed,
            result: json!({}),
            failure: None,
            agent_state: None,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_reaches_the_agent_that_asked() {
    let (server, fixture) = (Server::start().await, Fixture::new());
    let running = start(&server, &fixture, Arc::new(Asking));
    let (session_id, run_id) = server.prompt(&fixture, "go").await;
    server.saw(session_id, "ApprovalRequest").await;
    let yes = json!({"request_id": "permission-1", "approved": true});
    let yes = serde_json::from_value(yes).unwrap();
    server.client.approve(session_id, &yes).await.unwrap();
    let run = server.settled(run_id).await;
    assert_eq!(run.status.as_str(), "completed", "{run:?}");
    let said = server.saw(session_id, "StreamDelta").await;
    assert_eq!(said["payload"]["content"], "yes");
    running.stop().await;
}

/// A scripted ACP agent that stays between runs.
fn agent(fixture: &Fixture, script: &Value) -> Arc<dyn Backend> {
    let command = ["python3", "-u", support::stage::AGENT, &script.to_string()];
    let options = AcpOptions {
        warm_stay: Duration::from_mins(1),
        ..AcpOptions::default()
    };
    let (environment, launcher) = (Fixture::environment(), fixture.launcher.clone());
    let backend = AcpBackend::new(&shell_words::join(command), environment, launcher, options);
    Arc::new(backend.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_is_filled_in_by_a_person_and_the_agent_stays_for_the_next_run() {
    let (server, fixture) = (Server::start().await, Fixture::new());
    let form = json!({"message": "Which one?", "requestedSchema": {"type": "object",
        "properties": {"pick": {"type": "string"}}, "required": ["pick"]}});
    let modes = json!({"modes": {"currentModeId": "auto", "availableModes": [{"id": "ask"}]}});
    let script = json!({"options": {"new": modes}, "steps": [["form", form]]});
    let running = start(&server, &fixture, agent(&fixture, &script));
    let session_id = server.session(&fixture, &json!({"mode": "ask"})).await;
    for (answer, told, continuity) in [
        (
            json!({"response": {"pick": "b"}}),
            r#"{"action": "accept", "content": {"pick": "b"}}"#,
            "new",
        ),
        (
            json!({"declined": true}),
            r#"{"action": "decline"}"#,
            "warm",
        ),
    ] {
        let run_id = server.again(session_id, "go").await;
        let mut look = tokio::time::interval(Duration::from_millis(10));
        let asked = loop {
            look.tick().await;
            let events = server.events(session_id).await;
            let of_run = |event: &&Value| event["run_id"] == run_id.to_string();
            let mut events = events.iter().filter(of_run);
            if let Some(asked) = events.find(|event| event["kind"] == "ApprovalRequest") {
                break asked.clone();
            }
        };
        assert_eq!(asked["payload"]["message"], "Which one?");
        let id = asked["payload"]["interaction_id"].as_str().unwrap();
        let answer = serde_json::from_value(answer).unwrap();
        let id = id.parse().unwrap();
        server.client.resolve(id, &answer).await.unwrap();
        let run = server.settled(run_id).await;
        assert_eq!(run.status.as_str(), "completed", "{run:?}");
        let result = serde_json::to_value(&run.result).unwrap();
        assert_eq!(result["continuity"], continuity);
        assert_eq!(result["choices"]["mode"], "ask");
        let events = server.events(session_id).await;
        let said = events.iter().rfind(|event| event["kind"] == "StreamDelta");
        assert_eq!(said.unwrap()["payload"]["content"], told);
    }
    running.stop().await;
    let path = fixture.workspace.to_str().unwrap();
    assert!(processes_with(path).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_make_no_sense_here_fail_the_run_by_name() {
    let (server, fixture) = (Server::start().await, Fixture::new());
    let running = start(&server, &fixture, agent(&fixture, &json!({})));
    for (settings, text) in [
        (json!({"mode": 1}), "`agent.mode` must be a text"),
        (
            json!({"additional_directories": ["/"]}),
            "`/` is outside the allowed roots",
        ),
    ] {
        let session_id = server.session(&fixture, &settings).await;
        let run = server.settled(server.again(session_id, "go").await).await;
        assert_eq!(run.status.as_str(), "failed");
        let error = run.error.unwrap();
        assert!(error.contains(text), "{error}");
    }
    running.stop().await;
}
