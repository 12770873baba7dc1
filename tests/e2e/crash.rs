//! The promise that nothing acknowledged is lost: the server and an executor are killed again and
//! again under load, and everything a client was ever told must still be so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::{self, Claim, is_terminal, seq, text};
use crate::database;
use crate::http::Request;
use crate::load::{Hand, POOL, World, expected_words, prompting};
use crate::server::{ExecutorOptions, Place, Server, executor};
use crate::wait::eventually;

/// How often something is killed.
const ROUNDS: u32 = 50;
/// Leases of 10 s last 2 s, and the sweep comes every second.
const SCALE: f64 = 0.2;
/// Clients that play executors.
const HANDS: u64 = 6;
/// Clients of the real executor.
const CLIENTS: u64 = 2;
/// For a run to be settled or offered again after all that: lease, sweep, back-off, and a machine
/// that has other things to do.
const RECOVERY: Duration = Duration::from_secs(20);

/// Everything that clients were told about a session is so.
async fn check_session(world: &World, session: &str) {
    // What was told first, then the log: clients may still be at work.
    let (told, seen, runs) = world.note(|ledger| {
        let told = ledger.events.get(session).cloned().unwrap_or_default();
        let seen = ledger.seen.get(session).cloned().unwrap_or_default();
        (told, seen, ledger.runs.clone())
    });
    let log = api::log(world.address, session).await;
    api::assert_dense(&log);
    let record = |seq: u64| &log[usize::try_from(seq).unwrap() - 1];
    let mut last = 0;
    for event in &told {
        assert_eq!(
            event,
            record(seq(event)),
            "an acknowledged event is there unchanged"
        );
        assert!(seq(event) > last, "acknowledged events keep their order");
        last = seq(event);
    }
    for (expected, (id, data)) in (1..).zip(&seen) {
        assert_eq!(
            *id, expected,
            "a follower sees every event once and in order"
        );
        assert_eq!(
            data["event_id"],
            record(*id)["event_id"],
            "no number was shown and used again"
        );
        assert_eq!(data["type"], record(*id)["kind"]);
    }
    let terminal = |run: &str| {
        log.iter()
            .filter(|event| event["kind"] == "TurnEnd" && event["run_id"] == run)
            .count()
    };
    for (_, run, at) in runs.iter().filter(|(of, _, _)| of == session) {
        assert_eq!(
            (&record(*at)["kind"], &record(*at)["run_id"]),
            (&json!("RunRequested"), &json!(run))
        );
        assert!(terminal(run) <= 1, "a run has one terminal event");
    }
}

/// Everything else that clients were told.
async fn check_rest(world: &World) {
    let address = world.address;
    let (sessions, runs, ends, questions) = world.note(|ledger| {
        (
            ledger.sessions.clone(),
            ledger.runs.clone(),
            ledger.ends.clone(),
            ledger.questions.clone(),
        )
    });
    let found: Vec<_> = api::list(address, "/sessions", "sessions").await;
    let found: Vec<_> = found
        .iter()
        .map(|session| text(session, "session_id"))
        .collect();
    for session in &sessions {
        assert_eq!(
            found.iter().filter(|id| *id == session).count(),
            1,
            "session {session}"
        );
    }
    let found = api::list(address, "/runs", "runs").await;
    let found: HashMap<_, _> = found.iter().map(|run| (text(run, "run_id"), run)).collect();
    assert_eq!(
        found.len(),
        runs.len(),
        "no run exists that nobody was told of"
    );
    for (session, run, _) in &runs {
        assert_eq!(&text(found[run], "session_id"), session);
    }
    for (run, status) in &ends {
        assert_eq!(
            &text(found[run], "status"),
            status,
            "an acknowledged end stays"
        );
    }
    let found = api::list(address, "/interactions", "interactions").await;
    let found: HashMap<_, _> = found
        .iter()
        .map(|question| (text(question, "interaction_id"), question))
        .collect();
    for (question, status) in &questions {
        let now = text(found[question], "status");
        assert!(
            *status == now || status == "pending",
            "{question} was {status} and is {now}"
        );
    }
}

