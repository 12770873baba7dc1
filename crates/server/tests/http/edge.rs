//! What the edge refuses by itself, and how the server answers while its store is away. No request
//! here reaches a rule.

use crate::support::{Api, Away, ID};
use http::header::{ALLOW, CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Method, StatusCode};
use rstest::rstest;
use serde_json::json;
use tapedeck_server::{BearerToken, HostPolicy, Limits};

fn api() -> Api {
    Api::over(Away::store())
}

#[tokio::test]
async fn every_refusal_is_a_problem_document_that_names_the_request() {
    let answer = api()
        .get("/nowhere")
        .header("x-request-id", "my-id.1")
        .send()
        .await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(answer.header(CONTENT_TYPE), "application/problem+json");
    assert_eq!(answer.header("x-request-id"), "my-id.1");
    assert_eq!(answer.json["code"], "route_not_found");
    assert_eq!(answer.json["type"], "urn:tapedeck:problem:route_not_found");
    assert_eq!(answer.json["status"], 404);
    assert_eq!(answer.json["request_id"], "my-id.1");
    assert!(answer.json["title"].is_string() && answer.json["detail"].is_string());
    let answer = api()
        .get("/nowhere")
        .header("x-request-id", "not one line\u{e9}")
        .send()
        .await;
    assert_ne!(answer.header("x-request-id"), "not one line\u{e9}");
    assert_eq!(answer.json["request_id"], answer.header("x-request-id"));
}

#[tokio::test]
async fn an_unsupported_method_is_405_and_says_which_are() {
    let answer = api().send(Method::PUT, "/sessions").await;
    answer.is(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
    let allowed = answer.header(ALLOW).to_owned();
    assert!(
        allowed.contains("GET") && allowed.contains("POST"),
        "{allowed}"
    );
}

#[rstest]
#[case::not_json(r#"{"title": "#, 400, "malformed_request", "")]
#[case::trailing("{} {}", 400, "malformed_request", "")]
#[case::no_utf8("{\"title\": \"\u{fffd}\"", 400, "malformed_request", "")]
#[case::unknown(r#"{"titel": "x"}"#, 422, "invalid_request", "titel")]
#[case::unknown_inside(
    r#"{"run_target": {"executor": {"pol": "x"}}}"#,
    422,
    "invalid_request",
    "run_target.executor.pol"
)]
#[case::wrong_type(
    r#"{"run_target": {"executor": {"pool": 7}}}"#,
    422,
    "invalid_request",
    "run_target.executor.pool"
)]
#[case::wrong_word(
    r#"{"approval_policy": "maybe"}"#,
    422,
    "invalid_request",
    "approval_policy"
)]
#[case::no_object("[1]", 422, "invalid_request", "")]
#[case::nul("{\"title\": \"a\\u0000b\"}", 422, "invalid_request", "title")]
#[case::nul_inside(
    "{\"metadata\": {\"a\": [\"\\u0000\"]}}",
    422,
    "invalid_request",
    "metadata.a"
)]
#[case::lone_surrogate(r#"{"title": "\ud800"}"#, 422, "invalid_request", "title")]
#[case::lone_trail(r#"{"title": "\udc00x"}"#, 422, "invalid_request", "title")]
#[case::broken_pair(r#"{"title": "\ud800\u0041"}"#, 422, "invalid_request", "title")]
#[tokio::test]
async fn a_broken_body_is_refused_with_its_place(
    #[case] body: &'static str,
    #[case] status: u16,
    #[case] code: &str,
    #[case] path: &str,
) {
    let answer = api().post("/sessions").text(body).send().await;
    answer.is(StatusCode::from_u16(status).unwrap(), code);
    if status == 422 {
        assert_eq!(answer.json["errors"][0]["path"], path, "{}", answer.json);
    }
}

#[tokio::test]
async fn json_that_is_too_deep_is_refused() {
    let deep = |levels: usize| {
        format!(
            r#"{{"metadata": {{"a": {}1{}}}}}"#,
            "[".repeat(levels),
            "]".repeat(levels)
        )
    };
    for levels in [127, 1_000, 100_000] {
        let answer = api().post("/sessions").text(deep(levels)).send().await;
        answer.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
        assert!(
            answer.json["detail"]
                .as_str()
                .unwrap()
                .contains("128 levels")
        );
    }
    // 100 levels get as far as the store.
    let answer = api().post("/sessions").text(deep(100)).send().await;
    answer.is(StatusCode::TOO_MANY_REQUESTS, "overloaded");
}

