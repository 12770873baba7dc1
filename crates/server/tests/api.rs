//! Sessions, runs, executors and questions over HTTP, on a real store: shapes, statuses and codes as
//! the interface promises them.

mod support;

use http::header::LOCATION;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use support::{ID, Live};

#[tokio::test]
async fn a_session_is_created_shown_changed_closed_and_deleted() {
    let live = Live::start().await;
    let body = json!({"title": "t", "repo_path": "/src", "model": "m", "metadata": {"a": 1}});
    let created = live.post("/sessions", body).await;
    assert_eq!(created.status, StatusCode::CREATED);
    let id = created.json["session_id"].as_str().unwrap().to_owned();
    let path = format!("/sessions/{id}");
    assert_eq!(created.header(LOCATION), path);
    assert_eq!(created.json["namespace"], "default");
    assert_eq!(created.json["turn_status"], "idle");
    assert_eq!(created.json["approval_policy"], "interactive");
    assert_eq!(created.json["workspace"]["path"], "/src");
    assert_eq!(created.json["model"], "m");
    let shown = live.get(&path).await.ok();
    assert_eq!(shown["session_id"], json!(id));

    let patch = live.api.call(Method::PATCH, &path);
    let patch = patch.json(&json!({"title": null, "metadata": {"a": null, "b": 2}}));
    let patched = patch.await.ok();
    assert_eq!(patched["title"], Value::Null);
    assert_eq!(patched["metadata"], json!({"b": 2}));
    let configure = live.api.call(Method::PATCH, &format!("{path}/runtime-config"));
    let configured = configure.json(&json!({"provider": "p", "approval_policy": "auto"}));
    let configured = configured.await.ok();
    assert_eq!(configured["model"], "m");
    assert_eq!(configured["provider"], "p");
    assert_eq!(configured["approval_policy"], "auto");

    let closed = live.post(&format!("{path}/close"), json!({})).await.ok();
    assert_eq!(closed["status"], "closed");
    let refused = live.post(&format!("{path}/prompt"), json!({"prompt": "go"})).await;
    refused.is(StatusCode::CONFLICT, "session_closed");
    let deleted = live.api.send(Method::DELETE, &path).await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    live.get(&path).await.is(StatusCode::NOT_FOUND, "session_not_found");
    let gone = live.get(&format!("{path}/events")).await;
    gone.is(StatusCode::NOT_FOUND, "session_not_found");
}

#[tokio::test]
async fn what_is_not_there_is_404() {
    let live = Live::start().await;
    for (path, code) in [
        (format!("/sessions/{ID}"), "session_not_found"),
        (format!("/sessions/{ID}/events"), "session_not_found"),
        (format!("/sessions/{ID}/runs"), "session_not_found"),
        (format!("/runs/{ID}"), "run_not_found"),
        (format!("/runs/{ID}/events"), "run_not_found"),
        (format!("/runs/{ID}/interactions"), "run_not_found"),
        (format!("/interactions/{ID}"), "interaction_not_found"),
        ("/executors/nobody".to_owned(), "executor_not_found"),
    ] {
        live.get(&path).await.is(StatusCode::NOT_FOUND, code);
    }
    let resolve = live.post(&format!("/interactions/{ID}/resolve"), json!({"approved": true}));
    resolve.await.is(StatusCode::NOT_FOUND, "interaction_not_found");
    let cancel = live.post(&format!("/runs/{ID}/cancel"), json!({})).await;
    cancel.is(StatusCode::NOT_FOUND, "run_not_found");
    let beat = json!({"executor_id": "x", "claim_token": "1.a"});
    let beat = live.post(&format!("/executor/runs/{ID}/heartbeat"), beat).await;
    beat.is(StatusCode::NOT_FOUND, "run_not_found");
    let claim = live.post("/executor/runs/claim", json!({"executor_id": "x"}));
    claim.await.is(StatusCode::NOT_FOUND, "no_run_available");
}

