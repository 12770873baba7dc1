//! A machine with no time to spare: a run whose executor lives is never taken away (faults 8).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::{self, is_terminal, prompt, session_in};
use crate::chaos::trouble;
use crate::server::{ExecutorOptions, Place, Server, executor};
use crate::wait::eventually;

on_both_stores! {
    a_run_of_many_leases_is_never_recovered_on_a_busy_machine,
}

/// A lease of 10 s is 3 s: the run takes five of them.
const SCALE: f64 = 0.3;
const SECONDS: u64 = 15;
/// Runs at a time of one executor, on a machine that is full without them.
const RUNS: u32 = 20;
/// How long they go on, with leases of 10 s.
const SATURATED: Duration = Duration::from_secs(20);
/// Threads that do nothing but count, for each core.
const SPINNERS: usize = 2;

/// Keeps every core busy; ends with its owner, and by itself.
struct Spin {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Spin {
    fn start(limit: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let end = Instant::now() + limit;
        let spin = |_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut count = 0_u64;
                while !stop.load(Ordering::Relaxed) && Instant::now() < end {
                    count = std::hint::black_box(count.wrapping_add(1));
                }
            })
        };
        let threads = (0..SPINNERS * cores).map(spin).collect();
        Self { stop, threads }
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

async fn a_run_of_many_leases_is_never_recovered_on_a_busy_machine(place: Arc<Place>) {
    let server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    let _executor = executor(&place, &server.url(), &ExecutorOptions::named("x1"));
    let session = session_in(address, "default").await;
    let (run, _) = prompt(
        address,
        &session,
        &format!("say begin; slow {SECONDS}; say end"),
    )
    .await;
    let spin = Spin::start(Duration::from_secs(4 * SECONDS));
    let settled = async || {
        let run = api::run(address, &run).await;
        is_terminal(&run).then_some(run)
    };
    let ended = eventually("the run ends", Duration::from_secs(4 * SECONDS), settled).await;
    drop(spin);
    assert_eq!(
        (&ended["status"], &ended["attempt"]),
        (&json!("completed"), &json!(1)),
        "{ended}"
    );
    let log = api::log(address, &session).await;
    api::assert_dense(&log);
    let claims = log
        .iter()
        .filter(|event| event["kind"] == "RunClaimed")
        .count();
    assert_eq!(claims, 1);
    let ticks = api::numbered("tick", SECONDS * 10);
    assert_eq!(api::said(&log, &run), format!("begin{ticks}end"));
}

/// The leases are the shortest that our executors ask for, and real ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_runs_lose_no_lease_while_every_core_is_taken() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let address = server.address;
    let options = ExecutorOptions {
        lease_seconds: 10,
        max_runs: RUNS,
        ..ExecutorOptions::named("x1")
    };
    let worker = executor(&place, &server.url(), &options);
    let seconds = trouble(SATURATED).as_secs();
    let limit = Duration::from_secs(6 * seconds + 60);
    let spin = Spin::start(limit);
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let session = session_in(address, "default").await;
        let script = format!("say begin; slow {seconds}; say end");
        runs.push((prompt(address, &session, &script).await.0, session));
    }
    let mut lived_at_once = false;
    let ended = async || {
        let found = api::list(address, "/runs", "runs").await;
        let running = found.iter().filter(|run| run["status"] == "running");
        lived_at_once |= running.count() == runs.len();
        found.iter().all(is_terminal).then_some(found)
    };
    let ended = eventually("the runs end", limit, ended).await;
    drop(spin);
    assert!(lived_at_once, "the runs were not under way together");
    for run in &ended {
        assert_eq!(
            (&run["status"], &run["attempt"]),
            (&json!("completed"), &json!(1)),
            "{run}"
        );
    }
    let ticks = api::numbered("tick", seconds * 10);
    for (run, session) in &runs {
        let log = api::log(address, session).await;
        api::assert_dense(&log);
        assert_eq!(api::said(&log, run), format!("begin{ticks}end"));
    }
    assert!(!worker.log().contains("reason=Lapsed"));
}
