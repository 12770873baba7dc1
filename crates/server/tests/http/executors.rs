//! The executor protocol and its questions over HTTP, on a real store, under both names.

use std::time::Duration;

use crate::support::Live;
use http::header::LOCATION;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tapedeck_domain::Timing;

#[tokio::test]
async fn a_run_is_cancelled_by_its_executor() {
    let live = Live::start().await;
    let (_, claim) = live.claimed().await;
    live.say(&claim, &["a"]).await;
    let cancel = live
        .post(&format!("/runs/{}/cancel", claim.run_id), json!({}))
        .await;
    assert_eq!(cancel.status, StatusCode::ACCEPTED);
    let beat = live
        .executor(&claim, "heartbeat", json!({"wait_seconds": 30}))
        .await
        .ok();
    assert_eq!(beat["cancel_requested"], true);
    assert_eq!(beat["status"], "cancelling");
    let done = live
        .executor(&claim, "complete", json!({"status": "cancelled"}))
        .await
        .ok();
    assert_eq!(done["status"], "cancelled");
    let again = live
        .post(&format!("/runs/{}/cancel", claim.run_id), json!({}))
        .await;
    assert_eq!(again.status, StatusCode::OK);
    assert_eq!(again.json["status"], "cancelled");
}

#[tokio::test]
async fn a_claim_hands_out_all_that_a_run_needs() {
    let live = Live::start().await;
    let (_, claim) = live.claimed().await;
    let answer = &claim.answer;
    for key in [
        "run_id",
        "session_id",
        "claim_token",
        "attempt",
        "prompt",
        "tape_id",
        "approval_policy",
        "provider_name",
        "model_name",
        "base_url",
        "max_steps",
        "workspace",
        "agent",
        "resume_context",
        "lease_expires_at",
        "lease_ttl_ms",
        "traceparent",
    ] {
        assert!(answer.get(key).is_some(), "{key} in {answer}");
    }
}

