//! Events as people see them: the same numbers and cursors as the log's, without what says nothing,
//! with tool output bounded and secrets hidden.

use http::StatusCode;
use serde_json::{Value, json};
use tapedeck_domain::limits::DISPLAY_OUTPUT_BYTES;

use crate::support::{Claim, Frame, Frames, ID, Live, ids};

const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

async fn open(live: &Live, path: &str) -> Frames {
    Frames::of(live.api.get(path).open().await)
}

async fn upload(live: &Live, claim: &Claim, events: &[(&str, Value)]) {
    let events: Vec<Value> = (1..)
        .zip(events)
        .map(|(number, (kind, data))| {
            json!({"event_id": format!("{kind}-{number}"), "event": kind, "data": data})
        })
        .collect();
    live.upload(claim, json!(events)).await.ok();
}

/// A settled run whose numbers 4, 6 and 9 are nothing to people; 10 is its end.
async fn worked(live: &Live) -> (String, Claim) {
    let (session, claim) = live.claimed().await;
    let output = format!("token {SECRET} {}", "é".repeat(DISPLAY_OUTPUT_BYTES));
    let events = [
        ("TurnBegin", json!({"turn_id": claim.run_id})),
        (
            "StreamDelta",
            json!({"content": "Hi", "role": "assistant", "message_id": "m"}),
        ),
        ("Usage", json!({"used": 5})),
        (
            "ToolCallBegin",
            json!({"call_id": "c", "tool_name": "bash", "arguments": {"env": {"API_KEY": "k"}}}),
        ),
        (
            "ToolResultDelta",
            json!({"call_id": "c", "display_result": output, "is_error": false}),
        ),
        ("my.own", json!({"text": "x"})),
    ];
    upload(live, &claim, &events).await;
    live.complete(&claim).await;
    (session, claim)
}

fn kinds(page: &Value) -> Vec<&str> {
    let events = page["events"].as_array().unwrap();
    events
        .iter()
        .map(|event| event["kind"].as_str().unwrap())
        .collect()
}

fn seqs(page: &Value) -> Vec<u64> {
    let events = page["events"].as_array().unwrap();
    events
        .iter()
        .map(|event| event["session_seq"].as_u64().unwrap())
        .collect()
}

const SHOWN: [&str; 7] = [
    "user_message",
    "status",
    "status",
    "assistant_message",
    "tool_call",
    "tool_result",
    "result",
];

#[tokio::test]
async fn a_page_shows_what_people_see_under_the_logs_own_numbers() {
    let live = Live::start().await;
    let (session, claim) = worked(&live).await;
    let path = format!("/sessions/{session}/events");
    let raw = live.get(&path).await.ok();
    let page = live.get(&format!("{path}?format=display")).await.ok();
    assert_eq!(kinds(&page), SHOWN);
    assert_eq!(page["head_seq"], raw["head_seq"]);
    let stored = raw["events"].as_array().unwrap();
    for event in page["events"].as_array().unwrap() {
        let seq = event["session_seq"].as_u64().unwrap();
        let same = stored.iter().find(|stored| stored["session_seq"] == seq);
        for name in [
            "event_id",
            "session_id",
            "run_id",
            "created_at",
            "recorded_at",
        ] {
            assert_eq!(event[name], same.unwrap()[name], "{name}");
        }
        let mut names: Vec<&String> = event.as_object().unwrap().keys().collect();
        names.sort();
        let expected = [
            "created_at",
            "event_id",
            "kind",
            "payload",
            "recorded_at",
            "run_id",
            "session_id",
            "session_seq",
        ];
        assert_eq!(names, expected);
    }
    assert_eq!(
        page["events"][3]["payload"],
        json!({"text": "Hi", "message_id": "m"})
    );
    assert_eq!(
        page["events"][4]["payload"]["arguments"],
        json!({"env": {"API_KEY": "[redacted]"}})
    );
    let result = &page["events"][5]["payload"];
    let output = result["output"].as_str().unwrap();
    assert!(output.starts_with("token [redacted] é"), "{output}");
    assert!(output.len() <= DISPLAY_OUTPUT_BYTES);
    assert_eq!(result["truncated"], true);
    assert!(result["original_bytes"].as_u64().unwrap() > 2 * DISPLAY_OUTPUT_BYTES as u64);

    for same in [
        format!("/runs/{}/events?format=display", claim.run_id),
        format!("/runs/{}/display-events", claim.run_id),
        format!("/v1/runs/{}/display-events?format=display", claim.run_id),
    ] {
        assert_eq!(live.get(&same).await.ok(), page, "{same}");
    }
    let asked = live.get(&format!("{path}?format=raw")).await.ok();
    assert_eq!(asked, raw);
}

