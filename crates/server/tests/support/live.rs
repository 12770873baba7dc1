//! A server over a real store, and an executor played by hand.

use serde_json::{Value, json};
use tapedeck_domain::Timing;
use tapedeck_server::ServerState;
use tapedeck_store_sqlite::{Mode, Options, SqliteStore};
use tempfile::TempDir;

use super::{Api, Call};

/// A server over SQLite in a directory of its own.
#[derive(Debug)]
pub struct Live {
    pub api: Api,
    _dir: TempDir,
}

impl Live {
    pub async fn start() -> Self {
        Self::timed(Timing::STANDARD, |_| {}).await
    }

    pub async fn timed(timing: Timing, change: impl FnOnce(&mut ServerState)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new(dir.path(), Mode::Server);
        let store = SqliteStore::open(options).await.unwrap();
        let api = Api::timed(std::sync::Arc::new(store), timing, change);
        api.control.start().await.unwrap();
        Self { api, _dir: dir }
    }

    pub fn get(&self, path: &str) -> Call {
        self.api.get(path).as_json()
    }

    pub fn post(&self, path: &str, body: Value) -> Call {
        self.api.post(path).as_json().json(&body)
    }

    /// A new session's id.
    pub async fn session(&self) -> String {
        let created = self.post("/sessions", json!({})).await.ok();
        created["session_id"].as_str().unwrap().to_owned()
    }

    /// A new run's id.
    pub async fn prompt(&self, session: &str) -> String {
        let path = format!("/sessions/{session}/prompt");
        let accepted = self.post(&path, json!({"prompt": "go"})).await.ok();
        accepted["run_id"].as_str().unwrap().to_owned()
    }

    /// Claims whatever waits.
    pub async fn claim(&self) -> Claim {
        let body = json!({"executor_id": "x1", "worker_instance_id": "i1"});
        let answer = self.post("/executor/runs/claim", body).await.ok();
        Claim {
            run_id: answer["run_id"].as_str().unwrap().to_owned(),
            token: answer["claim_token"].as_str().unwrap().to_owned(),
            answer,
        }
    }

    /// A session with a claimed run.
    pub async fn claimed(&self) -> (String, Claim) {
        let session = self.session().await;
        self.prompt(&session).await;
        (session, self.claim().await)
    }

    pub fn executor(&self, claim: &Claim, action: &str, body: Value) -> Call {
        let path = format!("/executor/runs/{}/{action}", claim.run_id);
        self.post(&path, claim.with(body))
    }

    pub fn upload(&self, claim: &Claim, events: Value) -> Call {
        self.executor(claim, "events", json!({"events": events}))
    }

    /// Uploads texts as the agent's words, `e1`, `e2`, ….
    pub async fn say(&self, claim: &Claim, texts: &[&str]) {
        let events: Vec<Value> = texts
            .iter()
            .map(|text| {
                let data = json!({"content": text, "role": "assistant"});
                json!({"event_id": format!("e-{text}"), "event": "StreamDelta", "data": data})
            })
            .collect();
        self.upload(claim, json!(events)).await.ok();
    }

    pub async fn complete(&self, claim: &Claim) -> Value {
        let body = json!({"status": "completed", "result": {"ok": true}});
        self.executor(claim, "complete", body).await.ok()
    }
}

/// A claim that an executor holds.
#[derive(Debug, Clone)]
pub struct Claim {
    pub run_id: String,
    pub token: String,
    pub answer: Value,
}

impl Claim {
    /// A body under this claim; what the body says itself wins.
    pub fn with(&self, body: Value) -> Value {
        let mut whole = json!({"executor_id": "x1", "claim_token": self.token});
        for (name, value) in body.as_object().unwrap() {
            whole[name] = value.clone();
        }
        whole
    }
}
