//! A server from its start to full load.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::api::{self, Claim, prompt, session_in, words};
use crate::http::{Connection, Request};
use crate::server::{Place, Server};
use crate::table::{Samples, Table};
use crate::wait::{eventually, within};

const STARTS: usize = 20;
const CLAIMS: usize = 500;
const PROMPTS: usize = 200;
const PRODUCERS: usize = 64;
const BATCH: usize = 50;
const APPENDING: Duration = Duration::from_secs(10);
const KIB_PER_MIB: f64 = 1_024.0;

/// From the start of the process to its first answer, over a database with something in it.
pub(crate) async fn start(table: &mut Table) {
    let place = Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    api::spoken(&server, "start", 1_000).await;
    let mut samples = Samples::default();
    for _ in 0..STARTS {
        server.process.kill().await;
        let begun = Instant::now();
        server.restart().await;
        samples.push(begun.elapsed());
    }
    table.value(
        "start to ready, p50",
        format!("{:.1} ms", samples.percentile(50)),
    );
    table.at_most(
        "start to ready, worst",
        samples.percentile(100),
        300.0,
        "ms",
    );
}

/// `tapedeck run` where nothing is yet and no server: a database is made, and an executor, its guard
/// and the demo agent start.
pub(crate) async fn cold_run(table: &mut Table) {
    let (mut first, mut said) = (Samples::default(), Samples::default());
    for _ in 0..STARTS {
        let place = Place::new();
        let goal = "say hello there";
        let mut command = place.command(&["run", "--scratch", "--agent", "demo", "--goal", goal]);
        command.arg("--data-dir").arg(place.data());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let begun = Instant::now();
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.starts_with('›') {
                first.push(begun.elapsed());
            } else if line == "hello there" {
                said.push(begun.elapsed());
            }
        }
        assert!(child.wait().await.unwrap().success());
    }
    assert_eq!((first.len(), said.len()), (STARTS, STARTS));
    table.at_most(
        "tapedeck run, cold start to its first event, p50",
        first.percentile(50),
        150.0,
        "ms",
    );
    table.value(
        "tapedeck run, cold start to the agent's first word, p50",
        format!("{:.1} ms", said.percentile(50)),
    );
}

/// A server that has done something and now waits.
pub(crate) async fn idle_memory(table: &mut Table) {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    table.value("memory right after the start", mib(&server));
    for _ in 0..20 {
        let claim = api::spoken(&server, "idle", 100).await;
        claim.complete(server.address).await;
        api::log(server.address, &claim.session_id).await;
    }
    let mut least = f64::MAX;
    // Until it has come to rest: the least of some looks a moment apart.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        least = least.min(resident(&server));
    }
    table.at_most("memory when idle after 20 runs", least, 30.0, "MiB");
}

fn resident(server: &Server) -> f64 {
    f64::from(u32::try_from(server.resident_kib()).unwrap()) / KIB_PER_MIB
}

fn mib(server: &Server) -> String {
    format!("{:.2} MiB", resident(server))
}

/// From sending a prompt to the waiting executor's having its run.
pub(crate) async fn claims(table: &mut Table) {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let address = server.address;
    let (claimed, mut claims) = mpsc::channel::<(Instant, Value)>(1);
    let mut executor = JoinSet::new();
    let (ready, mut is_ready) = mpsc::channel::<()>(1);
    executor.spawn(async move {
        let mut connection = Connection::open(address).await.unwrap();
        let poll = json!({"executor_id": "x", "worker_instance_id": "i", "pool": "bench", "wait_seconds": 60});
        let poll = Request::post("/executor/runs/claim", &poll);
        while ready.send(()).await.is_ok() {
            let answer = connection.send(&poll).await.unwrap();
            let at = Instant::now();
            if answer.status == 200 && claimed.send((at, answer.json())).await.is_err() {
                return;
            }
        }
    });
    let mut client = Connection::open(address).await.unwrap();
    let mut samples = Samples::default();
    for _ in 0..CLAIMS {
        let session = session_in(address, "bench").await;
        let request = Request::post(
            format!("/sessions/{session}/prompt"),
            &json!({"prompt": "go"}),
        );
        is_ready.recv().await.unwrap();
        waits(&server).await;
        let begun = Instant::now();
        client.send(&request).await.unwrap().ok();
        let (at, answer) = within("a claim", Duration::from_secs(30), claims.recv())
            .await
            .unwrap();
        samples.push(at - begun);
        Claim::of(answer).complete(address).await;
    }
    table.value(
        "prompt sent to run claimed, p50",
        format!("{:.2} ms", samples.percentile(50)),
    );
    table.at_most(
        "prompt sent to run claimed, p99",
        samples.percentile(99),
        25.0,
        "ms",
    );
    executor.shutdown().await;
}