#[tokio::test]
async fn an_executor_uploads_and_completes() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
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
    assert_eq!(
        (&records[1]["session_seq"], &records[1]["recorded"]),
        (&Value::Null, &json!(false))
    );
    let seqs = [&records[0]["session_seq"], &records[2]["session_seq"]];
    assert_eq!(
        live.upload(&claim, events).await.ok(),
        uploaded,
        "the same again"
    );
    let conflict = json!([
        {"event_id": "d", "event": "StreamDelta", "data": {}},
        {"event_id": "a", "event": "StreamDelta", "data": {"content": "y"}},
    ]);
    let refused = live.upload(&claim, conflict).await;
    refused.is(StatusCode::CONFLICT, "event_id_conflict");
    assert_eq!(refused.json["event_id"], "a");
    let page = live.get(&format!("/sessions/{session}/events")).await.ok();
    let head = page["head_seq"].as_u64().unwrap();
    assert_eq!(
        [head - 1, head],
        [seqs[0].as_u64().unwrap(), seqs[1].as_u64().unwrap()]
    );

    let body = json!({"status": "completed", "event_count": 3});
    let missing = live.executor(&claim, "complete", body).await;
    missing.is(StatusCode::CONFLICT, "events_missing");
    assert_eq!(missing.json["retryable"], true);
    let tape = json!({"status": "completed", "tape_entries": [{}]});
    let tape = live.executor(&claim, "complete", tape).await;
    tape.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    let body = json!({"status": "completed", "event_count": 2, "result": {"ok": true}});
    let done = live.executor(&claim, "complete", body.clone()).await.ok();
    assert_eq!(
        (&done["status"], &done["result"]),
        (&json!("completed"), &json!({"ok": true}))
    );
    assert_eq!(
        live.executor(&claim, "complete", body).await.ok(),
        done,
        "the same again"
    );
    let other = live
        .executor(
            &claim,
            "complete",
            json!({"status": "failed", "error": "e"}),
        )
        .await;
    other.is(StatusCode::CONFLICT, "run_settled");
    let beat = live.executor(&claim, "heartbeat", json!({})).await;
    beat.is(StatusCode::CONFLICT, "run_settled");
    let late = json!([{"event_id": "z", "event": "StreamDelta", "data": {}}]);
    live.upload(&claim, late)
        .await
        .is(StatusCode::CONFLICT, "run_settled");
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
    live.post(&path, other)
        .await
        .is(StatusCode::FORBIDDEN, "claim_token_invalid");

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
    live.post(&format!("/executor/runs/{run}/release"), token)
        .await
        .ok();
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
async fn a_claim_whose_client_leaves_at_any_moment_is_claimable_again() {
    let live = Live::timed(Timing::scaled(0.05), |_| {}).await;
    let (mut handed_out, mut broken_off) = (0, 0);
    for moment in 0.. {
        let session = live.session().await;
        let run = live.prompt(&session).await;
        let left = live.post("/executor/runs/claim", json!({"executor_id": "left"}));
        // Dropping the future is what a broken connection does to a handler.
        let time = Duration::from_micros(100 * moment);
        match tokio::time::timeout(time, left.send()).await {
            Ok(_) => handed_out += 1,
            Err(_) => broken_off += 1,
        }
        // A claim that was handed out lapses unacknowledged, within 15 s on this scale.
        let body = json!({"executor_id": "stays", "wait_seconds": 60});
        let claimed = live.post("/executor/runs/claim", body).await.ok();
        assert_eq!(claimed["run_id"], json!(run), "after {time:?}");
        let token = &claimed["claim_token"];
        let end = json!({"executor_id": "stays", "claim_token": token, "status": "completed"});
        let path = format!("/executor/runs/{run}/complete");
        live.post(&path, end).await.ok();
        if handed_out == 2 {
            break;
        }
    }
    assert!(broken_off > 2, "claims were broken off before their answer");
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
    let id = inbox["interactions"][0]["interaction_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let of_run = live
        .get(&format!("/runs/{}/interactions", claim.run_id))
        .await
        .ok();
    assert_eq!(of_run["interactions"], inbox["interactions"]);
    let session_shown = live.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(session_shown["turn_status"], "waiting_approval");

    let path = format!("/interactions/{id}/resolve");
    let neither = live.post(&path, json!({})).await;
    neither.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    let held = live.executor(
        &claim,
        "approval",
        json!({
            "request_id": "q1", "tool_name": "bash", "arguments": {"c": "ls"}, "wait_seconds": 60
        }),
    );
    let answer = live.post(&path, json!({"approved": true, "feedback": "ok"}));
    let (held, answered) = tokio::join!(held.send(), answer.send());
    assert_eq!(answered.ok()["status"], "approved");
    assert_eq!(held.status, StatusCode::OK);
    assert_eq!(held.json["approved"], true);
    assert_eq!(held.json["feedback"], "ok");
    live.post(&path, json!({"approved": true, "feedback": "ok"}))
        .await
        .ok();
    let late = live.post(&path, json!({"approved": false})).await;
    late.is(StatusCode::CONFLICT, "already_resolved");
    assert_eq!(late.json["interaction"]["status"], "approved");
    assert_eq!(late.json["interaction"]["interaction_id"], json!(id));
    let older = format!("/sessions/{session}/approve");
    let late = live
        .post(&older, json!({"request_id": "q1", "approved": false}))
        .await;
    late.is(StatusCode::CONFLICT, "already_resolved");
    let unknown = live
        .post(&older, json!({"request_id": "q9", "approved": true}))
        .await;
    unknown.is(StatusCode::NOT_FOUND, "interaction_not_found");
}

#[tokio::test]
async fn older_clients_answer_by_request_id_and_a_dead_question_can_t_be_answered() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let ask = |id: &str| json!({"request_id": id, "tool_name": "bash", "wait_seconds": 0});
    live.executor(&claim, "approval", ask("q1")).await.ok();
    let path = format!("/sessions/{session}/approve");
    let decided = live
        .post(&path, json!({"request_id": "q1", "approved": false}))
        .await
        .ok();
    assert_eq!(
        decided,
        json!({"status": "ok", "request_id": "q1", "decision": "denied"})
    );
    live.executor(&claim, "approval", ask("q2")).await.ok();
    live.complete(&claim).await;
    let dead = live
        .post(&path, json!({"request_id": "q2", "approved": true}))
        .await;
    dead.is(StatusCode::CONFLICT, "already_resolved");
    assert_eq!(dead.json["interaction"]["status"], "cancelled");
}

#[tokio::test]
async fn older_names_work_in_requests_and_answers() {
    let live = Live::start().await;
    let session = live.session().await;
    let run = live.prompt(&session).await;
    let claimed = live
        .post("/v1/worker/runs/claim", json!({"worker_id": "w1"}))
        .await
        .ok();
    assert_eq!(claimed["run_id"], json!(run));
    assert_eq!(
        (&claimed["worker_id"], &claimed["executor_id"]),
        (&json!("w1"), &json!("w1"))
    );
    let token = claimed["claim_token"].clone();
    let events =
        json!([{"event_id": "a", "event": "StreamDelta", "data": {"executor_id": "mine"}}]);
    let body = json!({"worker_id": "w1", "claim_token": token, "events": events});
    let uploaded = live
        .post(&format!("/worker/runs/{run}/events"), body)
        .await
        .ok();
    assert_eq!(uploaded["events"][0]["worker_id"], "w1");
    assert_eq!(
        uploaded["events"][0]["payload"],
        json!({"executor_id": "mine"})
    );
    let both = json!({"worker_id": "w1", "executor_id": "w2", "claim_token": token});
    let both = live
        .post(&format!("/executor/runs/{run}/heartbeat"), both)
        .await;
    both.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    let list = live.get("/workers").await.ok();
    assert_eq!(list["executors"][0]["worker_id"], "w1");
    let one = live.get("/workers/w1").await.ok();
    assert_eq!(
        (&one["worker_id"], &one["status"]),
        (&json!("w1"), &json!("running"))
    );
    let new = live.get("/v1/executors/w1").await.ok();
    assert!(new.get("worker_id").is_none());
    let created = live.post("/v1/sessions", json!({})).await;
    let id = created.json["session_id"].as_str().unwrap();
    assert_eq!(created.header(LOCATION), format!("/v1/sessions/{id}"));
    live.get("/v1/worker")
        .await
        .is(StatusCode::NOT_FOUND, "route_not_found");
}

