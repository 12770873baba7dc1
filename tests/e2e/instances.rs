//! Several servers on one PostgreSQL database: any of them serves any session, and none is needed.
//! What one of them was told, the others know; what followers see doesn't depend on whom they ask.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::api::{self, Claim, is_terminal, prompt, session_in, session_of, text, words};
use crate::http::{Frame, Frames, Request, events};
use crate::postgres::{Cluster, ClusterOptions};
use crate::server::{ExecutorOptions, Place, Server, ServerOptions, executor};
use crate::wait::{eventually, within};

const LIMIT: Duration = Duration::from_secs(30);
/// What a surviving instance answers within, and what news takes to the other instance. A lost hint
/// is made up for after 5 s; nothing is lost here.
const AT_ONCE: Duration = Duration::from_secs(3);

async fn on_postgres() -> Arc<Place> {
    Arc::new(Place::on_postgres().await)
}

async fn instance(place: &Arc<Place>, name: &'static str) -> Server {
    let options = ServerOptions {
        name: Some(name),
        ..ServerOptions::default()
    };
    Server::start_with(place, options).await
}

async fn pair(place: &Arc<Place>) -> (Server, Server) {
    (instance(place, "a").await, instance(place, "b").await)
}

fn follow(session: &str, seen: &[Frame]) -> Request {
    let request = Request::get(format!("/sessions/{session}/events"));
    match seen.iter().filter_map(|frame| frame.id).next_back() {
        Some(last) => request.header("last-event-id", last.to_string()),
        None => request,
    }
}

async fn until_event(frames: &mut Frames, id: &str, what: &str) -> Vec<Frame> {
    let reading = frames.until(|frame| frame.data["event_id"] == id);
    within(what, AT_ONCE, reading).await
}

