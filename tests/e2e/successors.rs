//! Agents whose tools leave ever new processes behind: a cancel ends them all before the run is
//! settled, and the process table has nothing of them afterwards (rules R13, R14).

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::{self, prompt};
use crate::http::Request;
use crate::server::{ExecutorOptions, Place, Server, executor_with, processes_marked};
use crate::wait::eventually;

const LIMIT: Duration = Duration::from_mins(1);

/// Three shells that leave orphans, and a process that goes on in a new one every few milliseconds and
/// says so in a file. All of them end by themselves.
const AGENT: &str = r#"
import os, subprocess, sys, time

until = time.monotonic() + 60
shell = "i=0; while [ $i -lt 1000 ]; do (setsid sleep 0.02 &); sleep 0.02; i=$((i+1)); done"
for _ in range(3):
    subprocess.Popen(["sh", "-c", shell], start_new_session=True)
if os.fork() == 0:
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        os.setsid()
        os.write(said, b".")
        time.sleep(0.003)
    os._exit(0)
print("begun", flush=True)
time.sleep(60)
"#;

/// How many children of a process are dead and wait to be reaped.
fn zombies_of(parent: i32) -> usize {
    let stats = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    let of_parent = format!(") Z {parent} ");
    stats.filter(|stat| stat.contains(&of_parent)).count()
}

#[tokio::test]
async fn a_cancel_ends_tools_that_go_on_in_ever_new_processes() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let address = server.address;
    let program = place.path("agent.py");
    fs::write(&program, AGENT).unwrap();
    let command = format!("python3 {}", program.display());
    let options = ExecutorOptions::named("x1");
    let worker = executor_with(&place, &server.url(), &options, &["--command", &command]);
    let workspace = place.work();
    let said = workspace.join("said");
    let body = json!({"run_target": {"workspace": {"kind": "local_path", "path": workspace}}});
    let session = api::session_of(address, &body).await;
    for _ in 0..2 {
        let (run, _) = prompt(address, &session, "begin").await;
        api::has_said(address, &session, &run, "begun").await;
        let before = fs::metadata(&said).map_or(0, |found| found.len());
        let goes_on = async || {
            let now = fs::metadata(&said).map_or(0, |found| found.len());
            (now >= before + 20).then_some(())
        };
        eventually("it goes on", LIMIT, goes_on).await;
        let path = format!("/runs/{run}/cancel");
        Request::post(path, &json!({})).send(address).await.ok();
        let ended = api::settled(address, &run).await;
        let length = fs::metadata(&said).unwrap().len();
        assert_eq!(ended["status"], "cancelled", "{ended}");
        for _ in 0..20 {
            let left = processes_marked(&format!("TAPEDECK_RUN={run}"));
            assert!(left.is_empty(), "{left:?}");
        }
        assert_eq!(fs::metadata(&said).unwrap().len(), length);
    }
    let reaped = async || (zombies_of(worker.pid.as_raw()) == 0).then_some(());
    eventually("all are reaped", LIMIT, reaped).await;
}
