//! The tape, transcripts, an executor's own entries and snapshots over HTTP: shapes, statuses and
//! codes as the interface promises them.

use crate::support::{Claim, ID, Live};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tapedeck_protocol::tape::TranscriptResponse;

const OTHER: &str = "018f0000-0000-7000-8000-00000000000e";

fn entry(kind: &str, payload: &Value) -> Value {
    json!({"kind": kind, "payload": payload})
}

fn said(text: &str) -> Value {
    entry("assistant_message", &json!({"text": text}))
}

async fn entries(live: &Live, session: &str) -> Vec<Value> {
    let tape = live.get(&format!("/sessions/{session}/tape")).await.ok();
    tape["entries"].as_array().unwrap().clone()
}

fn kinds(entries: &[Value]) -> Vec<&str> {
    entries
        .iter()
        .map(|entry| entry["kind"].as_str().unwrap())
        .collect()
}

/// A settled run whose agent called a tool and spoke.
async fn settled(live: &Live) -> (String, Claim) {
    let (session, claim) = live.claimed().await;
    let call = json!({"call_id": "c1", "tool_name": "read", "arguments": {"path": "a"}});
    let result = json!({"call_id": "c1", "display_result": "text of a", "is_error": false});
    let events = json!([
        {"event_id": "t1", "event": "ToolCallBegin", "data": call},
        {"event_id": "t2", "event": "ToolResultDelta", "data": result},
        {"event_id": "t3", "event": "ToolCallEnd", "data": {"call_id": "c1", "status": "completed"}},
    ]);
    live.upload(&claim, events).await.ok();
    live.say(&claim, &["done"]).await;
    live.complete(&claim).await;
    (session, claim)
}

