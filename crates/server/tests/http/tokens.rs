//! Access tokens over HTTP: who is let in, with which role, and for how long.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tapedeck_domain::Timing;
use tapedeck_server::{BearerToken, TokenPolicy};

use crate::support::{Answer, Call, Frames, ID, Live};

const FILE: &str = "of the file";

/// A server that asks for a token always; that of its file is an operator's.
async fn closed() -> Live {
    Live::timed(Timing::STANDARD, |state| {
        state.token = BearerToken::new(FILE);
        state.token_policy = TokenPolicy::Always;
    })
    .await
}

/// A server that only this machine can reach.
async fn local() -> Live {
    Live::timed(Timing::STANDARD, |state| {
        state.token_policy = TokenPolicy::WhileAnyIsLive;
    })
    .await
}

/// The call as whoever holds this secret.
fn by(call: Call, secret: &str) -> Call {
    call.header("authorization", &format!("Bearer {secret}"))
}

/// A new token's answer.
async fn make(live: &Live, body: Value) -> Value {
    let made = by(live.post("/tokens", &body), FILE).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    made.json
}

/// A new token's secret.
async fn secret(live: &Live, body: Value) -> String {
    make(live, body).await["token"].as_str().unwrap().to_owned()
}

async fn revoke(live: &Live, token: &Value) -> Answer {
    let path = format!("/tokens/{}", token["token_id"].as_str().unwrap());
    by(live.api.call(Method::DELETE, &path), FILE).await
}

#[tokio::test]
async fn a_token_is_made_shown_listed_and_revoked() {
    let live = closed().await;
    let body = json!({"name": "ci", "role": "client", "expires_in_seconds": 60});
    let made = by(live.post("/tokens", &body), FILE).await;
    assert_eq!(made.header("cache-control"), "no-store");
    let mut token = made.json;
    let held = token["token"].take();
    assert!(held.as_str().unwrap().starts_with("tdk_"), "{held}");
    token.as_object_mut().unwrap().remove("token");
    assert_eq!(
        (&token["namespace"], &token["created_by"]),
        (&json!("default"), &json!("token"))
    );
    let path = format!("/tokens/{}", token["token_id"].as_str().unwrap());
    assert_eq!(made.headers["location"], path);
    assert_eq!(by(live.get(&path), FILE).await.ok(), token);
    let listed = by(live.get("/tokens"), FILE).await.ok();
    assert_eq!(listed, json!({"tokens": [token], "next_cursor": null}));

    let again = by(live.post("/tokens", &body), FILE).await;
    again.is(StatusCode::CONFLICT, "token_name_taken");
    for _ in 0..2 {
        assert_eq!(revoke(&live, &token).await.status, StatusCode::NO_CONTENT);
    }
    let kept = by(live.get(&path), FILE).await.ok();
    assert_eq!(kept["revoked_by"], "token");
    let listed = by(live.get("/tokens"), FILE).await.ok();
    assert_eq!(listed["tokens"], json!([]));
    let all = by(live.get("/tokens?all=true"), FILE).await.ok();
    assert_eq!(all["tokens"], json!([kept]));
    // Its name is free again.
    make(&live, body).await;
}

#[tokio::test]
async fn a_creation_that_is_sent_again_tells_no_secret() {
    let live = closed().await;
    let body = json!({"name": "ci", "role": "client"});
    let send = |body: &Value| by(live.post("/tokens", body), FILE).header("idempotency-key", "k");
    let first = send(&body).await.ok();
    let again = send(&body).await;
    assert_eq!(again.status, StatusCode::CREATED);
    assert!(first["token"].is_string());
    assert_eq!(again.json["token"], Value::Null);
    assert_eq!(again.json["token_id"], first["token_id"]);
    let other = send(&json!({"name": "other", "role": "client"})).await;
    other.is(StatusCode::CONFLICT, "idempotency_conflict");
}

#[tokio::test]
async fn a_token_that_is_none_is_refused() {
    let live = closed().await;
    for (body, path) in [
        (json!({"role": "client"}), "name"),
        (json!({"name": " ", "role": "client"}), "name"),
        (json!({"name": "x"}), "role"),
        (json!({"name": "x", "role": "root"}), "role"),
        (
            json!({"name": "x", "role": "executor", "namespace": "a"}),
            "namespace",
        ),
        (
            json!({"name": "x", "role": "client", "expires_in_seconds": 0}),
            "expires_in_seconds",
        ),
    ] {
        let refused = by(live.post("/tokens", &body), FILE).await;
        refused.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
        assert_eq!(refused.json["errors"][0]["path"], path, "{body}");
    }
    let path = format!("/tokens/{ID}");
    let nowhere = by(live.get(&path), FILE).await;
    nowhere.is(StatusCode::NOT_FOUND, "token_not_found");
    let nowhere = by(live.api.call(Method::DELETE, &path), FILE).await;
    nowhere.is(StatusCode::NOT_FOUND, "token_not_found");
    let odd = by(live.get("/tokens?all=maybe"), FILE).await;
    odd.is(StatusCode::BAD_REQUEST, "malformed_request");
}

