//! Agents that stay between two runs of a session.

#![expect(clippy::unwrap_used, reason = "test code outside of test functions")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::stage::{AGENT, NONE};
use support::{Fixture, connections, eventually, processes_with, unique, unique_seconds};
use tapedeck_executor::backend::acp::{AcpBackend, AcpOptions};
use tapedeck_executor::backend::{AgentSettings, Backend, Outcome, OutcomeStatus, Turn};
use tokio::time::Instant;

/// A backend whose agents stay, and what they share.
struct Stage {
    fixture: Fixture,
    backend: AcpBackend,
    /// In the command line of its agents, and of nothing else.
    mark: String,
}

impl Stage {
    fn new(steps: &Value) -> Self {
        Self::beside(Fixture::new(), steps, Duration::from_mins(2))
    }

    fn beside(fixture: Fixture, steps: &Value, stay: Duration) -> Self {
        Self::with(fixture, steps, stay, &json!({}))
    }

    fn with(fixture: Fixture, steps: &Value, stay: Duration, more: &Value) -> Self {
        let mark = unique("mark");
        let mut options = json!({"capabilities": {"loadSession": true}, "new": {"modes": {
            "currentModeId": "auto", "availableModes": [{"id": "auto"}, {"id": "ask"}]}}});
        let fields = options.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        let script = json!({"steps": steps, "mark": mark, "options": options});
        let command = shell_words::join(["python3", "-u", AGENT, &script.to_string()]);
        let options = AcpOptions {
            warm_stay: stay,
            ..AcpOptions::default()
        };
        let launcher = fixture.launcher.clone();
        let environment = Fixture::environment();
        let backend = AcpBackend::new(&command, environment, launcher, options).unwrap();
        Self {
            fixture,
            backend,
            mark,
        }
    }

    fn turn(&self, state: Option<Value>) -> Turn {
        let mut turn = self.fixture.turn(&unique("run"), "do it");
        turn.agent_state = state;
        turn
    }

    async fn run(&self, turn: Turn) -> (Outcome, String) {
        let (io, mut ends) = connections(1000);
        let outcome = self.backend.run(turn, io).await;
        let mut text = String::new();
        while let Some(event) = ends.events.recv().await {
            text.push_str(event.payload["content"].as_str().unwrap_or_default());
        }
        (outcome, text)
    }

    fn agents(&self) -> Vec<i32> {
        // The guard has the agent's command line in its own.
        let mut agents = processes_with(&self.mark);
        agents.sort_unstable();
        agents
    }
}

fn continuity(outcome: &Outcome) -> &str {
    outcome.result["continuity"].as_str().unwrap()
}

#[tokio::test]
async fn the_second_run_of_a_session_starts_no_process() {
    let stage = Stage::new(&json!([["echo_prompt"]]));
    let (first, text) = stage.run(stage.turn(None)).await;
    assert_eq!(
        (continuity(&first), text.as_str()),
        ("new", "context: do it")
    );
    let agents = stage.agents();
    assert_eq!(agents.len(), 2);
    let mut left = first.agent_state;
    for _ in 0..2 {
        let (next, text) = stage.run(stage.turn(left)).await;
        assert_eq!(next.status, OutcomeStatus::Completed, "{next:?}");
        assert_eq!((continuity(&next), text.as_str()), ("warm", "do it"));
        assert_eq!(stage.agents(), agents);
        left = next.agent_state;
    }
    stage.backend.close().await;
    assert_eq!(stage.agents(), NONE);
    // What ends later does not stay.
    let (last, _) = stage.run(stage.turn(left)).await;
    assert_eq!(continuity(&last), "loaded");
    assert_eq!(stage.agents(), NONE);
}

/// The process is there, and what it had open is not.
#[tokio::test]
async fn an_agent_that_lost_its_session_while_it_stayed_takes_it_up_or_begins_anew() {
    for (lost, expected) in [
        (false, ("loaded", "do it")),
        (true, ("broken", "context: do it")),
    ] {
        let options = json!({"forgets": true, "lost": lost});
        let (steps, stay) = (json!([["echo_prompt"]]), Duration::from_mins(2));
        let stage = Stage::with(Fixture::new(), &steps, stay, &options);
        let (first, _) = stage.run(stage.turn(None)).await;
        let agents = stage.agents();
        let (next, text) = stage.run(stage.turn(first.agent_state)).await;
        assert_eq!(next.status, OutcomeStatus::Completed, "{next:?}");
        assert_eq!((continuity(&next), text.as_str()), expected);
        assert_eq!(stage.agents(), agents);
        stage.backend.close().await;
    }
}

