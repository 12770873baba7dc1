//! Clients that leave at any point of any request (faults 18): what the server was doing for them ends
//! well, and no connection to the database is lost or left in a transaction.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::{self, Claim, prompt, session_in, text, words};
use crate::chaos::{Beside, Crowd, leave_somewhere, moment, trouble};
use crate::http::Request;
use crate::load::{Hand, World};
use crate::seed::Seed;
use crate::server::{Place, Server};
use crate::wait::{eventually, within};

/// How long clients leave.
const TROUBLE: Duration = Duration::from_secs(15);
const SCALE: f64 = 0.4;
/// Clients that do nothing but leave.
const LEAVERS: u64 = 8;
const LIMIT: Duration = Duration::from_secs(30);
/// More than a server has connections.
const SESSIONS: usize = 20;
/// How long a statement waits for a lock.
const LOCK: Duration = Duration::from_secs(5);

/// Everything that a leaving client names in its requests.
struct Target {
    session: String,
    claim: Claim,
    checkpoint: String,
    question: String,
}

impl Target {
    /// A session of its own with something of each kind.
    async fn make(address: SocketAddr, pool: &str) -> Self {
        let body = json!({"run_target": {"executor": {"pool": pool}},
            "approval_policy": "interactive"});
        let session = api::session_of(address, &body).await;
        prompt(address, &session, "first").await;
        Claim::take(address, pool).await.complete(address).await;
        let path = format!("/sessions/{session}/checkpoints");
        let captured = Request::post(path, &json!({"label": "here"}));
        let checkpoint = text(&captured.send(address).await.ok(), "checkpoint_id");
        prompt(address, &session, "second").await;
        let claim = Claim::take(address, pool).await;
        let asking = json!({"request_id": "q", "tool_name": "edit", "wait_seconds": 0});
        let asked = claim.request("approval", asking).send(address).await.ok();
        Self {
            question: text(&asked, "interaction_id"),
            session,
            claim,
            checkpoint,
        }
    }