#[tokio::test]
async fn a_body_of_one_byte_more_than_allowed_is_413() {
    let exactly = |bytes: usize| {
        let around = r#"{"metadata": {"a": ""}}"#.len();
        format!(
            r#"{{"metadata": {{"a": "{}"}}}}"#,
            "x".repeat(bytes - around)
        )
    };
    let limit = 1024 * 1024;
    let answer = api()
        .post("/sessions")
        .text(exactly(limit + 1))
        .send()
        .await;
    answer.is(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large");
    assert_eq!(answer.json["limit"], limit);
    let answer = api().post("/sessions").text(exactly(limit)).send().await;
    answer.is(StatusCode::TOO_MANY_REQUESTS, "overloaded");
    let chunked = api()
        .post("/sessions")
        .chunked(exactly(limit + 1))
        .send()
        .await;
    chunked.is(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large");
    // Uploads take 16 MiB.
    let upload = format!("/executor/runs/{ID}/events");
    let answer = api().post(&upload).text(exactly(limit + 1)).send().await;
    assert_ne!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    let answer = api()
        .post(&upload)
        .text(exactly(16 * limit + 1))
        .send()
        .await;
    answer.is(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large");
}

#[rstest]
#[case(None)]
#[case(Some("text/plain"))]
#[case(Some("application/x-www-form-urlencoded"))]
#[tokio::test]
async fn a_body_that_is_not_said_to_be_json_is_415(#[case] media_type: Option<&'static str>) {
    let call = api().post("/sessions").typed(media_type, "{}");
    let answer = call.send().await;
    answer.is(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type");
}

#[tokio::test]
async fn a_post_without_a_body_reads_as_an_empty_object() {
    let answer = api().send(Method::POST, "/sessions").await;
    answer.is(StatusCode::TOO_MANY_REQUESTS, "overloaded");
}

#[rstest]
#[case("/sessions/x", "malformed_request")]
#[case("/sessions/1234/events", "malformed_request")]
#[case("/sessions?limit=0", "malformed_request")]
#[case("/sessions?limit=201", "malformed_request")]
#[case("/sessions?cursor=x", "cursor_malformed")]
#[case("/sessions?page=2", "malformed_request")]
#[case("/runs/x", "malformed_request")]
#[case("/interactions/x", "malformed_request")]
#[case("/interactions?status=open", "malformed_request")]
#[case(
    "/sessions/018f0000-0000-7000-8000-000000000001/events?after=x",
    "cursor_malformed"
)]
#[case(
    "/sessions/018f0000-0000-7000-8000-000000000001/events?after=-1",
    "cursor_malformed"
)]
#[case(
    "/sessions/018f0000-0000-7000-8000-000000000001/events?after=99999999999999999999",
    "cursor_malformed"
)]
#[case(
    "/sessions/018f0000-0000-7000-8000-000000000001/events?run_id=x",
    "malformed_request"
)]
#[case("/sessions/%00/events", "malformed_request")]
#[case("/sessions/%ff/events", "malformed_request")]
#[case("/executors/%00", "malformed_request")]
#[tokio::test]
async fn a_bad_path_or_query_value_is_400(#[case] path: &str, #[case] code: &str) {
    api()
        .get(path)
        .send()
        .await
        .is(StatusCode::BAD_REQUEST, code);
}

#[rstest]
#[case("x")]
#[case("")]
#[case("-1")]
#[case("head")]
#[case("1.5")]
#[tokio::test]
async fn a_malformed_last_event_id_is_400(#[case] id: &str) {
    let path = format!("/sessions/{ID}/events?after=1");
    let answer = api().get(&path).header("last-event-id", id).send().await;
    answer.is(StatusCode::BAD_REQUEST, "cursor_malformed");
}

#[tokio::test]
async fn a_key_and_a_command_id_must_agree() {
    let call = api().post("/sessions").json(&json!({"command_id": "a"}));
    let answer = call.header("idempotency-key", "b").send().await;
    answer.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    assert_eq!(answer.json["errors"][0]["path"], "command_id");
    for bad in ["", " ", "a b", "a\tb", &"x".repeat(201)] {
        let call = api().post("/sessions").json(&json!({}));
        let answer = call.header("idempotency-key", bad).send().await;
        answer.is(StatusCode::BAD_REQUEST, "malformed_request");
    }
}