#[tokio::test]
async fn other_settings_another_state_or_a_fork_begin_anew() {
    let stage = Stage::new(&json!([["say", "x"]]));
    let (first, _) = stage.run(stage.turn(None)).await;
    let agents = stage.agents();

    let mut turn = stage.turn(first.agent_state.clone());
    let wanted = json!({"mode": "ask"});
    turn.settings = AgentSettings::of(wanted.as_object().unwrap()).unwrap();
    let (changed, _) = stage.run(turn).await;
    assert_eq!(continuity(&changed), "loaded");
    assert_eq!(changed.result["choices"]["mode"], "ask");
    let others = stage.agents();
    assert_eq!(others.len(), 2);
    assert!(agents.iter().all(|pid| !others.contains(pid)));

    // After a restore the session has no state, whatever the agent remembers.
    let (restored, _) = stage.run(stage.turn(None)).await;
    assert_eq!(continuity(&restored), "new");

    let mut turn = stage.turn(restored.agent_state);
    turn.session_id = "session-2".to_owned();
    let (fork, _) = stage.run(turn).await;
    assert_ne!(continuity(&fork), "warm");
    stage.backend.close().await;
}

/// The agent sits in a directory that is gone; another one at the same path is not its own.
#[tokio::test]
async fn an_agent_whose_directory_was_made_anew_is_not_used_again() {
    let stage = Stage::new(&json!([["echo_prompt"]]));
    let (first, _) = stage.run(stage.turn(None)).await;
    let agents = stage.agents();
    let turn = stage.turn(first.agent_state);
    std::fs::remove_dir_all(&turn.workspace).unwrap();
    std::fs::create_dir(&turn.workspace).unwrap();
    let (next, _) = stage.run(turn).await;
    assert_eq!(next.status, OutcomeStatus::Completed, "{next:?}");
    assert_eq!(continuity(&next), "loaded");
    let others = stage.agents();
    assert_eq!(others.len(), 2);
    assert!(agents.iter().all(|pid| !others.contains(pid)));
    // That one has its own.
    let (last, _) = stage.run(stage.turn(next.agent_state)).await;
    assert_eq!(continuity(&last), "warm");
    stage.backend.close().await;
}

#[tokio::test]
async fn a_run_that_did_not_end_well_leaves_no_agent() {
    let stage = Stage::new(&json!([["error", {"code": 400, "message": "no"}]]));
    let (failed, _) = stage.run(stage.turn(None)).await;
    assert_eq!(failed.status, OutcomeStatus::Failed);
    assert_eq!(stage.agents(), NONE);

    let stage = Stage::new(&json!([["say", "x"], ["await_cancel"]]));
    let (io, mut ends) = connections(100);
    let turn = stage.turn(None);
    let (outcome, ()) = tokio::join!(stage.backend.run(turn, io), async {
        ends.events.recv().await.unwrap();
        ends.cancel.cancel();
    });
    assert_eq!(outcome.status, OutcomeStatus::Cancelled);
    assert_eq!(stage.agents(), NONE);
}

#[tokio::test]
async fn another_executor_gets_the_workspace_at_once_and_the_resting_agent_ends() {
    let seconds = unique_seconds();
    let resting = Stage::new(&json!([["tool_command", seconds], ["say", "x"]]));
    let (first, _) = resting.run(resting.turn(None)).await;
    assert_eq!(resting.agents().len(), 2);
    assert!(!processes_with(&format!("sleep\0{seconds}\0")).is_empty());

    let mut fixture = Fixture::new();
    fixture.workspace.clone_from(&resting.fixture.workspace);
    fixture
        .launcher
        .state_dir
        .clone_from(&resting.fixture.launcher.state_dir);
    let other = Stage::beside(fixture, &json!([["say", "mine"]]), Duration::ZERO);
    let begun = Instant::now();
    let (outcome, text) = other.run(other.turn(None)).await;
    assert_eq!(text, "mine", "{outcome:?}");
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    eventually("the resting agent's end", || resting.agents().is_empty()).await;
    assert_eq!(processes_with(&format!("sleep\0{seconds}\0")), NONE);

    let (next, _) = resting.run(resting.turn(first.agent_state)).await;
    assert_eq!(continuity(&next), "loaded");
    resting.backend.close().await;
}

#[tokio::test]
async fn an_agent_stays_for_its_time_and_only_as_many_as_may() {
    let stage = Stage::beside(
        Fixture::new(),
        &json!([["say", "x"]]),
        Duration::from_millis(200),
    );
    stage.run(stage.turn(None)).await;
    eventually("the end of its time", || stage.agents().is_empty()).await;

    let stage = Stage::new(&json!([["say", "x"]]));
    for number in 0..4 {
        let mut turn = stage.turn(None);
        turn.session_id = format!("session-{number}");
        turn.workspace = stage.fixture.workspace.join(number.to_string());
        std::fs::create_dir(&turn.workspace).unwrap();
        stage.run(turn).await;
    }
    // An agent and its guard, twice.
    assert_eq!(stage.agents().len(), 4);
    drop(stage.backend);
    let mark = stage.mark;
    eventually("the end of all", || processes_with(&mark).is_empty()).await;
}
