//! What the tests of the executor share: a server in memory that can be made to fail in every way a
//! server can, and an agent that does as its test says.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tapedeck_client::Client;
use tapedeck_protocol::executor::{ClaimResponse, UploadRequest};
use tapedeck_protocol::{ErrorCode, Problem};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::{AgentEvent, Backend, Outcome, OutcomeStatus, Turn, TurnIo};

pub(crate) fn problem(code: ErrorCode) -> Problem {
    Problem::new(code, "as the test says")
}

pub(crate) fn claim(attempt: u32) -> ClaimResponse {
    let claim = json!({
        "run_id": "01900000-0000-7000-8000-000000000001",
        "session_id": "01900000-0000-7000-8000-000000000002",
        "executor_id": "box",
        "claim_token": format!("{attempt}.secret"),
        "attempt": attempt,
        "prompt": "do it",
        "parent_run_id": null,
        "metadata": {},
        "tape_id": "01900000-0000-7000-8000-000000000003",
        "approval_policy": "interactive",
        "provider_name": null,
        "model_name": null,
        "base_url": null,
        "max_steps": null,
        "workspace": null,
        "run_target": {
            "workspace": null,
            "executor": {
                "kind": "local_attached",
                "executor_kind": "local_cli",
                "pool": "default",
                "labels": {},
                "executor_id": null,
            },
            "isolation": {"kind": null},
            "constraints": {
                "max_attempts": null,
                "max_run_seconds": null,
                "idle_timeout_seconds": null,
                "affinity_seconds": null,
            },
            "annotations": {},
        },
        "agent": {},
        "resume_context": null,
        "lease_expires_at": "2026-01-01T00:00:00.000Z",
        "lease_ttl_ms": 15_000,
        "traceparent": null,
    });
    serde_json::from_value(claim).unwrap()
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection breaks before the server saw it.
    Unreachable,
    /// The server does it, and the answer is lost.
    LostAnswer,
    /// No answer ever comes.
    Silence,
    /// The server says this.
    Refused(ErrorCode),
}

#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) what: String,
    pub(crate) body: Bytes,
    pub(crate) at: Instant,
}

impl Seen {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<ClaimResponse>,
    claims: HashMap<String, ClaimResponse>,
    /// For the next requests of a kind, in order.
    once: HashMap<String, Vec<Fault>>,
    /// For all requests of a kind; `*` is every kind.
    always: BTreeMap<String, Fault>,
    seen: Vec<Seen>,
    events: Vec<(String, Value)>,
    end: Option<Value>,
}

#[derive(Debug, Clone, Copy, Default)]
struct News {
    cancel: bool,
    questions_cancelled: bool,
    approved: Option<bool>,
    changes: u32,
}

/// A server in memory with one run at a time.
#[derive(Clone)]
pub(crate) struct FakeServer {
    state: Arc<Mutex<State>>,
    news: watch::Sender<News>,
    lease: Duration,
}

impl fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeServer")
    }
}

