//! What was acknowledged outlives the process that said so (I1; faults 3, 5), on either store, write
//! by write and without a moment in between; `crash` and `pounding` do the same for minutes, in any
//! order and to the database as well.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::{self, Claim, words};
use crate::http::Request;
use crate::server::{Place, Server};
use crate::wait::eventually;

on_both_stores! {
    acked_write_survives_kill9,
}

/// Leases of 10 s last 2 s.
const SCALE: f64 = 0.2;

async fn acked_write_survives_kill9(place: Arc<Place>) {
    let mut server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    let created = json!({
        "title": "durable", "run_target": {"executor": {"pool": "durable"}},
        "approval_policy": "interactive",
    });
    let session = api::session_of(address, &created).await;
    server.restart().await;
    let shown = server.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(shown["title"], "durable");

    let (run, admitted) = api::prompt(address, &session, "work").await;
    server.restart().await;
    assert_eq!(api::run(address, &run).await["status"], "requested");
    let claim = Claim::take(address, "durable").await;
    assert_eq!(claim.run_id, run);
    server.restart().await;
    // The claim is its executor's still, and so is whatever it uploads.
    claim.heartbeat(address).await;
    let mut told = Vec::new();
    for n in 0..4 {
        let batch = [
            words(&format!("{n}-a"), "one"),
            words(&format!("{n}-b"), "two"),
        ];
        told.extend(claim.upload(address, &batch).await);
        server.restart().await;
        let log = api::log(address, &session).await;
        api::assert_dense(&log);
        for record in &told {
            assert!(log.contains(record), "{record} is lost");
        }
    }
    let body = json!({"request_id": "q", "tool_name": "shell", "arguments": {}, "wait_seconds": 0});
    let asked = claim.request("approval", body).send(address).await;
    let question = api::text(&asked.json(), "interaction_id");
    server.restart().await;
    let path = format!("/interactions/{question}");
    assert_eq!(server.get(&path).await.ok()["status"], "pending");
    let yes = json!({"approved": true});
    let resolve = Request::post(format!("{path}/resolve"), &yes);
    resolve.send(address).await.ok();
    server.restart().await;
    assert_eq!(server.get(&path).await.ok()["status"], "approved");
    claim.complete(address).await;
    server.restart().await;
    assert_eq!(api::run(address, &run).await["status"], "completed");

    let capture = Request::post(format!("/sessions/{session}/checkpoints"), &json!({}));
    let captured = capture.send(address).await;
    let checkpoint = api::text(&captured.json(), "checkpoint_id");
    server.restart().await;
    let listed = format!("/sessions/{session}/checkpoints");
    let listed = server.get(&listed).await.ok();
    assert_eq!(listed["checkpoints"][0]["checkpoint_id"], checkpoint);
    let (resumed, later) = api::resume(address, &session, "go on").await;
    server.restart().await;
    assert!(later > admitted);
    // Whoever claims it and dies with the server leaves it to somebody else.
    let lost = Claim::take(address, "durable").await;
    assert_eq!(lost.run_id, resumed);
    lost.heartbeat(address).await;
    server.restart().await;
    let settled = async || {
        let run = api::run(address, &resumed).await;
        (run["status"] == "interrupted").then_some(())
    };
    eventually("the lost run is swept", Duration::from_mins(1), settled).await;
    let (next, _) = api::prompt(address, &session, "again").await;
    server.restart().await;
    assert_eq!(Claim::take(address, "durable").await.run_id, next);
    let log = api::log(address, &session).await;
    api::assert_dense(&log);
    for record in &told {
        assert!(log.contains(record), "{record} is lost");
    }
    server.process.kill().await;
    place.is_healthy(SCALE).await;
}
