use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tapedeck_protocol::{ErrorCode, Problem};

use super::*;
use crate::script::{Answer, Log, Seen, Tail, client, scripted};

const LOG: &str = "00000000-0000-0000-0000-000000000007";

/// The place of the nth event.
fn cursor(nth: u64) -> String {
    format!("{LOG}.0.{nth}")
}

/// The nth event of the log, of one of three sessions.
fn event(nth: u64) -> String {
    let data = json!({
        "type": "StreamDelta",
        "session_id": format!("01890000-0000-7000-8000-{:012}", nth % 3),
        "run_id": null,
        "session_seq": nth / 3 + 1,
        "event_id": format!("e{nth}"),
        "timestamp": "2026-01-01T00:00:00.000Z",
        "content": "naïve 日本 \n",
    });
    format!("id: {}\nevent: StreamDelta\ndata: {data}\n\n", cursor(nth))
}

fn open(nth: u64) -> String {
    let data = json!({"log_id": LOG, "cursor": cursor(nth)});
    format!("retry: 1000\n\nevent: stream.open\ndata: {data}\n\n")
}

fn live(nth: u64) -> String {
    let data = json!({"cursor": cursor(nth)});
    format!("event: stream.live\ndata: {data}\n\n: comment\n\n")
}

fn text(text: String, tail: Tail) -> Answer {
    Answer::Body(200, vec![Bytes::from(text)], tail)
}

fn follow(client: &Client, start: FeedStart) -> FeedFollower {
    let follow = FollowAll {
        start,
        ..FollowAll::default()
    };
    client.follow_all(follow, StreamOptions::default())
}

/// The ids of events up to the one that is wanted last, or to an error.
async fn drain(follower: &mut FeedFollower, last: u64) -> (Vec<String>, Option<Error>) {
    let mut ids = Vec::new();
    while let Some(frame) = follower.next().await {
        match frame {
            Ok(FeedFrame::Event { cursor: at, event }) => {
                ids.push(event.event_id);
                if at == cursor(last) {
                    break;
                }
            }
            Ok(FeedFrame::Open(_) | FeedFrame::Live(_)) => {}
            Err(error) => return (ids, Some(error)),
        }
    }
    (ids, None)
}

fn ids(range: impl Iterator<Item = u64>) -> Vec<String> {
    range.map(|nth| format!("e{nth}")).collect()
}

/// What each request asked for: the header, and the query.
fn asked(log: &Log) -> Vec<(Option<String>, Option<String>)> {
    let log = log.lock().unwrap();
    log.iter()
        .map(|seen| {
            let header = seen.header("last-event-id").map(str::to_owned);
            (header, seen.uri.query().map(str::to_owned))
        })
        .collect()
}

