//! A server over a real store, and an executor played by hand.

use std::borrow::Borrow;

use serde_json::{Map, Value, json};
use tapedeck_domain::Timing;
use tapedeck_server::ServerState;
use tapedeck_store_sqlite::{Mode, Options, SqliteStore};
use tempfile::TempDir;

use super::{Api, Call};

/// A server over SQLite in a directory of its own.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) api: Api,
    _dir: TempDir,
}

impl Live {
    pub(crate) async fn start() -> Self {
        Self::timed(Timing::STANDARD, |_| {}).await
    }

    pub(crate) async fn timed(timing: Timing, change: impl FnOnce(&mut ServerState)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new(dir.path(), Mode::Server);
        let store = SqliteStore::open(options).await.unwrap();
        let api = Api::timed(std::sync::Arc::new(store), timing, change);
        api.control.start().await.unwrap();
        Self { api, _dir: dir }
    }

    pub(crate) fn get(&self, path: &str) -> Call {
        self.api.get(path).accepting_json()
    }

    pub(crate) fn post(&self, path: &str, body: impl Borrow<Value>) -> Call {
        self.api.post(path).accepting_json().json(body.borrow())
    }

    /// A new session's id.
    pub(crate) async fn session(&self) -> String {
        let created = self.post("/sessions", json!({})).await.ok();
        created["session_id"].as_str().unwrap().to_owned()
    }

    /// A new run's id.
    pub(crate) async fn prompt(&self, session: &str) -> String {
        let path = format!("/sessions/{session}/prompt");
        let accepted = self.post(&path, json!({"prompt": "go"})).await.ok();
        accepted["run_id"].as_str().unwrap().to_owned()
    }

    /// Claims whatever waits.
    pub(crate) async fn claim(&self) -> Claim {
        let body = json!({"executor_id": "x1", "worker_instance_id": "i1"});
        let answer = self.post("/executor/runs/claim", body).await.ok();
        Claim {
            run_id: answer["run_id"].as_str().unwrap().to_owned(),
            token: answer["claim_token"].as_str().unwrap().to_owned(),
            answer,
        }
    }

    /// A session with a claimed run.
    pub(crate) async fn claimed(&self) -> (String, Claim) {
        let session = self.session().await;
        self.prompt(&session).await;
        (session, self.claim().await)
    }

    pub(crate) fn executor(&self, claim: &Claim, action: &str, body: Value) -> Call {
        let path = format!("/executor/runs/{}/{action}", claim.run_id);
        self.post(&path, claim.with(body))
    }

    pub(crate) fn upload(&self, claim: &Claim, events: Value) -> Call {
        let body = Map::from_iter([("events".to_owned(), events)]);
        self.executor(claim, "events", Value::Object(body))
    }

    /// Uploads texts as the agent's words, `e1`, `e2`, ….
    pub(crate) async fn say(&self, claim: &Claim, texts: &[&str]) {
        let events: Vec<Value> = texts
            .iter()
            .map(|text| {
                let data = json!({"content": text, "role": "assistant"});
                json!({"event_id": format!("e-{text}"), "event": "StreamDelta", "data": data})
            })
            .collect();
        self.upload(claim, json!(events)).await.ok();
    }

    pub(crate) async fn complete(&self, claim: &Claim) -> Value {
        let body = json!({"status": "completed", "result": {"ok": true}});
        self.executor(claim, "complete", body).await.ok()
    }
}

/// A claim that an executor holds.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) run_id: String,
    pub(crate) token: String,
    pub(crate) answer: Value,
}

impl Claim {
    /// A body under this claim; what the body says itself wins.
    pub(crate) fn with(&self, body: Value) -> Value {
        let mut whole = json!({"executor_id": "x1", "claim_token": self.token});
        let own = whole.as_object_mut().unwrap();
        let Value::Object(said) = body else {
            panic!("a body is an object: {body}");
        };
        own.extend(said);
        whole
    }
}
