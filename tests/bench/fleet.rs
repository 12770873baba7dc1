//! A fleet of executors that wait for work, and a queue of which half is for nobody: what nobody can
//! serve must cost the others nothing, and is shown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::api::{self, Claim};
use crate::http::{Connection, Request};
use crate::postgres::Cluster;
use crate::server::{Place, Server};
use crate::table::{Samples, Table};
use crate::wait::eventually;

const EXECUTORS: usize = 200;
const ALIVE: usize = 1_000;
const DEAD: usize = 1_000;
const CLIENTS: usize = 16;
const LIMIT: Duration = Duration::from_mins(2);
/// How much longer a claim may take beside work for nobody.
const DEARER: f64 = 1.5;

/// On SQLite.
pub(crate) async fn on_sqlite(table: &mut Table) {
    let places = [Place::new(), Place::new()];
    measure(table, "SQLite", places.map(Arc::new)).await;
}

/// On PostgreSQL.
pub(crate) async fn on_postgres(table: &mut Table, cluster: &Cluster) {
    let places = [
        Place::on_cluster(cluster).await,
        Place::on_cluster(cluster).await,
    ];
    measure(table, "PostgreSQL", places.map(Arc::new)).await;
}

async fn measure(table: &mut Table, store: &str, [alone, beside]: [Arc<Place>; 2]) {
    let alone = served(&alone, 0).await;
    let beside = served(&beside, DEAD).await;
    for (what, samples) in [("", &alone), (", half of the queue for nobody", &beside)] {
        table.value(
            &format!("{store}: {EXECUTORS} executors, {ALIVE} runs{what}: a claim, p50"),
            format!("{:.2} ms", samples.percentile(50)),
        );
        table.value(
            &format!("{store}: {EXECUTORS} executors, {ALIVE} runs{what}: a claim, p99"),
            format!("{:.2} ms", samples.percentile(99)),
        );
    }
    table.at_most(
        &format!("{store}: a claim beside runs for nobody, p50"),
        beside.percentile(50) / alone.percentile(50),
        DEARER,
        "times",
    );
}

/// Serves all runs that can be served; gives how long each claim took.
async fn served(place: &Arc<Place>, dead: usize) -> Samples {
    let server = Server::start(place).await;
    let address = server.address;
    fill(address, dead).await;
    let left = Arc::new(AtomicUsize::new(ALIVE));
    let mut executors = JoinSet::new();
    for number in 0..EXECUTORS {
        executors.spawn(execute(address, number, Arc::clone(&left)));
    }
    let mut samples = Samples::default();
    let mut completed = 0;
    while let Some(own) = executors.join_next().await {
        let (count, own) = own.unwrap();
        completed += count;
        samples.extend(own);
    }
    assert_eq!(completed, ALIVE, "every run that can be served is");
    let flagged = async || {
        let listed = api::list(address, "/runs?unservable=true", "runs").await;
        (listed.len() == dead).then_some(listed)
    };
    let listed = eventually("the rest is flagged", LIMIT, flagged).await;
    assert!(listed.iter().all(|run| run["unservable"] == "labels"));
    samples
}

/// Runs for everybody and, in between, runs for nobody.
async fn fill(address: SocketAddr, dead: usize) {
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(async move {
            let mut connection = Connection::open(address).await.unwrap();
            let share = |of: usize| of / CLIENTS + usize::from(number < of % CLIENTS);
            for step in 0..share(ALIVE).max(share(dead)) {
                if step < share(ALIVE) {
                    request(&mut connection, &json!({})).await;
                }
                if step < share(dead) {
                    request(&mut connection, &json!({"accelerator": "none"})).await;
                }
            }
        });
    }
    while let Some(filled) = clients.join_next().await {
        filled.unwrap();
    }
}

/// A session with a run that waits for an executor with these labels.
async fn request(connection: &mut Connection, labels: &Value) {
    let target = json!({"run_target": {"executor": {"pool": "fleet", "labels": labels}}});
    let created = connection.send(&Request::post("/sessions", &target)).await;
    let created = created.unwrap().ok();
    let path = format!("/sessions/{}/prompt", api::text(&created, "session_id"));
    let prompt = Request::post(path, &json!({"prompt": "go"})).header("accept", "application/json");
    connection.send(&prompt).await.unwrap().ok();
}

/// One executor: claims by long polls and completes until nothing is left.
async fn execute(address: SocketAddr, number: usize, left: Arc<AtomicUsize>) -> (usize, Samples) {
    let mut connection = Connection::open(address).await.unwrap();
    let (mut completed, mut samples) = (0, Samples::default());
    let poll = json!({
        "executor_id": format!("x{number}"),
        "worker_instance_id": "i",
        "pool": "fleet",
        "max_runs": 1,
        "wait_seconds": 2,
    });
    let poll = Request::post("/executor/runs/claim", &poll);
    while left.load(Ordering::Relaxed) > 0 {
        let begun = Instant::now();
        let answer = connection.send(&poll).await.unwrap();
        if answer.status != 200 {
            continue;
        }
        samples.push(begun.elapsed());
        let claim = Claim::of(answer.json());
        let complete = claim.request("complete", json!({"status": "completed"}));
        connection.send(&complete).await.unwrap().ok();
        completed += 1;
        left.fetch_sub(1, Ordering::Relaxed);
    }
    (completed, samples)
}
