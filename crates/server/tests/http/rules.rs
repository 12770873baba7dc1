//! Approval rules over HTTP.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::Live;

#[tokio::test]
async fn a_rule_is_made_shown_listed_and_revoked() {
    let live = Live::start().await;
    let body = json!({
        "tool_name": "shell",
        "arguments": {"fields": {"command": "git *"}},
        "decision": "allow",
    });
    let made = live.post("/approval-rules", &body).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let rule = made.json.clone();
    let id = rule["rule_id"].as_str().unwrap().to_owned();
    assert_eq!(
        (&rule["scope"], &rule["created_by"]),
        (&json!("always"), &json!("local"))
    );
    assert_eq!(rule["arguments"], body["arguments"]);
    let again = live.post("/approval-rules", &body).await;
    assert_eq!(again.json, rule, "the same rule stands once");
    let path = format!("/approval-rules/{id}");
    assert_eq!(live.get(&path).await.ok(), rule);
    let listed = live.get("/approval-rules").await.ok();
    assert_eq!(listed, json!({"rules": [rule], "next_cursor": null}));

    let (session, claim) = live.claimed().await;
    let ask = json!({
        "request_id": "q1", "tool_name": "shell", "arguments": {"command": "git status"},
    });
    let answered = live.executor(&claim, "approval", ask).await.ok();
    assert_eq!(answered["status"], "approved");
    let shown = live.get("/interactions").await.ok();
    let by = &shown["interactions"][0]["resolved_by"];
    assert_eq!(by, &json!(format!("rule:always:{id}")));

    for _ in 0..2 {
        let revoked = live.api.send(Method::DELETE, &path).await;
        assert_eq!(revoked.status, StatusCode::NO_CONTENT);
    }
    let listed = live.get("/approval-rules").await.ok();
    assert_eq!(listed["rules"], json!([]));
    let all = live.get("/approval-rules?include_revoked=true").await.ok();
    assert_eq!(all["rules"][0]["revoked_by"], "local");
    let kept = live.get("/interactions").await.ok();
    assert_eq!(kept, shown, "what it has answered stays");
    let of_session = live
        .get(&format!("/approval-rules?session_id={session}"))
        .await;
    assert_eq!(of_session.ok()["rules"], json!([]));
}

#[tokio::test]
async fn a_rule_that_is_none_is_refused() {
    let live = Live::start().await;
    let unknown = "018f0000-0000-7000-8000-000000000001";
    for (body, path) in [
        (json!({"decision": "allow"}), "tool_name"),
        (json!({"tool_name": "t"}), "decision"),
        (json!({"tool_name": "t", "decision": "perhaps"}), "decision"),
        (
            json!({"tool_name": "t", "decision": "deny", "arguments": {"fields": {}}}),
            "arguments.fields",
        ),
    ] {
        let refused = live.post("/approval-rules", &body).await;
        refused.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
        assert_eq!(refused.json["errors"][0]["path"], path, "{body}");
    }
    let body = json!({"tool_name": "t", "decision": "deny", "session_id": unknown});
    let nowhere = live.post("/approval-rules", body).await;
    nowhere.is(StatusCode::NOT_FOUND, "session_not_found");
    let path = format!("/approval-rules/{unknown}");
    live.get(&path)
        .await
        .is(StatusCode::NOT_FOUND, "rule_not_found");
    let gone = live.api.send(Method::DELETE, &path).await;
    gone.is(StatusCode::NOT_FOUND, "rule_not_found");
    let odd = live.get("/approval-rules?include_revoked=maybe").await;
    odd.is(StatusCode::BAD_REQUEST, "malformed_request");
    assert_eq!(
        live.get("/approval-rules").await.ok()["rules"],
        Value::Array(Vec::new())
    );
}
