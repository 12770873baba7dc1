//! Executors that are killed and started again on the same state directory: what they knew is
//! reported, what they left is ended, and a resume need not wait for a lease.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::api::{self, prompt, resume, session_in, text};
use crate::chaos::Tap;
use crate::server::{ExecutorOptions, Place, Process, Server, executor, processes_marked};
use crate::wait::eventually;

on_both_stores! {
    a_killed_executors_run_is_reported_by_its_next_start,
    a_claim_that_is_over_is_left_alone_by_the_next_start,
}

const LIMIT: Duration = Duration::from_mins(1);
/// A lease of 10 s is 2 s.
const SCALE: f64 = 0.2;

fn of_run(run: &str) -> Vec<i32> {
    processes_marked(&format!("TAPEDECK_RUN={run}"))
}

/// All files below a directory, with what is in them.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        let kind = path.symlink_metadata().map(|meta| meta.file_type());
        match kind {
            Ok(kind) if kind.is_dir() => found.extend(files(&path)),
            Ok(kind) if kind.is_file() => drop(found.insert(path.clone(), read(&path))),
            // A pipe, or something that has gone meanwhile.
            Ok(_) | Err(_) => {}
        }
    }
    found
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_default()
}

fn spooled(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    files(&place.path("state").join("spool"))
}

/// Waits until these words of the agent's are in the spool.
async fn has_spooled(place: &Place, words: &str) {
    // As they stand in JSON.
    let words = words.replace('\n', "\\n");
    let look = async || {
        let mut spooled = spooled(place).into_values();
        let found = spooled.any(|bytes| String::from_utf8_lossy(&bytes).contains(&words));
        found.then_some(())
    };
    eventually("the agent's words are spooled", LIMIT, look).await;
}

async fn nothing_is_spooled(place: &Place) {
    let look = async || spooled(place).is_empty().then_some(());
    eventually("the spool is removed", LIMIT, look).await;
}