#[tokio::test]
async fn a_tape_is_read_page_by_page() {
    let live = Live::start().await;
    let (session, claim) = settled(&live).await;
    let whole = entries(&live, &session).await;
    let expected = ["user_message", "tool_call", "assistant_message", "run_end"];
    assert_eq!(kinds(&whole), expected);
    let call = &whole[1];
    assert_eq!(call["payload"]["result"], "text of a");
    assert_eq!(call["run_id"], json!(claim.run_id));
    for field in ["meta", "anchor_type", "superseded_by_checkpoint_id"] {
        assert_eq!(call.get(field), Some(&Value::Null), "{field}");
    }
    let (mut read, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = live.get(&format!("/sessions/{session}/tape?limit=3{cursor}"));
        let page = page.await.ok();
        read.extend(page["entries"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(read, whole);
    let beyond = live
        .get(&format!("/sessions/{session}/tape?after=999"))
        .await
        .ok();
    assert_eq!(beyond, json!({"entries": [], "next_cursor": null}));
    for (query, code) in [
        ("after=x", "cursor_malformed"),
        ("limit=0", "malformed_request"),
        ("cursor=1", "malformed_request"),
    ] {
        let refused = live.get(&format!("/sessions/{session}/tape?{query}")).await;
        refused.is(StatusCode::BAD_REQUEST, code);
    }
    for view in ["tape", "transcript"] {
        let absent = live.get(&format!("/sessions/{ID}/{view}")).await;
        absent.is(StatusCode::NOT_FOUND, "session_not_found");
    }
}

#[tokio::test]
async fn a_transcript_comes_in_three_forms() {
    let live = Live::start().await;
    let (session, _) = settled(&live).await;
    let whole = entries(&live, &session).await;
    let path = format!("/sessions/{session}/transcript");
    let markdown = live.get(&path).await;
    assert_eq!(markdown.status, StatusCode::OK);
    assert_eq!(
        markdown.header(CONTENT_TYPE),
        "text/markdown; charset=utf-8"
    );
    for piece in ["# ", "**User**", "go", "`read`", "text of a", "done"] {
        assert!(markdown.text.contains(piece), "{piece}: {}", markdown.text);
    }
    let json = live.get(&format!("{path}?format=json")).await;
    assert_eq!(json.header(CONTENT_TYPE), "application/json");
    assert_eq!(json.json["entries"], json!(whole));
    let document = serde_json::from_value::<TranscriptResponse>(json.json.clone()).unwrap();
    assert_eq!(document.session_id.to_string(), session);
    assert_eq!(serde_json::to_value(document).unwrap(), json.json);
    let lines = live.get(&format!("{path}?format=jsonl")).await;
    assert_eq!(lines.header(CONTENT_TYPE), "application/x-ndjson");
    let read: Vec<Value> = lines
        .text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(read, whole);
    let refused = live.get(&format!("{path}?format=pdf")).await;
    refused.is(StatusCode::BAD_REQUEST, "malformed_request");
    assert_eq!(refused.json["errors"][0]["path"], "format");
    let empty = live.session().await;
    let empty = live
        .get(&format!("/sessions/{empty}/transcript?format=json"))
        .await
        .ok();
    assert_eq!(empty["entries"], json!([]));
}

#[tokio::test]
async fn a_long_transcript_is_whole() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    // More than one page by count, and by bytes.
    for part in 0..5 {
        let texts: Vec<_> = (0..90)
            .map(|at| said(&format!("{part}-{at} {}", "x".repeat(999))))
            .collect();
        live.executor(&claim, "tape", json!({"tape_entries": texts}))
            .await
            .ok();
    }
    live.complete(&claim).await;
    let path = format!("/sessions/{session}/transcript?format=jsonl");
    let lines = live.get(&path).await.text;
    let texts: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|entry| entry["kind"] == "assistant_message")
        .map(|entry| {
            entry["payload"]["text"]
                .as_str()
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect();
    let expected: Vec<_> = (0..5)
        .flat_map(|part| (0..90).map(move |at| format!("{part}-{at}")))
        .collect();
    assert_eq!(texts, expected);
}

#[tokio::test]
async fn an_executors_own_entries_replace_what_its_events_say() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    live.say(&claim, &["projected"]).await;
    let own = json!([
        {"entry_id": OTHER, "kind": "tool_call", "meta": {"n": 1},
         "payload": {"call_id": "c", "tool_name": "read"}},
        entry("tool_result", &json!({"call_id": "c", "result": "text"})),
        {"kind": "anchor", "anchor_type": "mark", "payload": {}},
        said("own"),
    ]);
    let body = json!({"tape_entries": own});
    let sent = live.executor(&claim, "tape", body.clone()).await.ok();
    let placed = sent["tape_entries"].as_array().unwrap().clone();
    assert_eq!(kinds(&placed), ["tool_call", "anchor", "assistant_message"]);
    assert_eq!(placed[0]["entry_id"], OTHER);
    assert_eq!(placed[0]["payload"]["result"], "text");
    assert_eq!(placed[0]["meta"], json!({"n": 1}));
    let again = live.executor(&claim, "tape", body.clone()).await.ok();
    assert_eq!(again, sent, "the same entries have the same places");
    let older = claim.with(body.clone());
    let path = format!("/v1/worker/runs/{}/tape", claim.run_id);
    assert_eq!(
        live.post(&path, older).await.ok()["tape_entries"],
        sent["tape_entries"]
    );

    let end = json!({"status": "completed", "tape_id": claim.answer["tape_id"],
        "tape_entries": [said("last")]});
    let settled = live.executor(&claim, "complete", end.clone()).await.ok();
    assert_eq!(live.executor(&claim, "complete", end).await.ok(), settled);
    let other = json!({"status": "completed", "tape_entries": [said("else")]});
    let other = live.executor(&claim, "complete", other).await;
    other.is(StatusCode::CONFLICT, "run_settled");
    let whole = entries(&live, &session).await;
    let texts: Vec<_> = whole
        .iter()
        .filter_map(|entry| entry["payload"]["text"].as_str())
        .collect();
    assert_eq!(texts, ["go", "own", "last"]);
    let again = live.executor(&claim, "tape", body).await.ok();
    assert_eq!(again, sent, "also after the end");
    let late = json!({"tape_entries": [said("late")]});
    let late = live.executor(&claim, "tape", late).await;
    late.is(StatusCode::CONFLICT, "run_settled");
}

#[tokio::test]
async fn an_entry_never_changes_or_moves() {
    let live = Live::start().await;
    let (_, claim) = live.claimed().await;
    let with = |text: &str| {
        let mut entry = said(text);
        entry["entry_id"] = json!(OTHER);
        json!({"tape_entries": [said("beside"), entry]})
    };
    live.executor(&claim, "tape", with("a")).await.ok();
    let changed = live.executor(&claim, "tape", with("b")).await;
    changed.is(StatusCode::CONFLICT, "entry_id_conflict");
    assert_eq!(changed.json["entry_id"], OTHER);
    // Another session's run can't take it over, at its end neither.
    let (session, foreign) = live.claimed().await;
    let stolen = live.executor(&foreign, "tape", with("a")).await;
    stolen.is(StatusCode::CONFLICT, "entry_id_conflict");
    let mut end = with("a");
    end["status"] = json!("completed");
    let stolen = live.executor(&foreign, "complete", end).await;
    stolen.is(StatusCode::CONFLICT, "entry_id_conflict");
    let run = live.get(&format!("/runs/{}", foreign.run_id)).await.ok();
    assert_eq!(run["settled_at"], Value::Null, "nothing was written");
    assert_eq!(kinds(&entries(&live, &session).await), ["user_message"]);
    let wrong = json!({"status": "completed", "tape_id": claim.answer["tape_id"]});
    let wrong = live.executor(&foreign, "complete", wrong).await;
    wrong.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    assert_eq!(wrong.json["errors"][0]["path"], "tape_id");
}

#[tokio::test]
async fn broken_uploads_are_told_where_and_the_claim_comes_first() {
    let live = Live::start().await;
    let (_, claim) = live.claimed().await;
    let deep = (0..130).fold(json!(1), |inner, _| json!([inner]));
    for (action, body, path) in [
        ("tape", json!({}), "tape_entries"),
        ("tape", json!({"tape_entries": []}), "tape_entries"),
        ("tape", json!({"entries": []}), "entries"),
        (
            "tape",
            json!({"tape_entries": [{"kind": "plan", "payload": {}, "x": 1}]}),
            "tape_entries[0].x",
        ),
        (
            "tape",
            json!({"tape_entries": [entry("run_end", &json!({}))]}),
            "tape_entries[0].kind",
        ),
        (
            "tape",
            json!({"tape_entries": [entry("plan", &json!({"a": "\u{0}"}))]}),
            "tape_entries[0].payload",
        ),
        ("snapshot", json!({}), "messages"),
        ("snapshot", json!({"messages": ["\u{0}"]}), "messages[0]"),
        ("snapshot", json!({"messages": [deep]}), "body"),
        (
            "snapshot",
            json!({"messages": [1], "metadata": []}),
            "metadata",
        ),
        ("snapshot", json!({"messages": [1], "note": 1}), "note"),
        (
            "complete",
            json!({"status": "completed", "tape_entries": [entry("note", &json!({}))]}),
            "tape_entries[0].kind",
        ),
    ] {
        let refused = live.executor(&claim, action, body.clone()).await;
        refused.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
        assert_eq!(refused.json["errors"][0]["path"], path, "{action} {body}");
        let mut lost = claim.clone();
        lost.token = "1.wrong".to_owned();
        let refused = live.executor(&lost, action, body).await;
        // What can't be parsed at all has no claim in it.
        if path != "body" {
            refused.is(StatusCode::FORBIDDEN, "claim_token_invalid");
        }
    }
    let large = said(&"x".repeat(2 * 1024 * 1024));
    let large = live
        .executor(&claim, "tape", json!({"tape_entries": [large]}))
        .await;
    large.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    let large = json!({"messages": ["x".repeat(2 * 1024 * 1024)]});
    live.executor(&claim, "snapshot", large).await.ok();
    let larger = json!({"messages": ["x".repeat(16 * 1024 * 1024)]});
    let larger = live.executor(&claim, "snapshot", larger).await;
    larger.is(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large");
}

#[tokio::test]
async fn a_snapshot_is_replaced_shown_and_handed_on() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let path = format!("/runs/{}/snapshot", claim.run_id);
    live.get(&path)
        .await
        .is(StatusCode::NOT_FOUND, "snapshot_not_found");
    let absent = live.get(&format!("/runs/{ID}/snapshot")).await;
    absent.is(StatusCode::NOT_FOUND, "run_not_found");
    let first = json!({"messages": [{"role": "user", "content": "go"}]});
    let saved = live.executor(&claim, "snapshot", first).await.ok();
    let snapshot_id = format!("{}:latest", claim.run_id);
    assert_eq!(
        saved,
        json!({"snapshot_id": snapshot_id, "message_count": 1})
    );
    let messages = json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c"}]},
    ]);
    let second = json!({"messages": messages, "metadata": {"model": "m"}});
    let saved = live.executor(&claim, "snapshot", second).await.ok();
    assert_eq!(saved["message_count"], 2);
    let shown = live.get(&path).await.ok();
    assert_eq!(shown["messages"], messages);
    assert_eq!(shown["metadata"], json!({"model": "m"}));
    assert_eq!(
        (&shown["snapshot_id"], &shown["attempt"], &shown["run_id"]),
        (&json!(snapshot_id), &json!(1), &json!(claim.run_id))
    );
    assert!(shown["created_at"].as_str() <= shown["updated_at"].as_str());
    live.complete(&claim).await;
    let late = json!({"messages": [1]});
    let late = live.executor(&claim, "snapshot", late).await;
    late.is(StatusCode::CONFLICT, "run_settled");

    let captured = live
        .api
        .post(&format!("/sessions/{session}/checkpoints"))
        .await
        .ok();
    assert_eq!(captured["snapshot_id"], json!(snapshot_id));
    let resumed = live
        .post(&format!("/sessions/{session}/resume"), json!({}))
        .await
        .ok();
    let run = live
        .get(&format!("/runs/{}", resumed["run_id"].as_str().unwrap()))
        .await
        .ok();
    let metadata = &run["metadata"];
    assert_eq!(metadata["latest_message_snapshot_id"], json!(snapshot_id));
    assert_eq!(metadata["latest_message_snapshot_message_count"], 2);
    assert_eq!(metadata["latest_checkpoint_id"], captured["checkpoint_id"]);
    let given = &live.claim().await.answer["resume_context"]["message_snapshot"];
    assert_eq!(given["snapshot_id"], json!(snapshot_id));
    // Every call is answered exactly once.
    assert_eq!(given["messages"].as_array().unwrap().len(), 3);
    assert_eq!(given["messages"][2]["tool_call_id"], "c");
}
