//! A machine with no time to spare: a run whose executor lives is never taken away (faults 8).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::{self, is_terminal, prompt, session_in};
use crate::server::{ExecutorOptions, Place, Server, executor};
use crate::wait::eventually;

on_both_stores! {
    a_run_of_many_leases_is_never_recovered_on_a_busy_machine,
}

/// A lease of 10 s is 3 s: the run takes five of them.
const SCALE: f64 = 0.3;
const SECONDS: u64 = 15;
/// Threads that do nothing but count, for each core.
const SPINNERS: usize = 2;

/// Keeps every core busy; ends with its owner, and by itself.
struct Spin {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Spin {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let end = Instant::now() + Duration::from_secs(4 * SECONDS);
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
    let spin = Spin::start();
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