/// What was seen is the log: every event once, in order.
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_instance_goes_on_at_once_when_the_other_is_killed() {
    let place = on_postgres().await;
    let (mut a, b) = pair(&place).await;
    let session = session_in(a.address, "pair").await;
    prompt(a.address, &session, "talk").await;
    let claim = Claim::take(b.address, "pair").await;
    assert_eq!(claim.session_id, session);
    claim.heartbeat(b.address).await;
    // One follower on each; the writer tells the other instance every time.
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    let mut stream_a = follow(&session, &at_a).open(a.address).await;
    let mut stream_b = follow(&session, &at_b).open(b.address).await;
    claim.upload(b.address, &[words("b1", "by b")]).await;
    at_a.extend(until_event(&mut stream_a, "b1", "a's follower sees what b took").await);
    claim.upload(a.address, &[words("a1", "by a")]).await;
    at_b.extend(until_event(&mut stream_b, "a1", "b's follower sees what a took").await);

    a.process.kill().await;
    let survivor = b.address;
    let going_on = async {
        claim.upload(survivor, &[words("b2", "still here")]).await;
        assert_eq!(claim.heartbeat(survivor).await["status"], "running");
        let other = session_in(survivor, "pair").await;
        prompt(survivor, &other, "more").await;
        let next = Claim::take(survivor, "pair").await;
        assert_eq!(next.session_id, other);
    };
    within("the other goes on", AT_ONCE, going_on).await;
    claim.complete(survivor).await;

    at_a.extend(stream_a.rest().await);
    let mut moved = follow(&session, &at_a).open(survivor).await;
    at_a.extend(moved.until(|frame| frame.kind == "TurnEnd").await);
    at_b.extend(stream_b.until(|frame| frame.kind == "TurnEnd").await);
    let log = api::log(survivor, &session).await;
    assert_same(&at_a, &log);
    assert_same(&at_b, &log);
    let changes = log.iter().filter(|event| event["kind"] == "OwnerChanged");
    assert_eq!(changes.count(), 0, "a dead instance is no lost owner");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_on_one_instance_gets_what_comes_on_the_other() {
    let place = on_postgres().await;
    let (a, b) = pair(&place).await;
    let session = session_in(a.address, "far").await;
    let body = json!({"executor_id": "waiting", "pool": "far", "wait_seconds": 30});
    let mut polls = JoinSet::new();
    let address = b.address;
    polls.spawn(async move {
        Request::post("/executor/runs/claim", &body)
            .send(address)
            .await
    });
    let known = async || {
        let executors = api::list(a.address, "/executors", "executors").await;
        (!executors.is_empty()).then_some(())
    };
    eventually("the poll is held", LIMIT, known).await;
    let (run, _) = prompt(a.address, &session, "go").await;
    let answer = within("the poll is answered", AT_ONCE, polls.join_next()).await;
    let claim = Claim::of(answer.unwrap().unwrap().ok());
    assert_eq!(claim.run_id, run);
    // A cancel that one instance takes is told by the other's next heartbeat answer.
    claim.heartbeat(b.address).await;
    let cancel = a.post(&format!("/runs/{run}/cancel"), &json!({})).await;
    cancel.ok();
    let told = claim.heartbeat(b.address).await;
    assert_eq!(told["cancel_requested"], true, "{told}");
}

/// Follows from one instance to the other, back and forth, until the run's end was seen.
async fn follow_around(session: String, addresses: [SocketAddr; 2], frames: usize) -> Vec<Frame> {
    let mut seen: Vec<Frame> = Vec::new();
    for turn in 0.. {
        // A killed instance refuses or breaks off; its place is taken by the next turn.
        let asked = follow(&session, &seen).try_open(addresses[turn % 2]).await;
        let Ok(mut stream) = asked else { continue };
        for _ in 0..frames {
            let Some(frame) = stream.next().await else {
                break;
            };
            let is_end = frame.kind == "TurnEnd";
            seen.push(frame);
            if is_end {
                return seen;
            }
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_changes_instances_sees_every_event_once_in_order() {
    let place = on_postgres().await;
    let (mut a, b) = pair(&place).await;
    let addresses = [a.address, b.address];
    let claim = api::spoken(&b, "around", 50).await;
    let mut followers = JoinSet::new();
    for frames in 3..9 {
        followers.spawn(follow_around(claim.session_id.clone(), addresses, frames));
    }
    for number in 50..250 {
        let event = [words(&format!("e{number}"), &format!("{number}\n"))];
        let to = if number % 2 == 0 || number > 120 {
            b.address
        } else {
            a.address
        };
        claim.upload(to, &event).await;
        if number == 120 {
            a.process.kill().await;
        }
        if number == 180 {
            a.restart().await;
        }
    }
    claim.complete(b.address).await;
    let log = api::log(a.address, &claim.session_id).await;
    while let Some(seen) = within("followers end", LIMIT, followers.join_next()).await {
        assert_same(&seen.unwrap(), &log);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_reaches_the_executor_through_the_other_instance() {
    let place = on_postgres().await;
    let (a, b) = pair(&place).await;
    // Its question is a held request on this instance alone.
    let _executor = executor(&place, &a.url(), &ExecutorOptions::named("x1"));
    let session = session_of(b.address, &json!({"approval_policy": "interactive"})).await;
    let script = "ask edit {\"path\": \"x\"}; say after";
    let (run, _) = prompt(b.address, &session, script).await;
    let asked = async || {
        let path = "/interactions?status=pending";
        let pending = api::list(b.address, path, "interactions").await;
        pending.into_iter().next()
    };
    let question = eventually("the question is asked", LIMIT, asked).await;
    let id = text(&question, "interaction_id");
    let answer = b
        .post(
            &format!("/interactions/{id}/resolve"),
            &json!({"approved": true}),
        )
        .await;
    assert_eq!(answer.ok()["status"], "approved");
    let ended = async || {
        let run = api::run(b.address, &run).await;
        is_terminal(&run).then_some(run)
    };
    // Far less than the held request would wait.
    let ended = eventually("the run ends", 2 * AT_ONCE, ended).await;
    assert_eq!(ended["status"], "completed");
    // The first instance knows the answer and takes no other.
    let other = json!({"approved": false});
    let refused = a.post(&format!("/interactions/{id}/resolve"), &other).await;
    assert_eq!(refused.problem(), (409, "already_resolved".to_owned()));
    let log = api::log(a.address, &session).await;
    assert!(api::said(&log, &run).ends_with("after"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_goes_on_when_its_database_is_back() {
    let cluster = Cluster::own(ClusterOptions::default()).await;
    let place = Arc::new(Place::on_cluster(&cluster).await);
    let server = instance(&place, "a").await;
    let address = server.address;
    let claim = api::spoken(&server, "away", 10).await;
    let is_ready = async |status: u16| {
        let ready = async || (server.get("/readyz").await.status == status).then_some(());
        eventually("/readyz tells", LIMIT, ready).await;
    };
    for round in 0..3 {
        let id = format!("r{round}");
        match round {
            0 => cluster.stop().await,
            1 => cluster.kill().await,
            _ => assert!(cluster.terminate_backends(place.database().name()).await > 0),
        }
        if round < 2 {
            is_ready(503).await;
            let upload = claim.request("events", json!({"events": [words(&id, "more")]}));
            let refused = upload.send(address).await;
            assert_eq!(refused.problem(), (503, "unavailable".to_owned()));
            cluster.start().await;
        }
        is_ready(200).await;
        claim.upload(address, &[words(&id, "more")]).await;
    }
    claim.complete(address).await;
    let log = api::log(address, &claim.session_id).await;
    api::assert_dense(&log);
    assert!(api::said(&log, &claim.run_id).ends_with("9\nmoremoremore"));

    let port = place.database().url().rsplit(':').next().unwrap();
    let port: u16 = port.split('/').next().unwrap().parse().unwrap();
    drop(cluster);
    let gone = async || std::net::TcpStream::connect(("127.0.0.1", port)).err();
    eventually("the database ends with the test", LIMIT, gone).await;
}

/// The password in a database's URL.
fn password(url: &str) -> String {
    let (_, rest) = url.split_once("://").unwrap();
    let (user, _) = rest.split_once('@').unwrap();
    user.split_once(':').unwrap().1.to_owned()
}

#[tokio::test]
async fn the_password_of_a_database_is_shown_nowhere() {
    let place = on_postgres().await;
    let mut server = instance(&place, "a").await;
    let url = place.database().url().to_owned();
    let secret = password(&url);
    let mut texts = vec![
        server.get("/healthz").await.text(),
        server.get("/readyz").await.text(),
        server.get("/openapi.json").await.text(),
    ];
    server.process.terminate(LIMIT).await;
    assert!(server.process.log().contains("serve.ready"));
    texts.push(server.process.log());
    for arguments in [&["config", "show"][..], &["config", "show", "--json"]] {
        let arguments = [arguments, &["--database", &url]].concat();
        let shown = place.run(&arguments).await.exits(0);
        assert!(shown.out.contains(place.database().name()), "{}", shown.out);
        texts.push(shown.out + &shown.err);
    }
    // No such database, a wrong password, nobody there: the reason is told without the URL.
    let wrong = url.replace(&secret, "s3cret");
    let nowhere = url.replace(place.database().name(), "no_such_database");
    let nobody = format!("postgres://u:{secret}@127.0.0.1:1/d");
    for (url, code) in [(&wrong, 5), (&nowhere, 3), (&nobody, 5)] {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--database", url];
        let failed = place.run(&serve).await.exits(code);
        assert!(!failed.err.is_empty());
        texts.push(failed.out + &failed.err);
    }
    for text in texts {
        assert!(
            !text.contains(&secret) && !text.contains("s3cret"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_server_has_one_database() {
    let place = Place::new();
    let data = place.data();
    let data = data.to_str().unwrap();
    let both = [
        "serve",
        "--data-dir",
        data,
        "--database",
        "postgres://u:s3cret@h/d",
    ];
    let refused = place.run(&both).await.exits(2);
    assert!(refused.err.contains("`--data-dir` and `--database`"));
    assert!(!refused.err.contains("s3cret"));
    // Other commands are clients of some server, and say so.
    let list = ["sessions", "list", "--database", "postgres://u:s3cret@h/d"];
    let refused = place.run(&list).await.exits(2);
    assert!(refused.err.contains("--server") && !refused.err.contains("s3cret"));
    assert!(is_empty(&place.data()), "nothing is made meanwhile");
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}
