//! Forms over HTTP: asked by an executor, filled in or declined by a person.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::Live;

fn ask(request_id: &str, wait_seconds: u32) -> Value {
    json!({
        "request_id": request_id,
        "message": "Which branch?",
        "form": {
            "type": "object",
            "properties": {"branch": {"type": "string"}, "push": {"type": "boolean"}},
            "required": ["branch"],
        },
        "call_id": "c1",
        "wait_seconds": wait_seconds,
    })
}

#[tokio::test]
async fn a_form_is_asked_filled_in_and_handed_to_who_waits_for_it() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let pending = live.executor(&claim, "question", ask("q1", 0)).await;
    assert_eq!(pending.status, StatusCode::ACCEPTED);
    assert_eq!(pending.json["response"], Value::Null);
    let id = pending.json["interaction_id"].as_str().unwrap().to_owned();
    let shown = live.get(&format!("/interactions/{id}")).await.ok();
    assert_eq!(shown["kind"], "question");
    assert_eq!(shown["request"]["message"], "Which branch?");
    assert_eq!(shown["request"]["form"], ask("q1", 0)["form"]);

    let path = format!("/interactions/{id}/resolve");
    for (answer, wrong) in [
        (json!({"response": {}}), "response.branch"),
        (json!({"response": {"branch": 1}}), "response.branch"),
        (json!({"approved": true}), "approved"),
        (
            json!({"response": {"branch": "x"}, "declined": true}),
            "response",
        ),
        (
            json!({"response": {"branch": "x"}, "scope": "always"}),
            "scope",
        ),
        (json!({"declined": false}), "declined"),
    ] {
        let refused = live.post(&path, answer).await;
        refused.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
        assert_eq!(refused.json["errors"][0]["path"], wrong);
    }
    let older = json!({"request_id": "q1", "approved": true});
    let refused = live
        .post(&format!("/sessions/{session}/approve"), older)
        .await;
    refused.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");

    let held = live.executor(&claim, "question", ask("q1", 60));
    let answer = json!({"response": {"branch": "main"}, "feedback": "as ever"});
    let answered = live.post(&path, &answer);
    let (held, answered) = tokio::join!(held.send(), answered.send());
    assert_eq!(answered.ok()["status"], "approved");
    assert_eq!(held.status, StatusCode::OK);
    assert_eq!(held.json["response"], json!({"branch": "main"}));
    assert_eq!(held.json["feedback"], "as ever");
    live.post(&path, answer).await.ok();
    let late = live.post(&path, json!({"declined": true})).await;
    late.is(StatusCode::CONFLICT, "already_resolved");
}

#[tokio::test]
async fn a_form_is_declined_also_by_an_older_client() {
    let live = Live::start().await;
    let (session, claim) = live.claimed().await;
    let pending = live.executor(&claim, "question", ask("q1", 0)).await;
    let id = pending.json["interaction_id"].as_str().unwrap();
    let path = format!("/interactions/{id}/resolve");
    let declined = live.post(&path, json!({"declined": true})).await.ok();
    assert_eq!(declined["status"], "denied");
    let told = live.executor(&claim, "question", ask("q1", 0)).await.ok();
    assert_eq!(
        (&told["status"], &told["response"]),
        (&json!("denied"), &Value::Null)
    );

    live.executor(&claim, "question", ask("q2", 0)).await;
    let no = json!({"request_id": "q2", "approved": false});
    let decided = live
        .post(&format!("/sessions/{session}/approve"), no)
        .await
        .ok();
    assert_eq!(decided["decision"], "denied");
}

#[tokio::test]
async fn a_form_that_is_none_is_not_asked() {
    let live = Live::start().await;
    let (_, claim) = live.claimed().await;
    for (form, path) in [
        (Value::Null, "form"),
        (json!({"type": "array"}), "form.type"),
        (json!({"type": "object", "$ref": "#"}), "form.$ref"),
        (
            json!({"type": "object", "properties": {"a": {"type": "object"}}}),
            "form.properties.a.type",
        ),
    ] {
        let mut body = ask("q1", 0);
        body["form"] = form;
        let refused = live.executor(&claim, "question", body).await;
        refused.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
        assert_eq!(refused.json["errors"][0]["path"], path);
    }
    let mut blank = ask("q1", 0);
    blank["message"] = json!(" ");
    let refused = live.executor(&claim, "question", blank).await;
    assert_eq!(refused.json["errors"][0]["path"], "message");
    let inbox = live.get("/interactions").await.ok();
    assert_eq!(inbox["interactions"], json!([]));
    // One id is one question, of whatever kind.
    live.executor(&claim, "question", ask("q1", 0)).await;
    let tool = json!({"request_id": "q1", "tool_name": "bash", "wait_seconds": 0});
    let other = live.executor(&claim, "approval", tool).await;
    other.is(StatusCode::CONFLICT, "request_id_conflict");
}