/// Neither the disk nor the agent's own processes show the token.
fn is_hidden(token: &str, place: &Place, run: &str) {
    let shows = |bytes: &[u8]| {
        let token = token.as_bytes();
        bytes.windows(token.len()).any(|found| found == token)
    };
    for (path, bytes) in files(&place.path("state")) {
        assert!(!shows(&bytes), "{}", path.display());
    }
    for pid in of_run(run) {
        for what in ["environ", "cmdline"] {
            let path = format!("/proc/{pid}/{what}");
            assert!(!shows(&read(Path::new(&path))), "{path}");
        }
    }
    let spooled = spooled(place);
    assert_eq!(spooled.len(), 2, "{:?}", spooled.keys());
    for path in spooled.keys() {
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

async fn a_killed_executors_run_is_reported_by_its_next_start(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let address = server.address;
    let tap = Tap::before(address).await;
    let url = format!("http://{}", tap.address);
    // Whoever waits for this lease is late.
    let options = ExecutorOptions {
        lease_seconds: 300,
        ..ExecutorOptions::named("x1")
    };
    let mut worker = executor(&place, &url, &options);
    let session = session_in(address, "default").await;
    let (run, _) = prompt(address, &session, "say begin; spawn; stream 100000 50").await;
    api::has_said(address, &session, &run, "chunk 3\n").await;
    server.process.kill().await;
    has_spooled(&place, "chunk 60\n").await;
    is_hidden(&tap.texts("claim_token").pop().unwrap(), &place, &run);
    worker.kill().await;
    let gone = async || of_run(&run).is_empty().then_some(());
    eventually("the guard ends the agent", LIMIT, gone).await;
    assert_eq!(spooled(&place).len(), 2);

    server.restart().await;
    let _next = executor(&place, &url, &options);
    let ended = api::settled(address, &run).await;
    assert_eq!(
        (&ended["status"], &ended["attempt"], &ended["error"]),
        (
            &json!("interrupted"),
            &json!(1),
            &json!("the executor was restarted")
        )
    );
    let log = api::log(address, &session).await;
    api::assert_dense(&log);
    let said = api::said(&log, &run);
    let (_, chunks) = said.split_once("chunk").unwrap();
    let chunks = format!("chunk{chunks}");
    assert!(api::numbered("chunk", 100_000).starts_with(&chunks));
    assert!(chunks.contains("chunk 60\n"), "{said}");
    // What was sent before the kill was sent again as it was.
    let mut by_first = BTreeMap::new();
    for body in tap.bodies("/events") {
        let request: Value = serde_json::from_slice(&body).unwrap();
        let first = text(&request["events"][0], "event_id");
        let known = by_first.entry(first).or_insert_with(|| body.clone());
        assert_eq!(*known, body);
    }
    nothing_is_spooled(&place).await;
    let (again, _) = resume(address, &session, "say back").await;
    let again = api::settled(address, &again).await;
    assert_eq!(
        (&again["status"], &again["parent_run_id"]),
        (&json!("completed"), &json!(run))
    );
    place.is_healthy(1.0).await;
}

async fn a_claim_that_is_over_is_left_alone_by_the_next_start(place: Arc<Place>) {
    let server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    let options = ExecutorOptions::named("x1");
    let mut worker = executor(&place, &server.url(), &options);
    let session = session_in(address, "default").await;
    let (run, _) = prompt(address, &session, "say begin; stream 100000 50").await;
    api::has_said(address, &session, &run, "chunk 3\n").await;
    worker.kill().await;
    let ended = api::settled(address, &run).await;
    assert_eq!(ended["status"], "interrupted");
    let log = api::log(address, &session).await;
    assert!(!spooled(&place).is_empty());
    let next = executor(&place, &server.url(), &options);
    nothing_is_spooled(&place).await;
    let says = async || next.log().contains("its claim is over").then_some(());
    eventually("the executor says so", LIMIT, says).await;
    assert_eq!(api::run(address, &run).await, ended);
    assert_eq!(api::log(address, &session).await, log);
}

/// The process's parent.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Kills an executor and the guard of its run so that neither can end the agent any more.
async fn kill_with_guard(worker: &mut Process, run: &str) {
    worker.signal(Signal::SIGSTOP);
    let guard = of_run(run)
        .into_iter()
        .find(|pid| parent_of(*pid) == Some(worker.pid.as_raw()))
        .unwrap();
    kill(Pid::from_raw(guard), Signal::SIGKILL).unwrap();
    worker.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_of_a_dead_executor_are_ended_by_the_next_start_and_a_living_ones_agent_is_not() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let address = server.address;
    let options = |id: &str| ExecutorOptions {
        pool: id.to_owned(),
        lease_seconds: 300,
        ..ExecutorOptions::named(id)
    };
    let mut dies = executor(&place, &server.url(), &options("dies"));
    let _lives = executor(&place, &server.url(), &options("lives"));
    let mut runs = Vec::new();
    for pool in ["dies", "lives"] {
        let session = session_in(address, pool).await;
        let (run, _) = prompt(address, &session, "say begin; spawn; ignore-cancel 300").await;
        api::has_said(address, &session, &run, "tick 1\n").await;
        runs.push(run);
    }
    let [orphaned, other] = &runs[..] else {
        panic!("two runs")
    };
    let before = of_run(other);
    kill_with_guard(&mut dies, orphaned).await;
    assert!(!of_run(orphaned).is_empty(), "the agent's child is left");

    // Another instance with another name, which serves another pool.
    let _next = executor(&place, &server.url(), &options("next"));
    let gone = async || of_run(orphaned).is_empty().then_some(());
    eventually("the orphans are ended", LIMIT, gone).await;
    let ended = api::settled(address, orphaned).await;
    assert_eq!(ended["error"], "the executor was restarted");
    assert_eq!(of_run(other), before);
    assert_eq!(api::run(address, other).await["status"], "running");
}