#[rstest]
#[case::prompt_blank("prompt", r#"{"prompt": " \n"}"#, "prompt")]
#[case::prompt_missing("prompt", "{}", "prompt")]
#[case::prompt_nul("prompt", "{\"prompt\": \"\\u0000\"}", "prompt")]
#[case::resume_blank("resume", r#"{"prompt": ""}"#, "prompt")]
#[case::close_unknown("close", r#"{"force": true}"#, "force")]
#[case::approve("approve", r#"{"approved": true}"#, "request_id")]
#[tokio::test]
async fn session_requests_are_checked_before_the_store(
    #[case] action: &str,
    #[case] body: &'static str,
    #[case] path: &str,
) {
    let answer = api()
        .post(&format!("/sessions/{ID}/{action}"))
        .text(body)
        .send()
        .await;
    answer.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
    assert_eq!(answer.json["errors"][0]["path"], path);
}

#[tokio::test]
async fn a_prompt_of_more_than_256_kib_is_422() {
    let body = json!({"prompt": "x".repeat(256 * 1024 + 1)});
    let path = format!("/sessions/{ID}/prompt");
    let answer = api().post(&path).json(&body).send().await;
    answer.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
}

#[rstest]
#[case("evil.example", None, "host_forbidden")]
#[case("evil.example:4000", Some("http://localhost:4000"), "host_forbidden")]
#[case("localhost:4000", Some("http://evil.example"), "origin_forbidden")]
#[case("127.0.0.1:4000", Some("null"), "origin_forbidden")]
#[tokio::test]
async fn without_a_token_other_hosts_and_origins_are_403(
    #[case] host: &str,
    #[case] origin: Option<&str>,
    #[case] code: &str,
) {
    for path in ["/sessions", "/healthz", "/nowhere", "/v1/docs"] {
        let mut call = api().get(path).header(HOST, host);
        if let Some(origin) = origin {
            call = call.header(ORIGIN, origin);
        }
        call.send().await.is(StatusCode::FORBIDDEN, code);
    }
    let in_process = Api::with(Away::store(), |state| state.hosts = HostPolicy::Any);
    let call = in_process.get("/healthz").header(HOST, host);
    assert_eq!(call.send().await.status, StatusCode::OK);
    let page = api().get("/healthz").header(ORIGIN, "http://127.0.0.1:9");
    assert_eq!(page.send().await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_token_is_asked_for_on_every_endpoint() {
    let api = Api::with(Away::store(), |state| {
        state.token = BearerToken::new("s3cret\n");
    });
    let paths = [
        "/healthz",
        "/readyz",
        "/sessions",
        "/openapi.json",
        "/docs",
        "/nowhere",
        "/v1/healthz",
    ];
    for path in paths {
        let answer = api.get(path).send().await;
        answer.is(StatusCode::UNAUTHORIZED, "unauthorized");
        assert_eq!(answer.header(WWW_AUTHENTICATE), "Bearer");
        for bad in [
            "Bearer s3cre",
            "Bearer s3cret2",
            "Basic s3cret",
            "s3cret",
            "Bearer",
        ] {
            let answer = api.get(path).header("authorization", bad).send().await;
            answer.is(StatusCode::UNAUTHORIZED, "unauthorized");
        }
    }
    let call = api.get("/healthz").header("authorization", "bearer s3cret");
    assert_eq!(call.send().await.status, StatusCode::OK);
    let far = api.get("/healthz").header(HOST, "tapedeck.example");
    let far = far.header("authorization", "Bearer s3cret").send().await;
    assert_eq!(far.status, StatusCode::OK);
    let shown = format!("{:?}", BearerToken::new("s3cret"));
    assert!(!shown.contains("s3cret"));
    assert!(BearerToken::new(" \n").is_none());
}

#[tokio::test]
async fn an_overloaded_store_refuses_each_kind_of_request_in_its_own_way() {
    let api = api();
    for path in [
        "/sessions".to_owned(),
        format!("/sessions/{ID}/prompt"),
        format!("/sessions/{ID}/resume"),
    ] {
        let answer = api
            .post(&path)
            .json(&crate::support::prompt(&path))
            .send()
            .await;
        answer.is(StatusCode::TOO_MANY_REQUESTS, "overloaded");
        assert_eq!(answer.header(RETRY_AFTER), "1");
        assert_eq!(answer.json["retryable"], true);
    }
    let claim = api
        .post("/executor/runs/claim")
        .json(&json!({"executor_id": "x"}));
    claim
        .send()
        .await
        .is(StatusCode::NOT_FOUND, "no_run_available");
    let beat = json!({"executor_id": "x", "claim_token": "1.a"});
    let path = format!("/executor/runs/{ID}/heartbeat");
    let answer = api.post(&path).json(&beat).send().await;
    answer.is(StatusCode::SERVICE_UNAVAILABLE, "unavailable");
    assert_eq!(answer.header(RETRY_AFTER), "1");
    let answer = api.get("/readyz").send().await;
    answer.is(StatusCode::SERVICE_UNAVAILABLE, "unavailable");
}

#[tokio::test]
async fn a_store_that_is_away_is_503_for_everybody() {
    let api = Api::over(Away::away());
    for path in [
        "/sessions".to_owned(),
        format!("/sessions/{ID}/prompt"),
        format!("/sessions/{ID}/resume"),
        "/executor/runs/claim".to_owned(),
    ] {
        let body = if path.starts_with("/executor") {
            json!({"executor_id": "x"})
        } else {
            crate::support::prompt(&path)
        };
        let answer = api.post(&path).json(&body).send().await;
        answer.is(StatusCode::SERVICE_UNAVAILABLE, "unavailable");
        assert_eq!(answer.header(RETRY_AFTER), "1");
        assert_eq!(answer.json["retryable"], true);
    }
}

#[tokio::test]
async fn more_requests_than_places_are_refused_in_the_same_ways() {
    let api = Api::with(Away::store(), |state| {
        state.limits = Limits {
            admissions: 0,
            claims: 0,
            uploads: 0,
            requests: 0,
            ..Limits::STANDARD
        };
    });
    let create = api.post("/sessions").json(&json!({})).send().await;
    create.is(StatusCode::TOO_MANY_REQUESTS, "overloaded");
    let claim = api
        .post("/executor/runs/claim")
        .json(&json!({"executor_id": "x"}));
    claim
        .send()
        .await
        .is(StatusCode::NOT_FOUND, "no_run_available");
    let upload = api
        .post(&format!("/executor/runs/{ID}/events"))
        .json(&json!({}));
    upload
        .send()
        .await
        .is(StatusCode::SERVICE_UNAVAILABLE, "unavailable");
    let list = api.get("/sessions").send().await;
    list.is(StatusCode::SERVICE_UNAVAILABLE, "unavailable");
    // What keeps runs alive is still looked at.
    let path = format!("/executor/runs/{ID}/release");
    let release = api.post(&path).json(&json!({})).send().await;
    release.is(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request");
}

#[tokio::test]
async fn a_panic_is_a_500_and_tells_nothing() {
    let answer = Api::over(Away::panicking()).get("/sessions").send().await;
    answer.is(StatusCode::INTERNAL_SERVER_ERROR, "internal");
    assert!(!answer.text.contains("a secret reason"), "{}", answer.text);
}

#[tokio::test]
async fn a_slow_answer_is_503() {
    tokio::time::pause();
    let answer = Api::over(Away::hanging()).get("/sessions").send().await;
    answer.is(StatusCode::SERVICE_UNAVAILABLE, "unavailable");
}

#[tokio::test]
async fn a_full_disk_and_an_unknown_outcome_are_503() {
    let answer = Api::over(Away::full())
        .post("/sessions")
        .json(&json!({}))
        .send()
        .await;
    answer.is(StatusCode::SERVICE_UNAVAILABLE, "storage_full");
    let answer = Api::over(Away::unknown())
        .post("/sessions")
        .json(&json!({}))
        .send()
        .await;
    answer.is(StatusCode::SERVICE_UNAVAILABLE, "unavailable");
    assert!(
        answer.json["detail"]
            .as_str()
            .unwrap()
            .contains("Idempotency-Key")
    );
}
