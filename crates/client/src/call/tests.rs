use std::collections::HashSet;

use serde_json::{Value, json};
use tapedeck_domain::RunId;
use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::executor::{
    ClaimRunRequest, CompleteRequest, ExecutorsQuery, ReleaseRequest,
};
use tapedeck_protocol::operations::HealthResponse;
use tapedeck_protocol::run::PromptRequest;

use super::*;
use crate::script::{Answer, Tail, client, scripted};
use crate::{Secret, Start};

fn health() -> Answer {
    Answer::json(
        200,
        &json!({"status": "ok", "version": "1", "storage": "sqlite", "durability": "full"}),
    )
}

fn accepted() -> Value {
    json!({
        "session_id": "01890000-0000-7000-8000-000000000001",
        "run_id": "01890000-0000-7000-8000-000000000002",
        "status": "requested",
        "session_seq": 4,
    })
}

fn run_id() -> RunId {
    "01890000-0000-7000-8000-000000000002".parse().unwrap()
}

fn prompt() -> PromptRequest {
    PromptRequest {
        prompt: Some("go".to_owned()),
        ..PromptRequest::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_made_again_after_503_and_succeeds() {
    let (client, log) = scripted([
        Answer::refused(ErrorCode::Unavailable),
        Answer::Lost,
        health(),
    ]);
    let expected = HealthResponse {
        status: "ok".to_owned(),
        version: "1".to_owned(),
        storage: "sqlite".to_owned(),
        durability: "full".to_owned(),
    };
    assert_eq!(client.health().await.unwrap(), expected);
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 3);
    let ids: HashSet<_> = log.iter().map(|seen| seen.header("x-request-id")).collect();
    assert_eq!(ids.len(), 1, "one logical call has one request id");
    assert_eq!(log[0].header("accept"), Some(JSON));
    assert_eq!(log[0].header("host"), Some("localhost"));
    assert_eq!(log[0].uri.path(), "/healthz");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_not_made_again() {
    let (client, log) = scripted([Answer::refused(ErrorCode::SessionBusy)]);
    let id = "01890000-0000-7000-8000-000000000001".parse().unwrap();
    let error = client.prompt(id, &prompt()).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::SessionBusy));
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_creating_write_keeps_one_key_over_its_retries_and_takes_a_new_one_next_time() {
    let (client, log) = scripted([
        Answer::Lost,
        Answer::refused(ErrorCode::Unavailable),
        Answer::Body(202, vec![Bytes::from_static(b"{\"run")], Tail::Break),
        Answer::json(202, &accepted()),
        Answer::json(202, &accepted()),
    ]);
    let id = "01890000-0000-7000-8000-000000000001".parse().unwrap();
    assert_eq!(client.prompt(id, &prompt()).await.unwrap().session_seq, 4);
    client.prompt(id, &prompt()).await.unwrap();
    let log = log.lock().unwrap();
    let keys: Vec<_> = log
        .iter()
        .map(|seen| seen.header("idempotency-key").unwrap())
        .collect();
    assert!(keys[..4].iter().all(|key| *key == keys[0]));
    assert_ne!(keys[4], keys[0]);
    assert!(
        log.iter()
            .all(|seen| seen.body == log[0].body && seen.method == Method::POST)
    );
}

#[tokio::test(start_paused = true)]
async fn a_callers_own_key_is_the_only_one_that_is_sent() {
    let (client, log) = scripted([Answer::Lost, Answer::json(202, &accepted())]);
    let request = PromptRequest {
        command_id: Some("mine".to_owned()),
        ..prompt()
    };
    let id = "01890000-0000-7000-8000-000000000001".parse().unwrap();
    client.prompt(id, &request).await.unwrap();
    let log = log.lock().unwrap();
    assert!(
        log.iter()
            .all(|seen| seen.header("idempotency-key").is_none())
    );
    let body: Value = serde_json::from_slice(&log[1].body).unwrap();
    assert_eq!(body["command_id"], "mine");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_could_run_twice_is_made_again_only_without_effect() {
    let release = ReleaseRequest::default();
    let (client, log) = scripted([Answer::refused(ErrorCode::Draining), Answer::Lost]);
    let error = client.release(run_id(), &release).await.unwrap_err();
    assert!(matches!(error, Error::Transport { sent: true, .. }));
    assert_eq!(log.lock().unwrap().len(), 2);

    let (client, log) = scripted([Answer::refused(ErrorCode::Unavailable)]);
    let error = client.release(run_id(), &release).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Unavailable));
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_cancel_of_whatever_is_active_is_not_made_again() {
    // A second one would find the run that waited behind the first.
    let session = "01890000-0000-7000-8000-000000000001".parse().unwrap();
    let (client, log) = scripted([Answer::Lost]);
    let error = client.cancel_session(session).await.unwrap_err();
    assert!(matches!(error, Error::Transport { sent: true, .. }));
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured_and_a_long_one_ends_the_tries() {
    let wait = |ms| {
        let problem = Problem::new(ErrorCode::Overloaded, "later").retry_after_ms(ms);
        Answer::problem(&problem)
    };
    let (client, _) = scripted([wait(7_000), health()]);
    let start = tokio::time::Instant::now();
    client.health().await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(7));

    let (client, log) = scripted([wait(60_000)]);
    let error = client.health().await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_mins(1)));
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn tries_are_bounded_and_each_has_a_deadline() {
    let (client, log) = client(|_| Answer::Silence);
    let options = Options {
        retries: 5,
        ..Options::default()
    };
    let start = tokio::time::Instant::now();
    let error = client.with_options(options).health().await.unwrap_err();
    assert!(matches!(error, Error::Timeout(deadline) if deadline == options.deadline));
    assert_eq!(log.lock().unwrap().len(), 2);
    // However many tries a server that answers is worth, a silent one isn't worth more than a minute.
    assert!(start.elapsed() < Duration::from_secs(61));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_server_of_ours_is_told_by_its_address() {
    let page = Bytes::from_static(b"<html>");
    let (client, _) = scripted([Answer::Body(200, vec![page], Tail::Close)]);
    let error = client.health().await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with("does not answer like a Tapedeck server"),
        "{text}"
    );
    assert!(text.starts_with("http://localhost "), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_held_claim_gets_the_time_it_asks_for() {
    let (client, log) = scripted([Answer::Silence, Answer::refused(ErrorCode::NoRunAvailable)]);
    let request = ClaimRunRequest {
        executor_id: Some("x".to_owned()),
        claim_request_id: Some(crate::claim_request_id()),
        wait_seconds: Some(60),
        ..ClaimRunRequest::default()
    };
    let start = tokio::time::Instant::now();
    assert_eq!(client.claim(&request).await.unwrap(), None);
    assert!(start.elapsed() >= Duration::from_secs(90));
    let log = log.lock().unwrap();
    assert_eq!(
        log[0].body, log[1].body,
        "the same claim request is asked again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_request_id_is_not_asked_for_again_when_its_answer_is_lost() {
    let (client, log) = scripted([Answer::Lost]);
    let request = ClaimRunRequest {
        executor_id: Some("x".to_owned()),
        ..ClaimRunRequest::default()
    };
    assert!(client.claim(&request).await.is_err());
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_sealed_batch_is_sent_again_byte_by_byte() {
    let answer = json!({"run_id": run_id(), "events": [{
        "event_id": "e", "recorded": false, "session_id": "01890000-0000-7000-8000-000000000001",
        "session_seq": null, "run_id": null, "kind": "TurnEnd", "payload": {"a": 1}, "attempt": null,
        "executor_id": null, "trace_id": null, "created_at": null, "recorded_at": null, "worker_id": "x",
    }]});
    let (client, log) = scripted([Answer::Lost, Answer::json(200, &answer)]);
    let sealed = Bytes::from_static(b"{ \"events\" : [] }");
    let uploaded = client.upload(run_id(), sealed.clone()).await.unwrap();
    assert_eq!(uploaded.events[0].session_seq, None);
    assert!(log.lock().unwrap().iter().all(|seen| seen.body == sealed));
}

#[tokio::test(start_paused = true)]
async fn missing_events_are_the_callers_to_upload() {
    let (client, log) = scripted([Answer::refused(ErrorCode::EventsMissing)]);
    let error = client
        .complete(run_id(), &CompleteRequest::default())
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::EventsMissing));
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn answers_of_others_are_shown_and_a_gateways_503_is_tried_again() {
    let page = |status| {
        Answer::Body(
            status,
            vec![Bytes::from_static(b"<html>no</html>")],
            Tail::Close,
        )
    };
    let (client, log) = scripted([page(503), page(404)]);
    let error = client.health().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server answered 404 Not Found: <html>no</html>"
    );
    assert_eq!(log.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn paths_and_queries_are_encoded() {
    let (client, log) = client(|_| Answer::refused(ErrorCode::ExecutorNotFound));
    client.executor("a/b ?c").await.unwrap_err();
    let query = ExecutorsQuery {
        limit: Some("2".to_owned()),
        cursor: Some("a&b".to_owned()),
        ..ExecutorsQuery::default()
    };
    client.executors(&query).await.unwrap_err();
    let log = log.lock().unwrap();
    assert_eq!(log[0].uri.path(), "/executors/a%2Fb%20%3Fc");
    assert_eq!(log[1].uri.query(), Some("limit=2&cursor=a%26b"));
}

#[test]
fn urls_and_tokens_that_cannot_be_sent_are_refused() {
    for url in ["", "no url", "ftp://x/", "unix:/x"] {
        assert!(
            matches!(Client::http(url, None), Err(Error::Request(_))),
            "{url}"
        );
    }
    let token = Secret::new("a\nb");
    let error = Client::http("http://127.0.0.1:1", Some(&token)).unwrap_err();
    assert!(!error.to_string().contains("a\nb"));
    assert_eq!(format!("{token:?}"), "Secret(…)");
    assert_eq!(Start::default(), Start::Beginning);
}

#[tokio::test]
async fn a_refused_connection_is_known_to_be_without_effect() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let options = Options {
        retries: 0,
        ..Options::default()
    };
    let client = Client::http(&format!("http://{address}/base/"), None).unwrap();
    let error = client.with_options(options).health().await.unwrap_err();
    assert!(
        matches!(error, Error::Transport { sent: false, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_remote_server_is_called_under_its_base_path_with_the_token() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(socket.read_u8().await.unwrap());
        }
        let body = r#"{"status":"ok","version":"1","storage":"sqlite","durability":"full"}"#;
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(request).unwrap()
    };
    let token = Secret::new("t0ken");
    let client = Client::http(&format!("http://{address}/base/"), Some(&token)).unwrap();
    let (request, health) = tokio::join!(serve, client.health());
    assert_eq!(health.unwrap().status, "ok");
    assert!(
        request.starts_with("GET /base/healthz HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains("authorization: Bearer t0ken\r\n"),
        "{request}"
    );
    assert!(
        request.contains(&format!("host: {address}\r\n")),
        "{request}"
    );
}

#[tokio::test]
async fn a_tls_client_can_be_made_where_the_system_has_certificates() {
    match Client::http("https://127.0.0.1:1", None) {
        Ok(client) => {
            let options = Options {
                retries: 0,
                ..Options::default()
            };
            let error = client.with_options(options).health().await.unwrap_err();
            assert!(
                matches!(error, Error::Transport { sent: false, .. }),
                "{error:?}"
            );
        }
        Err(error) => assert!(error.to_string().contains("no certificates"), "{error}"),
    }
}
