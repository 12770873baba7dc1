//! Checkpoints, restores, forks and repairs over HTTP: shapes, statuses and codes as the interface
//! promises them.

use crate::support::{ID, Live};
use http::header::LOCATION;
use http::{Method, StatusCode};
use serde_json::{Value, json};

fn id(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap().to_owned()
}

/// A run that says these words and completes; gives its id.
async fn turn(live: &Live, session: &str, words: &str) -> String {
    live.prompt(session).await;
    let claim = live.claim().await;
    live.say(&claim, &[words]).await;
    live.complete(&claim).await;
    claim.run_id
}

async fn capture(live: &Live, session: &str, label: &str) -> String {
    let path = format!("/sessions/{session}/checkpoints");
    let captured = live.post(&path, json!({"label": label})).await;
    assert_eq!(captured.status, StatusCode::CREATED, "{}", captured.text);
    id(&captured.json, "checkpoint_id")
}

async fn restore(live: &Live, session: &str, checkpoint: &str) -> Value {
    let path = format!("/sessions/{session}/checkpoints/{checkpoint}/restore");
    live.api.post(&path).await.ok()
}

/// What a session's tape says, in order.
async fn words(live: &Live, session: &str) -> Vec<String> {
    let tape = live.get(&format!("/sessions/{session}/tape")).await.ok();
    let entries = tape["entries"].as_array().unwrap().clone();
    let said = entries
        .iter()
        .filter(|entry| entry["kind"] == "assistant_message");
    said.map(|entry| id(&entry["payload"], "text")).collect()
}

#[tokio::test]
async fn a_checkpoint_is_captured_listed_and_deleted() {
    let live = Live::start().await;
    let session = live.session().await;
    let run = turn(&live, &session, "one").await;
    let path = format!("/sessions/{session}/checkpoints");
    let head = live.get(&format!("/sessions/{session}")).await.ok()["head_seq"].clone();
    let captured = live.post(&path, json!({"label": "first"})).await;
    assert_eq!(captured.status, StatusCode::CREATED);
    let first = captured.json;
    assert_eq!(
        (&first["label"], &first["session_seq"]),
        (&json!("first"), &head)
    );
    assert_eq!(first["run_id"], json!(run));
    assert_eq!(first["snapshot_id"], Value::Null);
    assert!(first["tape_position"].as_u64().unwrap() > 0);
    assert!(first["created_at"].is_string());
    // A label is no must, nor is a body.
    let second = live.api.post(&path).await.ok();
    assert_eq!(second["label"], Value::Null);

    let shown = live.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(shown["checkpoint_count"], 2);
    assert_eq!(shown["latest_checkpoint_id"], second["checkpoint_id"]);
    assert!(shown["log_id"].is_string());
    let page = live.get(&format!("{path}?limit=1")).await.ok();
    assert_eq!(page["checkpoints"][0], second);
    let cursor = id(&page, "next_cursor");
    let page = live.get(&format!("{path}?cursor={cursor}")).await.ok();
    assert_eq!(
        (&page["checkpoints"], &page["next_cursor"]),
        (&json!([first]), &Value::Null)
    );

    let one = format!("{path}/{}", id(&second, "checkpoint_id"));
    let deleted = live.api.send(Method::DELETE, &one).await;
    assert_eq!(
        (deleted.status, deleted.text.as_str()),
        (StatusCode::NO_CONTENT, "")
    );
    let again = live.api.send(Method::DELETE, &one).await;
    again.is(StatusCode::NOT_FOUND, "checkpoint_not_found");
    let listed = live.get(&path).await.ok();
    assert_eq!(listed["checkpoints"], json!([first]));
    let all = live
        .get(&format!("{path}?include_superseded=true"))
        .await
        .ok();
    assert!(all["checkpoints"][0]["deleted_at"].is_string());
    let shown = live.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(shown["latest_checkpoint_label"], "first");
    let gone = live.api.post(&format!("{one}/restore")).await;
    gone.is(StatusCode::CONFLICT, "checkpoint_superseded");
    assert_eq!(gone.json["checkpoint_id"], second["checkpoint_id"]);
}