/// The word of the document for the role that an operation takes; `any` where every one will do.
fn needed(operation: &Value) -> &str {
    let words = operation["security"][1]["bearer"].as_array();
    let words = words.expect("every operation says which role it takes");
    words.first().map_or("any", |word| word.as_str().unwrap())
}

#[tokio::test]
async fn every_endpoint_takes_the_role_that_the_document_says_and_no_other() {
    let live = closed().await;
    let document = by(live.get("/openapi.json"), FILE).await.ok();
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    for role in ["client", "executor", "operator"] {
        let held = secret(&live, json!({"name": role, "role": role})).await;
        for (path, item) in document["paths"].as_object().unwrap() {
            let mut named = path.replace("{name}", "x").replace("{executor_id}", "x");
            while let Some(start) = named.find('{') {
                let end = named.find('}').unwrap();
                named.replace_range(start..=end, ID);
            }
            for (method, operation) in item.as_object().unwrap() {
                let needed = needed(operation);
                *seen.entry(needed.to_owned()).or_default() += 1;
                let is_open = needed == "any" || needed == role || role == "operator";
                let mut mounts = vec![named.clone(), format!("/v1{named}")];
                if let Some(rest) = named.strip_prefix("/executor") {
                    mounts.push(format!("/worker{rest}"));
                }
                for mounted in mounts {
                    let method = method.to_uppercase().parse().unwrap();
                    let call = live.api.call(method, &mounted).accepting_json();
                    let answer = by(call.json(&json!({})), &held).await;
                    let what = format!("{role}: {mounted} {}", answer.text);
                    let is_refused = answer.json["code"] == "forbidden";
                    assert_eq!(is_refused, !is_open, "{what}");
                    assert!(!answer.status.is_server_error(), "{what}");
                    if is_refused {
                        answer.is(StatusCode::FORBIDDEN, "forbidden");
                        let detail = answer.json["detail"].as_str().unwrap();
                        assert!(detail.contains(&format!("`{needed}`")), "{what}");
                    }
                }
            }
        }
    }
    let words: Vec<_> = seen.keys().map(String::as_str).collect();
    assert_eq!(words, ["any", "client", "executor", "operator"]);
}

/// Something of everything in one namespace, and who may and may not see it.
struct TwoNamespaces {
    live: Live,
    ours: String,
    theirs: String,
    session: String,
    run: String,
    question: String,
    rule: String,
}

impl TwoNamespaces {
    async fn start() -> Self {
        let live = closed().await;
        let client = |name| json!({"name": name, "role": "client", "namespace": name});
        let ours = secret(&live, client("a")).await;
        let theirs = secret(&live, client("b")).await;
        let fleet = secret(&live, json!({"name": "fleet", "role": "executor"})).await;
        let created = by(live.post("/sessions", json!({})), &ours).await.ok();
        let session = created["session_id"].as_str().unwrap().to_owned();
        let prompt = format!("/sessions/{session}/prompt");
        let accepted = by(live.post(&prompt, json!({"prompt": "go"})), &ours).await;
        let run = accepted.ok()["run_id"].as_str().unwrap().to_owned();
        // An executor serves every namespace; what it asks is of the run's.
        let claim = json!({"executor_id": "x1", "worker_instance_id": "i1"});
        let claimed = by(live.post("/executor/runs/claim", claim), &fleet).await;
        let claimed = claimed.ok();
        assert_eq!(claimed["run_id"], run);
        let as_executor = |action: &str, mut body: Value| {
            body["executor_id"] = json!("x1");
            body["claim_token"] = claimed["claim_token"].clone();
            let path = format!("/executor/runs/{run}/{action}");
            by(live.post(&path, body), &fleet)
        };
        // An upload of which nothing is recorded is answered all the same.
        let end = json!({"events": [{"event_id": "e", "event": "TurnEnd", "data": {}}]});
        let uploaded = as_executor("events", end).await.ok();
        assert_eq!(uploaded["events"][0]["session_id"], session);
        let ask = json!({
            "request_id": "q", "tool_name": "shell", "arguments": {}, "wait_seconds": 0,
        });
        let asked = as_executor("approval", ask).await.ok();
        let question = asked["interaction_id"].as_str().unwrap().to_owned();
        let rule = json!({"tool_name": "t", "decision": "allow"});
        let rule = by(live.post("/approval-rules", rule), &ours).await.ok();
        assert_eq!(rule["created_by"], "token:a");
        let rule = rule["rule_id"].as_str().unwrap().to_owned();
        Self {
            live,
            ours,
            theirs,
            session,
            run,
            question,
            rule,
        }
    }
}

