//! The promise that nothing acknowledged is lost: the server and an executor are killed again and
//! again under load, and everything a client was ever told must still be so (I1; faults 3, 5, 9, 16).

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use tokio::time::Instant;

use crate::chaos::{Crowd, moment, trouble};
use crate::database;
use crate::load::{Hand, POOL, World, prompting};
use crate::seed::Seed;
use crate::server::{ExecutorOptions, Place, Server, executor};

/// How long something is killed again and again, restarts included.
const TROUBLE: Duration = Duration::from_secs(35);
/// Leases of 10 s last 2 s, and the sweep comes every second.
const SCALE: f64 = 0.2;
/// Clients that play executors.
const HANDS: u64 = 6;
/// Clients of the real executor.
const CLIENTS: u64 = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acked_write_survives_kill9() {
    let begun = Instant::now();
    let seed = Seed::of_this_run();
    let mut rng = seed.of(0);
    let place = Arc::new(Place::new());
    let mut server = Server::scaled(&place, SCALE).await;
    let options = ExecutorOptions {
        pool: POOL.to_owned(),
        max_runs: 2,
        ..ExecutorOptions::named("x1")
    };
    let mut worker = executor(&place, &server.url(), &options);
    let mut crowd = Crowd::default();
    let world = World::of(&[server.address], 1, &crowd.stop);
    for number in 0..HANDS {
        crowd.add(Hand::new(world.clone(), number, seed.of(number + 1)).work());
    }
    for number in 0..CLIENTS {
        crowd.add(prompting(world.clone(), seed.of(number + 1_001)));
    }

    let mut rounds = 0;
    let went_back = || world.note(|ledger| !ledger.restored.is_empty() && !ledger.forks.is_empty());
    // A slow machine gets more time to come to everything.
    let more = || begun.elapsed() < 4 * TROUBLE && !went_back();
    while begun.elapsed() < trouble(TROUBLE) || more() {
        rounds += 1;
        moment(&mut rng, 20..900).await;
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
        if rounds % 10 == 0 {
            let sessions = world.note(|ledger| ledger.sessions.clone());
            for _ in 0..10 {
                let session = &sessions[rng.random_range(0..sessions.len())];
                world.check_session(session).await;
            }
        }
        crowd.look();
    }
    crowd.end().await;
    server.process.kill().await;
    database::check(&place.data()).await;
    server.restart().await;
    world.check_all().await;
    let complete = world.check_words().await;
    worker.kill().await;
    world.check_recovery().await;
    place.is_healthy(SCALE).await;
    server.process.kill().await;
    database::check(&place.data()).await;
    place.is_healthy(SCALE).await;
    eprintln!(
        "{rounds} kills; {}; {complete} runs of the real executor; {:?}",
        world.note(|ledger| ledger.size()),
        begun.elapsed()
    );
    assert!(complete > 0, "the real executor completed nothing");
    assert!(went_back(), "nothing was put back or forked");
}