#[tokio::test]
async fn lists_are_newest_first_and_paged() {
    let live = Live::start().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.insert(0, live.session().await);
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = live.get(&format!("/sessions?limit=2{cursor}")).await.ok();
        let items = page["sessions"].as_array().unwrap();
        seen.extend(items.iter().map(|item| item["session_id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn a_prompt_is_admitted_refused_queued_or_put_first() {
    let live = Live::start().await;
    let session = live.session().await;
    let path = format!("/sessions/{session}/prompt");
    let accepted = live.post(&path, json!({"prompt": "one"})).await;
    assert_eq!(accepted.status, StatusCode::ACCEPTED);
    assert_eq!(accepted.json["status"], "requested");
    assert_eq!(accepted.json["session_seq"], 1);
    let active = accepted.json["run_id"].clone();

    let busy = live.post(&path, json!({"prompt": "two"})).await;
    busy.is(StatusCode::CONFLICT, "session_busy");
    assert_eq!(busy.json["active_run_id"], active);
    assert_eq!(busy.json["on_active_allowed"], json!(["enqueue", "interrupt"]));
    let resume = live.post(&format!("/sessions/{session}/resume"), json!({})).await;
    resume.is(StatusCode::CONFLICT, "session_busy");
    let configure = live.api.call(Method::PATCH, &format!("/sessions/{session}/runtime-config"));
    let configure = configure.json(&json!({"model": "m"})).await;
    configure.is(StatusCode::CONFLICT, "session_busy");
    let delete = live.api.send(Method::DELETE, &format!("/sessions/{session}")).await;
    delete.is(StatusCode::CONFLICT, "session_busy");

    let body = json!({"prompt": "two", "on_active": "enqueue"});
    let queued = live.post(&path, body).await.ok();
    assert_eq!(queued["status"], "queued");
    let cancelled = live.post(&format!("/sessions/{session}/cancel"), json!({})).await;
    assert_eq!(cancelled.status, StatusCode::ACCEPTED);
    assert_eq!(cancelled.json["status"], "cancelling");
    let claim = live.claim().await;
    assert_eq!(json!(claim.run_id), queued["run_id"]);
    assert_eq!(claim.answer["prompt"], "two");
    let run = live.get(&format!("/runs/{}", active.as_str().unwrap())).await.ok();
    assert_eq!(run["status"], "cancelled");
    let runs = live.get(&format!("/sessions/{session}/runs")).await.ok();
    assert_eq!(runs["runs"].as_array().unwrap().len(), 2);
    let all = live.get("/runs").await.ok();
    assert_eq!(all["runs"], runs["runs"]);
}

#[tokio::test]
async fn a_cancel_without_a_run_is_200() {
    let live = Live::start().await;
    let session = live.session().await;
    let idle = live.post(&format!("/sessions/{session}/cancel"), json!({})).await;
    assert_eq!(idle.status, StatusCode::OK);
    assert_eq!(
        idle.json,
        json!({"session_id": session, "run_id": null, "status": "idle"})
    );
}

#[tokio::test]
async fn a_run_is_cancelled_by_its_executor() {
    let live = Live::start().await;
    let (_, claim) = live.claimed().await;
    live.say(&claim, &["a"]).await;
    let cancel = live.post(&format!("/runs/{}/cancel", claim.run_id), json!({})).await;
    assert_eq!(cancel.status, StatusCode::ACCEPTED);
    let beat = live.executor(&claim, "heartbeat", json!({"wait_seconds": 30})).await.ok();
    assert_eq!(beat["cancel_requested"], true);
    assert_eq!(beat["status"], "cancelling");
    let done = live.executor(&claim, "complete", json!({"status": "cancelled"})).await.ok();
    assert_eq!(done["status"], "cancelled");
    let again = live.post(&format!("/runs/{}/cancel", claim.run_id), json!({})).await;
    assert_eq!(again.status, StatusCode::OK);
    assert_eq!(again.json["status"], "cancelled");
}

#[tokio::test]
async fn nothing_to_resume_is_409_and_a_settled_run_is_resumed() {
    let live = Live::start().await;
    let session = live.session().await;
    let path = format!("/sessions/{session}/resume");
    let nothing = live.post(&path, json!({})).await;
    nothing.is(StatusCode::CONFLICT, "nothing_to_resume");
    let first = live.prompt(&session).await;
    let claim = live.claim().await;
    live.say(&claim, &["half"]).await;
    let ended = live.executor(&claim, "complete", json!({"status": "interrupted"})).await.ok();
    assert_eq!(ended["status"], "interrupted");
    let resumed = live.post(&path, json!({})).await;
    assert_eq!(resumed.status, StatusCode::ACCEPTED);
    let claim = live.claim().await;
    assert_eq!(claim.answer["parent_run_id"], json!(first));
    assert!(claim.answer["resume_context"].is_object());
    assert!(claim.answer["prompt"].as_str().unwrap().contains("half"));
    let run = live.get(&format!("/runs/{}", claim.run_id)).await.ok();
    assert_eq!(run["metadata"]["resume_from_run_id"], json!(first));
}

#[tokio::test]
async fn one_key_and_body_give_one_run_and_another_body_is_refused() {
    let live = Live::start().await;
    let create = |title: &str| {
        let call = live.api.post("/sessions").json(&json!({"title": title}));
        call.header("idempotency-key", "k1")
    };
    let created = create("a").await;
    let again = create("a").await;
    assert_eq!(again.status, StatusCode::CREATED);
    assert_eq!(created.json["session_id"], again.json["session_id"]);
    create("b").await.is(StatusCode::CONFLICT, "idempotency_conflict");

    let session = created.json["session_id"].as_str().unwrap();
    let path = format!("/sessions/{session}/prompt");
    let first = live.post(&path, json!({"prompt": "go", "command_id": "k1"})).await.ok();
    for _ in 0..3 {
        let header = live.api.post(&path).as_json().header("idempotency-key", "k1");
        let again = header.json(&json!({"prompt": "go"})).await.ok();
        assert_eq!(again, first);
    }
    let other = live.post(&path, json!({"prompt": "stop", "command_id": "k1"})).await;
    other.is(StatusCode::CONFLICT, "idempotency_conflict");
    let runs = live.get(&format!("/sessions/{session}/runs")).await.ok();
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1);
    let claim = live.claim().await;
    live.complete(&claim).await;
    let resume = format!("/sessions/{session}/resume");
    let body = json!({"command_id": "k1"});
    let resumed = live.post(&resume, body.clone()).await.ok();
    assert_eq!(live.post(&resume, body).await.ok(), resumed);
    assert_ne!(resumed["run_id"], first["run_id"]);
}

#[tokio::test]
async fn an_executor_claims_uploads_and_completes() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let answer = &claim.answer;
    for key in [
        "run_id", "session_id", "claim_token", "attempt", "prompt", "tape_id", "approval_policy",
        "provider_name", "model_name", "base_url", "max_steps", "workspace", "agent",
        "resume_context", "lease_expires_at", "lease_ttl_ms", "traceparent",
    ] {
        assert!(answer.get(key).is_some(), "{key} in {answer}");
    }
    let events = json!([
        {"event_id": "a", "event": "StreamDelta", "data": {"content": "x", "role": "assistant"}},
        {"event_id": "b", "event": "TurnEnd", "data": {}},
        {"event_id": "c", "event": "Anything", "data": {"k": [1]}},
    ]);
    let uploaded = live.upload(&claim, events.clone()).await.ok();
    assert_eq!(uploaded["run_id"], json!(claim.run_id));
    let records = uploaded["events"].as_array().unwrap();
    assert_eq!(records[0]["kind"], "StreamDelta");
    assert_eq!(records[0]["payload"]["content"], "x");
    assert_eq!((&records[1]["session_seq"], &records[1]["recorded"]), (&Value::Null, &json!(false)));
    let seqs = [&records[0]["session_seq"], &records[2]["session_seq"]];
    assert_eq!(live.upload(&claim, events).await.ok(), uploaded, "the same again");
    let conflict = json!([
        {"event_id": "d", "event": "StreamDelta", "data": {}},
        {"event_id": "a", "event": "StreamDelta", "data": {"content": "y"}},
    ]);
    let refused = live.upload(&claim, conflict).await;
    refused.is(StatusCode::CONFLICT, "event_id_conflict");
    assert_eq!(refused.json["event_id"], "a");
    let page = live.get(&format!("/sessions/{session}/events")).await.ok();
    let head = page["head_seq"].as_u64().unwrap();
    assert_eq!([head - 1, head], [seqs[0].as_u64().unwrap(), seqs[1].as_u64().unwrap()]);

    let body = json!({"status": "completed", "event_count": 3});
    let missing = live.executor(&claim, "complete", body).await;
    missing.is(StatusCode::CONFLICT, "events_missing");
    assert_eq!(missing.json["retryable"], true);
    let tape = json!({"status": "completed", "tape_entries": [{}]});
    let tape = live.executor(&claim, "complete", tape).await;
    tape.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    let body = json!({"status": "completed", "event_count": 2, "result": {"ok": true}});
    let done = live.executor(&claim, "complete", body.clone()).await.ok();
    assert_eq!((&done["status"], &done["result"]), (&json!("completed"), &json!({"ok": true})));
    assert_eq!(live.executor(&claim, "complete", body).await.ok(), done, "the same again");
    let other = live.executor(&claim, "complete", json!({"status": "failed", "error": "e"})).await;
    other.is(StatusCode::CONFLICT, "run_settled");
    let beat = live.executor(&claim, "heartbeat", json!({})).await;
    beat.is(StatusCode::CONFLICT, "run_settled");
    let late = json!([{"event_id": "z", "event": "StreamDelta", "data": {}}]);
    live.upload(&claim, late).await.is(StatusCode::CONFLICT, "run_settled");
}

#[tokio::test]
async fn a_claim_is_judged_before_the_rest_of_the_body() {
    let live = Live::start().await;
    let (_, claim) = live.claimed().await;
    let broken = json!({"events": []});
    let own = live.executor(&claim, "events", broken.clone()).await;
    own.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    assert_eq!(own.json["errors"][0]["path"], "events");
    let mut foreign = claim.clone();
    foreign.token = "1.never".to_owned();
    for (action, body) in [
        ("events", broken.clone()),
        ("events", json!({"evnts": [1]})),
        ("heartbeat", json!({"lease_seconds": 1})),
        ("approval", json!({})),
        ("complete", json!({"status": "gone"})),
    ] {
        let refused = live.executor(&foreign, action, body).await;
        refused.is(StatusCode::FORBIDDEN, "claim_token_invalid");
    }
    let other = claim.with(json!({"executor_id": "x2"}));
    let path = format!("/executor/runs/{}/heartbeat", claim.run_id);
    live.post(&path, other).await.is(StatusCode::FORBIDDEN, "claim_token_invalid");

    let released = live.executor(&claim, "release", json!({})).await.ok();
    assert_eq!(released["status"], "requested");
    let lost = live.executor(&claim, "events", broken).await;
    lost.is(StatusCode::CONFLICT, "claim_lost");
    assert_eq!(lost.json["retryable"], false);
    let second = live.claim().await;
    let lost = live.executor(&claim, "heartbeat", json!({})).await;
    lost.is(StatusCode::CONFLICT, "claim_lost");
    live.say(&second, &["out"]).await;
    let kept = live.executor(&second, "release", json!({})).await;
    kept.is(StatusCode::CONFLICT, "run_has_output");
    // A token without any of the other fields can't be judged.
    let nothing = live.post(&path, json!({})).await;
    nothing.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
}

#[tokio::test]
async fn a_claim_is_replayed_to_the_same_request() {
    let live = Live::start().await;
    let session = live.session().await;
    live.prompt(&session).await;
    let body = json!({"executor_id": "x1", "claim_request_id": "0123456789abcdef0123456789abcdef"});
    let first = live.post("/executor/runs/claim", body.clone()).await.ok();
    let again = live.post("/executor/runs/claim", body.clone()).await.ok();
    assert_eq!(first["claim_token"], again["claim_token"]);
    assert_eq!(first["attempt"], again["attempt"]);
    let token = json!({"executor_id": "x1", "claim_token": first["claim_token"]});
    let run = first["run_id"].as_str().unwrap();
    live.post(&format!("/executor/runs/{run}/release"), token).await.ok();
    let dead = live.post("/executor/runs/claim", body).await;
    dead.is(StatusCode::CONFLICT, "claim_lost");
}

#[tokio::test]
async fn a_held_claim_gets_the_run_that_comes() {
    let live = Live::start().await;
    let session = live.session().await;
    let body = json!({"executor_id": "x1", "wait_seconds": 60});
    let held = live.api.post("/executor/runs/claim").json(&body).send();
    let prompt = async {
        tokio::task::yield_now().await;
        live.prompt(&session).await
    };
    let (claimed, run) = tokio::join!(held, prompt);
    assert_eq!(claimed.ok()["run_id"], json!(run));
}

#[tokio::test]
async fn a_question_is_answered_once() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let ask = json!({"request_id": "q1", "tool_name": "bash", "arguments": {"c": "ls"}, "wait_seconds": 0});
    let pending = live.executor(&claim, "approval", ask.clone()).await;
    assert_eq!(pending.status, StatusCode::ACCEPTED);
    assert_eq!(pending.json["status"], "pending");
    assert_eq!(pending.json["approved"], Value::Null);
    let other = json!({"request_id": "q1", "tool_name": "rm", "wait_seconds": 0});
    let other = live.executor(&claim, "approval", other).await;
    other.is(StatusCode::CONFLICT, "request_id_conflict");
    let inbox = live.get("/interactions?status=pending").await.ok();
    assert_eq!(inbox["interactions"].as_array().unwrap().len(), 1);
    let id = inbox["interactions"][0]["interaction_id"].as_str().unwrap().to_owned();
    let of_run = live.get(&format!("/runs/{}/interactions", claim.run_id)).await.ok();
    assert_eq!(of_run["interactions"], inbox["interactions"]);
    let session_shown = live.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(session_shown["turn_status"], "waiting_approval");

    let path = format!("/interactions/{id}/resolve");
    let neither = live.post(&path, json!({})).await;
    neither.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    let held = live.executor(&claim, "approval", json!({
        "request_id": "q1", "tool_name": "bash", "arguments": {"c": "ls"}, "wait_seconds": 60
    }));
    let answer = live.post(&path, json!({"approved": true, "feedback": "ok"}));
    let (held, answered) = tokio::join!(held.send(), answer.send());
    assert_eq!(answered.ok()["status"], "approved");
    assert_eq!(held.status, StatusCode::OK);
    assert_eq!(held.json["approved"], true);
    assert_eq!(held.json["feedback"], "ok");
    live.post(&path, json!({"approved": true, "feedback": "ok"})).await.ok();
    let late = live.post(&path, json!({"approved": false})).await;
    late.is(StatusCode::CONFLICT, "already_resolved");
    assert_eq!(late.json["interaction"]["status"], "approved");
    assert_eq!(late.json["interaction"]["interaction_id"], json!(id));
    let older = format!("/sessions/{session}/approve");
    let late = live.post(&older, json!({"request_id": "q1", "approved": false})).await;
    late.is(StatusCode::CONFLICT, "already_resolved");
    let unknown = live.post(&older, json!({"request_id": "q9", "approved": true})).await;
    unknown.is(StatusCode::NOT_FOUND, "interaction_not_found");
}

