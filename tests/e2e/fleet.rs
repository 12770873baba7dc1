//! A fleet from the command line: an executor that is taken out of service and back, and work that
//! waits for nobody.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::{self, is_terminal, prompt, session_in};
use crate::server::{ExecutorOptions, Place, Server, executor};
use crate::wait::eventually;

on_both_stores! {
    an_executor_is_taken_out_of_service_and_back,
    a_run_that_waits_for_nobody_says_so,
    an_executor_that_is_told_to_end_is_offline_at_once,
}

const LIMIT: Duration = Duration::from_mins(1);
const SCALE: f64 = 0.3;

async fn an_executor_is_taken_out_of_service_and_back(place: Arc<Place>) {
    let server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    let url = server.url();
    let unknown = ["executors", "drain", "nobody", "--server", &url];
    place.run(&unknown).await.exits(3);
    let _executor = executor(&place, &url, &ExecutorOptions::named("x1"));
    let (run, _) = prompt(address, &session_in(address, "default").await, "slow 3").await;
    let running = async || (api::run(address, &run).await["status"] == "running").then_some(());
    eventually("the run is under way", LIMIT, running).await;

    // It takes no new runs, and what it has goes on to its end.
    let drain = ["executors", "drain", "x1", "--wait", "--server", &url];
    let drained = place.run_for(&drain, LIMIT).await.exits(0);
    assert!(
        drained.out.contains("takes no new runs, has 0"),
        "{}",
        drained.out
    );
    assert_eq!(api::run(address, &run).await["status"], "completed");
    let list = [
        "executors",
        "list",
        "--status",
        "draining",
        "--server",
        &url,
    ];
    let listed = place.run(&list).await.exits(0);
    assert!(listed.out.contains("x1"), "{}", listed.out);
    let forget = ["executors", "forget", "x1", "--server", &url];
    place.run(&forget).await.exits(4);

    let (waiting, _) = prompt(address, &session_in(address, "default").await, "say hi").await;
    let flagged =
        async || (api::run(address, &waiting).await["unservable"] == "draining").then_some(());
    eventually("it is known why it waits", LIMIT, flagged).await;
    let undrain = ["executors", "undrain", "x1", "--server", &url, "--json"];
    let undrained = place.run(&undrain).await.exits(0);
    assert_eq!(undrained.json_lines()[0]["draining"], json!(false));
    let ended = async || {
        let run = api::run(address, &waiting).await;
        is_terminal(&run).then_some(run)
    };
    let ended = eventually("it is served", LIMIT, ended).await;
    assert_eq!(ended["status"], "completed");
    assert_eq!(ended["executor_id"], "x1");
}

async fn a_run_that_waits_for_nobody_says_so(place: Arc<Place>) {
    let server = Server::scaled(&place, SCALE).await;
    let url = server.url();
    let goal = ["run", "--goal", "say hi", "--scratch", "--server", &url];
    let mut waiting = place.start("run", place.command(&goal));
    let told = async || waiting.log().contains("no executor").then_some(());
    eventually("the person is told", LIMIT, told).await;
    let list = ["runs", "list", "--unservable", "--server", &url];
    let listed = place.run(&list).await.exits(0);
    assert!(listed.out.contains("no_executor"), "{}", listed.out);
    let _executor = executor(&place, &url, &ExecutorOptions::named("x1"));
    let status = waiting.ended(LIMIT).await;
    assert!(status.success(), "{}", waiting.log());
    let listed = place.run(&list).await.exits(0);
    assert!(!listed.out.contains("no_executor"), "{}", listed.out);
}

async fn an_executor_that_is_told_to_end_is_offline_at_once(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let address = server.address;
    let status = async || {
        let listed = api::list(address, "/executors", "executors").await;
        listed.first().map(|it| it["status"].clone())
    };
    let mut worker = executor(&place, &server.url(), &ExecutorOptions::named("x1"));
    let idle = async || (status().await == Some(json!("idle"))).then_some(());
    eventually("the executor is in touch", LIMIT, idle).await;
    let ended = worker.terminate(LIMIT).await;
    assert!(ended.success(), "{ended}");
    assert_eq!(status().await, Some(json!("offline")));
    // It comes back under its name.
    let _worker = executor(&place, &server.url(), &ExecutorOptions::named("x1"));
    eventually("the executor is back", LIMIT, idle).await;
}