/// Every run gets to its end or to an executor that asks, and every session takes a prompt.
async fn check_recovery(world: &World) {
    let address = world.address;
    let settled = async || {
        let runs = api::list(address, "/runs", "runs").await;
        let stuck = runs
            .iter()
            .filter(|run| !is_terminal(run) && run["status"] != "requested");
        (stuck.count() == 0).then_some(runs)
    };
    let runs = eventually("every run is settled or claimable", RECOVERY, settled).await;
    for run in runs.iter().filter(|run| run["status"] == "requested") {
        let session = Request::get(format!("/sessions/{}", text(run, "session_id")));
        let session = session.send(address).await.ok();
        let pool = text(&session["run_target"]["executor"], "pool");
        let claim = Claim::take(address, &pool).await;
        claim.complete(address).await;
    }
    for session in world.note(|ledger| ledger.sessions.clone()) {
        let (_, at) = api::prompt(address, &session, "still there?").await;
        let log = api::log(address, &session).await;
        assert_eq!(log.len() as u64, at, "the session takes a prompt");
    }
}

/// The real executor's completed runs lost nothing of what their agents said.
async fn check_words(world: &World) -> usize {
    let sessions = api::list(world.address, "/sessions", "sessions").await;
    let mut complete = 0;
    for session in sessions
        .iter()
        .filter(|session| session["run_target"]["executor"]["pool"] == POOL)
    {
        let log = api::log(world.address, &text(session, "session_id")).await;
        let ends = log.iter().filter(|event| event["kind"] == "TurnEnd");
        for end in ends.filter(|end| end["payload"]["run_status"] == "completed") {
            assert_eq!(api::said(&log, &text(end, "run_id")), expected_words());
            complete += 1;
        }
    }
    complete
}

/// The seed of all that is random here but the machine.
fn seed() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "a failure is repeated with its seed"
    )]
    let given = std::env::var("TAPEDECK_TEST_SEED");
    given.map_or_else(|_| rand::random(), |seed| seed.parse().unwrap())
}

fn start_clients(world: &World, seed: u64) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for number in 0..HANDS {
        let (world, rng) = (world.clone(), StdRng::seed_from_u64(seed ^ (number + 1)));
        clients.spawn(
            Hand {
                world,
                pool: format!("hand-{number}"),
                rng,
                events: 0,
            }
            .work(),
        );
    }
    for number in 0..CLIENTS {
        clients.spawn(prompting(
            world.clone(),
            StdRng::seed_from_u64(seed ^ (number + 1001)),
        ));
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acked_write_survives_kill9() {
    let begun = Instant::now();
    let seed = seed();
    eprintln!("TAPEDECK_TEST_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let place = Arc::new(Place::new());
    let mut server = Server::scaled(&place, SCALE).await;
    let options = ExecutorOptions {
        pool: POOL.to_owned(),
        max_runs: 2,
        ..ExecutorOptions::named("x1")
    };
    let mut worker = executor(&place, &server.url(), &options);
    let world = World {
        address: server.address,
        ledger: Arc::default(),
        stop: CancellationToken::new(),
    };

    let mut clients = start_clients(&world, seed);
    for round in 0..ROUNDS {
        // Not a wait for anything: the moment of the kill is what is random.
        sleep(Duration::from_millis(rng.random_range(20..900))).await;
        let (kill_server, kill_worker) =
            *[(true, false), (true, false), (false, true), (true, true)]
                .choose(&mut rng)
                .unwrap();
        if kill_worker {
            worker.kill().await;
        }
        if kill_server {
            server.process.kill().await;
            database::check(&place.data()).await;
            server.restart().await;
        }
        if kill_worker {
            worker = executor(&place, &server.url(), &options);
        }
        if round % 10 == 9 {
            let sessions = world.note(|ledger| ledger.sessions.clone());
            for session in sessions.iter().rev().take(10) {
                check_session(&world, session).await;
            }
        }
        if let Some(Err(failed)) = clients.try_join_next() {
            panic!("round {round}: {failed}");
        }
    }
    world.stop.cancel();
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    server.process.kill().await;
    database::check(&place.data()).await;
    server.restart().await;
    check_rest(&world).await;
    for session in world.note(|ledger| ledger.sessions.clone()) {
        check_session(&world, &session).await;
    }
    let complete = check_words(&world).await;
    worker.kill().await;
    check_recovery(&world).await;
    server.process.kill().await;
    database::check(&place.data()).await;
    eprintln!(
        "{}; {complete} runs of the real executor; {:?}",
        world.note(|ledger| ledger.size()),
        begun.elapsed()
    );
    assert!(complete > 0, "the real executor completed nothing");
}