    /// One request for each endpoint, by its method and its path in the API's own description.
    #[expect(clippy::too_many_lines, reason = "a list of every endpoint")]
    fn requests(&self, pool: &str, rng: &mut StdRng) -> Vec<(&'static str, Request)> {
        let (session, run) = (&self.session, &self.claim.run_id);
        let (checkpoint, question) = (&self.checkpoint, &self.question);
        let number: u64 = rng.random();
        let of_session = |rest: &str| format!("/sessions/{session}{rest}");
        let get = |path: String| Request::get(path);
        let post = |path: String, body: &Value| Request::post(path, body);
        let under = |action: &str, body: Value| self.claim.request(action, body);
        let empty = json!({});
        let entry = json!({"kind": "plan", "payload": {"text": format!("{number}")}});
        let target = json!({"run_target": {"executor": {"pool": pool}}});
        let claim = json!({"executor_id": pool, "pool": pool, "wait_seconds": 2});
        let one = |path: &str| of_session(&format!("/checkpoints/{checkpoint}{path}"));
        let model = json!({"model": "m"}).to_string();
        let title = json!({"title": "t"}).to_string();
        let ask = json!({"request_id": format!("{number}"), "tool_name": "t", "wait_seconds": 3});
        let said = json!({"events": [words(&format!("{number}"), "x")]});
        let answer = json!({"approved": true});
        let approve = json!({"request_id": "q", "approved": true});
        let unknown = "/sessions/018f0000-0000-7000-8000-000000000001";
        let unknown_rule = "/approval-rules/018f0000-0000-7000-8000-000000000001";
        let unknown_token = "/tokens/018f0000-0000-7000-8000-000000000001";
        // One that was made would be asked for from then on.
        let token = json!({"name": format!("t{number}"), "role": "executor", "namespace": "n"});
        let rule = json!({"tool_name": format!("t{number}"), "decision": "allow",
            "session_id": session});
        let form = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let question_with_form = json!({"request_id": format!("form-{number}"), "message": "m",
            "form": form, "wait_seconds": 3});
        let artifact = json!({"name": format!("a{number}"), "content": "x"});
        vec![
            ("post /sessions", post("/sessions".into(), &target)),
            ("get /sessions", get("/sessions".into())),
            ("get /sessions/{session_id}", get(of_session(""))),
            (
                "patch /sessions/{session_id}",
                Request::new("PATCH", of_session("")).body(title),
            ),
            (
                "delete /sessions/{session_id}",
                Request::new("DELETE", unknown),
            ),
            (
                "patch /sessions/{session_id}/runtime-config",
                Request::new("PATCH", of_session("/runtime-config")).body(model),
            ),
            (
                "post /sessions/{session_id}/close",
                post(format!("{unknown}/close"), &empty),
            ),
            (
                "post /sessions/{session_id}/prompt",
                post(
                    of_session("/prompt"),
                    &json!({"prompt": "go", "on_active": "enqueue"}),
                )
                .streaming(),
            ),
            (
                "post /sessions/{session_id}/resume",
                post(of_session("/resume"), &empty),
            ),
            (
                "post /sessions/{session_id}/cancel",
                post(format!("{unknown}/cancel"), &empty),
            ),
            (
                "post /sessions/{session_id}/queue/continue",
                post(of_session("/queue/continue"), &empty),
            ),
            (
                "post /sessions/{session_id}/approve",
                post(of_session("/approve"), &approve),
            ),
            (
                "post /sessions/{session_id}/repair",
                post(of_session("/repair"), &empty),
            ),
            ("get /sessions/{session_id}/runs", get(of_session("/runs"))),
            (
                "get /sessions/{session_id}/result",
                get(of_session("/result")),
            ),
            ("get /sessions/{session_id}/tape", get(of_session("/tape"))),
            (
                "get /sessions/{session_id}/transcript",
                get(of_session("/transcript")),
            ),
            (
                "get /sessions/{session_id}/events",
                get(of_session("/events")).streaming(),
            ),
            (
                "post /sessions/{session_id}/checkpoints",
                post(of_session("/checkpoints"), &empty),
            ),
            (
                "get /sessions/{session_id}/checkpoints",
                get(of_session("/checkpoints")),
            ),
            (
                "delete /sessions/{session_id}/checkpoints/{checkpoint_id}",
                Request::new("DELETE", one("")),
            ),
            (
                "post /sessions/{session_id}/checkpoints/{checkpoint_id}/restore",
                post(one("/restore"), &empty),
            ),
            (
                "post /sessions/{session_id}/fork",
                post(of_session("/fork"), &empty),
            ),
            ("get /tokens", get("/tokens".into())),
            ("post /tokens", post("/tokens".into(), &token)),
            ("get /tokens/{token_id}", get(unknown_token.into())),
            (
                "delete /tokens/{token_id}",
                Request::new("DELETE", unknown_token),
            ),
            ("get /events", get("/events".into()).streaming()),
            ("get /runs", get("/runs".into())),
            ("get /runs/{run_id}", get(format!("/runs/{run}"))),
            (
                "post /runs/{run_id}/cancel",
                post(format!("/runs/{run}/cancel"), &empty),
            ),
            (
                "get /runs/{run_id}/interactions",
                get(format!("/runs/{run}/interactions")),
            ),
            (
                "get /runs/{run_id}/snapshot",
                get(format!("/runs/{run}/snapshot")),
            ),
            (
                "get /runs/{run_id}/events",
                get(format!("/runs/{run}/events")).streaming(),
            ),
            (
                "get /runs/{run_id}/display-events",
                get(format!("/runs/{run}/display-events")).streaming(),
            ),
            ("get /sessions/{session_id}/diff", get(of_session("/diff"))),
            (
                "get /sessions/{session_id}/patch",
                get(of_session("/patch")),
            ),
            (
                "post /approval-rules",
                post("/approval-rules".into(), &rule),
            ),
            ("get /approval-rules", get("/approval-rules".into())),
            ("get /approval-rules/{rule_id}", get(unknown_rule.into())),
            (
                "delete /approval-rules/{rule_id}",
                Request::new("DELETE", unknown_rule),
            ),
            ("get /interactions", get("/interactions".into())),
            (
                "get /interactions/{interaction_id}",
                get(format!("/interactions/{question}")),
            ),
            (
                "post /interactions/{interaction_id}/resolve",
                post(format!("/interactions/{question}/resolve"), &answer),
            ),
            ("get /executors", get("/executors".into())),
            (
                "get /executors/{executor_id}",
                get(format!("/executors/{pool}")),
            ),
            // Another one, so that no abandoned drain keeps this one from its claims.
            (
                "post /executors/{executor_id}/drain",
                post(format!("/executors/other-{pool}/drain"), &empty),
            ),
            (
                "post /executors/{executor_id}/undrain",
                post(format!("/executors/{pool}/undrain"), &empty),
            ),
            (
                "delete /executors/{executor_id}",
                Request::new("DELETE", format!("/executors/other-{pool}")),
            ),
            (
                "post /executor/runs/claim",
                post("/executor/runs/claim".into(), &claim),
            ),
            (
                "post /executor/runs/{run_id}/heartbeat",
                under("heartbeat", json!({"wait_seconds": 3})),
            ),
            ("post /executor/runs/{run_id}/events", under("events", said)),
            (
                "post /executor/runs/{run_id}/approval",
                under("approval", ask),
            ),
            (
                "post /executor/runs/{run_id}/question",
                under("question", question_with_form),
            ),
            (
                "post /executor/runs/{run_id}/artifacts",
                under("artifacts", json!({"artifacts": [artifact]})),
            ),
            (
                "post /executor/runs/{run_id}/snapshot",
                under("snapshot", json!({"messages": [{"n": number}]})),
            ),
            (
                "post /executor/runs/{run_id}/tape",
                under("tape", json!({"tape_entries": [entry]})),
            ),
            (
                "post /executor/runs/{run_id}/release",
                under("release", empty.clone()),
            ),
            (
                "post /executor/runs/{run_id}/complete",
                under("complete", json!({"status": "completed"})),
            ),
            (
                "post /executor/leave",
                post("/executor/leave".into(), &json!({"executor_id": pool})),
            ),
            ("get /capabilities", get("/capabilities".into())),
            ("get /healthz", get("/healthz".into())),
            ("get /readyz", get("/readyz".into())),
        ]
    }
}

