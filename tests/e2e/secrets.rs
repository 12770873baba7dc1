//! Tokens and passwords that go through real processes, and where they are not to be found
//! afterwards (I24): the database, every log down to its last detail, every answer.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::{self, Claim, is_terminal};
use crate::chaos::Beside;
use crate::http::{Answer, Request};
use crate::server::{ExecutorOptions, Place, Process, executor};
use crate::wait::eventually;

on_both_stores! {
    no_secret_in_store_log_or_event,
}

const TOKEN: &str = "a-bearer-token-that-nobody-guesses-987654";
const LIMIT: Duration = Duration::from_secs(30);

/// A server that logs whatever it can, over a token's file.
async fn talkative(place: &Place, listen: &str) -> (Process, SocketAddr) {
    let ready = place.path("talkative.ready");
    let _absent = fs::remove_file(&ready);
    let mut command = place.command(&["serve", "--listen", listen]);
    command.arg("--ready-file").arg(&ready);
    command.arg("--token-file").arg(place.path("token"));
    command.env("TAPEDECK_LOG", "trace");
    place.name_database(&mut command);
    let process = place.start("talkative", command);
    let answers = async || {
        let url = fs::read_to_string(&ready).ok()?;
        let address = url.trim().strip_prefix("http://")?.trim_end_matches('/');
        address.parse().ok()
    };
    let address = eventually("the server answers", LIMIT, answers).await;
    (process, address)
}

async fn send(address: SocketAddr, request: Request) -> Answer {
    let request = request.header("authorization", format!("Bearer {TOKEN}"));
    request.send(address).await
}

/// Every byte of every file below a directory, as a text.
fn files(dir: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if let Ok(bytes) = fs::read(&path) {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            found.push((path.display().to_string(), text));
        }
    }
    found
}

/// All rows of a database, as texts.
async fn rows(place: &Place) -> Vec<(String, String)> {
    let Some(database) = place.postgres() else {
        return files(&place.data());
    };
    let mut beside = Beside::database(database.url()).await;
    let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema()";
    let mut found = Vec::new();
    for table in beside.texts(tables).await {
        let rows = format!("SELECT row_to_json(t)::text FROM {table} t");
        found.push((table, beside.texts(&rows).await.join("\n")));
    }
    beside.close().await;
    found
}

/// What a run by hand has sent and got.
struct ByHand {
    secrets: Vec<String>,
    answers: Vec<(String, String)>,
}

async fn by_hand(address: SocketAddr) -> ByHand {
    let session = json!({"run_target": {"executor": {"pool": "hand"}}});
    let created = send(address, Request::post("/sessions", &session))
        .await
        .ok();
    let session = api::text(&created, "session_id");
    let prompt = json!({"prompt": "hi"});
    let prompt = Request::post(format!("/sessions/{session}/prompt"), &prompt);
    send(address, prompt).await;
    let request_id = "a-claim-request-id-of-enough-random-bits-1".to_owned();
    let body = json!({
        "executor_id": "hand", "pool": "hand", "wait_seconds": 10, "claim_request_id": request_id,
    });
    let claim = Request::post("/executor/runs/claim", &body);
    let claim = Claim::of(send(address, claim).await.ok());
    let run = &claim.run_id;
    let mut forged = claim.clone();
    "1.a-forged-claim-token".clone_into(&mut forged.token);
    let events = json!({"events": [api::words("e1", "words")]});
    let done = json!({"status": "completed", "event_count": 1});
    let mut answers = Vec::new();
    for (status, request) in [
        (200, claim.request("heartbeat", json!({}))),
        (200, claim.request("events", events.clone())),
        (403, forged.request("events", events)),
        (422, claim.request("events", json!({"events": "none"}))),
        (200, claim.request("complete", done)),
        (409, claim.request("heartbeat", json!({}))),
    ] {
        let what = format!("the answer to {request:?}");
        let answer = send(address, request).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
        answers.push(("an answer to its executor".to_owned(), answer.text()));
    }
    for path in [
        format!("/sessions/{session}"),
        format!("/sessions/{session}/events"),
        format!("/sessions/{session}/tape"),
        format!("/runs/{run}"),
        "/executors".to_owned(),
        "/healthz".to_owned(),
    ] {
        let answer = send(address, Request::get(path.clone())).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answers.push((path, answer.text()));
    }
    let secrets = vec![
        request_id,
        claim.token.clone(),
        "a-forged-claim-token".to_owned(),
    ];
    ByHand { secrets, answers }
}

/// The password in a database's URL.
fn password(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let (user, _) = rest.split_once('@')?;
    Some(user.split_once(':')?.1.to_owned())
}

async fn no_secret_in_store_log_or_event(place: Arc<Place>) {
    fs::write(place.path("token"), format!("{TOKEN}\n")).unwrap();
    let (mut server, address) = talkative(&place, "127.0.0.1:0").await;
    let ByHand {
        mut secrets,
        answers: mut texts,
    } = by_hand(address).await;
    secrets.push(TOKEN.to_owned());
    // And a run of the real executor, which has the token from a file and its claims from nobody.
    let options = ExecutorOptions {
        token_file: Some(place.path("token")),
        ..ExecutorOptions::named("x1")
    };
    let mut worker = executor(&place, &format!("http://{address}"), &options);
    let created = send(address, Request::post("/sessions", &json!({}))).await;
    let session = api::text(&created.ok(), "session_id");
    let prompt = json!({"prompt": "say done"});
    let prompt = Request::post(format!("/sessions/{session}/prompt"), &prompt);
    let run = api::text(&send(address, prompt).await.ok(), "run_id");
    let settled = async || {
        let run = send(address, Request::get(format!("/runs/{run}")))
            .await
            .ok();
        is_terminal(&run).then_some(())
    };
    eventually("the run ends", LIMIT, settled).await;
    // Wrong tokens are secrets of somebody, too.
    let wrong = "somebody-elses-token-1234";
    let refused = Request::get("/sessions").header("authorization", format!("Bearer {wrong}"));
    let refused = refused.send(address).await;
    assert_eq!(refused.status, 401);
    secrets.push(wrong.to_owned());
    texts.push(("a refusal".to_owned(), refused.text()));
    if let Some(password) = place
        .postgres()
        .and_then(|database| password(database.url()))
    {
        secrets.push(password);
    }
    worker.terminate(LIMIT).await;
    server.terminate(LIMIT).await;
    assert!(
        server.log().contains("TRACE"),
        "the log holds the last detail"
    );
    texts.push(("the server's log".to_owned(), server.log()));
    texts.push(("the executor's log".to_owned(), worker.log()));
    let rows = rows(&place).await;
    assert!(
        rows.iter().any(|(_, rows)| rows.contains("StreamDelta")),
        "the rows are among what is looked at"
    );
    texts.extend(rows);
    for secret in &secrets {
        for (what, text) in &texts {
            let at = text.find(secret.as_str());
            let around = at.map(|at| {
                let from = text[..at].rfind('\n').map_or(0, |at| at + 1);
                text[from..].lines().next().unwrap_or_default()
            });
            assert_eq!(around, None, "{what} shows a secret");
        }
    }
}
