use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tapedeck_domain::SessionId;
use tapedeck_protocol::stream::EndReason;
use tapedeck_protocol::{ErrorCode, Problem};

use super::*;
use crate::script::{Answer, Log, Seen, Tail, client, scripted};

fn session_id() -> SessionId {
    "01890000-0000-7000-8000-000000000001".parse().unwrap()
}

fn event(seq: u64) -> String {
    let data = json!({
        "type": "StreamDelta",
        "session_id": session_id(),
        "run_id": null,
        "session_seq": seq,
        "event_id": format!("e{seq}"),
        "timestamp": "2026-01-01T00:00:00.000Z",
        "content": "naïve 日本 \n",
    });
    format!("id: {seq}\nevent: StreamDelta\ndata: {data}\n\n")
}

fn open(head_seq: u64) -> String {
    let data = json!({
        "head_seq": head_seq, "active_run_id": null, "run_status": null, "interactions": [],
    });
    format!("retry: 1000\n\nevent: stream.open\ndata: {data}\n\n")
}

fn live(head_seq: u64) -> String {
    format!("event: stream.live\ndata: {{\"head_seq\":{head_seq}}}\n\n: comment\n\n")
}

fn end(reason: &str) -> String {
    format!("event: stream.end\ndata: {{\"reason\":\"{reason}\"}}\n\n")
}

fn text(text: String, tail: Tail) -> Answer {
    Answer::Body(200, vec![Bytes::from(text)], tail)
}

fn follow(client: &Client, start: Start) -> Follower {
    client.follow(
        session_id(),
        Follow {
            start,
            ..Follow::default()
        },
        StreamOptions::default(),
    )
}

/// Everything up to the end: numbers of events, whether `stream.end` came, and an error.
async fn drain(mut follower: Follower) -> (Vec<u64>, Option<EndReason>, Option<Error>) {
    let (mut seqs, mut end) = (Vec::new(), None);
    while let Some(frame) = follower.next().await {
        match frame {
            Ok(Frame::Event(event)) => seqs.push(event.session_seq),
            Ok(Frame::End(frame)) => end = Some(frame.reason),
            Ok(Frame::Open(_) | Frame::Live(_)) => {}
            Err(error) => return (seqs, end, Some(error)),
        }
    }
    (seqs, end, None)
}

fn cursors(log: &Log) -> Vec<Option<String>> {
    let log = log.lock().unwrap();
    log.iter()
        .map(|seen| seen.header("last-event-id").map(str::to_owned))
        .collect()
}

/// Answers a follow the way a flaky network would: refused, cut anywhere, stalled, repeated.
fn flaky(seen: &Seen, rng: &mut StdRng, head: u64, calm: bool) -> Answer {
    let after: u64 = seen.header("last-event-id").unwrap().parse().unwrap();
    if !calm && rng.random_bool(0.2) {
        return match rng.random_range(0..4) {
            0 => Answer::refused(ErrorCode::Unavailable),
            1 => Answer::refused(ErrorCode::Draining),
            2 => Answer::Lost,
            _ => Answer::Silence,
        };
    }
    // A server or proxy that repeats what was sent already.
    let from = if rng.random_bool(0.3) {
        after.saturating_sub(rng.random_range(0..4))
    } else {
        after
    };
    let mut whole = open(head);
    for seq in from + 1..=head {
        whole.push_str(&event(seq));
        if rng.random_bool(0.1) {
            whole.push_str(": comment\n\n");
        }
        if !calm && seq + 2 <= head && rng.random_bool(0.02) {
            // A hole: the rest must not be taken.
            whole.push_str(&event(seq + 2));
        }
    }
    write!(whole, "{}{}", live(head), end("settled")).unwrap();
    let bytes = Bytes::from(whole);
    let kept = if calm {
        bytes.len()
    } else {
        rng.random_range(0..=bytes.len())
    };
    let mut rest = bytes.slice(..kept);
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let size = rng.random_range(1..=rest.len().min(200));
        chunks.push(rest.split_to(size));
    }
    let tail = match rng.random_range(0..3) {
        0 => Tail::Close,
        1 => Tail::Break,
        _ => Tail::Stall,
    };
    Answer::Body(200, chunks, tail)
}

