//! Every hint is dropped (faults 19), within the servers and between them: all that people, executors
//! and followers wait for still comes, by the slow poll.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;

use crate::api::{self, Claim, is_terminal, prompt, session_in, session_of, text, words};
use crate::chaos::{Beside, Crowd};
use crate::http::{Request, events};
use crate::load::{Hand, World};
use crate::seed::Seed;
use crate::server::{ExecutorOptions, Place, Server, ServerOptions, executor};
use crate::wait::{eventually, within};

const LIMIT: Duration = Duration::from_secs(30);
/// A poll comes every half second (where hints arrive, every 5 s); the rest is for a busy machine.
const POLLED: Duration = Duration::from_secs(4);

/// One of two servers that hear nothing of each other, nor of themselves.
async fn deaf(place: &Arc<Place>, name: &'static str, scale: f64) -> Server {
    let options = ServerOptions {
        name: Some(name),
        drops_hints: true,
        scale: Some(scale),
        ..ServerOptions::default()
    };
    Server::start_with(place, options).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_is_waited_for_comes_without_any_hint() {
    let place = Arc::new(Place::on_postgres().await);
    let (a, b) = (deaf(&place, "a", 1.0).await, deaf(&place, "b", 1.0).await);
    let mut beside = Beside::database(place.database().url()).await;
    let ears = beside.activity("query ILIKE 'listen%'").await;
    assert!(ears.is_empty(), "somebody listens: {ears:?}");
    beside.close().await;

    // A held claim gets what is prompted, on its own instance and on the other.
    for (asks, prompts) in [(&a, &a), (&b, &a)] {
        let session = session_in(prompts.address, "held").await;
        let body = json!({"executor_id": "held", "pool": "held", "wait_seconds": 30});
        let (mut polls, address) = (JoinSet::new(), asks.address);
        let poll = Request::post("/executor/runs/claim", &body);
        polls.spawn(async move { poll.send(address).await });
        let known = async || (a.get("/executors/held").await.status == 200).then_some(());
        eventually("the poll is held", LIMIT, known).await;
        let (run, _) = prompt(prompts.address, &session, "go").await;
        let answer = within("the poll is answered", POLLED, polls.join_next()).await;
        let claim = Claim::of(answer.unwrap().unwrap().ok());
        assert_eq!(claim.run_id, run);
        claim.heartbeat(asks.address).await;

        // Followers on both see what the other takes.
        let follow = Request::get(format!("/sessions/{session}/events"));
        for (reads, writes) in [(&a, &b), (&b, &a), (&a, &a)] {
            let mut stream = follow.clone().open(reads.address).await;
            stream.until(|frame| frame.kind == "stream.live").await;
            let id = format!("{}-{}", reads.address, writes.address);
            claim.upload(writes.address, &[words(&id, "x")]).await;
            let reading = stream.until(|frame| frame.data["event_id"] == json!(id));
            within("the follower sees it", POLLED, reading).await;
        }

        // A held heartbeat hears of a cancel.
        let beat = claim.request("heartbeat", json!({"wait_seconds": 15}));
        let (mut beats, address) = (JoinSet::new(), asks.address);
        beats.spawn(async move { beat.send(address).await });
        let path = format!("/runs/{run}/cancel");
        prompts.post(&path, &json!({})).await.ok();
        let heard = within("the cancel is heard", POLLED, beats.join_next()).await;
        assert_eq!(heard.unwrap().unwrap().ok()["cancel_requested"], true);
        let end = claim.request("complete", json!({"status": "cancelled"}));
        end.send(asks.address).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_executor_hears_answers_and_cancels_without_any_hint() {
    let place = Arc::new(Place::on_postgres().await);
    let (a, b) = (deaf(&place, "a", 1.0).await, deaf(&place, "b", 1.0).await);
    let _executor = executor(&place, &a.url(), &ExecutorOptions::named("x1"));
    let session = session_of(b.address, &json!({"approval_policy": "interactive"})).await;
    let script = "ask edit {\"path\": \"x\"}; say after; hang";
    let (run, _) = prompt(b.address, &session, script).await;
    let asked = async || {
        let open = api::list(b.address, "/interactions?status=pending", "interactions").await;
        open.into_iter().next()
    };
    let question = eventually("the question is asked", LIMIT, asked).await;
    let path = format!(
        "/interactions/{}/resolve",
        text(&question, "interaction_id")
    );
    b.post(&path, &json!({"approved": true})).await.ok();
    let goes_on = async || {
        let log = api::log(b.address, &session).await;
        api::said(&log, &run).ends_with("after").then_some(())
    };
    eventually("the agent goes on", POLLED, goes_on).await;
    b.post(&format!("/runs/{run}/cancel"), &json!({}))
        .await
        .ok();
    let ended = async || {
        let run = api::run(b.address, &run).await;
        is_terminal(&run).then_some(run)
    };
    // Within 10 s, as with hints (rules R14).
    let ended = eventually("the run ends", Duration::from_secs(10), ended).await;
    assert_eq!(ended["status"], "cancelled");
    let mut stream = Request::get(format!("/sessions/{session}/events"))
        .open(a.address)
        .await;
    let seen = stream.until(|frame| frame.kind == "TurnEnd").await;
    assert_eq!(
        events(&seen).len(),
        api::log(b.address, &session).await.len()
    );
}

/// The load of the chaos tests, without any chaos but the silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_pair_of_servers_works_without_any_hint() {
    const SCALE: f64 = 0.2;
    let seed = Seed::of_this_run();
    let place = Arc::new(Place::on_postgres().await);
    let (a, b) = (
        deaf(&place, "a", SCALE).await,
        deaf(&place, "b", SCALE).await,
    );
    let mut crowd = Crowd::default();
    let world = World::of(&[a.address, b.address], 2, &crowd.stop);
    for number in 0..4 {
        crowd.add(Hand::new(world.clone(), number, seed.of(number)).work());
    }
    let enough = async || {
        crowd.look();
        world.note(|ledger| ledger.ends.len() >= 15).then_some(())
    };
    eventually("runs come to their ends", Duration::from_mins(1), enough).await;
    crowd.end().await;
    world.check_all().await;
    world.check_recovery().await;
    place.is_healthy(SCALE).await;
    eprintln!("{}", world.note(|ledger| ledger.size()));
}