#[tokio::test]
async fn pages_of_any_size_show_each_event_once_and_end_past_what_is_left_out() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let mut events = Vec::new();
    for _ in 0..5 {
        events.push(("Usage", json!({"used": 5})));
        events.push(("StreamDelta", json!({"content": "x"})));
    }
    events.extend(vec![("Usage", json!({"used": 5})); 7]);
    upload(&live, &claim, &events).await;
    let path = format!("/sessions/{session}/events?format=display");
    let whole = live.get(&path).await.ok();
    let head = whole["head_seq"].as_u64().unwrap();
    for limit in [1, 2, 3, 500] {
        let (mut after, mut seen) = (0, Vec::new());
        loop {
            let page = live
                .get(&format!("{path}&limit={limit}&after={after}"))
                .await
                .ok();
            let next = page["next_cursor"].as_u64().unwrap();
            let numbers = seqs(&page);
            assert!(numbers.len() <= limit);
            if numbers.is_empty() {
                assert_eq!(next, head, "the end is past the events that are left out");
                break;
            }
            assert_eq!(numbers.last(), Some(&next));
            seen.extend(numbers);
            after = next;
        }
        assert_eq!(seen, seqs(&whole), "limit {limit}");
    }
    let end = live.get(&format!("{path}&after=head")).await.ok();
    assert_eq!((seqs(&end), &end["next_cursor"]), (vec![], &json!(head)));
    let bad = live.get(&format!("{path}&after={}", head + 1)).await;
    bad.is(StatusCode::CONFLICT, "cursor_future");
}

#[tokio::test]
async fn a_stream_can_be_picked_up_again_from_any_event_it_gave() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let run = &claim.run_id;
    let path = format!("/sessions/{session}/events?run_id={run}&format=display");
    let mut frames = open(&live, &path).await;
    let mut seen = frames.until("stream.live").await;
    let events = [
        ("StreamDelta", json!({"content": "a\nb", "message_id": "m"})),
        ("Usage", json!({"used": 5})),
        ("ThinkingDelta", json!({"text": "hm"})),
        ("my.own", json!({})),
    ];
    upload(&live, &claim, &events).await;
    live.complete(&claim).await;
    seen.extend(frames.rest().await);
    let shown: Vec<&Frame> = seen.iter().filter(|frame| frame.id.is_some()).collect();
    let names: Vec<&str> = shown.iter().map(|frame| frame.event.as_str()).collect();
    let expected = [
        "user_message",
        "status",
        "status",
        "assistant_message",
        "thinking",
        "result",
    ];
    assert_eq!(names, expected);
    let said = shown[3];
    assert_eq!(said.data["type"], "assistant_message");
    assert_eq!(said.data["text"], "a\nb");
    assert_eq!(said.data["message_id"], "m");
    assert_eq!(said.data["session_seq"], json!(said.id));
    assert_eq!(said.data["event_id"], "StreamDelta-1");
    assert_eq!(said.data["run_id"], json!(run));
    assert_eq!(seen.last().unwrap().data["reason"], "settled");

    let all = ids(&seen);
    let head = *all.last().unwrap();
    for after in 0..=head {
        for path in [&path, &format!("/runs/{run}/display-events")] {
            let call = live
                .api
                .get(path)
                .header("last-event-id", &after.to_string());
            let rest = Frames::of(call.open().await).rest().await;
            let expected: Vec<u64> = all.iter().copied().filter(|id| *id > after).collect();
            assert_eq!(ids(&rest), expected, "{path} after {after}");
            assert_eq!(rest.last().unwrap().data["reason"], "settled");
        }
    }
}

