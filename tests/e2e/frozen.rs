//! Processes that stop for longer than a lease and then go on as if nothing had happened: a frozen
//! executor has lost its run for good, a frozen server does no harm (faults 5, 6; rules R6, R13).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Claim, prompt, session_in, session_of, text, words};
use crate::chaos::{Beside, Crowd, Tap};
use crate::http::{Answer, Frame, Request, events};
use crate::server::{
    ExecutorOptions, Place, Server, ServerOptions, executor, none_marked, processes_marked,
};
use crate::wait::{eventually, within};

on_both_stores! {
    a_frozen_executor_is_refused_everywhere_and_leaves_no_process,
    a_frozen_server_that_is_alone_takes_no_run_from_its_executor,
}

/// A lease of 10 s is 2 s, the sweep's period 1 s.
const SCALE: f64 = 0.2;
/// Longer than that lease, and than the gap that nobody has to be credited.
const FROZEN: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(30);
/// What a server that goes on needs to answer what it has held.
const SOON: Duration = Duration::from_secs(10);

/// Renews until it is told to stop, as an executor that is well does.
async fn renewing(claim: Claim, address: SocketAddr, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let beat = claim.heartbeat(address).await;
        assert_eq!(
            (&beat["status"], &beat["attempt"]),
            (&json!("running"), &json!(1))
        );
        sleep(Duration::from_millis(300)).await;
    }
}

async fn a_frozen_executor_is_refused_everywhere_and_leaves_no_process(place: Arc<Place>) {
    let server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    let tap = Tap::before(address).await;
    let url = format!("http://{}", tap.address);
    let worker = executor(&place, &url, &ExecutorOptions::named("x1"));
    let session = session_in(address, "default").await;
    let (run, _) = prompt(address, &session, "say begin; spawn; slow 300").await;
    api::has_said(address, &session, &run, "tick 1\n").await;
    let mark = format!("TAPEDECK_RUN={run}");
    assert!(processes_marked(&mark).len() >= 2);
    let token = tap.texts("claim_token").pop().unwrap();
    let stolen = Claim {
        run_id: run.clone(),
        session_id: session.clone(),
        executor_id: "x1".to_owned(),
        token,
        answer: Value::Null,
    };
    // It is the token that the executor works with.
    stolen.heartbeat(address).await;

    worker.signal(Signal::SIGSTOP);
    let ended = api::settled(address, &run).await;
    assert_eq!(
        (&ended["status"], &ended["attempt"]),
        (&json!("interrupted"), &json!(1))
    );
    none_marked(&mark, LIMIT).await;
    let (again, _) = prompt(address, &session, "say awake").await;
    let before = api::log(address, &session).await;
    let tape = json!([{"kind": "assistant_message", "payload": {"text": "late"}}]);
    for (action, body) in [
        ("heartbeat", json!({})),
        ("events", json!({"events": [words("late", "late")]})),
        (
            "approval",
            json!({"request_id": "late", "tool_name": "t", "wait_seconds": 0}),
        ),
        ("snapshot", json!({"messages": [{"role": "user"}]})),
        ("tape", json!({"tape_entries": tape})),
        ("release", json!({})),
        ("complete", json!({"status": "completed"})),
    ] {
        let refused = stolen.request(action, body).send(address).await.problem();
        assert_eq!(refused.0, 409, "{action}: {refused:?}");
        let known = ["run_settled", "claim_lost"].contains(&refused.1.as_str());
        assert!(known, "{action}: {refused:?}");
    }
    assert_eq!(api::log(address, &session).await, before);
    worker.signal(Signal::SIGCONT);
    // It learns of its loss and works on; nothing of the old run is written any more.
    assert_eq!(api::settled(address, &again).await["status"], "completed");
    let log = api::log(address, &session).await;
    let later = &log[before.len()..];
    assert!(
        later.iter().all(|event| event["run_id"] == json!(again)),
        "{later:?}"
    );
    let ends = |run: &str| {
        let ends = log.iter().filter(|event| event["kind"] == "TurnEnd");
        ends.filter(|event| event["run_id"] == json!(run)).count()
    };
    assert_eq!((ends(&run), ends(&again)), (1, 1));
    assert_eq!(
        api::run(address, &run).await,
        ended,
        "settled once and for all"
    );
    place.is_healthy(SCALE).await;
}

