//! The API as tests speak it: a client who starts sessions, and an executor played by hand. Every
//! call here must succeed; tests of refusals make their requests themselves.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::http::{Answer, Request};
use crate::server::Server;
use crate::wait::eventually;

/// A run may have to wait for a lease to end, on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_mins(1);

/// Events of one page.
const PAGE: usize = 500;

/// Creates a session whose runs wait in `pool`; gives its id.
pub(crate) async fn session_in(address: SocketAddr, pool: &str) -> String {
    let body = json!({"run_target": {"executor": {"pool": pool}}, "approval_policy": "yolo"});
    session_of(address, &body).await
}

pub(crate) async fn session_of(address: SocketAddr, body: &Value) -> String {
    let created = Request::post("/sessions", body).send(address).await.ok();
    text(&created, "session_id")
}

/// Prompts as JSON; gives the run and the number of its `RunRequested`.
pub(crate) async fn prompt(address: SocketAddr, session: &str, prompt: &str) -> (String, u64) {
    let path = format!("/sessions/{session}/prompt");
    accepted(
        &Request::post(path, &json!({"prompt": prompt}))
            .send(address)
            .await,
    )
}

pub(crate) async fn resume(address: SocketAddr, session: &str, prompt: &str) -> (String, u64) {
    let path = format!("/sessions/{session}/resume");
    accepted(
        &Request::post(path, &json!({"prompt": prompt}))
            .send(address)
            .await,
    )
}

#[track_caller]
fn accepted(answer: &Answer) -> (String, u64) {
    assert_eq!(answer.status, 202, "{}", answer.text());
    let body = answer.json();
    (text(&body, "run_id"), body["session_seq"].as_u64().unwrap())
}

/// The whole log of a session, page by page.
pub(crate) async fn log(address: SocketAddr, session: &str) -> Vec<Value> {
    let mut events = Vec::new();
    let mut after = 0;
    loop {
        let path = format!("/sessions/{session}/events?after={after}&limit={PAGE}");
        let page = Request::get(path).send(address).await.ok();
        let found = page["events"].as_array().unwrap();
        if found.is_empty() {
            assert_eq!(page["head_seq"].as_u64().unwrap(), after, "{page}");
            return events;
        }
        events.extend(found.iter().cloned());
        after = page["next_cursor"].as_u64().unwrap();
    }
}

/// Fails unless the numbers are 1, 2, 3 ….
#[track_caller]
pub(crate) fn assert_dense(log: &[Value]) {
    let numbers: Vec<_> = log.iter().map(seq).collect();
    let expected: Vec<_> = (1..).take(log.len()).collect();
    assert_eq!(numbers, expected);
}

pub(crate) fn seq(event: &Value) -> u64 {
    event["session_seq"].as_u64().unwrap()
}

/// The texts of an agent's words in a run, put together.
pub(crate) fn said(log: &[Value], run_id: &str) -> String {
    log.iter()
        .filter(|event| event["kind"] == "StreamDelta" && event["run_id"] == run_id)
        .filter_map(|event| event["payload"]["content"].as_str())
        .collect()
}

/// A run as it stands.
pub(crate) async fn run(address: SocketAddr, run_id: &str) -> Value {
    Request::get(format!("/runs/{run_id}"))
        .send(address)
        .await
        .ok()
}

/// Waits for the end of a run; gives it.
pub(crate) async fn settled(address: SocketAddr, run_id: &str) -> Value {
    let look = async || {
        let run = run(address, run_id).await;
        is_terminal(&run).then_some(run)
    };
    eventually("the run ends", LIMIT, look).await
}

/// Waits until a run's agent has said these words.
pub(crate) async fn has_said(address: SocketAddr, session: &str, run_id: &str, words: &str) {
    let look = async || {
        let log = log(address, session).await;
        said(&log, run_id).contains(words).then_some(())
    };
    eventually(&format!("the agent says `{words}`"), LIMIT, look).await;
}

/// Every item of a list, page by page.
pub(crate) async fn list(address: SocketAddr, path: &str, plural: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    loop {
        let join = if path.contains('?') { '&' } else { '?' };
        let page = Request::get(format!("{path}{join}limit=200{cursor}"));
        let page = page.send(address).await.ok();
        items.extend(page[plural].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return items,
        }
    }
}

