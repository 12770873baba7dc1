//! What runs changed, over HTTP: uploads under a claim, the table and the patch.

use crate::support::{Claim, ID, Live};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

/// `diff --git é`.
const PATCH_BASE64: &str = "ZGlmZiAtLWdpdCDDqQo=";

fn table(path: &str) -> Value {
    json!({
        "base": "1", "head": "2", "file_count": 1, "additions": 3, "deletions": 1,
        "truncated": false,
        "files": [{
            "path": path, "old_path": null, "status": "modified", "additions": 3, "deletions": 1,
            "binary": false, "size": 10, "truncated": false,
        }],
    })
}

fn artifacts(path: &str) -> Value {
    json!({"artifacts": [
        {
            "name": "run.diff", "media_type": "application/json",
            "content": table(path).to_string(),
        },
        {"name": "run.patch", "media_type": "text/x-diff", "content_base64": PATCH_BASE64},
    ]})
}

async fn told(live: &Live, claim: &Claim, path: &str) {
    let saved = live
        .executor(claim, "artifacts", artifacts(path))
        .await
        .ok();
    assert_eq!(saved["run_id"], json!(claim.run_id));
    assert_eq!(
        saved["artifacts"][1],
        json!({"name": "run.patch", "bytes": 14})
    );
    live.complete(claim).await;
}

#[tokio::test]
async fn changes_are_shown_of_the_newest_run_or_of_one() {
    let live = Live::start().await;
    let (session, first) = live.claimed().await;
    let diff = format!("/sessions/{session}/diff");
    let missing = live.get(&diff).await;
    missing.is(StatusCode::NOT_FOUND, "artifact_not_found");
    told(&live, &first, "a.txt").await;
    live.prompt(&session).await;
    let second = live.claim().await;
    told(&live, &second, "b.txt").await;

    let shown = live.get(&diff).await.ok();
    assert_eq!(shown["session_id"], json!(session));
    assert_eq!(
        (&shown["run_id"], &shown["scope"]),
        (&json!(second.run_id), &json!("run"))
    );
    assert_eq!(shown["files"], table("b.txt")["files"]);
    assert_eq!(shown["additions"], 3);
    let older = live
        .get(&format!("{diff}?run_id={}", first.run_id))
        .await
        .ok();
    assert_eq!(older["files"][0]["path"], "a.txt");
    let patch = live.get(&format!("/sessions/{session}/patch")).await;
    assert_eq!(patch.header(CONTENT_TYPE), "text/x-diff");
    assert_eq!(patch.text.trim_end(), "diff --git é");

    let whole = live.get(&format!("{diff}?scope=session")).await;
    whole.is(StatusCode::NOT_FOUND, "artifact_not_found");
    for query in ["run_id=x", "scope=all", "limit=1"] {
        let refused = live.get(&format!("{diff}?{query}")).await;
        refused.is(StatusCode::BAD_REQUEST, "malformed_request");
    }
    let absent = live.get(&format!("/sessions/{ID}/patch")).await;
    absent.is(StatusCode::NOT_FOUND, "session_not_found");
    let absent = live.get(&format!("{diff}?run_id={ID}")).await;
    absent.is(StatusCode::NOT_FOUND, "run_not_found");
}

#[tokio::test]
async fn an_upload_is_checked_and_bound_to_its_claim() {
    let live = Live::start().await;
    let (_, claim) = live.claimed().await;
    let one = |artifact: Value| json!({"artifacts": [artifact]});
    let text = |name: &str, text: &str| json!({"name": name, "content": text});
    for (body, path) in [
        (json!({}), "artifacts"),
        (one(text("a/b", "x")), "artifacts[0].name"),
        (one(json!({"name": "a"})), "artifacts[0].content"),
        (one(text("a", "\u{0}")), "artifacts[0].content"),
        (one(text("run.diff", "{}")), "artifacts[0].content"),
        (
            one(json!({"name": "a", "content_base64": "?"})),
            "artifacts[0].content_base64",
        ),
        (one(json!({"name": "a", "content": "x", "note": 1})), "note"),
    ] {
        let refused = live.executor(&claim, "artifacts", body.clone()).await;
        refused.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
        let told = refused.json["errors"][0]["path"].as_str().unwrap();
        assert!(told.ends_with(path), "{told} {body}");
        let mut lost = claim.clone();
        lost.token = "1.wrong".to_owned();
        let refused = live.executor(&lost, "artifacts", body).await;
        refused.is(StatusCode::FORBIDDEN, "claim_token_invalid");
    }
    for _ in 0..2 {
        live.executor(&claim, "artifacts", one(text("a", "x")))
            .await
            .ok();
    }
    let other = live
        .executor(&claim, "artifacts", one(text("a", "y")))
        .await;
    other.is(StatusCode::CONFLICT, "artifact_conflict");
    let large = one(text("b", &"x".repeat(8 * 1024 * 1024)));
    let large = live.executor(&claim, "artifacts", large).await;
    large.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    assert_eq!(large.json["errors"][0]["path"], "artifacts");
    live.complete(&claim).await;
    let late = live
        .executor(&claim, "artifacts", one(text("a", "x")))
        .await;
    late.is(StatusCode::CONFLICT, "run_settled");
}

/// A session's workspace is stored and shown, so no credential gets into it.
#[tokio::test]
async fn a_git_workspace_is_checked_where_it_comes_in() {
    let live = Live::start().await;
    let workspace = |fields: Value| {
        let mut workspace = json!({"kind": "git"});
        workspace
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        json!({"run_target": {"workspace": workspace}})
    };
    for (fields, field) in [
        (json!({}), "url"),
        (json!({"url": "https://me:hunter2@example.com/a"}), "url"),
        (
            json!({"url": "https://example.com/a", "ref": "--exec"}),
            "ref",
        ),
        (
            json!({"path": "/a", "subdirectory": "../b"}),
            "subdirectory",
        ),
        (json!({"path": "/a", "depht": 1}), "depht"),
    ] {
        let refused = live.post("/sessions", workspace(fields)).await;
        refused.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
        let path = format!("run_target.workspace.{field}");
        assert_eq!(refused.json["errors"][0]["path"], json!(path));
        assert!(!refused.text.contains("hunter2"));
    }
    let good = json!({"url": "git@example.com:a/b.git", "branch": "main", "depth": 1});
    let made = live.post("/sessions", workspace(good)).await.ok();
    assert_eq!(made["workspace"]["url"], "git@example.com:a/b.git");
}
