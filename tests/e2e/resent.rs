//! An upload whose outcome nobody knows is sent again byte for byte, and recorded once (rules R12).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{self, is_terminal, prompt, session_in, text};
use crate::chaos::{Beside, Tap};
use crate::postgres::{Cluster, ClusterOptions};
use crate::server::{ExecutorOptions, Place, Server, executor};
use crate::wait::eventually;

const LIMIT: Duration = Duration::from_mins(2);
const CHUNKS: u64 = 200;
/// Databases that die.
const BLOWS: usize = 2;

/// A commit waits for a second server that doesn't exist: it is on the disk, and nobody is told.
const HOLD_COMMITS: &str = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'";
const RELEASE_COMMITS: &str = "ALTER SYSTEM RESET synchronous_standby_names";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_cut_off_in_its_commit_is_sent_again_unchanged_and_recorded_once() {
    let options = ClusterOptions {
        replicates: true,
        ..ClusterOptions::default()
    };
    let cluster = Cluster::own(options).await;
    let place = Arc::new(Place::on_cluster(&cluster).await);
    let server = Server::start(&place).await;
    let address = server.address;
    let tap = Tap::before(address).await;
    let options = ExecutorOptions {
        lease_seconds: 300,
        ..ExecutorOptions::named("x1")
    };
    let _worker = executor(&place, &format!("http://{}", tap.address), &options);
    let session = session_in(address, "default").await;
    let script = format!("say begin; stream {CHUNKS} 100; say end");
    let (run, _) = prompt(address, &session, &script).await;

    for blow in 1..=BLOWS {
        let words = format!("chunk {}\n", blow * 40);
        let speaks = async || {
            let log = api::log(address, &session).await;
            api::said(&log, &run).contains(&words).then_some(())
        };
        eventually("the agent speaks", LIMIT, speaks).await;
        let mut beside = Beside::database(place.database().url()).await;
        beside.execute(HOLD_COMMITS).await;
        beside.texts("SELECT pg_reload_conf()::text").await;
        let waits = async || {
            let waiting = beside.activity("wait_event = 'SyncRep'").await;
            (!waiting.is_empty()).then_some(())
        };
        eventually("a commit waits", LIMIT, waits).await;
        // For the next start: nothing is told of it before that.
        beside.execute(RELEASE_COMMITS).await;
        cluster.kill().await;
        cluster.start().await;
        let well = async || (server.get("/readyz").await.status == 200).then_some(());
        eventually("the server is well again", LIMIT, well).await;
    }
    let ends = async || {
        let run = api::run(address, &run).await;
        is_terminal(&run).then_some(run)
    };
    let ended = eventually("the run ends", LIMIT, ends).await;
    assert_eq!(
        (&ended["status"], &ended["attempt"]),
        (&json!("completed"), &json!(1)),
        "{ended}"
    );
    let log = api::log(address, &session).await;
    api::assert_dense(&log);
    let expected = format!("begin{}end", api::numbered("chunk", CHUNKS));
    assert_eq!(api::said(&log, &run), expected);

    let mut sent: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for body in tap.bodies("/events") {
        let request: Value = serde_json::from_slice(&body).unwrap();
        let first = text(&request["events"][0], "event_id");
        sent.entry(first).or_default().push(body);
    }
    let again: Vec<_> = sent.values().filter(|bodies| bodies.len() > 1).collect();
    eprintln!("{} batches, {} sent again", sent.len(), again.len());
    assert!(!again.is_empty(), "no upload was cut off");
    for bodies in again {
        assert!(bodies.iter().all(|body| *body == bodies[0]));
    }
    place.is_healthy(1.0).await;
}