#[tokio::test]
async fn older_clients_answer_by_request_id_and_a_dead_question_can_t_be_answered() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let ask = |id: &str| json!({"request_id": id, "tool_name": "bash", "wait_seconds": 0});
    live.executor(&claim, "approval", ask("q1")).await.ok();
    let path = format!("/sessions/{session}/approve");
    let decided = live.post(&path, json!({"request_id": "q1", "approved": false})).await.ok();
    assert_eq!(
        decided,
        json!({"status": "ok", "request_id": "q1", "decision": "denied"})
    );
    live.executor(&claim, "approval", ask("q2")).await.ok();
    live.complete(&claim).await;
    let dead = live.post(&path, json!({"request_id": "q2", "approved": true})).await;
    dead.is(StatusCode::CONFLICT, "already_resolved");
    assert_eq!(dead.json["interaction"]["status"], "cancelled");
}

#[tokio::test]
async fn older_names_work_in_requests_and_answers() {
    let live = Live::start().await;
    let session = live.session().await;
    let run = live.prompt(&session).await;
    let claimed = live.post("/v1/worker/runs/claim", json!({"worker_id": "w1"})).await.ok();
    assert_eq!(claimed["run_id"], json!(run));
    assert_eq!((&claimed["worker_id"], &claimed["executor_id"]), (&json!("w1"), &json!("w1")));
    let token = claimed["claim_token"].clone();
    let events = json!([{"event_id": "a", "event": "StreamDelta", "data": {"executor_id": "mine"}}]);
    let body = json!({"worker_id": "w1", "claim_token": token, "events": events});
    let uploaded = live.post(&format!("/worker/runs/{run}/events"), body).await.ok();
    assert_eq!(uploaded["events"][0]["worker_id"], "w1");
    assert_eq!(uploaded["events"][0]["payload"], json!({"executor_id": "mine"}));
    let both = json!({"worker_id": "w1", "executor_id": "w2", "claim_token": token});
    let both = live.post(&format!("/executor/runs/{run}/heartbeat"), both).await;
    both.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    let list = live.get("/workers").await.ok();
    assert_eq!(list["executors"][0]["worker_id"], "w1");
    let one = live.get("/workers/w1").await.ok();
    assert_eq!((&one["worker_id"], &one["status"]), (&json!("w1"), &json!("running")));
    let new = live.get("/v1/executors/w1").await.ok();
    assert!(new.get("worker_id").is_none());
    let created = live.post("/v1/sessions", json!({})).await;
    let id = created.json["session_id"].as_str().unwrap();
    assert_eq!(created.header(LOCATION), format!("/v1/sessions/{id}"));
    live.get("/v1/worker").await.is(StatusCode::NOT_FOUND, "route_not_found");
}

