//! SIGTERM with everything open (faults 21), and the restart that nobody's run notices.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{self, Claim, is_terminal, prompt, session_in, words};
use crate::http::{End, Frame, Request};
use crate::server::{ExecutorOptions, Place, Server, executor};
use crate::wait::{eventually, within};

on_both_stores! {
    a_drain_ends_within_its_bound_and_loses_nothing_acknowledged,
    a_rolling_restart_interrupts_nothing,
    a_second_signal_ends_a_drain_at_once,
}

const STREAMS: usize = 200;
const POLLS: usize = 50;
const UPLOADS: usize = 64;
/// A drain takes at most 25 s whatever clients do (stores §7).
const DRAIN: Duration = Duration::from_secs(25);

/// A stream's end, and its last frame.
type StreamEnd = (Option<End>, Option<Frame>);

/// Streams that have caught up, spread over the sessions.
async fn open_streams(address: SocketAddr, claims: &[Claim]) -> JoinSet<StreamEnd> {
    let mut streams = JoinSet::new();
    for claim in claims.iter().cycle().take(STREAMS) {
        let events = Request::get(format!("/sessions/{}/events", claim.session_id));
        let mut frames = events.open(address).await;
        frames.until(|frame| frame.kind == "stream.live").await;
        streams.spawn(async move {
            let last = frames.rest().await.pop();
            (frames.end, last)
        });
    }
    streams
}

/// Uploads one event after the other until the server is gone; gives what was acknowledged.
async fn upload_to_the_end(address: SocketAddr, claim: Claim) -> (Claim, Vec<Value>) {
    let mut acknowledged = Vec::new();
    for number in 0.. {
        let event = words(&format!("e{number}"), &number.to_string());
        let request = claim.request("events", json!({"events": [event]}));
        match request.try_send(address).await {
            Ok(answer) if answer.status == 200 => {
                acknowledged.extend(api::records(&answer.json()));
            }
            Ok(answer) => {
                assert_eq!(answer.problem(), (503, "draining".to_owned()));
                break;
            }
            Err(_) => break,
        }
    }
    (claim, acknowledged)
}

async fn a_drain_ends_within_its_bound_and_loses_nothing_acknowledged(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let address = server.address;
    let mut claims = Vec::new();
    for _ in 0..UPLOADS {
        let session = session_in(address, "busy").await;
        prompt(address, &session, "go").await;
        let claim = Claim::take(address, "busy").await;
        claim.heartbeat(address).await;
        claims.push(claim);
    }
    let mut streams = open_streams(address, &claims).await;
    let mut polls = JoinSet::new();
    for number in 0..POLLS {
        let body =
            json!({"executor_id": format!("idle-{number}"), "pool": "idle", "wait_seconds": 60});
        polls.spawn(async move {
            Request::post("/executor/runs/claim", &body)
                .try_send(address)
                .await
        });
    }
    let mut uploads: JoinSet<_> = claims
        .iter()
        .map(|claim| upload_to_the_end(address, claim.clone()))
        .collect();
    let written = async || {
        let log = api::log(address, &claims[UPLOADS - 1].session_id).await;
        (log.len() > 10).then_some(())
    };
    eventually("uploads are under way", Duration::from_secs(30), written).await;
    let seen = async || {
        let executors = api::list(address, "/executors", "executors").await;
        (executors.len() > POLLS).then_some(())
    };
    eventually("polls are held", Duration::from_secs(30), seen).await;

    let begun = Instant::now();
    let status = server.process.terminate(DRAIN).await;
    eprintln!("drained in {:?}", begun.elapsed());
    assert!(status.success(), "{status}");
    let limit = Duration::from_secs(10);
    while let Some(ended) = within("streams end", limit, streams.join_next()).await {
        let (end, last) = ended.unwrap();
        assert_eq!(end, Some(End::Closed));
        let last = last.unwrap();
        assert_eq!(last.kind, "stream.end");
        assert_eq!(last.data["reason"], "shutdown");
        assert!(last.retry.is_some_and(|ms| ms >= 1_000), "{last:?}");
    }
    while let Some(answer) = within("polls end", limit, polls.join_next()).await {
        let answer = answer.unwrap().expect("a held poll is answered");
        assert!([404, 503].contains(&answer.status), "{}", answer.text());
    }
    let mut told = Vec::new();
    while let Some(ended) = within("uploads end", limit, uploads.join_next()).await {
        told.push(ended.unwrap());
    }

    server.restart().await;
    for (claim, acknowledged) in told {
        let log = api::log(address, &claim.session_id).await;
        api::assert_dense(&log);
        assert!(!acknowledged.is_empty());
        for event in &acknowledged {
            assert_eq!(&log[usize::try_from(api::seq(event)).unwrap() - 1], event);
        }
        assert_eq!(claim.heartbeat(address).await["status"], "running");
    }
}

async fn a_rolling_restart_interrupts_nothing(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let address = server.address;
    let options = ExecutorOptions {
        max_runs: 4,
        lease_seconds: 30,
        ..ExecutorOptions::named("x1")
    };
    let _executor = executor(&place, &server.url(), &options);
    let mut runs = Vec::new();
    for _ in 0..4 {
        let session = session_in(address, "default").await;
        let (run, _) = prompt(address, &session, "stream 60 50; say done").await;
        runs.push((session, run));
    }
    for (session, _) in &runs[..3] {
        let speaking = async || {
            let log = api::log(address, session).await;
            log.iter()
                .any(|event| event["kind"] == "StreamDelta")
                .then_some(())
        };
        eventually("a run speaks", Duration::from_secs(30), speaking).await;
        let status = server.process.terminate(DRAIN).await;
        assert!(status.success(), "{status}");
        server.restart().await;
    }
    let chunks = api::numbered("chunk", 60);
    for (session, run) in &runs {
        let settled = async || {
            let run = api::run(address, run).await;
            is_terminal(&run).then_some(run)
        };
        let settled = eventually("the run ends", Duration::from_mins(1), settled).await;
        assert_eq!(
            (&settled["status"], &settled["attempt"]),
            (&json!("completed"), &json!(1))
        );
        let log = api::log(address, session).await;
        api::assert_dense(&log);
        assert_eq!(api::said(&log, run), format!("{chunks}done"));
    }
}

async fn a_second_signal_ends_a_drain_at_once(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let address = server.address;
    // Half a request keeps a connection busy for as long as it may.
    let session = session_in(address, "p").await;
    let (head, _) = half_a_request(&session, address);
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut socket, &head)
        .await
        .unwrap();
    server.process.signal(Signal::SIGTERM);
    let draining = async || {
        server
            .process
            .log()
            .contains("serve.draining")
            .then_some(())
    };
    eventually("the drain begins", Duration::from_secs(10), draining).await;
    server.process.signal(Signal::SIGTERM);
    server.process.ended(Duration::from_secs(10)).await;
}

fn half_a_request(session: &str, address: SocketAddr) -> (Vec<u8>, Vec<u8>) {
    let request = Request::post(
        format!("/sessions/{session}/prompt"),
        &json!({"prompt": "x".repeat(1_000)}),
    );
    let mut head = request.bytes(address);
    let rest = head.split_off(head.len() - 500);
    (head, rest)
}