#[tokio::test]
async fn executors_are_listed_by_name_in_pages() {
    let live = Live::start().await;
    for id in ["b", "a", "c"] {
        let claim = live.post(
            "/executor/runs/claim",
            json!({"executor_id": id, "pool": "p"}),
        );
        claim.await.is(StatusCode::NOT_FOUND, "no_run_available");
    }
    let page = live.get("/executors?limit=2").await.ok();
    let names = |page: &Value| {
        let items = page["executors"].as_array().unwrap().clone();
        items
            .iter()
            .map(|item| item["executor_id"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&page), ["a", "b"]);
    assert_eq!(page["executors"][0]["status"], "idle");
    let next = page["next_cursor"].as_str().unwrap();
    let page = live
        .get(&format!("/executors?limit=2&cursor={next}"))
        .await
        .ok();
    assert_eq!(names(&page), ["c"]);
    assert_eq!(page["next_cursor"], Value::Null);
}

#[tokio::test]
async fn an_executor_that_leaves_is_offline_and_may_come_back() {
    let live = Live::start().await;
    let claim = json!({"executor_id": "e", "worker_instance_id": "i1"});
    let poll = || live.post("/executor/runs/claim", claim.clone());
    let status = async || live.get("/executors/e").await.ok()["status"].clone();
    poll().await.is(StatusCode::NOT_FOUND, "no_run_available");
    for (body, expected) in [
        (
            json!({"executor_id": "e", "worker_instance_id": "i2"}),
            "idle",
        ),
        (json!({"executor_id": "nobody"}), "idle"),
        (
            json!({"worker_id": "e", "worker_instance_id": "i1"}),
            "offline",
        ),
    ] {
        let left = live.post("/executor/leave", body).await;
        assert_eq!(left.status, StatusCode::NO_CONTENT);
        assert_eq!(status().await, expected);
    }
    poll().await.is(StatusCode::NOT_FOUND, "no_run_available");
    assert_eq!(status().await, "idle");
    let nameless = live.post("/executor/leave", json!({})).await;
    nameless.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
}

#[tokio::test]
async fn operators_drain_and_forget_executors() {
    let live = Live::start().await;
    let empty = || json!({});
    for call in ["/executors/e/drain", "/workers/e/undrain"] {
        let unknown = live.post(call, empty()).await;
        unknown.is(StatusCode::NOT_FOUND, "executor_not_found");
    }
    let claim = || live.post("/executor/runs/claim", json!({"executor_id": "e"}));
    claim().await.is(StatusCode::NOT_FOUND, "no_run_available");
    for call in ["/executors/e/drain", "/v1/workers/e/drain"] {
        let drained = live.post(call, empty()).await.ok();
        assert_eq!(
            (&drained["status"], &drained["draining"]),
            (&json!("draining"), &json!(true))
        );
    }
    let session = live.session().await;
    live.prompt(&session).await;
    let refused = claim().await;
    refused.is(StatusCode::NOT_FOUND, "no_run_available");
    let detail = refused.json["detail"].as_str().unwrap();
    assert!(detail.contains("draining"), "{detail}");
    let listed = live.get("/executors?status=draining&pool=default").await;
    assert_eq!(listed.ok()["executors"][0]["executor_id"], "e");
    let listed = live.get("/executors?status=idle").await;
    assert_eq!(listed.ok()["executors"], json!([]));
    live.get("/executors?status=busy")
        .await
        .is(StatusCode::BAD_REQUEST, "malformed_request");
    let undrained = live.post("/executors/e/undrain", empty()).await.ok();
    assert_eq!(undrained["draining"], false);
    claim().await.ok();
    let kept = live.api.send(Method::DELETE, "/executors/e").await;
    kept.is(StatusCode::CONFLICT, "executor_not_offline");
    assert_eq!(kept.json["current_status"], "running");
    let unknown = live.api.send(Method::DELETE, "/executors/nobody").await;
    unknown.is(StatusCode::NOT_FOUND, "executor_not_found");
}
