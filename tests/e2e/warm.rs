//! Agents that stay between two runs of a session: the next run has one at once, and none outlives
//! its executor.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::api::{self, prompt, session_in};
use crate::server::{ExecutorOptions, Place, Server, executor, none_marked, processes_marked};

on_both_stores! {
    an_agent_stays_for_the_next_run_and_not_longer_than_its_executor,
}

const LIMIT: Duration = Duration::from_mins(1);

async fn completed(server: &Server, run: &str) -> Value {
    let run = api::settled(server.address, run).await;
    assert_eq!(run["status"], "completed", "{run}");
    run
}

async fn an_agent_stays_for_the_next_run_and_not_longer_than_its_executor(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let url = format!("http://{}", server.address);
    let options = ExecutorOptions {
        warm_seconds: 600,
        ..ExecutorOptions::named("x1")
    };
    let session = session_in(server.address, "default").await;
    let mut worker = executor(&place, &url, &options);
    let (first, _) = prompt(server.address, &session, "say one").await;
    let run = completed(&server, &first).await;
    assert_eq!(run["result"]["continuity"], "new");
    let mark = format!("TAPEDECK_RUN={first}");
    let mut agents = processes_marked(&mark);
    agents.sort_unstable();
    assert!(agents.len() >= 2, "{agents:?}");

    let (second, _) = prompt(server.address, &session, "say two").await;
    let run = completed(&server, &second).await;
    assert_eq!(run["result"]["continuity"], "warm");
    assert!(processes_marked(&format!("TAPEDECK_RUN={second}")).is_empty());
    let mut same = processes_marked(&mark);
    same.sort_unstable();
    assert_eq!(same, agents);

    worker.kill().await;
    none_marked(&mark, LIMIT).await;

    // A drain ends it in good order.
    let mut worker = executor(&place, &url, &options);
    let (third, _) = prompt(server.address, &session, "say three").await;
    completed(&server, &third).await;
    let mark = format!("TAPEDECK_RUN={third}");
    assert!(!processes_marked(&mark).is_empty());
    worker.signal(Signal::SIGTERM);
    assert!(worker.ended(LIMIT).await.success());
    assert!(processes_marked(&mark).is_empty());
}