/// Answers as a flaky network would: refused, cut anywhere, stalled.
fn flaky(seen: &Seen, rng: &mut StdRng, head: u64, calm: bool) -> Answer {
    let after = seen.header("last-event-id").map_or(0, |last| {
        last.rsplit('.').next().unwrap().parse::<u64>().unwrap()
    });
    if !calm && rng.random_bool(0.2) {
        return match rng.random_range(0..4) {
            0 => Answer::refused(ErrorCode::Unavailable),
            1 => Answer::refused(ErrorCode::Draining),
            2 => Answer::Lost,
            _ => Answer::Silence,
        };
    }
    let events: String = (after + 1..=head).map(event).collect();
    let bytes = Bytes::from(open(after) + &events + &live(head));
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
    for round in 0..100 {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(round));
        let mut answered = 0;
        let (client, _) = client(move |seen| {
            answered += 1;
            flaky(seen, &mut rng, HEAD, answered > 30)
        });
        let mut follower = follow(&client, FeedStart::Beginning);
        let (events, error) = drain(&mut follower, HEAD).await;
        assert!(error.is_none(), "seed {seed} round {round}: {error:?}");
        assert_eq!(events, ids(1..=HEAD), "seed {seed} round {round}");
        assert_eq!(follower.cursor(), Some(cursor(HEAD).as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_is_asked_for_once_and_the_server_s_places_from_then_on() {
    let (client, log) = scripted([
        Answer::Lost,
        text(open(7), Tail::Close),
        text(open(7) + &event(8) + &live(9), Tail::Close),
        text(open(9) + &event(10), Tail::Stall),
    ]);
    let selection = FollowAll {
        start: FeedStart::Head,
        kinds: vec!["StreamDelta".to_owned(), "Plan".to_owned()],
    };
    let mut follower = client.follow_all(selection, StreamOptions::default());
    assert_eq!(follower.cursor(), None);
    assert_eq!(drain(&mut follower, 10).await.0, ["e8", "e10"]);
    let kinds = "kinds=StreamDelta%2CPlan";
    let at_head = (None, Some(format!("after=head&{kinds}")));
    let after = |nth| (Some(cursor(nth)), Some(kinds.to_owned()));
    // What the filter left out up to 9 is not looked at again.
    assert_eq!(asked(&log), [at_head.clone(), at_head, after(7), after(9)]);

    let (client, log) = scripted([
        text(open(0), Tail::Close),
        text(open(0) + &event(1), Tail::Stall),
    ]);
    drain(&mut follow(&client, FeedStart::Beginning), 1).await;
    assert_eq!(asked(&log), [(None, None), (Some(cursor(0)), None)]);

    let (client, log) = scripted([text(open(4) + &event(5), Tail::Stall)]);
    drain(&mut follow(&client, FeedStart::After(cursor(4))), 5).await;
    assert_eq!(asked(&log), [(Some(cursor(4)), None)]);
}

#[tokio::test(start_paused = true)]
async fn the_place_to_go_on_from_counts_only_what_was_yielded() {
    let answer = open(0) + &event(1) + &event(2) + &live(2);
    let (client, _) = scripted([text(answer, Tail::Stall)]);
    let mut follower = follow(&client, FeedStart::Beginning);
    for place in [0, 1, 2, 2] {
        follower.next().await.unwrap().unwrap();
        assert_eq!(follower.cursor(), Some(cursor(place).as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_that_no_retry_can_cure_end_the_stream() {
    for code in [
        ErrorCode::LogChanged,
        ErrorCode::CursorFuture,
        ErrorCode::CursorMalformed,
        ErrorCode::Unauthorized,
    ] {
        let (client, log) = scripted([
            text(open(0) + &event(1), Tail::Close),
            Answer::problem(&Problem::new(code, "no")),
        ]);
        let mut follower = follow(&client, FeedStart::Beginning);
        let (seen, error) = drain(&mut follower, 2).await;
        assert_eq!(seen, ["e1"]);
        assert_eq!(error.unwrap().code(), Some(code));
        assert!(follower.next().await.is_none());
        assert_eq!(asked(&log).len(), 2);
        assert_eq!(follower.cursor(), Some(cursor(1).as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_reconnects_and_what_breaks_the_rules_is_never_yielded() {
    let end = |reason: &str| format!("event: stream.end\ndata: {{\"reason\":\"{reason}\"}}\n\n");
    let (client, _) = scripted([
        text(open(0) + &event(1) + &end("shutdown"), Tail::Stall),
        text(open(1) + &event(2), Tail::Stall),
    ]);
    let mut follower = follow(&client, FeedStart::Beginning);
    let two = tokio::time::timeout(Duration::from_secs(5), drain(&mut follower, 2)).await;
    assert_eq!(two.unwrap().0, ["e1", "e2"]);

    let no_id = event(1).split_once('\n').unwrap().1.to_owned();
    let no_json = format!("id: {}\nevent: StreamDelta\ndata: {{\n\n", cursor(1));
    for fault in [no_id, no_json, end("settled")] {
        let (client, log) = crate::script::client(move |_| text(open(0) + &fault, Tail::Stall));
        let (seen, error) = drain(&mut follow(&client, FeedStart::Beginning), 1).await;
        assert!(seen.is_empty());
        assert!(matches!(error, Some(Error::Stream(_))), "{error:?}");
        assert_eq!(asked(&log).len(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn frames_of_a_later_version_and_a_repeated_event_are_passed_over() {
    let news = "event: stream.news\ndata: 5\n\n";
    let answer = open(0) + news + &event(1) + &event(1) + &event(2);
    let (client, _) = scripted([text(answer, Tail::Stall)]);
    let frames = follow(&client, FeedStart::Beginning).into_stream();
    let frames: Vec<_> = frames.take(3).collect().await;
    let frames: Vec<FeedFrame> = frames.into_iter().map(Result::unwrap).collect();
    assert!(matches!(
        &frames[..],
        [FeedFrame::Open(open), FeedFrame::Event { .. }, FeedFrame::Event { cursor: at, .. }]
            if open.cursor == cursor(0) && *at == cursor(2)
    ));
}

#[tokio::test]
async fn a_page_is_asked_for_as_it_is_named() {
    let page = json!({"events": [], "next_cursor": cursor(9), "more": true, "log_id": LOG});
    let (client, log) = scripted([Answer::json(200, &page)]);
    let query = FeedQuery {
        after: Some(cursor(3)),
        limit: Some("10".to_owned()),
        kinds: Some("TurnEnd".to_owned()),
        format: None,
    };
    let page = client.feed(&query).await.unwrap();
    assert_eq!((page.next_cursor, page.more), (cursor(9), true));
    let query = format!("after={}&limit=10&kinds=TurnEnd", cursor(3));
    assert_eq!(asked(&log), [(None, Some(query))]);
    assert_eq!(log.lock().unwrap()[0].uri.path(), "/events");
}
