//! Sessions, runs and events over HTTP, on a real store: shapes, statuses and codes as the interface
//! promises them.

use crate::support::{ID, Live};
use http::header::LOCATION;
use http::{Method, StatusCode};
use serde_json::{Value, json};

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

    let patching = live.api.call(Method::PATCH, &path);
    let patching = patching.json(&json!({"title": null, "metadata": {"a": null, "b": 2}}));
    let patched = patching.await.ok();
    assert_eq!(patched["title"], Value::Null);
    assert_eq!(patched["metadata"], json!({"b": 2}));
    let configure = live
        .api
        .call(Method::PATCH, &format!("{path}/runtime-config"));
    let configured = configure.json(&json!({"provider": "p", "approval_policy": "auto"}));
    let configured = configured.await.ok();
    assert_eq!(configured["model"], "m");
    assert_eq!(configured["provider"], "p");
    assert_eq!(configured["approval_policy"], "auto");

    let closed = live.post(&format!("{path}/close"), json!({})).await.ok();
    assert_eq!(closed["status"], "closed");
    let refused = live
        .post(&format!("{path}/prompt"), json!({"prompt": "go"}))
        .await;
    refused.is(StatusCode::CONFLICT, "session_closed");
    let deleted = live.api.send(Method::DELETE, &path).await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    live.get(&path)
        .await
        .is(StatusCode::NOT_FOUND, "session_not_found");
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
    let resolve = live.post(
        &format!("/interactions/{ID}/resolve"),
        json!({"approved": true}),
    );
    resolve
        .await
        .is(StatusCode::NOT_FOUND, "interaction_not_found");
    let cancel = live.post(&format!("/runs/{ID}/cancel"), json!({})).await;
    cancel.is(StatusCode::NOT_FOUND, "run_not_found");
    let beat = json!({"executor_id": "x", "claim_token": "1.a"});
    let beat = live
        .post(&format!("/executor/runs/{ID}/heartbeat"), beat)
        .await;
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
        seen.extend(
            items
                .iter()
                .map(|item| item["session_id"].as_str().unwrap().to_owned()),
        );
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
    assert_eq!(
        busy.json["on_active_allowed"],
        json!(["enqueue", "interrupt"])
    );
    let resume = live
        .post(&format!("/sessions/{session}/resume"), json!({}))
        .await;
    resume.is(StatusCode::CONFLICT, "session_busy");
    let configure = live.api.call(
        Method::PATCH,
        &format!("/sessions/{session}/runtime-config"),
    );
    let configure = configure.json(&json!({"model": "m"})).await;
    configure.is(StatusCode::CONFLICT, "session_busy");
    let delete = live
        .api
        .send(Method::DELETE, &format!("/sessions/{session}"))
        .await;
    delete.is(StatusCode::CONFLICT, "session_busy");

    let body = json!({"prompt": "two", "on_active": "enqueue"});
    let queued = live.post(&path, body).await.ok();
    assert_eq!(queued["status"], "queued");
    let cancelled = live
        .post(&format!("/sessions/{session}/cancel"), json!({}))
        .await;
    assert_eq!(cancelled.status, StatusCode::ACCEPTED);
    assert_eq!(cancelled.json["status"], "cancelling");
    let claim = live.claim().await;
    assert_eq!(json!(claim.run_id), queued["run_id"]);
    assert_eq!(claim.answer["resume_context"]["raw_prompt"], "two");
    let run = live
        .get(&format!("/runs/{}", active.as_str().unwrap()))
        .await
        .ok();
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
    let idle = live
        .post(&format!("/sessions/{session}/cancel"), json!({}))
        .await;
    assert_eq!(idle.status, StatusCode::OK);
    assert_eq!(
        idle.json,
        json!({"session_id": session, "run_id": null, "status": "idle"})
    );
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
    let ended = live
        .executor(&claim, "complete", json!({"status": "interrupted"}))
        .await
        .ok();
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
    create("b")
        .await
        .is(StatusCode::CONFLICT, "idempotency_conflict");

    let session = created.json["session_id"].as_str().unwrap();
    let path = format!("/sessions/{session}/prompt");
    let first = live
        .post(&path, json!({"prompt": "go", "command_id": "k1"}))
        .await
        .ok();
    for _ in 0..3 {
        let header = live
            .api
            .post(&path)
            .accepting_json()
            .header("idempotency-key", "k1");
        let again = header.json(&json!({"prompt": "go"})).await.ok();
        assert_eq!(again, first);
    }
    let other = live
        .post(&path, json!({"prompt": "stop", "command_id": "k1"}))
        .await;
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
async fn event_pages_continue_to_an_empty_one_whatever_the_filter() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    live.say(&claim, &["a", "b", "c"]).await;
    live.complete(&claim).await;
    let path = format!("/sessions/{session}/events");
    let head = live.get(&path).await.ok()["head_seq"].as_u64().unwrap();
    for filter in [
        "",
        "&kinds=StreamDelta",
        "&kinds=RunRequested,TurnEnd",
        &format!("&run_id={}", claim.run_id),
    ] {
        let (mut cursor, mut seen) = (0, Vec::new());
        loop {
            let page = live
                .get(&format!("{path}?limit=2&after={cursor}{filter}"))
                .await
                .ok();
            assert_eq!(page["head_seq"], head);
            let events = page["events"].as_array().unwrap();
            if events.is_empty() {
                assert_eq!(page["next_cursor"], cursor);
                break;
            }
            seen.extend(
                events
                    .iter()
                    .map(|event| event["session_seq"].as_u64().unwrap()),
            );
            cursor = page["next_cursor"].as_u64().unwrap();
            assert_eq!(seen.last(), Some(&cursor));
        }
        let all = live.get(&format!("{path}?limit=500{filter}")).await.ok();
        assert_eq!(
            seen.len(),
            all["events"].as_array().unwrap().len(),
            "{filter}"
        );
        assert!(!seen.is_empty(), "{filter}");
    }
    let end = live.get(&format!("{path}?after=head")).await.ok();
    assert_eq!(
        end,
        json!({"events": [], "next_cursor": head, "head_seq": head})
    );
    let future = live.get(&format!("{path}?after={}", head + 1)).await;
    future.is(StatusCode::CONFLICT, "cursor_future");
    assert_eq!(future.json["head_seq"], head);
    let wins = live
        .get(&format!("{path}?after=1"))
        .header("last-event-id", &head.to_string());
    assert_eq!(wins.await.ok()["events"], json!([]));
    let run = live
        .get(&format!("/runs/{}/events", claim.run_id))
        .await
        .ok();
    assert_eq!(run["events"].as_array().unwrap().len() as u64, head);
}

#[tokio::test]
async fn the_server_says_what_it_is_and_whether_it_is_ready() {
    let live = Live::start().await;
    let says = live.get("/capabilities").await.ok();
    assert_eq!(says["api_version"], "v1");
    assert_eq!(says["storage"], "sqlite");
    let deployment = live.api.control.deployment_id();
    assert_eq!(says["deployment_id"], serde_json::json!(deployment));
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
    for path in ["/metrics", "/console"] {
        live.get(path)
            .await
            .is(StatusCode::NOT_FOUND, "route_not_found");
    }
}