#[tokio::test]
async fn a_restore_puts_the_later_past_aside_and_keeps_it() {
    let live = Live::start().await;
    let session = live.session().await;
    let base = format!("/sessions/{session}");
    let first = turn(&live, &session, "one").await;
    let place = capture(&live, &session, "place").await;
    let patch = live
        .api
        .call(Method::PATCH, &format!("{base}/runtime-config"));
    patch.json(&json!({"model": "later"})).await.ok();
    let second = turn(&live, &session, "two").await;
    let later = capture(&live, &session, "later").await;
    assert_eq!(words(&live, &session).await, ["one", "two"]);
    assert_eq!(
        live.get(&format!("{base}/result")).await.ok()["run_id"],
        json!(second)
    );

    let restored = restore(&live, &session, &place).await;
    assert_eq!(restored["session_id"], json!(session));
    assert_eq!(restored["model"], Value::Null, "settings come back");
    assert_eq!(restored["last_run_id"], json!(first));
    assert_eq!(restored["checkpoint_count"], 1);
    assert_eq!(restored["latest_checkpoint_id"], json!(place));
    assert_eq!(words(&live, &session).await, ["one"]);
    let result = live.get(&format!("{base}/result")).await.ok();
    assert_eq!(
        (&result["run_id"], &result["status"]),
        (&json!(first), &json!("completed"))
    );
    let runs = live.get(&format!("{base}/runs")).await.ok();
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1);
    let listed = live.get(&format!("{base}/checkpoints")).await.ok();
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 1);

    let all = "include_superseded=true";
    let runs = live.get(&format!("{base}/runs?{all}")).await.ok();
    assert_eq!(runs["runs"][0]["run_id"], json!(second));
    assert_eq!(runs["runs"][0]["superseded_by_checkpoint_id"], json!(place));
    let run = live.get(&format!("/runs/{second}")).await.ok();
    assert!(run["superseded_at"].is_string());
    let tape = live.get(&format!("{base}/tape?{all}")).await.ok();
    let aside = tape["entries"].as_array().unwrap().iter();
    let aside = aside.filter(|entry| entry["superseded_by_checkpoint_id"] == json!(place));
    assert!(aside.count() > 0);
    let put_aside = live
        .api
        .post(&format!("{base}/checkpoints/{later}/restore"))
        .await;
    put_aside.is(StatusCode::CONFLICT, "checkpoint_superseded");
    let events = live.get(&format!(
        "{base}/events?kinds=SessionRestored,CheckpointCaptured"
    ));
    let events = events.await.ok()["events"].as_array().unwrap().clone();
    assert_eq!(events.len(), 3);
    assert_eq!(events[2]["payload"]["checkpoint_id"], json!(place));
    assert_eq!(events[2]["folded_from"], Value::Null);

    // What comes next has the restored past and nothing of what was put aside.
    live.post(&format!("{base}/resume"), json!({"prompt": "on"}))
        .await
        .ok();
    let claim = live.claim().await.answer;
    let context = &claim["resume_context"];
    assert_eq!(context["previous_run_id"], json!(first));
    assert_eq!(context["agent_state_diverged"], true);
    let prompt = id(&claim, "prompt");
    assert!(
        prompt.contains("one") && !prompt.contains("two"),
        "{prompt}"
    );
}

#[tokio::test]
async fn a_stream_of_a_run_that_was_put_aside_says_so() {
    let live = Live::start().await;
    let session = live.session().await;
    let place = capture(&live, &session, "empty").await;
    let run = turn(&live, &session, "one").await;
    restore(&live, &session, &place).await;
    let stream = live.api.get(&format!("/runs/{run}/events")).await;
    assert_eq!(stream.status, StatusCode::OK);
    let end = "event: stream.end\ndata: {\"reason\":\"superseded\"}\n\n";
    assert!(stream.text.ends_with(end), "{}", stream.text);
    let shown = live.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(
        (&shown["status"], &shown["resumable"]),
        (&json!("created"), &json!(false))
    );
    let result = live.get(&format!("/sessions/{session}/result")).await.ok();
    let nothing = json!({"session_id": session, "run_id": null, "status": null, "result": null,
        "error": null, "settled_at": null});
    assert_eq!(result, nothing);
}

