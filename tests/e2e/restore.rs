//! A restore is one transaction: whenever its server is killed, the session is as before or as
//! after, with all marks of it agreeing, and everything is kept for audit (I15).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::{self, Claim, prompt, session_in, text};
use crate::chaos::{Beside, moment, trouble};
use crate::database;
use crate::http::Request;
use crate::seed::Seed;
use crate::server::{Place, Server};
use crate::wait::eventually;

on_both_stores! {
    a_restore_is_before_or_after_whenever_the_server_is_killed,
}

/// How long servers are killed, starts included.
const TROUBLE: Duration = Duration::from_secs(15);
/// Kills at least, however slow the machine is.
const KILLS: u32 = 8;
const LIMIT: Duration = Duration::from_secs(30);
/// Runs that the restore puts aside, and entries besides those of the runs.
const TAIL_RUNS: u64 = 150;
const TAIL_ENTRIES: u64 = 900;

async fn turn(address: SocketAddr, session: &str, number: u64) -> Claim {
    prompt(address, session, &format!("prompt {number}")).await;
    let claim = Claim::take(address, "tail").await;
    let said = [api::words("e1", &format!("answer {number}"))];
    claim.upload(address, &said).await;
    claim
}

async fn capture(address: SocketAddr, session: &str, label: &str) -> String {
    let path = format!("/sessions/{session}/checkpoints");
    let captured = Request::post(path, &json!({"label": label}));
    text(&captured.send(address).await.ok(), "checkpoint_id")
}

async fn configure(address: SocketAddr, session: &str, model: &str) {
    let path = format!("/sessions/{session}/runtime-config");
    let body = json!({"model": model}).to_string();
    let set = Request::new("PATCH", path).body(body);
    set.send(address).await.ok();
}

/// A session with a place near its beginning and a long way after it; gives both.
async fn long_session(address: SocketAddr) -> (String, String) {
    let session = session_in(address, "tail").await;
    configure(address, &session, "early").await;
    for number in 0..3 {
        turn(address, &session, number)
            .await
            .complete(address)
            .await;
    }
    let checkpoint = capture(address, &session, "place").await;
    configure(address, &session, "late").await;
    for number in 0..TAIL_RUNS {
        let claim = turn(address, &session, number).await;
        if number == TAIL_RUNS / 2 {
            let entry =
                |n| json!({"kind": "assistant_message", "payload": {"text": format!("{n}")}});
            let entries: Vec<_> = (0..TAIL_ENTRIES).map(entry).collect();
            let tape = claim.request("tape", json!({"tape_entries": entries}));
            tape.send(address).await.ok();
        }
        claim.complete(address).await;
        if number % 50 == 0 {
            capture(address, &session, &format!("place {number}")).await;
        }
    }
    (session, checkpoint)
}

fn restore(session: &str, checkpoint: &str, key: u32) -> Request {
    let path = format!("/sessions/{session}/checkpoints/{checkpoint}/restore");
    Request::post(path, &json!({})).header("idempotency-key", format!("restore-{key}"))
}

/// Everything that a restore changes.
async fn marks(place: &Place, address: SocketAddr, session: &str) -> Value {
    let mut shown = Request::get(format!("/sessions/{session}"))
        .send(address)
        .await
        .ok();
    for time in ["updated_at", "last_activity_at"] {
        shown.as_object_mut().unwrap().remove(time).unwrap();
    }
    // Any write makes the lease longer, and so does the credit for an outage.
    shown["owner"]["expires_at"] = Value::Null;
    let all = "include_superseded=true";
    let marked = |items: Vec<Value>, id: &str| -> Vec<Value> {
        let mark = |item: &Value| {
            let has_time = item.get("superseded_at").is_some_and(Value::is_string);
            let by = &item["superseded_by_checkpoint_id"];
            // Entries have no time; everything else has both or none.
            assert!(item.get("superseded_at").is_none() || has_time == by.is_string());
            json!([item[id], by])
        };
        items.iter().map(mark).collect()
    };
    let path = format!("/sessions/{session}/runs?{all}");
    let runs = marked(api::list(address, &path, "runs").await, "run_id");
    let path = format!("/sessions/{session}/checkpoints?{all}");
    let places = api::list(address, &path, "checkpoints").await;
    let places = marked(places, "checkpoint_id");
    let entries = marked(api::tape(address, session).await, "entry_id");
    let log = api::log(address, session).await;
    api::assert_dense(&log);
    let newest = log.last().unwrap();
    let newest = json!([newest["kind"], newest["payload"]]);
    json!({
        "session": shown, "runs": runs, "checkpoints": places, "entries": entries,
        "log": [log.len(), newest], "epoch": epoch(place).await,
    })
}

