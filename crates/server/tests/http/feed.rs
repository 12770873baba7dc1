//! The log over all sessions: resumed from anywhere, cut anywhere, filtered, and by nobody else.

use axum::response::Response;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Map, Value, json};
use tapedeck_control_plane::commands::prompt::AdmitPrompt;
use tapedeck_domain::RunId;
use tapedeck_domain::admit::{OnActive, Prompt};
use tapedeck_domain::session::SessionSettings;

use crate::support::{Claim, Frame, Frames, ID, Live};

/// Some sessions whose runs spoke in turn; gives their claims.
async fn talk(live: &Live, sessions: usize, turns: usize) -> Vec<(String, Claim)> {
    let mut claims = Vec::new();
    for _ in 0..sessions {
        claims.push(live.claimed().await);
    }
    for turn in 0..turns {
        for (_, claim) in &claims {
            live.say(claim, &[&format!("{turn}a"), &format!("{turn}b")])
                .await;
        }
    }
    claims
}

async fn open(live: &Live, query: &str, last: Option<&str>) -> Response {
    let call = live.api.get(&format!("/events{query}"));
    match last {
        Some(last) => call.header("last-event-id", last).open().await,
        None => call.open().await,
    }
}

async fn frames(live: &Live, query: &str, last: Option<&str>) -> Frames {
    Frames::of(open(live, query, last).await)
}

/// Session and number of each event among the frames.
fn places(seen: &[Frame]) -> Vec<(String, u64)> {
    let events = seen.iter().filter(|frame| frame.cursor.is_some());
    events.map(|frame| place(&frame.data)).collect()
}

fn place(event: &Value) -> (String, u64) {
    let session = event["session_id"].as_str().unwrap().to_owned();
    (session, event["session_seq"].as_u64().unwrap())
}

/// Everything there is, as a stream gives it.
async fn replay(live: &Live) -> Vec<Frame> {
    let mut stream = frames(live, "", None).await;
    stream.until("stream.live").await
}

/// The log by pages of this many events.
async fn paged(live: &Live, query: &str) -> Vec<Value> {
    let mut events = Vec::new();
    let mut after = String::new();
    loop {
        let page = live.get(&format!("/events?{query}{after}")).await.ok();
        let found = page["events"].as_array().unwrap();
        events.extend(found.iter().cloned());
        if page["more"] == false {
            return events;
        }
        assert!(!found.is_empty(), "{page}");
        after = format!("&after={}", page["next_cursor"].as_str().unwrap());
    }
}