impl FakeServer {
    /// Grants leases of this length.
    pub(crate) fn new(lease: Duration) -> Self {
        Self {
            state: Arc::default(),
            news: watch::Sender::default(),
            lease,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::in_process(self.clone(), None).unwrap()
    }

    pub(crate) fn offer(&self, claim: ClaimResponse) {
        self.state.lock().waiting.push(claim);
        self.changed();
    }

    /// These faults meet the next requests of this kind.
    pub(crate) fn fail_next(&self, what: &str, faults: &[Fault]) {
        let mut state = self.state.lock();
        state.once.insert(what.to_owned(), faults.to_vec());
    }

    /// This fault meets all requests of this kind, `*` is every kind, until [`Self::heal`].
    pub(crate) fn fail(&self, what: &str, fault: Fault) {
        self.state.lock().always.insert(what.to_owned(), fault);
        self.changed();
    }

    pub(crate) fn heal(&self) {
        self.state.lock().always.clear();
    }

    pub(crate) fn cancel(&self) {
        self.news.send_modify(|news| news.cancel = true);
    }

    /// Cancels open questions, as a cancel of their run does.
    pub(crate) fn cancel_questions(&self) {
        self.news
            .send_modify(|news| news.questions_cancelled = true);
    }

    pub(crate) fn resolve(&self, approved: bool) {
        self.news.send_modify(|news| news.approved = Some(approved));
    }

    fn changed(&self) {
        self.news.send_modify(|news| news.changes += 1);
    }

    /// All requests of a kind, in order.
    pub(crate) fn seen(&self, what: &str) -> Vec<Seen> {
        let state = self.state.lock();
        let all = state.seen.iter();
        all.filter(|seen| seen.what == what).cloned().collect()
    }

    pub(crate) fn all_seen(&self) -> Vec<Seen> {
        self.state.lock().seen.clone()
    }

    /// The events recorded, as id and upload.
    pub(crate) fn events(&self) -> Vec<(String, Value)> {
        self.state.lock().events.clone()
    }

    /// The body that settled or released the run.
    pub(crate) fn end(&self) -> Option<Value> {
        self.state.lock().end.clone()
    }

    /// Waits until this many requests of a kind were seen.
    pub(crate) async fn wait_for(&self, what: &str, count: usize) {
        let enough = || (self.seen(what).len() >= count).then_some(());
        self.wait_until(enough).await;
    }

    /// Waits until the run is settled or released.
    pub(crate) async fn wait_for_end(&self) -> Value {
        self.wait_until(|| self.end()).await
    }

    async fn wait_until<T>(&self, condition: impl Fn() -> Option<T>) -> T {
        let mut news = self.news.subscribe();
        let come = async {
            loop {
                if let Some(found) = condition() {
                    return found;
                }
                news.changed().await.unwrap();
            }
        };
        // An hour of the tests' own clock is over in no time.
        tokio::time::timeout(Duration::from_hours(1), come)
            .await
            .expect("it did not come about")
    }

    fn fault(&self, what: &str) -> Option<Fault> {
        let mut state = self.state.lock();
        if let Some(faults) = state.once.get_mut(what)
            && !faults.is_empty()
        {
            return Some(faults.remove(0));
        }
        let named = state.always.get(what).or_else(|| state.always.get("*"));
        named.copied()
    }

    async fn serve(self, request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Broken> {
        let (head, body) = request.into_parts();
        let what = head.uri.path().rsplit('/').next().unwrap().to_owned();
        let body = body.collect().await.unwrap().to_bytes();
        let fault = self.fault(&what);
        if fault != Some(Fault::Unreachable) {
            let seen = Seen {
                what: what.clone(),
                body: body.clone(),
                at: Instant::now(),
            };
            self.state.lock().seen.push(seen);
            self.changed();
        }
        match fault {
            Some(Fault::Unreachable) => return Err(Broken),
            Some(Fault::Silence) => return std::future::pending().await,
            Some(Fault::Refused(code)) => return Ok(refusal(code)),
            Some(Fault::LostAnswer) | None => {}
        }
        if matches!(&*what, "capabilities" | "leave") {
            return Ok(refusal(ErrorCode::RouteNotFound));
        }
        let body: Value = serde_json::from_slice(&body).unwrap();
        let answer = match what.as_str() {
            "claim" => self.claim(&body).await,
            "heartbeat" => self.heartbeat(&body).await,
            "events" => Ok(self.upload(&body)),
            "approval" => self.approval(&body).await,
            "artifacts" => Ok(answer(&json!({
                "run_id": claim(1).run_id,
                "artifacts": [],
            }))),
            "release" | "complete" => Ok(self.settle(&what, body)),
            other => panic!("no such endpoint: {other}"),
        };
        if fault == Some(Fault::LostAnswer) {
            return Err(Broken);
        }
        answer
    }

    async fn claim(&self, body: &Value) -> Result<Response<Full<Bytes>>, Broken> {
        let id = body["claim_request_id"].as_str().unwrap().to_owned();
        let wait = Duration::from_secs(body["wait_seconds"].as_u64().unwrap_or(0));
        let mut news = self.news.subscribe();
        let taken = async {
            loop {
                {
                    let mut state = self.state.lock();
                    if let Some(claim) = state.claims.get(&id) {
                        return claim.clone();
                    }
                    if let Some(claim) = state.waiting.pop() {
                        state.claims.insert(id.clone(), claim.clone());
                        return claim;
                    }
                }
                news.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(wait, taken).await {
            Ok(claim) => Ok(answer(&serde_json::to_value(&claim).unwrap())),
            Err(_) => Ok(refusal(ErrorCode::NoRunAvailable)),
        }
    }

    async fn heartbeat(&self, body: &Value) -> Result<Response<Full<Bytes>>, Broken> {
        let wait = Duration::from_secs(body["wait_seconds"].as_u64().unwrap_or(0));
        let mut news = self.news.subscribe();
        // A server that goes down breaks what it holds.
        let told = news.wait_for(|news| news.cancel || self.is_down());
        drop(tokio::time::timeout(wait, told).await);
        if self.is_down() && !wait.is_zero() {
            return Err(Broken);
        }
        let cancel = self.news.borrow().cancel;
        if self.state.lock().end.is_some() {
            return Ok(refusal(ErrorCode::RunSettled));
        }
        let lease = u64::try_from(self.lease.as_millis()).unwrap();
        Ok(answer(&json!({
            "run_id": claim(1).run_id,
            "executor_id": "box",
            "status": if cancel { "cancelling" } else { "running" },
            "attempt": 1,
            "cancel_requested": cancel,
            "lease_expires_at": "2026-01-01T00:00:00.000Z",
            "lease_ttl_ms": lease,
            "drain": false,
        })))
    }

    fn is_down(&self) -> bool {
        self.state.lock().always.contains_key("*")
    }

    fn upload(&self, body: &Value) -> Response<Full<Bytes>> {
        let request: UploadRequest = serde_json::from_value(body.clone()).unwrap();
        request.check().unwrap();
        let mut state = self.state.lock();
        for event in body["events"].as_array().unwrap() {
            let id = event["event_id"].as_str().unwrap().to_owned();
            match state.events.iter().find(|(known, _)| *known == id) {
                Some((_, known)) if known == event => {}
                Some(_) => return refusal(ErrorCode::EventIdConflict),
                None => state.events.push((id, event.clone())),
            }
        }
        answer(&json!({"run_id": claim(1).run_id, "events": []}))
    }

    async fn approval(&self, body: &Value) -> Result<Response<Full<Bytes>>, Broken> {
        let wait = Duration::from_secs(body["wait_seconds"].as_u64().unwrap());
        let mut news = self.news.subscribe();
        let resolved = news.wait_for(|news| news.approved.is_some() || news.questions_cancelled);
        drop(tokio::time::timeout(wait, resolved).await);
        let news = *self.news.borrow();
        let approved = news.approved;
        let status = match approved {
            None if news.questions_cancelled => "cancelled",
            None => "pending",
            Some(true) => "approved",
            Some(false) => "denied",
        };
        Ok(answer(&json!({
            "request_id": body["request_id"],
            "interaction_id": "01900000-0000-7000-8000-000000000004",
            "status": status,
            "approved": approved,
            "scope": approved.map(|_| "session"),
            "feedback": approved.map(|_| "because"),
        })))
    }

    fn settle(&self, what: &str, body: Value) -> Response<Full<Bytes>> {
        let mut state = self.state.lock();
        if what == "complete" {
            if let Some(count) = body["event_count"].as_u64()
                && count != state.events.len() as u64
            {
                return refusal(ErrorCode::EventsMissing);
            }
            if let Some(end) = &state.end
                && *end != body
            {
                return refusal(ErrorCode::RunSettled);
            }
        }
        state.end = Some(body);
        drop(state);
        self.changed();
        answer(&run())
    }
}

fn run() -> Value {
    json!({
        "run_id": claim(1).run_id,
        "session_id": claim(1).session_id,
        "parent_run_id": null,
        "status": "completed",
        "attempt": 1,
        "prompt": "do it",
        "metadata": {},
        "result": null,
        "error": null,
        "executor_id": "box",
        "requested_at": "2026-01-01T00:00:00.000Z",
        "claimed_at": null,
        "started_at": null,
        "settled_at": null,
        "reclaimable": false,
        "recovery_reason": null,
        "recovered_at": null,
        "unservable": null,
        "admitted_seq": 1,
        "settled_seq": 9,
        "superseded_at": null,
        "superseded_by_checkpoint_id": null,
    })
}

#[derive(Debug, thiserror::Error)]
#[error("connection reset")]
pub(crate) struct Broken;

fn answer(body: &Value) -> Response<Full<Bytes>> {
    Response::new(Full::from(body.to_string()))
}

fn refusal(code: ErrorCode) -> Response<Full<Bytes>> {
    let body = serde_json::to_string(&problem(code)).unwrap();
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = StatusCode::from_u16(code.status()).unwrap();
    response
}

impl tower::Service<Request<Full<Bytes>>> for FakeServer {
    type Response = Response<Full<Bytes>>;
    type Error = Broken;
    type Future = BoxFuture<'static, Result<Self::Response, Broken>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        Box::pin(self.clone().serve(request))
    }
}

type Act = dyn Fn(Turn, TurnIo) -> BoxFuture<'static, Outcome> + Send + Sync;

/// An agent that does as its test says.
pub(crate) struct ScriptedAgent(Box<Act>);

impl fmt::Debug for ScriptedAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedAgent")
    }
}

impl ScriptedAgent {
    pub(crate) fn new<F>(act: impl Fn(Turn, TurnIo) -> F + Send + Sync + 'static) -> Arc<Self>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        Arc::new(Self(Box::new(move |turn, io| Box::pin(act(turn, io)))))
    }
}

#[async_trait]
impl Backend for ScriptedAgent {
    async fn run(&self, turn: Turn, io: TurnIo) -> Outcome {
        (self.0)(turn, io).await
    }
}

pub(crate) fn outcome(status: OutcomeStatus) -> Outcome {
    Outcome {
        status,
        result: json!({"stop_reason": "end_turn"}),
        failure: None,
        agent_state: Some(json!({"session_id": "remembered"})),
    }
}

/// A piece of an answer that is never merged with another.
pub(crate) fn piece(number: u32) -> AgentEvent {
    AgentEvent {
        kind: "StreamDelta".to_owned(),
        payload: json!({"content": "x", "role": "assistant", "message_id": number}),
    }
}