async fn epoch(place: &Place) -> String {
    let statement = "SELECT CAST(projection_epoch AS text) FROM session_heads";
    let found = match place.postgres() {
        Some(database) => {
            let mut beside = Beside::database(database.url()).await;
            let found = beside.texts(statement).await;
            beside.close().await;
            found
        }
        None => database::look(&place.data(), statement).await,
    };
    let [epoch] = found.try_into().unwrap();
    epoch
}

/// What a killed server has begun is over: on PostgreSQL that may take a moment longer.
async fn is_over(place: &Place) {
    let Some(database) = place.postgres() else {
        return;
    };
    let mut beside = Beside::database(database.url()).await;
    let none = async || beside.activity("true").await.is_empty().then_some(());
    eventually("the killed server's connections end", LIMIT, none).await;
    beside.close().await;
}

async fn a_restore_is_before_or_after_whenever_the_server_is_killed(source: Arc<Place>) {
    let seed = Seed::of_this_run();
    let mut rng = seed.of(0);
    let mut server = Server::start(&source).await;
    let (session, checkpoint) = long_session(server.address).await;
    let before = marks(&source, server.address, &session).await;
    server.process.terminate(LIMIT).await;

    // Undisturbed first: what it looks like after, and how long it takes.
    let place = Arc::new(source.copy().await);
    let server = Server::start(&place).await;
    let begun = Instant::now();
    let request = restore(&session, &checkpoint, 0);
    request.send(server.address).await.ok();
    let takes = u64::try_from(begun.elapsed().as_millis()).unwrap().max(2);
    let after = marks(&place, server.address, &session).await;
    assert_eq!(after["session"]["model"], "early");
    assert_eq!(after["log"][1][0], "SessionRestored");
    assert_eq!(after["log"][1][1]["superseded_runs"], TAIL_RUNS);
    assert_eq!(
        after["runs"].as_array().unwrap().len() as u64,
        3 + TAIL_RUNS
    );
    place.is_healthy(1.0).await;
    drop(server);

    let begun = Instant::now();
    let (mut kills, mut befores, mut unanswered) = (0, 0, 0);
    let mut place = Arc::new(source.copy().await);
    let mut server = Server::start(&place).await;
    while kills < KILLS || begun.elapsed() < trouble(TROUBLE) {
        kills += 1;
        let request = restore(&session, &checkpoint, kills);
        let address = server.address;
        let (answer, ()) = tokio::join!(request.try_send(address), async {
            moment(&mut rng, 0..takes * 13 / 10).await;
            server.process.kill().await;
        });
        is_over(&place).await;
        server.restart().await;
        let found = marks(&place, server.address, &session).await;
        let has_happened = found["session"]["head_seq"] != before["session"]["head_seq"];
        let expected = if has_happened { &after } else { &before };
        for part in ["session", "runs", "checkpoints", "entries", "log", "epoch"] {
            assert_eq!(found[part], expected[part], "{part} after kill {kills}");
        }
        match answer {
            Ok(answer) => {
                answer.ok();
                assert!(has_happened, "an acknowledged restore is there");
            }
            Err(_) => unanswered += 1,
        }
        if !has_happened {
            befores += 1;
            continue;
        }
        // Sent again, it is the same restore.
        if rng.random_bool(0.3) {
            request.send(server.address).await.ok();
            let again = marks(&place, server.address, &session).await;
            assert_eq!(again["log"], after["log"], "put back a second time");
        }
        place.is_healthy(1.0).await;
        place = Arc::new(source.copy().await);
        server = Server::start(&place).await;
    }
    eprintln!("{kills} kills around {takes} ms: {befores} before, {unanswered} without an answer");
    assert!(unanswered > 0, "no kill came in time");
}
