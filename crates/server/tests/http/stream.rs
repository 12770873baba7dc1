//! Streams: their frames, their cursors, their ends, and what a client that leaves changes.

use crate::support::{Frame, Frames, Live, ids};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_LOCATION, CONTENT_TYPE};
use serde_json::json;
use tapedeck_control_plane::retention::Retention;
use tapedeck_domain::Timing;

async fn open(live: &Live, path: &str) -> Frames {
    Frames::of(live.api.get(path).open().await)
}

#[tokio::test]
async fn a_run_is_streamed_from_its_admission_to_its_end() {
    let live = Live::start().await;
    let session = live.session().await;
    let path = format!("/sessions/{session}/prompt");
    let response = live
        .api
        .post(&path)
        .json(&json!({"prompt": "say\nhi"}))
        .open()
        .await;
    assert_eq!(response.status(), StatusCode::OK);
    let header = |name: http::HeaderName| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header(CONTENT_TYPE), "text/event-stream");
    assert_eq!(header(CACHE_CONTROL), "no-store, no-transform");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let continued = header(CONTENT_LOCATION);
    let mut frames = Frames::of(response);
    let mut seen = frames.until("stream.live").await;
    let claim = live.claim().await;
    live.say(&claim, &["one", "two"]).await;
    live.complete(&claim).await;
    seen.extend(frames.rest().await);
    let expected = format!("/sessions/{session}/events?run_id={}", claim.run_id);
    assert_eq!(continued, expected);
    let transcript: String = seen.iter().map(|frame| frame.text.as_str()).collect();
    insta::with_settings!({filters => vec![
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "<time>"),
    ]}, { insta::assert_snapshot!(transcript) });

    // The same again from anywhere in between, and nothing after the end.
    let all = ids(&seen);
    for cut in 0..all.len() {
        let after = all[cut];
        let rest = open(&live, &format!("{expected}&after={after}"))
            .await
            .rest()
            .await;
        assert_eq!(ids(&rest), all[cut + 1..], "after {after}");
        assert_eq!(rest.last().unwrap().data["reason"], "settled");
    }
    let bad = live.api.get(&format!("{expected}&after=99")).await;
    bad.is(StatusCode::CONFLICT, "cursor_future");
}

#[tokio::test]
async fn a_repeated_prompt_gets_its_stream_again_from_the_first_event() {
    let live = Live::start().await;
    let session = live.session().await;
    let path = format!("/sessions/{session}/prompt");
    let prompt = || {
        let call = live.api.post(&path).json(&json!({"prompt": "go"}));
        call.header("idempotency-key", "k").open()
    };
    let mut first = Frames::of(prompt().await);
    first.until("stream.live").await;
    let claim = live.claim().await;
    live.say(&claim, &["a"]).await;
    live.complete(&claim).await;
    let rest = first.rest().await;
    let again = Frames::of(prompt().await).rest().await;
    let again = ids(&again);
    assert_eq!(again[0], 1);
    assert_eq!(again[1..], ids(&rest));
}

#[tokio::test]
async fn a_follower_sees_each_event_once_whatever_it_asks_for() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let path = format!("/sessions/{session}/events");
    let mut all = open(&live, &path).await;
    all.until("stream.live").await;
    let mut new = open(&live, &format!("{path}?after=head")).await;
    assert_eq!(ids(&new.until("stream.live").await), Vec::<u64>::new());
    let mut deltas = open(&live, &format!("{path}?kinds=StreamDelta")).await;
    deltas.until("stream.live").await;
    let texts: Vec<String> = (0..20).map(|text| text.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for chunk in texts.chunks(7) {
        live.say(&claim, chunk).await;
    }
    live.complete(&claim).await;
    for stream in [&mut all, &mut new] {
        let seen = ids(&stream.until("TurnEnd").await);
        assert!(
            seen.windows(2).all(|pair| pair[1] == pair[0] + 1),
            "{seen:?}"
        );
        assert_eq!(seen.len(), 20 + 2);
    }
    let mut words = Vec::new();
    while words.len() < 20 {
        let Frame { event, data, .. } = deltas.next().await.unwrap();
        assert_eq!(event, "StreamDelta");
        words.push(data["content"].as_str().unwrap().to_owned());
    }
    assert_eq!(words, texts);
}