#[tokio::test]
async fn every_id_continues_the_log_exactly() {
    let live = Live::start().await;
    let claims = talk(&live, 3, 2).await;
    let response = open(&live, "", None).await;
    let header = |name: http::HeaderName| response.headers()[name].to_str().unwrap();
    assert_eq!(header(CONTENT_TYPE), "text/event-stream");
    assert_eq!(header(CACHE_CONTROL), "no-store, no-transform");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let all = Frames::of(response).until("stream.live").await;
    assert_eq!(all[0].retry, Some(1_000));
    let [open, .., live_frame] = &all[1..] else {
        panic!("{all:?}");
    };
    let shown = live.get(&format!("/sessions/{}", claims[0].0)).await.ok();
    assert_eq!(open.event, "stream.open");
    assert_eq!(open.data["log_id"], shown["log_id"]);
    assert!(open.cursor.is_none() && live_frame.cursor.is_none());

    let whole = places(&all);
    assert_eq!(whole.len(), 3 * (3 + 4));
    for (session, _) in &claims {
        let own = whole.iter().filter(|(of, _)| of == session);
        let own: Vec<u64> = own.map(|(_, seq)| *seq).collect();
        assert_eq!(own, (1..=own.len() as u64).collect::<Vec<_>>());
    }
    let cursors = all.iter().filter_map(|frame| frame.cursor.as_deref());
    for (nth, cursor) in cursors.enumerate() {
        let mut stream = frames(&live, "?after=head", Some(cursor)).await;
        let rest = places(&stream.until("stream.live").await);
        assert_eq!(rest, whole[nth + 1..], "the header {cursor}");
        let page = live.get(&format!("/events?after={cursor}")).await.ok();
        let rest: Vec<_> = page["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(place)
            .collect();
        assert_eq!(rest, whole[nth + 1..], "the page after {cursor}");
    }
    // The place where the stream had caught up is a cursor, too.
    let end = live_frame.data["cursor"].as_str().unwrap();
    let page = live.get(&format!("/events?after={end}")).await.ok();
    assert_eq!(
        (&page["events"], &page["more"]),
        (&json!([]), &json!(false))
    );
    assert_eq!(page["next_cursor"], end);
    for limit in [1, 2, 7, 500] {
        let paged = paged(&live, &format!("limit={limit}")).await;
        let paged: Vec<_> = paged.iter().map(place).collect();
        assert_eq!(paged, whole, "pages of {limit}");
    }
}

#[tokio::test]
async fn a_reader_cut_anywhere_sees_each_event_once_in_order() {
    let live = Live::start().await;
    let claims = talk(&live, 4, 1).await;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut frames_read: Vec<Frame> = Vec::new();
    let mut said = 0;
    while said < 60 {
        let last = frames_read.last().and_then(|frame| frame.cursor.clone());
        let mut stream = frames(&live, "", last.as_deref()).await;
        for _ in 0..rng.random_range(1..12) {
            if rng.random_bool(0.5) {
                let (_, claim) = &claims[rng.random_range(0..claims.len())];
                live.say(claim, &[&format!("said-{said}")]).await;
                said += 1;
            }
            // Nothing may be there to read; then the connection is cut all the same.
            let next = tokio::time::timeout(std::time::Duration::from_millis(5), stream.next());
            if let Ok(Some(frame)) = next.await
                && frame.cursor.is_some()
            {
                frames_read.push(frame);
            }
        }
    }
    for (_, claim) in &claims {
        live.complete(claim).await;
    }
    let last = frames_read.last().and_then(|frame| frame.cursor.clone());
    let mut stream = frames(&live, "", last.as_deref()).await;
    frames_read.extend(stream.until("stream.live").await);
    assert_eq!(
        places(&frames_read),
        places(&replay(&live).await),
        "seed {seed}"
    );
}

#[tokio::test]
async fn a_stream_from_the_end_sees_only_what_is_new() {
    let live = Live::start().await;
    let claims = talk(&live, 2, 1).await;
    let mut stream = frames(&live, "?after=head", None).await;
    let opening = stream.until("stream.live").await;
    assert_eq!(places(&opening), []);
    for (_, claim) in &claims {
        live.complete(claim).await;
    }
    for (session, claim) in &claims {
        let end = stream.next().await.unwrap();
        assert_eq!(end.event, "TurnEnd");
        assert_eq!(end.data["session_id"], *session);
        assert_eq!(end.data["run_id"], claim.run_id);
    }
    let page = live.get("/events?after=head").await.ok();
    assert_eq!(
        (&page["events"], &page["more"]),
        (&json!([]), &json!(false))
    );
}

#[tokio::test]
async fn kinds_and_display_forms_are_chosen_as_on_a_session() {
    let live = Live::start().await;
    let claims = talk(&live, 2, 3).await;
    for (_, claim) in &claims {
        live.complete(claim).await;
    }
    let mut stream = frames(&live, "?kinds=TurnEnd,RunRequested", None).await;
    let seen = stream.until("stream.live").await;
    let kinds: Vec<&str> = seen[2..seen.len() - 1]
        .iter()
        .map(|frame| frame.event.as_str())
        .collect();
    assert_eq!(
        kinds,
        ["RunRequested", "RunRequested", "TurnEnd", "TurnEnd"]
    );
    // The end is there however much is left out before it.
    let ends = paged(&live, "kinds=TurnEnd&limit=1").await;
    assert_eq!(ends.len(), 2);
    let page = live.get("/events?kinds=Nothing").await.ok();
    assert_eq!(
        (&page["events"], &page["more"]),
        (&json!([]), &json!(false))
    );

    let mut stream = frames(&live, "?format=display&kinds=result", None).await;
    let seen = stream.until("stream.live").await;
    let results: Vec<&Frame> = seen.iter().filter(|it| it.cursor.is_some()).collect();
    assert_eq!(results.len(), 2);
    assert!(
        results
            .iter()
            .all(|it| it.data["type"] == "result" && it.event == "result")
    );
    let page = live.get("/events?format=display&kinds=result").await.ok();
    let shown: Vec<_> = page["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(place)
        .collect();
    assert_eq!(shown, places(&seen));
    assert_eq!(page["events"][0]["kind"], "result");
    let unshown = live.get("/events?format=display&kinds=Usage").await;
    unshown.is(StatusCode::BAD_REQUEST, "malformed_request");
}

#[tokio::test]
async fn another_namespace_is_not_seen() {
    let live = Live::start().await;
    let (session, _) = live.claimed().await;
    let control = &live.api.control;
    let settings = SessionSettings::default();
    let theirs = control.create_session("theirs", settings, None).await;
    let command = AdmitPrompt {
        namespace: "theirs".to_owned(),
        session_id: theirs.unwrap().session.session_id,
        prompt: Prompt {
            run_id: RunId::new(control.new_id()),
            text: "a secret of theirs".to_owned(),
            on_active: OnActive::Reject,
            metadata: Map::new(),
        },
        key: None,
    };
    let mut stream = frames(&live, "", None).await;
    let mut seen = stream.until("stream.live").await;
    control.prompt(command).await.unwrap();
    let ours = live.session().await;
    live.prompt(&ours).await;
    seen.push(stream.next().await.unwrap());
    assert!(
        places(&seen)
            .iter()
            .all(|(of, _)| *of == session || *of == ours),
        "{seen:?}"
    );
    assert_eq!(seen.last().unwrap().data["session_id"], ours);
    let page = paged(&live, "limit=1").await;
    assert_eq!(page.iter().map(place).collect::<Vec<_>>(), places(&seen));
}

#[tokio::test]
async fn bad_future_and_foreign_cursors_are_refused_before_the_first_frame() {
    let live = Live::start().await;
    live.claimed().await;
    let all = replay(&live).await;
    let last = all
        .iter()
        .filter_map(|frame| frame.cursor.as_deref())
        .next_back();
    let mut parts = last.unwrap().split('.');
    let (log_id, _, row) = (parts.next(), parts.next(), parts.next());
    let log_id = log_id.unwrap();
    let row: u64 = row.unwrap().parse().unwrap();
    let future = format!("{log_id}.0.{}", row + 1);
    let foreign = format!("{ID}.0.{row}");
    let cases = [
        ("7", StatusCode::BAD_REQUEST, "cursor_malformed"),
        ("", StatusCode::BAD_REQUEST, "cursor_malformed"),
        (&future, StatusCode::CONFLICT, "cursor_future"),
        (&foreign, StatusCode::CONFLICT, "log_changed"),
    ];
    for (cursor, status, code) in cases {
        let path = format!("/events?after={cursor}");
        let stream = live.api.get(&path).await;
        stream.is(status, code);
        live.get(&path).await.is(status, code);
        let header = live.api.get("/events").header("last-event-id", cursor);
        header.await.is(status, code);
        if code == "log_changed" {
            assert_eq!(stream.json["log_id"], log_id);
        }
    }
    // Only the parameter can say it: a client never got it as an id.
    let head = live.api.get("/events").header("last-event-id", "head");
    head.await.is(StatusCode::BAD_REQUEST, "cursor_malformed");
    for query in ["limit=0", "limit=501", "format=pretty", "before=x"] {
        let answer = live.get(&format!("/events?{query}")).await;
        answer.is(StatusCode::BAD_REQUEST, "malformed_request");
    }
}

#[tokio::test]
async fn a_session_s_cursor_of_another_log_is_refused() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let shown = live.get(&format!("/sessions/{session}")).await.ok();
    let log_id = shown["log_id"].as_str().unwrap();
    for path in [
        format!("/sessions/{session}/events"),
        format!("/runs/{}/events", claim.run_id),
        format!("/runs/{}/display-events", claim.run_id),
    ] {
        let page = live.get(&format!("{path}?after=1&log_id={log_id}")).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.text);
        let foreign = format!("{path}?after=1&log_id={ID}");
        for call in [live.api.get(&foreign), live.get(&foreign)] {
            let refused = call.await;
            refused.is(StatusCode::CONFLICT, "log_changed");
            assert_eq!(refused.json["log_id"], log_id);
        }
        let malformed = live.get(&format!("{path}?log_id=x")).await;
        malformed.is(StatusCode::BAD_REQUEST, "malformed_request");
    }
    let path = format!("/sessions/{session}/events?log_id={log_id}");
    let mut stream = Frames::of(live.api.get(&path).open().await);
    let open = stream.until("stream.open").await.pop().unwrap();
    assert_eq!(open.data["log_id"], log_id);
}

#[tokio::test]
async fn a_drain_ends_the_stream() {
    let live = Live::start().await;
    live.claimed().await;
    let mut stream = frames(&live, "", None).await;
    stream.until("stream.live").await;
    live.api.control.lifecycle().drain();
    let end = stream.until("stream.end").await.pop().unwrap();
    assert_eq!(end.data["reason"], "shutdown");
    assert!(end.retry.is_some_and(|ms| (1_000..=2_000).contains(&ms)));
    assert_eq!(stream.next().await, None);
}
