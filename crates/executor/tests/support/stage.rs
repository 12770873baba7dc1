//! A turn of the ACP backend with the scripted agent, from its script to what came of it.

use std::time::Duration;

use serde_json::{Value, json};
use tapedeck_executor::backend::acp::{AcpBackend, AcpOptions};
use tapedeck_executor::backend::{
    AgentEvent, Answer, Backend, FailureCode, Outcome, OutcomeStatus, Scope, Turn,
};
use tapedeck_executor::process::Environment;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Ends, Fixture, connections, unique};

pub(crate) const AGENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/agent.py");
pub(crate) const NONE: [i32; 0] = [];

pub(crate) struct Stage {
    pub(crate) fixture: Fixture,
    pub(crate) script: Value,
    pub(crate) options: AcpOptions,
    pub(crate) turn: Turn,
    pub(crate) pairs: Vec<(String, String)>,
}

pub(crate) struct Played {
    pub(crate) outcome: Outcome,
    pub(crate) events: Vec<AgentEvent>,
    pub(crate) fixture: Fixture,
    pub(crate) took: Duration,
}

impl Stage {
    pub(crate) fn new(steps: &Value) -> Self {
        Self::with(json!({ "steps": steps }))
    }

    pub(crate) fn with(script: Value) -> Self {
        let fixture = Fixture::new();
        let turn = fixture.turn(&unique("run"), "do it");
        Self {
            fixture,
            script,
            options: AcpOptions::default(),
            turn,
            pairs: Vec::new(),
        }
    }

    pub(crate) fn backend(&self) -> AcpBackend {
        let command = shell_words::join(["python3", "-u", AGENT, &self.script.to_string()]);
        let environment = Environment::select(std::env::vars_os(), &[], &self.pairs);
        let launcher = self.fixture.launcher.clone();
        AcpBackend::new(&command, environment, launcher, self.options.clone()).unwrap()
    }

    pub(crate) fn begin(self, capacity: usize) -> (Running, Ends) {
        let (io, ends) = connections(capacity);
        let (backend, turn) = (self.backend(), self.turn);
        let begun = Instant::now();
        #[expect(
            clippy::disallowed_methods,
            reason = "the test drives the turn from outside"
        )]
        let outcome = tokio::spawn(async move { backend.run(turn, io).await });
        (
            Running {
                outcome,
                fixture: self.fixture,
                begun,
            },
            ends,
        )
    }

    pub(crate) async fn play(self) -> Played {
        let (running, mut ends) = self.begin(10_000);
        running.finish(&mut ends).await
    }
}

pub(crate) struct Running {
    pub(crate) outcome: JoinHandle<Outcome>,
    pub(crate) fixture: Fixture,
    pub(crate) begun: Instant,
}

impl Running {
    pub(crate) async fn finish(self, ends: &mut Ends) -> Played {
        let mut events = Vec::new();
        while let Some(event) = ends.events.recv().await {
            events.push(event);
        }
        let outcome = self.outcome.await.unwrap();
        let took = self.begun.elapsed();
        Played {
            outcome,
            events,
            fixture: self.fixture,
            took,
        }
    }
}

impl Played {
    pub(crate) fn text(&self) -> String {
        let chunks = self
            .events
            .iter()
            .filter(|event| event.kind == "StreamDelta");
        chunks
            .map(|event| event.payload["content"].as_str().unwrap())
            .collect()
    }

    pub(crate) fn kinds(&self) -> Vec<&str> {
        self.events
            .iter()
            .map(|event| event.kind.as_str())
            .collect()
    }

    pub(crate) fn received(&self, method: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.fixture.workspace.join("received.jsonl")).unwrap();
        let messages = log
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        messages
            .filter(|message| message["method"] == method)
            .collect()
    }

    #[track_caller]
    pub(crate) fn assert_failed(&self, code: FailureCode, text: &str) {
        assert_eq!(
            self.outcome.status,
            OutcomeStatus::Failed,
            "{:?}",
            self.outcome
        );
        assert_eq!(
            self.outcome.failure.as_ref().unwrap().code,
            code,
            "{:?}",
            self.outcome
        );
        let error = self.outcome.error().unwrap();
        assert!(error.contains(text), "{error}");
    }
}

pub(crate) fn denied() -> Answer {
    Answer::Denied {
        scope: Scope::Once,
        feedback: None,
    }
}

pub(crate) fn approved(scope: Scope) -> Answer {
    Answer::Approved { scope }
}