#[tokio::test]
async fn a_cursor_inside_a_fold_is_gone_and_says_where_to_restart() {
    let timing = Timing {
        // Whatever has settled is old enough.
        keep_deltas_ms: Some(-1_000),
        sweep_ms: 10_000,
        ..Timing::STANDARD
    };
    let live = Live::timed(timing, |_| {}).await;
    let (session, claim) = live.claimed().await;
    live.say(&claim, &["one", "two", "three"]).await;
    live.complete(&claim).await;
    let path = format!("/sessions/{session}/events");
    let page = live.get(&path).await.ok();
    let events = page["events"].as_array().unwrap();
    let deltas = events.iter().filter(|it| it["kind"] == "StreamDelta");
    let deltas: Vec<u64> = deltas
        .map(|it| it["session_seq"].as_u64().unwrap())
        .collect();
    let (first, last) = (deltas[0], deltas[2]);
    let mut retention = Retention::default();
    while retention.pass(&live.api.control).await.unwrap().runs == 0 {}

    let folded = live
        .get(&format!("{path}?after={}&limit=1", first - 1))
        .await
        .ok();
    let event = &folded["events"][0];
    assert_eq!(
        (&event["session_seq"], &event["folded_from"]),
        (&json!(last), &json!(first))
    );
    assert_eq!(event["payload"]["content"], "onetwothree");
    let frames = open(&live, &format!("{path}?run_id={}", claim.run_id))
        .await
        .rest()
        .await;
    let frame = frames
        .iter()
        .find(|frame| frame.data["session_seq"] == last)
        .unwrap();
    assert_eq!(frame.data["folded_from"], first);

    for place in [path, format!("/runs/{}/events", claim.run_id)] {
        for inside in first..last {
            let place = format!("{place}?after={inside}");
            // Before the first frame: the answer is the problem itself.
            for call in [live.api.get(&place), live.get(&place)] {
                let problem = call.await;
                problem.is(StatusCode::GONE, "cursor_expired");
                assert_eq!(problem.json["restart_after"], first - 1);
                assert_eq!(problem.json["oldest_seq"], 1);
            }
        }
        for served in [first - 1, last] {
            live.get(&format!("{place}?after={served}")).await.ok();
        }
    }
}

#[tokio::test]
async fn an_open_question_is_in_the_first_frame() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let ask = json!({"request_id": "q1", "tool_name": "bash", "wait_seconds": 0});
    live.executor(&claim, "approval", ask).await.ok();
    let mut frames = open(&live, &format!("/sessions/{session}/events")).await;
    let seen = frames.until("stream.open").await;
    let [retry, opened] = seen.as_slice() else {
        panic!("{seen:?}");
    };
    assert_eq!(retry.retry, Some(1_000));
    assert_eq!(opened.id, None);
    assert_eq!(opened.data["active_run_id"], json!(claim.run_id));
    assert_eq!(opened.data["interactions"][0]["request_id"], "q1");
}

#[tokio::test]
async fn streams_of_a_deleted_session_end() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let mut frames = open(&live, &format!("/sessions/{session}/events")).await;
    frames.until("stream.live").await;
    let path = format!("/sessions/{session}?force=true");
    live.api.send(http::Method::DELETE, &path).await;
    let end = frames.until("stream.end").await.pop().unwrap();
    assert_eq!(end.data["reason"], "deleted");
    assert_eq!(frames.next().await, None);
    let beat = live.executor(&claim, "heartbeat", json!({})).await;
    assert_eq!(beat.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_drain_ends_streams_and_answers_held_requests() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let mut frames = open(&live, &format!("/sessions/{session}/events")).await;
    frames.until("stream.live").await;
    let poll = json!({"executor_id": "x2", "wait_seconds": 60});
    let poll = live.post("/executor/runs/claim", poll);
    let beat = live.executor(&claim, "heartbeat", json!({"wait_seconds": 60}));
    let ask = json!({"request_id": "q1", "tool_name": "bash"});
    let ask = live.executor(&claim, "approval", ask);
    let drain = async {
        // The questions and polls are on their way once the question shows.
        frames.until("ApprovalRequest").await;
        live.api.control.lifecycle().drain();
        frames.until("stream.end").await.pop().unwrap()
    };
    let (poll, beat, ask, end) = tokio::join!(poll.send(), beat.send(), ask.send(), drain);
    assert_eq!(end.data["reason"], "shutdown");
    assert!(end.retry.is_some_and(|ms| (1_000..=2_000).contains(&ms)));
    assert!(matches!(
        poll.status,
        StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE
    ));
    assert_eq!(beat.status, StatusCode::OK);
    assert_eq!(ask.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_quiet_stream_carries_comments() {
    let timing = Timing {
        stream_comment_ms: 20,
        ..Timing::STANDARD
    };
    let live = Live::timed(timing, |_| {}).await;
    let session = live.session().await;
    let mut frames = open(&live, &format!("/sessions/{session}/events")).await;
    frames.until("stream.live").await;
    for _ in 0..3 {
        assert_eq!(frames.next().await.unwrap().text, ":\n\n");
    }
}

#[tokio::test]
async fn a_client_that_leaves_changes_nothing_unless_it_said_so() {
    let live = Live::start().await;
    let session = live.session().await;
    let path = format!("/sessions/{session}/prompt");
    let mut follower = open(&live, &format!("/sessions/{session}/events")).await;
    let body = json!({"prompt": "stay", "on_active": "enqueue"});
    let mut left = Frames::of(live.api.post(&path).json(&body).open().await);
    left.until("stream.live").await;
    drop(left);
    let body = json!({"prompt": "go", "on_active": "enqueue", "cancel_on_disconnect": true});
    let mut left = Frames::of(live.api.post(&path).json(&body).open().await);
    let queued = left.until("RunQueued").await.pop().unwrap();
    drop(left);
    let ended = follower.until("TurnEnd").await.pop().unwrap();
    assert_eq!(ended.data["run_id"], queued.data["run_id"]);
    assert_eq!(ended.data["run_status"], "cancelled");
    let claim = live.claim().await;
    assert_eq!(claim.answer["prompt"], "stay");
}