#[tokio::test(start_paused = true)]
async fn a_stream_cut_anywhere_gives_every_event_once_in_order() {
    const HEAD: u64 = 40;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    for round in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(round));
        let mut answered = 0;
        let (client, _) = client(move |seen| {
            answered += 1;
            flaky(seen, &mut rng, HEAD, answered > 30)
        });
        let (seqs, end, error) = drain(follow(&client, Start::Beginning)).await;
        assert!(error.is_none(), "seed {seed} round {round}: {error:?}");
        assert_eq!(
            seqs,
            (1..=HEAD).collect::<Vec<_>>(),
            "seed {seed} round {round}"
        );
        assert_eq!(end, Some(EndReason::Settled), "seed {seed} round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_dropped_at_any_await_loses_nothing() {
    let (client, _) = client({
        let mut rng = StdRng::seed_from_u64(7);
        let mut answered = 0;
        move |seen| {
            answered += 1;
            flaky(seen, &mut rng, 30, answered > 30)
        }
    });
    let mut follower = follow(&client, Start::Beginning);
    let mut seqs = Vec::new();
    loop {
        // Far shorter than a reconnect's pause, so that most waits are given up.
        let wait = tokio::time::timeout(Duration::from_millis(50), follower.next());
        match wait.await {
            Err(_elapsed) => {}
            Ok(None) => break,
            Ok(Some(frame)) => {
                if let Frame::Event(event) = frame.unwrap() {
                    seqs.push(event.session_seq);
                }
            }
        }
    }
    assert_eq!(seqs, (1..=30).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_comments_is_dead_after_two_and_a_half_of_them() {
    let (client, log) = scripted([
        text(open(2) + &event(1) + &event(2) + &live(2), Tail::Stall),
        text(open(2) + &live(2) + &end("settled"), Tail::Close),
    ]);
    let start = Instant::now();
    let (seqs, end, error) = drain(follow(&client, Start::Beginning)).await;
    assert_eq!((seqs, end), (vec![1, 2], Some(EndReason::Settled)));
    assert!(error.is_none());
    assert!(
        (25..28).contains(&start.elapsed().as_secs()),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(cursors(&log), [Some("0".to_owned()), Some("2".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn comments_keep_a_quiet_connection() {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(8);
    let receiver = Arc::new(Mutex::new(Some(receiver)));
    let service = tower::service_fn(move |_| {
        let receiver = receiver
            .lock()
            .unwrap()
            .take()
            .expect("one connection only");
        let stream = futures::stream::unfold(receiver, |mut receiver| async move {
            let chunk = receiver.recv().await?;
            Some((
                Ok::<_, std::io::Error>(http_body::Frame::data(chunk)),
                receiver,
            ))
        });
        let body = http_body_util::StreamBody::new(stream);
        let response = Response::builder()
            .header(CONTENT_TYPE, EVENT_STREAM)
            .body(body);
        async move { response }
    });
    let client = Client::in_process(service, None).unwrap();
    let feed = async {
        sender.send(Bytes::from(open(0))).await.unwrap();
        for _ in 0..30 {
            sleep(Duration::from_secs(10)).await;
            sender
                .send(Bytes::from_static(b": still here\n\n"))
                .await
                .unwrap();
        }
        sender
            .send(Bytes::from(event(1) + &end("settled")))
            .await
            .unwrap();
    };
    let ((), (seqs, end, error)) = tokio::join!(feed, drain(follow(&client, Start::Beginning)));
    assert_eq!((seqs, end), (vec![1], Some(EndReason::Settled)));
    assert!(error.is_none());
}

#[tokio::test(start_paused = true)]
async fn refusals_that_no_retry_can_cure_end_the_stream() {
    for code in [
        ErrorCode::SessionNotFound,
        ErrorCode::CursorFuture,
        ErrorCode::CursorExpired,
        ErrorCode::CursorMalformed,
        ErrorCode::Unauthorized,
    ] {
        let (client, log) = scripted([Answer::refused(code)]);
        let mut follower = follow(&client, Start::After(5));
        let error = follower.next().await.unwrap().unwrap_err();
        assert_eq!(error.code(), Some(code));
        assert!(follower.next().await.is_none());
        assert_eq!(log.lock().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_asked_again_when_it_says() {
    let busy = Problem::new(ErrorCode::Unavailable, "later").retry_after_ms(20_000);
    let (client, _) = scripted([
        Answer::problem(&busy),
        text(open(1) + &event(1) + &end("settled"), Tail::Close),
    ]);
    let start = Instant::now();
    let (seqs, ..) = drain(follow(&client, Start::Beginning)).await;
    assert_eq!(seqs, [1]);
    assert!(start.elapsed() >= Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_reconnects_and_a_deleted_session_ends() {
    let (client, log) = scripted([
        text(open(1) + &event(1) + &end("shutdown"), Tail::Stall),
        text(open(2) + &event(2) + &end("deleted"), Tail::Stall),
    ]);
    let (seqs, end, error) = drain(follow(&client, Start::Beginning)).await;
    assert_eq!((seqs, end), (vec![1, 2], Some(EndReason::Deleted)));
    assert!(error.is_none());
    assert_eq!(cursors(&log), [Some("0".to_owned()), Some("1".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_start_at_the_head_is_pinned_by_the_first_frame() {
    let (client, log) = scripted([
        Answer::Lost,
        text(open(7), Tail::Close),
        text(open(8) + &event(8) + &end("settled"), Tail::Close),
    ]);
    let (seqs, ..) = drain(follow(&client, Start::Head)).await;
    assert_eq!(seqs, [8]);
    assert_eq!(cursors(&log), [None, None, Some("7".to_owned())]);
    assert_eq!(log.lock().unwrap()[0].uri.query(), Some("after=head"));
}

#[tokio::test(start_paused = true)]
async fn a_resumed_stream_names_the_log_that_its_number_is_of() {
    const LOG: &str = "00000000-0000-0000-0000-000000000007";
    let named = |head: u64| {
        open(head).replace(
            "\"head_seq\"",
            &format!("\"log_id\":\"{LOG}\",\"head_seq\""),
        )
    };
    let (client, log) = scripted([
        text(named(2) + &event(1), Tail::Close),
        text(named(2) + &event(2), Tail::Close),
        Answer::refused(ErrorCode::LogChanged),
    ]);
    let (seqs, end, error) = drain(follow(&client, Start::Beginning)).await;
    assert_eq!((seqs, end), (vec![1, 2], None));
    assert_eq!(error.unwrap().code(), Some(ErrorCode::LogChanged));
    let log = log.lock().unwrap();
    let queries: Vec<_> = log.iter().map(|seen| seen.uri.query()).collect();
    let named = format!("log_id={LOG}");
    assert_eq!(queries, [None, Some(named.as_str()), Some(named.as_str())]);
}

#[tokio::test(start_paused = true)]
async fn a_hole_that_stays_is_an_error_and_never_yielded() {
    let (client, log) = client(|seen| {
        let after = seen.header("last-event-id").unwrap();
        let text_of = if after == "0" {
            open(3) + &event(1) + &event(3)
        } else {
            open(3) + &event(3)
        };
        text(text_of, Tail::Stall)
    });
    let (seqs, _, error) = drain(follow(&client, Start::Beginning)).await;
    assert_eq!(seqs, [1]);
    assert!(matches!(error, Some(Error::Stream(why)) if why == "event 3 follows event 1"));
    assert_eq!(log.lock().unwrap().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_filtered_stream_may_have_holes_and_a_folded_event_covers_its_own() {
    let filter = Follow {
        kinds: vec!["StreamDelta".to_owned(), "Plan".to_owned()],
        ..Follow::default()
    };
    let answer = open(9) + &event(3) + &event(9) + &end("settled");
    let (client, log) = scripted([text(answer, Tail::Close)]);
    let follower = client.follow(session_id(), filter, StreamOptions::default());
    assert_eq!(drain(follower).await.0, [3, 9]);
    assert_eq!(
        log.lock().unwrap()[0].uri.query(),
        Some("kinds=StreamDelta%2CPlan")
    );

    let folded = event(5).replace("\"type\"", "\"folded_from\":1,\"type\"");
    let (client, _) = scripted([text(open(5) + &folded + &end("settled"), Tail::Close)]);
    assert_eq!(drain(follow(&client, Start::Beginning)).await.0, [5]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_place_was_folded_ends_and_says_where_to_restart() {
    let (client, log) = client(|seen| {
        let after = seen.header("last-event-id").unwrap();
        let folded = event(5).replace("\"type\"", "\"folded_from\":2,\"type\"");
        match after {
            "0" => text(open(5) + &event(1) + &event(2) + &event(3), Tail::Break),
            "1" => text(open(5) + &folded + &end("settled"), Tail::Close),
            _ => {
                let mut problem = Problem::new(ErrorCode::CursorExpired, "folded");
                problem.extensions.restart_after = Some(1);
                Answer::problem(&problem)
            }
        }
    });
    let (seqs, end, error) = drain(follow(&client, Start::Beginning)).await;
    assert_eq!((seqs, end), (vec![1, 2, 3], None));
    let error = error.unwrap();
    assert_eq!(error.code(), Some(ErrorCode::CursorExpired));
    assert_eq!(cursors(&log).len(), 2, "asking again would not help");
    let restart = Start::After(error.restart_after().unwrap());
    let (seqs, end, error) = drain(follow(&client, restart)).await;
    assert_eq!((seqs, end), (vec![5], Some(EndReason::Settled)));
    assert!(error.is_none(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn an_event_under_another_id_is_not_taken() {
    let forged = event(1).replace("id: 1\n", "id: 2\n");
    let (client, _) = client(move |_| text(open(1) + &forged, Tail::Close));
    let (seqs, _, error) = drain(follow(&client, Start::Beginning)).await;
    assert!(seqs.is_empty());
    assert!(matches!(error, Some(Error::Stream(_))));
}

#[tokio::test(start_paused = true)]
async fn a_follower_gives_up_when_told_to() {
    let (client, _) = client(|_| Answer::Lost);
    let options = StreamOptions {
        give_up_after: Some(Duration::from_mins(1)),
        ..StreamOptions::default()
    };
    let start = Instant::now();
    let follower = client.follow(session_id(), Follow::default(), options);
    let (_, _, error) = drain(follower).await;
    assert!(matches!(error, Some(Error::Transport { .. })));
    assert!((60..80).contains(&start.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn frames_of_a_later_version_are_passed_over_and_large_events_are_read() {
    let large = event(1).replace("naïve", &"x".repeat(2 * 1024 * 1024));
    let whole = open(1) + "event: stream.news\ndata: 5\n\n" + &large + &end("settled");
    let chunks = Bytes::from(whole)
        .chunks(4_099)
        .map(Bytes::copy_from_slice)
        .collect();
    let (client, _) = scripted([Answer::Body(200, chunks, Tail::Stall)]);
    let frames: Vec<_> = follow(&client, Start::Beginning)
        .into_stream()
        .collect()
        .await;
    let frames: Vec<Frame> = frames.into_iter().map(Result::unwrap).collect();
    assert!(matches!(
        &frames[..],
        [Frame::Open(_), Frame::Event(event), Frame::End(_)]
            if event.text("content").is_some_and(|text| text.len() > 2 * 1024 * 1024)
    ));
}

#[tokio::test(start_paused = true)]
async fn the_place_to_go_on_from_counts_only_what_was_yielded() {
    let answer = open(3) + &event(1) + &event(2) + &event(3);
    let (client, _) = scripted([text(answer, Tail::Stall)]);
    let mut follower = follow(&client, Start::Beginning);
    assert!(matches!(follower.next().await, Some(Ok(Frame::Open(_)))));
    assert_eq!(follower.last_seq(), Some(0));
    follower.next().await.unwrap().unwrap();
    assert_eq!(follower.last_seq(), Some(1));
    follower.next().await.unwrap().unwrap();
    follower.next().await.unwrap().unwrap();
    assert_eq!(follower.last_seq(), Some(3));
}

#[tokio::test]
async fn a_router_is_followed_in_process_and_a_page_in_its_place_is_refused() {
    let stream = open(1) + &event(1) + &end("settled");
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8")];
    let events = axum::routing::get(move || async move { (headers, stream) });
    let health = axum::routing::get(|| async {
        r#"{"status":"ok","version":"1","storage":"sqlite","durability":"full"}"#
    });
    let router = axum::Router::new()
        .route("/sessions/{id}/events", events)
        .route("/healthz", health);
    let client = Client::in_process(router, None).unwrap();
    assert_eq!(client.health().await.unwrap().status, "ok");
    assert_eq!(drain(follow(&client, Start::Beginning)).await.0, [1]);

    let page = axum::routing::get(|| async { "<html>" });
    let router = axum::Router::new().route("/sessions/{id}/events", page);
    let client = Client::in_process(router, None).unwrap();
    let (_, _, error) = drain(follow(&client, Start::Beginning)).await;
    assert!(matches!(error, Some(Error::Foreign { .. })));
}