/// Sends requests of all kinds and never waits for an answer.
async fn leaving(address: SocketAddr, number: u64, stop: CancellationToken, mut rng: StdRng) {
    for round in 0.. {
        if stop.is_cancelled() {
            return;
        }
        // Of its own, so that no abandoned poll takes what the next round is to claim.
        let pool = format!("left-{number}-{round}");
        let target = Target::make(address, &pool).await;
        for _ in 0..40 {
            let requests = target.requests(&pool, &mut rng);
            let (_, request) = requests.choose(&mut rng).unwrap();
            // Too many connections of this machine in their last minute are no fault of the server.
            let _refused = leave_somewhere(request, address, &mut rng).await;
        }
    }
}

/// How many connections work at once: each waits for the lock of a session of its own.
async fn connections_at_work(server: &Server, sessions: &[String], database: &str) -> usize {
    let mut beside = Beside::database(database).await;
    let mut lock = Beside::database(database).await;
    lock.execute("BEGIN").await;
    let list: Vec<_> = sessions.iter().map(|id| format!("'{id}'")).collect();
    let statement = format!(
        "SELECT 1 FROM session_heads WHERE session_id IN ({}) FOR UPDATE",
        list.join(",")
    );
    lock.execute(&statement).await;
    let mut cancels = JoinSet::new();
    for session in sessions {
        let (address, path) = (server.address, format!("/sessions/{session}/cancel"));
        cancels.spawn(async move { Request::post(path, &json!({})).send(address).await });
    }
    // As many as there will be, before the first gives up.
    let (begun, mut most) = (Instant::now(), 0);
    while begun.elapsed() < LOCK / 2 {
        let waiting = beside.activity("wait_event_type = 'Lock'").await.len();
        most = most.max(waiting);
        sleep(Duration::from_millis(50)).await;
    }
    lock.execute("ROLLBACK").await;
    lock.close().await;
    let answers = async {
        while let Some(answer) = cancels.join_next().await {
            assert_eq!(answer.unwrap().ok()["status"], "idle");
        }
    };
    within("all are answered", LIMIT, answers).await;
    beside.close().await;
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_leave_anywhere_cost_no_connection() {
    let seed = Seed::of_this_run();
    let mut rng = seed.of(0);
    let place = Arc::new(Place::on_postgres().await);
    let server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    let database = place.database().url();
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(session_in(address, "idle").await);
    }
    let before = connections_at_work(&server, &sessions, database).await;
    assert!(before >= 4, "{before} connections");

    let target = Target::make(address, "all").await;
    let known = target.requests("all", &mut rng);
    let known: BTreeSet<_> = known.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(
        known,
        described(address).await,
        "an endpoint is missing here"
    );

    let mut crowd = Crowd::default();
    let world = World::of(&[address], 1, &crowd.stop);
    for number in 0..2 {
        crowd.add(Hand::new(world.clone(), number, seed.of(number + 1)).work());
    }
    for number in 0..LEAVERS {
        let (stop, rng) = (crowd.stop.clone(), seed.of(number + 101));
        crowd.add(leaving(address, number, stop, rng));
    }
    let begun = Instant::now();
    while begun.elapsed() < trouble(TROUBLE) {
        moment(&mut rng, 500..1_000).await;
        crowd.look();
    }
    crowd.end().await;
    let mut beside = Beside::database(database).await;
    let none = async || {
        let stuck = beside.activity("state LIKE 'idle in transaction%'").await;
        stuck.is_empty().then_some(())
    };
    eventually("no transaction is left open", LIMIT, none).await;
    let idle = async || {
        let busy = beside.activity("state <> 'idle'").await;
        busy.is_empty().then_some(())
    };
    eventually("nothing is at work for nobody", LIMIT, idle).await;
    let after = connections_at_work(&server, &sessions, database).await;
    assert_eq!(after, before, "connections were lost");
    for session in world.note(|ledger| ledger.sessions.clone()) {
        world.check_session(&session).await;
    }
    place.is_healthy(SCALE).await;
}

/// Every endpoint in the API's own description.
async fn described(address: SocketAddr) -> BTreeSet<String> {
    let document = Request::get("/openapi.json").send(address).await.ok();
    let mut found = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            if ["get", "post", "patch", "delete", "put"].contains(&method.as_str()) {
                found.insert(format!("{method} {path}"));
            }
        }
    }
    found
}