/// A session whose questions wait for people, with a claimed run.
async fn interactive(address: SocketAddr, pool: &str) -> Claim {
    let target = json!({"executor": {"pool": pool}});
    let body = json!({"run_target": target, "approval_policy": "interactive"});
    let session = session_of(address, &body).await;
    prompt(address, &session, "ask").await;
    Claim::take(address, pool).await
}

/// Sends something in the background.
fn send(held: &mut JoinSet<Answer>, request: Request, to: SocketAddr) {
    held.spawn(async move { request.send(to).await });
}

async fn a_frozen_server_that_is_alone_takes_no_run_from_its_executor(place: Arc<Place>) {
    let server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    let claim = interactive(address, "alone").await;
    let said: Vec<_> = (0..5).map(|n| words(&format!("e{n}"), "word ")).collect();
    claim.upload(address, &said).await;
    let follow = Request::get(format!("/sessions/{}/events", claim.session_id));
    let mut stream = follow.open(address).await;
    let mut seen = stream.until(|frame| frame.data["event_id"] == "e4").await;
    let question = json!({"request_id": "q1", "tool_name": "edit", "timeout_seconds": 3600});
    let asking = claim.request("approval", question);
    let mut asked = JoinSet::new();
    send(&mut asked, asking, address);
    let is_asked = async || {
        let open = api::list(address, "/interactions?status=pending", "interactions").await;
        open.into_iter().next()
    };
    let question = eventually("the question is open", LIMIT, is_asked).await;
    claim.heartbeat(address).await;

    server.process.signal(Signal::SIGSTOP);
    // The executor goes on sending; a frozen server takes connections and answers nobody.
    let mut sent = JoinSet::new();
    send(&mut sent, claim.request("heartbeat", json!({})), address);
    let more = json!({"events": [words("during", "during the freeze")]});
    send(&mut sent, claim.request("events", more), address);
    // The freeze itself.
    sleep(FROZEN).await;
    assert!(sent.try_join_next().is_none(), "a frozen server answers");
    server.process.signal(Signal::SIGCONT);
    while let Some(answer) = within("what was sent is answered", SOON, sent.join_next()).await {
        answer.unwrap().ok();
    }
    let beat = claim.heartbeat(address).await;
    assert_eq!(
        (&beat["status"], &beat["attempt"]),
        (&json!("running"), &json!(1))
    );
    let path = format!(
        "/interactions/{}/resolve",
        text(&question, "interaction_id")
    );
    server.post(&path, &json!({"approved": true})).await.ok();
    let heard = within("the question is answered", SOON, asked.join_next()).await;
    assert_eq!(heard.unwrap().unwrap().ok()["approved"], true);
    assert_eq!(claim.complete(address).await["attempt"], 1);
    seen.extend(stream.until(|frame| frame.kind == "TurnEnd").await);
    assert_same(&seen, &api::log(address, &claim.session_id).await);
    place.is_healthy(SCALE).await;
}

/// What was seen is the log, every event once and in order; and no lease was judged lost.
#[track_caller]
fn assert_same(seen: &[Frame], log: &[Value]) {
    api::assert_dense(log);
    let of_log: Vec<_> = log
        .iter()
        .map(|event| (event["session_seq"].as_u64(), &event["event_id"]))
        .collect();
    let seen = events(seen);
    let of_seen: Vec<_> = seen
        .iter()
        .map(|frame| (frame.id, &frame.data["event_id"]))
        .collect();
    assert_eq!(of_seen, of_log);
    assert!(log.iter().all(|event| event["kind"] != "RunLeaseExpired"));
}

async fn instance(place: &Arc<Place>, name: &'static str) -> Server {
    let options = ServerOptions {
        name: Some(name),
        scale: Some(SCALE),
        ..ServerOptions::default()
    };
    Server::start_with(place, options).await
}

/// Stops a server where it holds no lock: the database takes that away from it only after 10 s, a
/// time that is not scaled as the leases of this test are.
async fn freeze_between_transactions(server: &Server, place: &Place) {
    let mut beside = Beside::database(place.database().url()).await;
    let held = "state LIKE 'idle in transaction%' \
        AND clock_timestamp() - state_change > interval '200 ms'";
    let frozen = async || {
        server.process.signal(Signal::SIGSTOP);
        sleep(Duration::from_millis(300)).await;
        if beside.activity(held).await.is_empty() {
            return Some(());
        }
        server.process.signal(Signal::SIGCONT);
        None
    };
    eventually(
        "the server stands still between transactions",
        LIMIT,
        frozen,
    )
    .await;
    beside.close().await;
}