/// What isn't there, though the path leads somewhere.
#[track_caller]
fn is_not_there(answer: &Answer, path: &str) {
    assert_eq!(
        answer.status,
        StatusCode::NOT_FOUND,
        "{path} {}",
        answer.text
    );
    assert_ne!(answer.json["code"], "route_not_found", "{path}");
}

#[tokio::test]
async fn a_namespace_reads_nothing_of_another() {
    let two = TwoNamespaces::start().await;
    let (session, run) = (&two.session, &two.run);
    for path in [
        format!("/sessions/{session}"),
        format!("/sessions/{session}/runs"),
        format!("/sessions/{session}/events"),
        format!("/sessions/{session}/tape"),
        format!("/sessions/{session}/transcript"),
        format!("/sessions/{session}/checkpoints"),
        format!("/sessions/{session}/result"),
        format!("/sessions/{session}/diff"),
        format!("/runs/{run}"),
        format!("/runs/{run}/events"),
        format!("/runs/{run}/display-events"),
        format!("/runs/{run}/interactions"),
        format!("/runs/{run}/snapshot"),
        format!("/interactions/{}", two.question),
        format!("/approval-rules/{}", two.rule),
    ] {
        is_not_there(&by(two.live.get(&path), &two.theirs).await, &path);
    }
    for (path, list) in [
        ("/sessions", "sessions"),
        ("/runs", "runs"),
        ("/runs?unservable=true", "runs"),
        ("/interactions", "interactions"),
        ("/approval-rules", "rules"),
        ("/events", "events"),
    ] {
        let listed = by(two.live.get(path), &two.theirs).await.ok();
        assert_eq!(listed[list], json!([]), "{path}");
    }
    // Who the executors are is no secret; which runs they have is.
    let shown = by(two.live.get("/executors/x1"), &two.theirs).await;
    assert!(!shown.text.contains(run.as_str()), "{}", shown.text);
    assert_eq!(shown.json["current_runs"], 1);
    let shown = by(two.live.get("/executors/x1"), &two.ours).await.ok();
    assert_eq!(shown["current_run_id"], *run);
    // An operator sees its namespace and no other either.
    let path = format!("/sessions/{session}");
    is_not_there(&by(two.live.get(&path), FILE).await, &path);
}

#[tokio::test]
async fn a_namespace_writes_nothing_of_another() {
    let two = TwoNamespaces::start().await;
    let (session, run, question) = (&two.session, &two.run, &two.question);
    let post = Method::POST;
    for (method, path, body) in [
        (
            Method::PATCH,
            format!("/sessions/{session}"),
            json!({"title": "x"}),
        ),
        (
            Method::DELETE,
            format!("/sessions/{session}?force=true"),
            json!({}),
        ),
        (
            post.clone(),
            format!("/sessions/{session}/prompt"),
            json!({"prompt": "x"}),
        ),
        (
            post.clone(),
            format!("/sessions/{session}/resume"),
            json!({}),
        ),
        (
            post.clone(),
            format!("/sessions/{session}/close"),
            json!({}),
        ),
        (
            post.clone(),
            format!("/sessions/{session}/cancel"),
            json!({}),
        ),
        (
            post.clone(),
            format!("/sessions/{session}/checkpoints"),
            json!({}),
        ),
        (
            post.clone(),
            format!("/sessions/{session}/fork"),
            json!({"session_seq": 1}),
        ),
        (post.clone(), format!("/runs/{run}/cancel"), json!({})),
        (
            post,
            format!("/interactions/{question}/resolve"),
            json!({"approved": true}),
        ),
        (
            Method::DELETE,
            format!("/approval-rules/{}", two.rule),
            json!({}),
        ),
    ] {
        let call = two
            .live
            .api
            .call(method, &path)
            .accepting_json()
            .json(&body);
        is_not_there(&by(call, &two.theirs).await, &path);
    }
    let repair = format!("/sessions/{session}/repair");
    is_not_there(&by(two.live.post(&repair, json!({})), FILE).await, &repair);
    let resolve = format!("/interactions/{question}/resolve");
    let resolved = by(
        two.live.post(&resolve, json!({"approved": true})),
        &two.ours,
    )
    .await;
    assert_eq!(resolved.ok()["resolved_by"], "token:a");
}

