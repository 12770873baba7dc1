//! Streams over a bad network: cut anywhere, as often as you like (faults 1), and readers that stop
//! (faults 23).

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::api::{self, Claim, prompt, session_in, spoken, words};
use crate::http::{Frame, Frames, Request, events};
use crate::seed::Seed;
use crate::server::{Place, Server};
use crate::wait::within;

on_both_stores! {
    a_stream_cut_at_any_byte_any_number_of_times_is_the_log,
    a_stream_outlives_its_server,
    readers_who_stop_cost_nothing_and_miss_nothing,
}

/// Readers who stop.
const STALLED: usize = 500;
/// What is written meanwhile: this many batches of ten events.
const BATCHES: usize = 200;
const EVENT_BYTES: usize = 8 * 1024;
/// What the server may grow by: a connection's buffer for each reader who stopped, the shared tail,
/// and the bodies of uploads. Queues of events would take gigabytes.
const GROWTH_KIB: u64 = 128 * 1024;

fn follow(session: &str, last: Option<u64>) -> Request {
    let request = Request::get(format!("/sessions/{session}/events"));
    match last {
        Some(last) => request.header("last-event-id", last.to_string()),
        None => request,
    }
}

#[track_caller]
fn assert_same(seen: &[Frame], log: &[Value]) {
    let seen = events(seen);
    let of_log: Vec<_> = log
        .iter()
        .map(|event| (event["session_seq"].as_u64(), &event["event_id"]))
        .collect();
    let of_seen: Vec<_> = seen
        .iter()
        .map(|frame| (frame.id, &frame.data["event_id"]))
        .collect();
    assert_eq!(of_seen, of_log);
}

/// Follows with connections that break after a few bytes, until the run's end was seen.
async fn follow_badly(server: &Server, session: &str, mut rng: StdRng) -> (Vec<Frame>, u32) {
    let mut seen: Vec<Frame> = Vec::new();
    let mut cuts = 0;
    loop {
        let last = seen.iter().filter_map(|frame| frame.id).next_back();
        let mut frames = follow(session, last).open(server.address).await;
        // From within the first frame to some screens of them.
        frames.cut_after(rng.random_range(0..4_000));
        while let Some(frame) = frames.next().await {
            let is_end = frame.kind == "TurnEnd";
            seen.push(frame);
            if is_end {
                return (seen, cuts);
            }
        }
        cuts += 1;
    }
}

async fn a_stream_cut_at_any_byte_any_number_of_times_is_the_log(place: Arc<Place>) {
    let server = Arc::new(Server::start(&place).await);
    let address = server.address;
    // Half of the log is there before, so that cuts fall into the replay, too.
    let claim = spoken(&server, "cuts", 300).await;
    let seed = Seed::of_this_run();
    let mut followers = JoinSet::new();
    for number in 0..8 {
        let (server, session) = (Arc::clone(&server), claim.session_id.clone());
        followers.spawn(async move { follow_badly(&server, &session, seed.of(number)).await });
    }
    for n in 300..600 {
        claim
            .upload(address, &[words(&format!("e{n}"), &format!("{n}\n"))])
            .await;
    }
    claim.complete(address).await;
    let log = api::log(address, &claim.session_id).await;
    let mut cuts = 0;
    while let Some(followed) = within(
        "followers end",
        Duration::from_mins(1),
        followers.join_next(),
    )
    .await
    {
        let (frames, times) = followed.unwrap();
        assert_same(&frames, &log);
        cuts += times;
    }
    assert!(cuts > 100, "only {cuts} cuts");
}

async fn a_stream_outlives_its_server(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let address = server.address;
    let claim = spoken(&server, "restarts", 20).await;
    let mut seen = Vec::new();
    for round in 0..5 {
        let last = seen.iter().filter_map(|frame: &Frame| frame.id).next_back();
        let mut frames = follow(&claim.session_id, last).open(address).await;
        seen.extend(frames.until(|frame| frame.kind == "stream.live").await);
        let id = format!("r{round}");
        claim.upload(address, &[words(&id, "more")]).await;
        seen.extend(frames.until(|frame| frame.data["event_id"] == id).await);
        // An event that its stream's reader will never get.
        claim
            .upload(address, &[words(&format!("r{round}-unseen"), "more")])
            .await;
        drop(frames);
        server.restart().await;
    }
    claim.complete(address).await;
    let last = seen.iter().filter_map(|frame| frame.id).next_back();
    let mut frames = follow(&claim.session_id, last).open(address).await;
    seen.extend(frames.until(|frame| frame.kind == "TurnEnd").await);
    assert_same(&seen, &api::log(address, &claim.session_id).await);
}

/// Reads on, over a new connection if the old one has been closed, until the run's end.
async fn read_on(server: &Server, session: &str, mut frames: Frames) -> Vec<Frame> {
    let mut seen: Vec<Frame> = Vec::new();
    loop {
        while let Some(frame) = frames.next().await {
            let is_end = frame.kind == "TurnEnd";
            seen.push(frame);
            if is_end {
                return seen;
            }
        }
        let last = seen.iter().filter_map(|frame| frame.id).next_back();
        frames = follow(session, last).open(server.address).await;
    }
}

async fn readers_who_stop_cost_nothing_and_miss_nothing(place: Arc<Place>) {
    let server = Arc::new(Server::start(&place).await);
    let address = server.address;
    let session = session_in(address, "hose").await;
    prompt(address, &session, "go").await;
    let claim = Claim::take(address, "hose").await;
    claim.heartbeat(address).await;

    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        stalled.push(follow(&session, None).open_narrow(address).await.unwrap());
    }
    let healthy = follow(&session, None).open(address).await;
    let before = server.resident_kib();
    let reader = {
        let (server, session) = (Arc::clone(&server), session.clone());
        JoinSet::from_iter([async move { read_on(&server, &session, healthy).await }])
    };
    let mut most = before;
    for batch in 0..BATCHES {
        let event = |n: usize| words(&format!("e{batch}-{n}"), &"x".repeat(EVENT_BYTES));
        let batch: Vec<_> = (0..10).map(event).collect();
        claim.upload(address, &batch).await;
        most = most.max(server.resident_kib());
    }
    let settled = claim.request(
        "complete",
        json!({"status": "completed", "event_count": BATCHES * 10}),
    );
    settled.send(address).await.ok();
    let log = api::log(address, &session).await;
    let read = within(
        "the healthy reader is done",
        Duration::from_secs(30),
        reader.join_all(),
    )
    .await;
    assert_same(&read[0], &log);
    most = most.max(server.resident_kib());
    eprintln!("{STALLED} stalled readers: {before} KiB before, {most} KiB at most");
    assert!(
        most - before < GROWTH_KIB,
        "grew from {before} to {most} KiB"
    );

    let mut resumed = JoinSet::new();
    for frames in stalled.into_iter().step_by(STALLED / 10) {
        let (server, session) = (Arc::clone(&server), session.clone());
        resumed.spawn(async move { read_on(&server, &session, frames).await });
    }
    while let Some(read) = within(
        "stalled readers catch up",
        Duration::from_mins(1),
        resumed.join_next(),
    )
    .await
    {
        assert_same(&read.unwrap(), &log);
    }
}