/// While one server stands still the other one takes over all it does; when it goes on it judges
/// nothing by what it knew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_beside_another_does_no_harm() {
    let place = Arc::new(Place::on_postgres().await);
    let (frozen, alive) = (instance(&place, "a").await, instance(&place, "b").await);
    let (at, to) = (frozen.address, alive.address);
    // A run that is well, with a follower and a question held by the server that will stand still.
    let claim = api::spoken(&frozen, "well", 5).await;
    let follow = Request::get(format!("/sessions/{}/events", claim.session_id));
    let mut stream = follow.open(at).await;
    let mut seen = stream.until(|frame| frame.data["event_id"] == "e4").await;
    let mut asked = JoinSet::new();
    let question = json!({"request_id": "q1", "tool_name": "edit", "timeout_seconds": 3600});
    let talks = interactive(to, "talks").await;
    send(&mut asked, talks.request("approval", question), at);
    let is_asked = async || {
        let open = api::list(to, "/interactions?status=pending", "interactions").await;
        open.into_iter().next()
    };
    let question = eventually("the question is open", LIMIT, is_asked).await;
    // A run whose executor will be silent, and a poll without work.
    let silent = api::spoken(&frozen, "silent", 1).await;
    let (heard, body) = (
        &mut JoinSet::new(),
        json!({"executor_id": "waits", "pool": "late", "wait_seconds": 60}),
    );
    send(heard, Request::post("/executor/runs/claim", &body), at);
    let known = async || {
        let path = "/executors/waits";
        (Request::get(path).send(to).await.status == 200).then_some(())
    };
    eventually("the poll is held", LIMIT, known).await;

    let mut well = Crowd::default();
    for claim in [&claim, &talks] {
        well.add(renewing(claim.clone(), to, well.stop.clone()));
    }
    freeze_between_transactions(&frozen, &place).await;
    // Sent to it while it stands still: it will look at it only later.
    let mut sent = JoinSet::new();
    send(&mut sent, silent.request("heartbeat", json!({})), at);
    // The freeze itself.
    sleep(FROZEN).await;
    let lost = api::settled(to, &silent.run_id).await;
    assert_eq!(lost["status"], "interrupted", "the other one sweeps");
    let path = format!(
        "/interactions/{}/resolve",
        text(&question, "interaction_id")
    );
    alive.post(&path, &json!({"approved": true})).await.ok();
    claim
        .upload(to, &[words("during", "during the freeze")])
        .await;
    let late = session_in(to, "late").await;
    let (late_run, _) = prompt(to, &late, "go").await;
    frozen.process.signal(Signal::SIGCONT);
    well.end().await;

    let answer = within("the silent one is told", SOON, sent.join_next()).await;
    let told = answer.unwrap().unwrap().problem();
    assert_eq!(told, (409, "run_settled".to_owned()));
    assert_eq!(api::run(at, &silent.run_id).await, lost);
    let answer = within("the question is answered", SOON, asked.join_next()).await;
    assert_eq!(answer.unwrap().unwrap().ok()["approved"], true);
    // The poll has the run, or its time was over meanwhile and the run waits for another one.
    let answer = within("the poll is answered", SOON, heard.join_next()).await;
    let answer = answer.unwrap().unwrap();
    let late_claim = if answer.status == 200 {
        Claim::of(answer.json())
    } else {
        assert_eq!(answer.problem(), (404, "no_run_available".to_owned()));
        Claim::take(at, "late").await
    };
    assert_eq!(late_claim.run_id, late_run);
    late_claim.complete(at).await;
    for claim in [&claim, &talks] {
        assert_eq!(claim.heartbeat(at).await["attempt"], 1);
        assert_eq!(claim.complete(at).await["status"], "completed");
    }
    seen.extend(stream.until(|frame| frame.kind == "TurnEnd").await);
    assert_same(&seen, &api::log(at, &claim.session_id).await);
    place.is_healthy(SCALE).await;
}