#[tokio::test]
async fn followers_of_both_formats_share_a_live_log() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let path = format!("/sessions/{session}/events?after=head");
    let mut raw = open(&live, &path).await;
    let mut display = open(&live, &format!("{path}&format=display")).await;
    let mut again = open(&live, &format!("{path}&format=display")).await;
    for frames in [&mut raw, &mut display, &mut again] {
        frames.until("stream.live").await;
    }
    upload(
        &live,
        &claim,
        &[
            ("Usage", json!({})),
            ("StreamDelta", json!({"content": "x"})),
        ],
    )
    .await;
    live.complete(&claim).await;
    let raw = raw.until("TurnEnd").await;
    let names: Vec<&str> = raw.iter().map(|frame| frame.event.as_str()).collect();
    assert_eq!(names, ["RunStarted", "Usage", "StreamDelta", "TurnEnd"]);
    let display = display.until("result").await;
    let names: Vec<&str> = display.iter().map(|frame| frame.event.as_str()).collect();
    assert_eq!(names, ["status", "assistant_message", "result"]);
    assert_eq!(ids(&display), [ids(&raw)[0], ids(&raw)[2], ids(&raw)[3]]);
    assert_eq!(again.until("result").await, display);
}

#[tokio::test]
async fn a_stream_of_events_that_say_nothing_stays_alive() {
    let timing = tapedeck_domain::Timing {
        stream_comment_ms: 20,
        ..tapedeck_domain::Timing::STANDARD
    };
    let live = Live::timed(timing, |_| {}).await;
    let (session, claim) = live.claimed().await;
    upload(&live, &claim, &vec![("Usage", json!({"used": 5})); 20]).await;
    let path = format!("/sessions/{session}/events?format=display&after=4");
    let mut frames = open(&live, &path).await;
    let opened = frames.until("stream.live").await;
    assert_eq!(ids(&opened), Vec::<u64>::new());
    let head = opened.last().unwrap().data["head_seq"].as_u64().unwrap();
    assert_eq!(head, 23);
    for _ in 0..2 {
        assert_eq!(frames.next().await.unwrap().text, ":\n\n");
    }
    live.complete(&claim).await;
    let seen = frames.until("result").await;
    assert_eq!(ids(&seen), [head + 1]);
}

#[tokio::test]
async fn kinds_may_be_named_as_they_are_shown_or_as_they_are_stored() {
    let live = Live::start().await;
    let (session, claim) = worked(&live).await;
    let path = format!("/sessions/{session}/events?format=display");
    let page = live
        .get(&format!("{path}&kinds=tool_call,tool_result"))
        .await
        .ok();
    assert_eq!(kinds(&page), ["tool_call", "tool_result"]);
    let page = live
        .get(&format!("{path}&kinds=StreamDelta,plan"))
        .await
        .ok();
    assert_eq!(kinds(&page), ["assistant_message"]);
    let page = live.get(&format!("{path}&kinds=plan")).await.ok();
    assert_eq!(page["events"], json!([]));
    assert_eq!(page["next_cursor"], page["head_seq"]);
    let run = &claim.run_id;
    let path_of_run = format!("/runs/{run}/display-events?kinds=assistant_message");
    let streamed = open(&live, &path_of_run).await.rest().await;
    let shown = streamed.iter().filter(|frame| frame.id.is_some());
    let shown: Vec<&str> = shown.map(|frame| frame.event.as_str()).collect();
    assert_eq!(
        shown,
        ["assistant_message", "result"],
        "the run's end always comes"
    );
    let refused = live.get(&format!("{path}&kinds=Usage")).await;
    refused.is(StatusCode::BAD_REQUEST, "malformed_request");
    assert_eq!(refused.json["errors"][0]["path"], "kinds");
}

#[tokio::test]
async fn another_format_is_refused() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    for path in [
        format!("/sessions/{session}/events?format=pretty"),
        format!("/sessions/{session}/events?format="),
        format!("/runs/{}/events?format=Display", claim.run_id),
        format!("/runs/{}/display-events?format=raw", claim.run_id),
    ] {
        for call in [live.get(&path), live.api.get(&path)] {
            let refused = call.await;
            refused.is(StatusCode::BAD_REQUEST, "malformed_request");
            assert_eq!(refused.json["errors"][0]["path"], "format", "{path}");
        }
    }
    let gone = live.get(&format!("/runs/{ID}/display-events")).await;
    gone.is(StatusCode::NOT_FOUND, "run_not_found");
}