#[tokio::test]
async fn a_fork_starts_from_a_checkpoint_an_event_or_now() {
    let live = Live::start().await;
    let session = live.session().await;
    let path = format!("/sessions/{session}/fork");
    turn(&live, &session, "one").await;
    let place = capture(&live, &session, "place").await;
    let seq = live.get(&format!("/sessions/{session}")).await.ok()["head_seq"].clone();
    turn(&live, &session, "two").await;

    let by_checkpoint = json!({"checkpoint_id": place, "title": "other"});
    let forked = live.post(&path, by_checkpoint).await;
    assert_eq!(forked.status, StatusCode::CREATED);
    let fork = id(&forked.json, "session_id");
    assert_eq!(forked.header(LOCATION), format!("/sessions/{fork}"));
    assert_eq!(forked.json["title"], "other");
    let origin = &forked.json["forked_from"];
    assert_eq!(origin["session_id"], json!(session));
    assert_eq!(origin["checkpoint_id"], json!(place));
    assert!(origin["session_seq"].is_u64());
    assert_eq!(words(&live, &fork).await, ["one"]);
    let shown = live.get(&format!("/sessions/{fork}")).await.ok();
    assert_eq!(&shown["forked_from"], origin);

    let forked = live.post(&path, json!({"session_seq": seq})).await.ok();
    let origin = json!({"session_id": session, "checkpoint_id": null, "session_seq": seq});
    assert_eq!(forked["forked_from"], origin);
    assert_eq!(words(&live, &id(&forked, "session_id")).await, ["one"]);
    let forked = live.api.post(&path).await.ok();
    let now = id(&forked, "session_id");
    assert_eq!(words(&live, &now).await, ["one", "two"]);
    // The source is as it was, and the fork goes its own way with the past in its first prompt.
    turn(&live, &now, "three").await;
    assert_eq!(words(&live, &session).await, ["one", "two"]);
    assert_eq!(words(&live, &now).await, ["one", "two", "three"]);
    let source = live.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(source["forked_from"], Value::Null);
}

#[tokio::test]
async fn nothing_is_captured_or_put_back_while_a_run_is_active() {
    let live = Live::start().await;
    let session = live.session().await;
    let place = capture(&live, &session, "place").await;
    let run = live.prompt(&session).await;
    let base = format!("/sessions/{session}/checkpoints");
    for path in [base.clone(), format!("{base}/{place}/restore")] {
        let busy = live.api.post(&path).await;
        busy.is(StatusCode::CONFLICT, "session_busy");
        assert_eq!(busy.json["active_run_id"], json!(run));
    }
    // A fork takes what has settled, so it needn't wait.
    let forked = live.api.post(&format!("/sessions/{session}/fork")).await;
    assert_eq!(forked.status, StatusCode::CREATED);
    let closed = live.session().await;
    live.post(&format!("/sessions/{closed}/close"), json!({}))
        .await
        .ok();
    let refused = live
        .api
        .post(&format!("/sessions/{closed}/checkpoints"))
        .await;
    refused.is(StatusCode::CONFLICT, "session_closed");
}

#[tokio::test]
async fn what_is_of_another_session_or_nowhere_is_404() {
    let live = Live::start().await;
    let (session, other) = (live.session().await, live.session().await);
    let foreign = capture(&live, &other, "foreign").await;
    for checkpoint in [foreign.as_str(), ID] {
        let path = format!("/sessions/{session}/checkpoints/{checkpoint}");
        let deleted = live.api.send(Method::DELETE, &path).await;
        deleted.is(StatusCode::NOT_FOUND, "checkpoint_not_found");
        let restored = live.api.post(&format!("{path}/restore")).await;
        restored.is(StatusCode::NOT_FOUND, "checkpoint_not_found");
        let fork = json!({"checkpoint_id": checkpoint});
        let forked = live.post(&format!("/sessions/{session}/fork"), fork).await;
        forked.is(StatusCode::NOT_FOUND, "checkpoint_not_found");
    }
    let listed = live
        .get(&format!("/sessions/{other}/checkpoints"))
        .await
        .ok();
    assert_eq!(
        listed["checkpoints"][0]["checkpoint_id"],
        json!(foreign),
        "it is untouched"
    );
    for (method, path) in [
        (Method::GET, format!("/sessions/{ID}/checkpoints")),
        (Method::POST, format!("/sessions/{ID}/checkpoints")),
        (
            Method::DELETE,
            format!("/sessions/{ID}/checkpoints/{foreign}"),
        ),
        (
            Method::POST,
            format!("/sessions/{ID}/checkpoints/{foreign}/restore"),
        ),
        (Method::POST, format!("/sessions/{ID}/fork")),
        (Method::POST, format!("/sessions/{ID}/repair")),
        (Method::GET, format!("/sessions/{ID}/result")),
    ] {
        let absent = live.api.send(method, &path).await;
        absent.is(StatusCode::NOT_FOUND, "session_not_found");
    }
}