#[tokio::test]
async fn what_is_not_accepted_is_told_apart_from_what_was_not_sent() {
    let live = closed().await;
    let made = make(&live, json!({"name": "ci", "role": "client"})).await;
    let held = made["token"].as_str().unwrap();
    assert!(by(live.get("/sessions"), held).await.status.is_success());
    let none = live.get("/sessions").await;
    none.is(StatusCode::UNAUTHORIZED, "unauthorized");
    assert!(!none.text.contains("not accepted"), "{}", none.text);
    revoke(&live, &made).await;
    for bad in [held, "s3cret", &format!("tdk_{}", "0".repeat(64))] {
        let refused = by(live.get("/sessions"), bad).await;
        refused.is(StatusCode::UNAUTHORIZED, "unauthorized");
        assert!(refused.text.contains("not accepted"), "{}", refused.text);
    }
}

#[tokio::test]
async fn this_machine_is_asked_for_a_token_while_any_is_live() {
    let live = local().await;
    let is_asked = || async { live.get("/capabilities").await.status == StatusCode::UNAUTHORIZED };
    assert!(!is_asked().await);
    let body = json!({"name": "ops", "role": "operator"});
    let made = live.post("/tokens", &body).await.ok();
    assert_eq!(made["created_by"], "local");
    assert!(is_asked().await, "at once");
    let held = made["token"].as_str().unwrap();
    let says = by(live.get("/capabilities"), held).await.ok();
    assert_eq!(says["token_required"], true);
    // A page of another site can't know the token, so any host will do.
    let far = by(live.get("/healthz"), held).header("host", "tapedeck.example");
    assert_eq!(far.await.status, StatusCode::OK);
    let path = format!("/tokens/{}", made["token_id"].as_str().unwrap());
    let revoked = by(live.api.call(Method::DELETE, &path), held).await;
    assert_eq!(revoked.status, StatusCode::NO_CONTENT);
    assert!(!is_asked().await, "open to this machine again");
    let far = live.get("/healthz").header("host", "tapedeck.example");
    far.await.is(StatusCode::FORBIDDEN, "host_forbidden");
}

#[tokio::test]
async fn a_server_that_others_reach_stays_closed_when_its_last_token_ends() {
    let live = Live::timed(Timing::STANDARD, |state| {
        state.token_policy = TokenPolicy::Always;
    })
    .await;
    let terms = tapedeck_domain::token::TokenTerms {
        name: "ops".to_owned(),
        role: tapedeck_domain::token::Role::Operator,
        namespace: None,
        expires_in_seconds: None,
    };
    let made = live.api.control.create_token(terms, "local", None).await;
    let made = made.unwrap();
    let held = made.secret.unwrap();
    let answer = by(live.get("/sessions"), held.expose()).await;
    assert_eq!(answer.status, StatusCode::OK);
    let id = made.token.token_id;
    live.api.control.revoke_token(id, "local").await.unwrap();
    for call in [
        live.get("/sessions"),
        by(live.get("/sessions"), held.expose()),
    ] {
        call.await.is(StatusCode::UNAUTHORIZED, "unauthorized");
    }
}

/// Reads a stream to its end; gives why it ended.
async fn end_of(mut frames: Frames) -> Value {
    let mut last = Value::Null;
    while let Some(frame) = frames.next().await {
        if frame.event == "stream.end" {
            last = frame.data;
        }
    }
    last
}

#[tokio::test]
async fn streams_end_with_their_token() {
    let live = closed().await;
    let revoked = make(&live, json!({"name": "revoked", "role": "client"})).await;
    let brief = json!({"name": "brief", "role": "client", "expires_in_seconds": 1});
    let brief = secret(&live, brief).await;
    let held = revoked["token"].as_str().unwrap();
    let created = by(live.post("/sessions", json!({})), held).await.ok();
    let session = created["session_id"].as_str().unwrap();
    let path = format!("/sessions/{session}/events");
    let follow = |path: &str, held: &str| by(live.api.get(path), held).open();
    let (of_session, of_all) = (follow(&path, held).await, follow("/events", held).await);
    let of_brief = follow(&path, &brief).await;
    let of_file = follow(&path, FILE).await;
    assert_eq!(revoke(&live, &revoked).await.status, StatusCode::NO_CONTENT);
    for response in [of_session, of_all, of_brief] {
        let reason = end_of(Frames::of(response)).await;
        assert_eq!(reason, json!({"reason": "token_ended"}));
    }
    for held in [held, &brief] {
        let again = by(live.get(&path), held).await;
        again.is(StatusCode::UNAUTHORIZED, "unauthorized");
    }
    // Others go on.
    let mut of_file = Frames::of(of_file);
    assert_eq!(of_file.next().await.unwrap().event, "");
    assert_eq!(of_file.next().await.unwrap().event, "stream.open");
}
