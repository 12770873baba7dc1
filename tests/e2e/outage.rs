//! Servers that go away for a while, and executors that die or freeze: what runs notice of it (rules
//! R6, R13).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::api::{self, prompt, resume, session_in};
use crate::server::{
    ExecutorOptions, Place, Server, ended_by, executor, none_marked, processes_marked,
};
use crate::wait::eventually;

/// What a run has to bear without noticing.
const OUTAGE: Duration = Duration::from_secs(20);
/// A lease of 10 s is 2 s.
const SCALE: f64 = 0.2;
const LIMIT: Duration = Duration::from_mins(1);

async fn no_process_of(run: &str, limit: Duration) {
    none_marked(&format!("TAPEDECK_RUN={run}"), limit).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_through_an_outage_of_twenty_seconds() {
    let place = Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    let address = server.address;
    let options = ExecutorOptions {
        lease_seconds: 60,
        ..ExecutorOptions::named("x1")
    };
    let _executor = executor(&place, &server.url(), &options);
    let session = session_in(address, "default").await;
    let (run, _) = prompt(address, &session, "say begin; stream 240 100; say end").await;
    api::has_said(address, &session, &run, "chunk 3\n").await;
    server.process.kill().await;
    let before = processes_marked(&format!("TAPEDECK_RUN={run}"));
    assert!(!before.is_empty());
    // The outage itself.
    sleep(OUTAGE).await;
    assert_eq!(processes_marked(&format!("TAPEDECK_RUN={run}")), before);
    server.restart().await;
    let run = api::settled(address, &run).await;
    assert_eq!(
        (&run["status"], &run["attempt"]),
        (&json!("completed"), &json!(1))
    );
    let log = api::log(address, &session).await;
    api::assert_dense(&log);
    let chunks = api::numbered("chunk", 240);
    assert_eq!(
        api::said(&log, &api::text(&run, "run_id")),
        format!("begin{chunks}end")
    );
    assert!(log.iter().all(|event| event["kind"] != "RunLeaseExpired"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_longer_than_the_lease_ends_the_agent_and_hands_the_run_back() {
    let place = Arc::new(Place::new());
    let mut server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    // A lease of 6 s: long enough for the executor to hand back what it held.
    let options = ExecutorOptions {
        lease_seconds: 30,
        ..ExecutorOptions::named("x1")
    };
    let _worker = executor(&place, &server.url(), &options);
    let session = session_in(address, "default").await;
    let (run, _) = prompt(address, &session, "say begin; slow 300").await;
    api::has_said(address, &session, &run, "tick 3\n").await;
    server.process.kill().await;
    no_process_of(&run, LIMIT).await;
    server.restart().await;
    let ended = api::settled(address, &run).await;
    assert_eq!(
        (&ended["status"], &ended["attempt"]),
        (&json!("interrupted"), &json!(1))
    );
    assert!(
        ended["error"].as_str().unwrap().contains("renew"),
        "the executor says it: {ended}"
    );
    let log = api::log(address, &session).await;
    api::assert_dense(&log);
    // What the agent said in the meantime was kept, and came before the end.
    let ticks = api::numbered("tick", 1_000);
    let said = api::said(&log, &run);
    assert!(
        said.len() > 40 && format!("begin{ticks}").starts_with(&said),
        "{said}"
    );
    // The executor is as good as before.
    let (again, _) = resume(address, &session, "say again").await;
    let again = api::settled(address, &again).await;
    assert_eq!(
        (&again["status"], &again["parent_run_id"]),
        (&json!("completed"), &json!(run))
    );
}

/// From outside what `expired_claim_is_recovered_without_restart` says inside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_executor_leaves_no_agent_and_the_sweep_ends_its_run() {
    let place = Arc::new(Place::new());
    let server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    let mut worker = executor(&place, &server.url(), &ExecutorOptions::named("x1"));
    let session = session_in(address, "default").await;
    let (run, _) = prompt(address, &session, "say begin; spawn; hang").await;
    api::has_said(address, &session, &run, "spawned").await;
    // The agent, and its child in a session of its own.
    let marked = processes_marked(&format!("TAPEDECK_RUN={run}"));
    assert!(marked.len() >= 2, "{marked:?}");
    worker.kill().await;
    let begun = Instant::now();
    no_process_of(&run, Duration::from_secs(10)).await;
    let ended = api::settled(address, &run).await;
    eprintln!("recovered after {:?}", begun.elapsed());
    assert_eq!(ended["status"], "interrupted");
    assert!(
        ended["recovery_reason"].is_string() && ended["error"].is_string(),
        "{ended}"
    );
    let log = api::log(address, &session).await;
    api::assert_dense(&log);
    let ends: Vec<_> = log
        .iter()
        .filter(|event| event["kind"] == "TurnEnd")
        .collect();
    assert_eq!(ends.len(), 1);

    let _next = executor(&place, &server.url(), &ExecutorOptions::named("x2"));
    let (again, _) = resume(address, &session, "say back").await;
    let again = api::settled(address, &again).await;
    assert_eq!(
        (&again["status"], &again["executor_id"]),
        (&json!("completed"), &json!("x2"))
    );
    assert_eq!(again["parent_run_id"], json!(run));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_executor_keeps_neither_agent_nor_run() {
    let place = Arc::new(Place::new());
    let server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    let mut worker = executor(&place, &server.url(), &ExecutorOptions::named("x1"));
    let session = session_in(address, "default").await;
    let (run, _) = prompt(address, &session, "say begin; spawn; slow 300").await;
    api::has_said(address, &session, &run, "tick 1\n").await;
    worker.signal(Signal::SIGSTOP);
    let ended = api::settled(address, &run).await;
    assert_eq!(ended["status"], "interrupted");
    no_process_of(&run, Duration::from_secs(10)).await;
    let head = api::log(address, &session).await.len();
    worker.signal(Signal::SIGCONT);
    // It learns of its loss and works on; nothing of the old run is written any more.
    let (again, at) = resume(address, &session, "say awake").await;
    assert_eq!(at, head as u64 + 1);
    assert_eq!(api::settled(address, &again).await["status"], "completed");
    let log = api::log(address, &session).await;
    assert!(
        log[head..]
            .iter()
            .all(|event| event["run_id"] == json!(again)),
        "{:?}",
        &log[head..]
    );
    let status = worker.terminate(LIMIT).await;
    assert!(
        status.success() && !ended_by(status, Signal::SIGTERM),
        "{status}"
    );
}

/// A log that can't be written, as on a full disk, costs its records and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_log_cannot_be_written_serves() {
    let place = Place::new();
    let ready = place.path("deaf.ready");
    let mut command = place.command(&["--log", "trace", "serve", "--listen", "127.0.0.1:0"]);
    command.arg("--data-dir").arg(place.data());
    command.arg("--ready-file").arg(&ready);
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut server = command.stderr(full).spawn().unwrap();
    let written = async || std::fs::read_to_string(&ready).ok();
    let url = eventually("the server is ready", LIMIT, written).await;
    let address: SocketAddr = url.trim().trim_start_matches("http://").parse().unwrap();
    for _ in 0..10 {
        let session = session_in(address, "default").await;
        prompt(address, &session, "go").await;
    }
    let pid = i32::try_from(server.id().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    let ended = tokio::time::timeout(LIMIT, server.wait()).await.unwrap();
    assert_eq!(ended.unwrap().code(), Some(0));
}
