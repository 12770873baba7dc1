//! Who may talk to a server (faults 24).

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::{self, is_terminal, prompt, session_in};
use crate::http::Request;
use crate::server::{ExecutorOptions, Place, Server, ServerOptions, executor};
use crate::wait::eventually;

const TOKEN: &str = "a-token-that-nobody-guesses-1234567890";
const ID: &str = "018f0000-0000-7000-8000-000000000001";

/// A server that asks for the token, and the token's file.
async fn with_token(place: &Arc<Place>) -> (Server, PathBuf) {
    let token_file = place.path("token");
    std::fs::write(&token_file, format!("{TOKEN}\n")).unwrap();
    let options = ServerOptions {
        token_file: Some(token_file.clone()),
        ..ServerOptions::default()
    };
    (Server::start_with(place, options).await, token_file)
}

fn bearer(request: Request) -> Request {
    request.header("authorization", format!("Bearer {TOKEN}"))
}

#[tokio::test]
async fn other_machines_are_served_only_with_a_token() {
    let place = Place::new();
    let data = place.data();
    let data = data.to_str().unwrap();
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let refused = place
            .run(&["serve", "--listen", listen, "--data-dir", data])
            .await
            .exits(2);
        assert!(refused.err.contains("--token-file"), "{}", refused.err);
    }
    let empty = place.path("empty");
    std::fs::write(&empty, "\n").unwrap();
    let serve = [
        "serve",
        "--listen",
        "0.0.0.0:0",
        "--data-dir",
        data,
        "--token-file",
    ];
    let refused = place
        .run(&[&serve[..], &[empty.to_str().unwrap()]].concat())
        .await
        .exits(2);
    assert!(refused.err.contains("empty"), "{}", refused.err);
}