#[tokio::test]
async fn broken_requests_are_told_where() {
    let live = Live::start().await;
    let session = live.session().await;
    let place = capture(&live, &session, "place").await;
    let base = format!("/sessions/{session}");
    let head = live.get(&base).await.ok()["head_seq"].as_u64().unwrap();
    for (path, body, field) in [
        ("checkpoints", json!({"name": "x"}), "name"),
        ("checkpoints", json!({"label": "a\u{0}"}), "label"),
        ("checkpoints", json!({"label": "a".repeat(201)}), "label"),
        (
            "fork",
            json!({"checkpoint_id": place, "session_seq": 1}),
            "session_seq",
        ),
        ("fork", json!({"session_seq": head + 1}), "session_seq"),
        ("fork", json!({"session_seq": -1}), "session_seq"),
        ("fork", json!({"checkpoint_id": "x"}), "checkpoint_id"),
        ("fork", json!({"title": "a".repeat(201)}), "title"),
        ("fork", json!({"seq": 1}), "seq"),
        ("repair", json!({"force": true}), "force"),
    ] {
        let refused = live.post(&format!("{base}/{path}"), &body).await;
        refused.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
        assert_eq!(refused.json["errors"][0]["path"], field, "{body}");
    }
    let restore = format!("{base}/checkpoints/{place}/restore");
    let refused = live.post(&restore, json!({"force": true})).await;
    refused.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    for (path, code) in [
        ("checkpoints?limit=0", "malformed_request"),
        (
            "checkpoints?include_superseded=perhaps",
            "malformed_request",
        ),
        ("checkpoints?cursor=x", "cursor_malformed"),
        ("runs?all=true", "malformed_request"),
    ] {
        let refused = live.get(&format!("{base}/{path}")).await;
        refused.is(StatusCode::BAD_REQUEST, code);
    }
    let malformed = live
        .api
        .send(Method::DELETE, &format!("{base}/checkpoints/x"))
        .await;
    malformed.is(StatusCode::BAD_REQUEST, "malformed_request");
    assert_eq!(malformed.json["errors"][0]["path"], "checkpoint_id");
}

#[tokio::test]
async fn the_same_key_gets_the_first_result() {
    let live = Live::start().await;
    let session = live.session().await;
    let base = format!("/sessions/{session}");
    let keyed = |path: &str, key: &str, body: Value| {
        let call = live.post(&format!("{base}/{path}"), body);
        call.header("idempotency-key", key)
    };
    let first = keyed("checkpoints", "k1", json!({"label": "a"})).await.ok();
    let again = keyed("checkpoints", "k1", json!({"label": "a"})).await.ok();
    assert_eq!(again, first);
    let other = keyed("checkpoints", "k1", json!({"label": "b"})).await;
    other.is(StatusCode::CONFLICT, "idempotency_conflict");
    let in_body = json!({"label": "a", "command_id": "k1"});
    let again = live
        .post(&format!("{base}/checkpoints"), in_body)
        .await
        .ok();
    assert_eq!(again, first);

    let fork = keyed("fork", "k1", json!({"title": "f"})).await.ok();
    let again = keyed("fork", "k1", json!({"title": "f"})).await;
    assert_eq!(again.status, StatusCode::CREATED);
    assert_eq!(again.json["session_id"], fork["session_id"]);
    let other = keyed("fork", "k1", json!({})).await;
    other.is(StatusCode::CONFLICT, "idempotency_conflict");

    let place = id(&first, "checkpoint_id");
    let restore = format!("checkpoints/{place}/restore");
    keyed(&restore, "k1", json!({})).await.ok();
    let run = turn(&live, &session, "after").await;
    // Sent again late, it must not put the new run aside.
    let again = keyed(&restore, "k1", json!({})).await.ok();
    assert_eq!(again["last_run_id"], json!(run));
    let events = live
        .get(&format!("{base}/events?kinds=SessionRestored"))
        .await
        .ok();
    assert_eq!(events["events"].as_array().unwrap().len(), 1);
    keyed(&restore, "k2", json!({})).await.ok();
    let shown = live.get(&base).await.ok();
    assert_eq!(shown["last_run_id"], Value::Null);
}

#[tokio::test]
async fn a_repair_needs_that_nobody_owns_the_session() {
    let live = Live::start().await;
    let session = live.session().await;
    let owned = live.api.post(&format!("/sessions/{session}/repair")).await;
    owned.is(StatusCode::CONFLICT, "owned_elsewhere");
    assert_eq!(owned.json["owner_id"], "server:test");
    assert!(owned.json["owner_until"].is_string());
    let parsed = session.parse().unwrap();
    live.api
        .control
        .release_owner("default", parsed)
        .await
        .unwrap();
    let repaired = live
        .api
        .post(&format!("/sessions/{session}/repair"))
        .await
        .ok();
    assert_eq!(repaired, json!({"changed": []}));
    let events = live.get(&format!("/sessions/{session}/events?kinds=SessionRepaired"));
    let events = events.await.ok();
    assert_eq!(
        events["events"][0]["payload"],
        json!({"by": "local", "changed": []})
    );
}