#[tokio::test]
async fn executors_are_listed_by_name_in_pages() {
    let live = Live::start().await;
    for id in ["b", "a", "c"] {
        let claim = live.post("/executor/runs/claim", json!({"executor_id": id, "pool": "p"}));
        claim.await.is(StatusCode::NOT_FOUND, "no_run_available");
    }
    let page = live.get("/executors?limit=2").await.ok();
    let names = |page: &Value| {
        let items = page["executors"].as_array().unwrap().clone();
        items.iter().map(|item| item["executor_id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&page), ["a", "b"]);
    assert_eq!(page["executors"][0]["status"], "idle");
    let next = page["next_cursor"].as_str().unwrap();
    let page = live.get(&format!("/executors?limit=2&cursor={next}")).await.ok();
    assert_eq!(names(&page), ["c"]);
    assert_eq!(page["next_cursor"], Value::Null);
}

#[tokio::test]
async fn event_pages_continue_to_an_empty_one_whatever_the_filter() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    live.say(&claim, &["a", "b", "c"]).await;
    live.complete(&claim).await;
    let path = format!("/sessions/{session}/events");
    let head = live.get(&path).await.ok()["head_seq"].as_u64().unwrap();
    for filter in ["", "&kinds=StreamDelta", "&kinds=RunRequested,TurnEnd", &format!("&run_id={}", claim.run_id)] {
        let (mut cursor, mut seen) = (0, Vec::new());
        loop {
            let page = live.get(&format!("{path}?limit=2&after={cursor}{filter}")).await.ok();
            assert_eq!(page["head_seq"], head);
            let events = page["events"].as_array().unwrap();
            if events.is_empty() {
                assert_eq!(page["next_cursor"], cursor);
                break;
            }
            seen.extend(events.iter().map(|event| event["session_seq"].as_u64().unwrap()));
            cursor = page["next_cursor"].as_u64().unwrap();
            assert_eq!(seen.last(), Some(&cursor));
        }
        let all = live.get(&format!("{path}?limit=500{filter}")).await.ok();
        assert_eq!(seen.len(), all["events"].as_array().unwrap().len(), "{filter}");
        assert!(!seen.is_empty(), "{filter}");
    }
    let end = live.get(&format!("{path}?after=head")).await.ok();
    assert_eq!(end, json!({"events": [], "next_cursor": head, "head_seq": head}));
    let future = live.get(&format!("{path}?after={}", head + 1)).await;
    future.is(StatusCode::CONFLICT, "cursor_future");
    assert_eq!(future.json["head_seq"], head);
    let wins = live.get(&format!("{path}?after=1")).header("last-event-id", &head.to_string());
    assert_eq!(wins.await.ok()["events"], json!([]));
    let run = live.get(&format!("/runs/{}/events", claim.run_id)).await.ok();
    assert_eq!(run["events"].as_array().unwrap().len() as u64, head);
}

#[tokio::test]
async fn the_server_says_what_it_is_and_whether_it_is_ready() {
    let live = Live::start().await;
    let says = live.get("/capabilities").await.ok();
    assert_eq!(says["api_version"], "v1");
    assert_eq!(says["storage"], "sqlite");
    assert_eq!(says["token_required"], false);
    assert_eq!(says["limits"]["body_bytes"], 1024 * 1024);
    assert_eq!(live.get("/healthz").await.ok()["status"], "ok");
    assert_eq!(live.get("/readyz").await.ok()["status"], "ready");
    live.api.control.lifecycle().drain();
    let ready = live.get("/readyz").await;
    ready.is(StatusCode::SERVICE_UNAVAILABLE, "draining");
    assert_eq!(live.get("/healthz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn later_endpoints_are_not_there_yet() {
    let live = Live::start().await;
    let session = live.session().await;
    for path in ["tape", "checkpoints", "result", "transcript", "diff"] {
        let answer = live.get(&format!("/sessions/{session}/{path}")).await;
        answer.is(StatusCode::NOT_FOUND, "route_not_found");
    }
    for path in ["/events", "/metrics", "/console"] {
        live.get(path).await.is(StatusCode::NOT_FOUND, "route_not_found");
    }
}