#[tokio::test]
async fn a_web_page_cannot_drive_a_local_server() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let create = || Request::post("/sessions", &json!({}));
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io:80",
        "0.0.0.0",
    ] {
        for request in [
            create(),
            Request::get("/sessions"),
            Request::get("/openapi.json"),
            Request::get("/healthz"),
        ] {
            let answer = request.host(host).send(server.address).await;
            assert_eq!(
                answer.problem(),
                (403, "host_forbidden".to_owned()),
                "{host}"
            );
        }
    }
    for origin in [
        "http://evil.example",
        "null",
        "https://localhost.evil.example",
    ] {
        let answer = create().header("origin", origin).send(server.address).await;
        assert_eq!(
            answer.problem(),
            (403, "origin_forbidden".to_owned()),
            "{origin}"
        );
    }
    // A page's simple request, whose preflight nobody asks for.
    let simple = Request::new("OPTIONS", "/sessions").header("origin", "http://evil.example");
    let preflight = simple
        .header("access-control-request-method", "POST")
        .send(server.address)
        .await;
    assert_eq!(preflight.header("access-control-allow-origin"), None);
    assert!(
        api::list(server.address, "/sessions", "sessions")
            .await
            .is_empty()
    );
    let local = create()
        .header("origin", "http://localhost:3000")
        .host("localhost");
    assert_eq!(local.send(server.address).await.status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_token_every_endpoint_asks_for_it() {
    let place = Arc::new(Place::new());
    let (server, _) = with_token(&place).await;
    let address = server.address;
    let document = bearer(Request::get("/openapi.json"))
        .send(address)
        .await
        .ok();
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path: String = path
            .split('/')
            .map(|part| if part.starts_with('{') { ID } else { part })
            .collect::<Vec<_>>()
            .join("/");
        for method in methods.as_object().unwrap().keys() {
            let method = match method.as_str() {
                "get" => "GET",
                "post" => "POST",
                "patch" => "PATCH",
                "put" => "PUT",
                "delete" => "DELETE",
                other => panic!("what is `{other}`?"),
            };
            for mount in ["", "/v1"] {
                let request = Request::new(method, format!("{mount}{path}"));
                let answer = request.send(address).await;
                assert_eq!(
                    answer.problem(),
                    (401, "unauthorized".to_owned()),
                    "{method} {path}"
                );
                asked += 1;
            }
        }
    }
    assert!(asked > 60, "only {asked} endpoints");
    for path in [
        "/docs",
        "/openapi.json",
        "/nothing",
        "/worker/runs/claim",
        "/metrics",
    ] {
        assert_eq!(Request::get(path).send(address).await.status, 401, "{path}");
    }
    for wrong in [
        "",
        "Bearer ",
        "Bearer a",
        &format!("Bearer {TOKEN}x"),
        &format!("Basic {TOKEN}"),
        &format!("Bearer {}", &TOKEN[1..]),
    ] {
        let answer = Request::get("/sessions")
            .header("authorization", wrong)
            .send(address)
            .await;
        assert_eq!(answer.problem().0, 401, "{wrong}");
        assert!(
            answer
                .header("www-authenticate")
                .is_some_and(|value| value.starts_with("Bearer"))
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_token_commands_work_and_other_names_are_welcome() {
    let place = Arc::new(Place::new());
    let (server, token_file) = with_token(&place).await;
    let elsewhere = bearer(Request::get("/sessions")).host("box.example");
    assert_eq!(elsewhere.send(server.address).await.status, 200);
    let file = token_file.to_str().unwrap();
    let url = server.url();
    place
        .run(&["sessions", "list", "--server", &url])
        .await
        .exits(6);
    place
        .run(&["sessions", "list", "--server", &url, "--token-file", file])
        .await
        .exits(0);
    let found = place.data();
    let by_directory = place
        .run(&["sessions", "list", "--data-dir", found.to_str().unwrap()])
        .await;
    by_directory.exits(0);
    let mut refused = executor(&place, &url, &ExecutorOptions::named("stranger"));
    let status = refused.ended(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(6), "{}", refused.log());
    assert!(!server.process.log().contains(TOKEN));
    let mode = std::fs::metadata(found.join("server.json"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(
        !std::fs::read_to_string(found.join("server.json"))
            .unwrap()
            .contains(TOKEN)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_works_with_the_token_and_its_agent_never_sees_it() {
    let place = Arc::new(Place::new());
    let (server, token_file) = with_token(&place).await;
    let options = ExecutorOptions {
        token_file: Some(token_file),
        ..ExecutorOptions::named("x1")
    };
    let worker = executor(&place, &server.url(), &options);
    let created = bearer(Request::post("/sessions", &json!({})))
        .send(server.address)
        .await
        .ok();
    let session = api::text(&created, "session_id");
    let path = format!("/sessions/{session}/prompt");
    let accepted = bearer(Request::post(path, &json!({"prompt": "slow 1; say done"})));
    let run = api::text(&accepted.send(server.address).await.ok(), "run_id");
    let mark = format!("TAPEDECK_RUN={run}");
    let agent = async || crate::server::processes_marked(&mark).first().copied();
    let agent = eventually("the agent runs", Duration::from_secs(30), agent).await;
    for file in ["environ", "cmdline"] {
        let seen = std::fs::read(format!("/proc/{agent}/{file}")).unwrap_or_default();
        let seen = String::from_utf8_lossy(&seen).into_owned();
        assert!(
            !seen.contains(TOKEN) && !seen.contains("TAPEDECK_TOKEN_FILE"),
            "{seen}"
        );
    }
    let settled = async || {
        let run = bearer(Request::get(format!("/runs/{run}")))
            .send(server.address)
            .await
            .ok();
        is_terminal(&run).then_some(run)
    };
    let run = eventually("the run ends", Duration::from_secs(30), settled).await;
    assert_eq!(run["status"], "completed");
    assert!(!worker.log().contains(TOKEN));
}

#[tokio::test]
async fn a_bad_request_leaves_no_secret_and_no_trace() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let session = session_in(server.address, "p").await;
    prompt(server.address, &session, "a-private-sentence").await;
    let refused = server
        .post(
            "/sessions",
            &json!({"title": 7, "prompt": "a-private-sentence"}),
        )
        .await;
    assert_eq!(refused.problem().0, 422);
    assert!(
        !server.process.log().contains("a-private-sentence"),
        "prompts stay out of the log"
    );
}