/// Until the executor's poll has arrived, shown by its last contact.
async fn waits(server: &Server) {
    let seen = async || {
        let executors = server.get("/executors").await.ok();
        let executor = &executors["executors"][0];
        (executor["status"] == "idle").then(|| executor["last_seen_at"].clone())
    };
    let seen = eventually("the executor asks", Duration::from_secs(10), seen).await;
    assert!(seen.is_string());
}

/// From sending a prompt to the first event of its stream.
pub(crate) async fn first_event(table: &mut Table) {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let mut samples = Samples::default();
    for _ in 0..PROMPTS {
        let session = session_in(server.address, "nobody").await;
        let request = Request::post(
            format!("/sessions/{session}/prompt"),
            &json!({"prompt": "go"}),
        );
        let begun = Instant::now();
        let mut frames = request.open(server.address).await;
        frames.until(|frame| frame.id.is_some()).await;
        samples.push(begun.elapsed());
    }
    table.value(
        "prompt to its first event, p50",
        format!("{:.2} ms", samples.percentile(50)),
    );
    table.value(
        "prompt to its first event, p99",
        format!("{:.2} ms", samples.percentile(99)),
    );
}

/// Uploads of many executors at once, each waiting for its acknowledgement.
pub(crate) async fn appends(table: &mut Table) {
    appends_at(table, &Arc::new(Place::new()), "SQLite").await;
}

/// The same on the store of this place.
pub(crate) async fn appends_at(table: &mut Table, place: &Arc<Place>, store: &str) {
    let server = Server::start(place).await;
    let address = server.address;
    let mut producers = JoinSet::new();
    for number in 0..PRODUCERS {
        let pool = format!("p{number}");
        let session = session_in(address, &pool).await;
        prompt(address, &session, "go").await;
        let claim = Claim::take(address, &pool).await;
        claim.heartbeat(address).await;
        producers.spawn(produce(address, claim));
    }
    let (mut events, mut samples) = (0, Samples::default());
    while let Some(produced) = producers.join_next().await {
        let (count, own) = produced.unwrap();
        events += count;
        samples.extend(own);
    }
    let rate = f64::from(events) / APPENDING.as_secs_f64();
    table.value(
        &format!("{store}: events per second, {PRODUCERS} executors, batches of {BATCH}"),
        format!("{rate:.0}"),
    );
    table.value(
        &format!("{store}: one batch acknowledged, p50"),
        format!("{:.1} ms", samples.percentile(50)),
    );
    table.value(
        &format!("{store}: one batch acknowledged, p99"),
        format!("{:.1} ms", samples.percentile(99)),
    );
    table.value("memory under that load", mib(&server));
}

async fn produce(address: std::net::SocketAddr, claim: Claim) -> (u32, Samples) {
    let mut connection = Connection::open(address).await.unwrap();
    let (mut events, mut samples) = (0, Samples::default());
    let end = Instant::now() + APPENDING;
    while Instant::now() < end {
        let batch: Vec<_> = (0..BATCH)
            .map(|_| {
                events += 1;
                words(
                    &format!("e{events}"),
                    "some words of an agent, as long as they mostly are",
                )
            })
            .collect();
        let request = claim.request("events", json!({"events": batch}));
        let begun = Instant::now();
        connection.send(&request).await.unwrap().ok();
        samples.push(begun.elapsed());
    }
    (events, samples)
}