/// Every entry of a session's tape, with those that were put aside.
pub(crate) async fn tape(address: SocketAddr, session: &str) -> Vec<Value> {
    let mut entries = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("/sessions/{session}/tape?include_superseded=true&limit=200{after}");
        let page = Request::get(path).send(address).await.ok();
        entries.extend(page["entries"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return entries,
        }
    }
}

pub(crate) fn is_terminal(run: &Value) -> bool {
    let status = run["status"].as_str().unwrap();
    ["completed", "failed", "cancelled", "interrupted"].contains(&status)
}

#[track_caller]
pub(crate) fn text(value: &Value, field: &str) -> String {
    let found = value[field].as_str();
    found
        .unwrap_or_else(|| panic!("no `{field}`: {value}"))
        .to_owned()
}

/// A claim held by hand.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) run_id: String,
    pub(crate) session_id: String,
    pub(crate) executor_id: String,
    pub(crate) token: String,
    pub(crate) answer: Value,
}

impl Claim {
    /// Claims what waits in `pool`, or will within some seconds.
    pub(crate) async fn take(address: SocketAddr, pool: &str) -> Self {
        let body = json!({"executor_id": format!("hand-{pool}"), "pool": pool, "wait_seconds": 10});
        let answer = Request::post("/executor/runs/claim", &body)
            .send(address)
            .await
            .ok();
        Self::of(answer)
    }

    pub(crate) fn of(answer: Value) -> Self {
        Self {
            run_id: text(&answer, "run_id"),
            session_id: text(&answer, "session_id"),
            executor_id: text(&answer, "executor_id"),
            token: text(&answer, "claim_token"),
            answer,
        }
    }

    /// A request under this claim.
    pub(crate) fn request(&self, action: &str, body: Value) -> Request {
        let Value::Object(own) = body else {
            panic!("a body is an object: {body}");
        };
        let mut whole = Map::new();
        whole.insert("executor_id".to_owned(), json!(self.executor_id));
        whole.insert("claim_token".to_owned(), json!(self.token));
        whole.extend(own);
        let path = format!("/executor/runs/{}/{action}", self.run_id);
        Request::post(path, &Value::Object(whole))
    }

    pub(crate) async fn heartbeat(&self, address: SocketAddr) -> Value {
        self.request("heartbeat", json!({}))
            .send(address)
            .await
            .ok()
    }

    /// Uploads these events; gives the records.
    pub(crate) async fn upload(&self, address: SocketAddr, events: &[Value]) -> Vec<Value> {
        records(
            &self
                .request("events", json!({"events": events}))
                .send(address)
                .await
                .ok(),
        )
    }

    pub(crate) async fn complete(&self, address: SocketAddr) -> Value {
        let body = json!({"status": "completed", "result": {"ok": true}});
        self.request("complete", body).send(address).await.ok()
    }
}

/// The records in the answer to an upload, as the log shows them.
#[track_caller]
pub(crate) fn records(answer: &Value) -> Vec<Value> {
    let strip = |event: &Value| {
        let mut event = event.clone();
        let recorded = event.as_object_mut().unwrap().remove("recorded");
        assert_eq!(recorded, Some(json!(true)), "{event}");
        event
    };
    answer["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(strip)
        .collect()
}

/// An agent's words as an event.
pub(crate) fn words(event_id: &str, content: &str) -> Value {
    let data = json!({"content": content, "role": "assistant"});
    json!({"event_id": event_id, "event": "StreamDelta", "data": data})
}

/// A session of a run that is claimed by hand and has words for each of `count` numbers.
pub(crate) async fn spoken(server: &Server, pool: &str, count: usize) -> Claim {
    let address = server.address;
    let session = session_in(address, pool).await;
    prompt(address, &session, "talk").await;
    let claim = Claim::take(address, pool).await;
    let events: Vec<_> = (0..count)
        .map(|n| words(&format!("e{n}"), &format!("{n}\n")))
        .collect();
    for batch in events.chunks(500) {
        claim.upload(address, batch).await;
    }
    claim
}

/// What the demo agent streams: `word 1`, `word 2` …, a line each.
pub(crate) fn numbered(word: &str, count: u64) -> String {
    let lines: Vec<_> = (1..=count).map(|n| format!("{word} {n}\n")).collect();
    lines.concat()
}
