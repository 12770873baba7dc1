//! Tokens with roles on the real binary: made from the command line, used by a client and an executor,
//! ended while a stream is open.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{self, is_terminal};
use crate::http::{Frames, Request};
use crate::server::{ExecutorOptions, Place, Server, ServerOptions, executor};
use crate::wait::eventually;

on_both_stores! {
    a_client_and_an_executor_do_a_run_with_tokens_of_their_own,
}

const TOKEN: &str = "a-token-that-nobody-guesses-1234567890";

/// The request as whoever holds this secret.
fn by(request: Request, secret: &str) -> Request {
    request.header("authorization", format!("Bearer {secret}"))
}

/// Runs `tapedeck token` against a server.
async fn token(place: &Place, server: &Server, held: &Path, arguments: &[&str]) -> Value {
    let (url, held) = (server.url(), held.to_str().unwrap());
    let with = ["--server", &url, "--token-file", held, "--json", "token"];
    let ran = place.run(&[&with[..], arguments].concat()).await.exits(0);
    ran.json_lines().remove(0)
}

/// Makes a token whose secret goes into a file; gives the token, the file and the secret.
async fn make(
    place: &Place,
    server: &Server,
    held: &Path,
    arguments: &[&str],
) -> (Value, PathBuf, String) {
    let file = place.path(&format!("{}.token", arguments[0]));
    let out = ["--out", file.to_str().unwrap()];
    let create = [&["create"][..], arguments, &out[..]].concat();
    let made = token(place, server, held, &create).await;
    let secret = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    assert!(secret.starts_with("tdk_"));
    assert!(!made.to_string().contains(&secret));
    (made, file, secret)
}

/// Has a run done as whoever holds this secret; gives its session, and the stream of it.
async fn does_a_run(server: &Server, client: &str) -> (String, Frames) {
    let address = server.address;
    let create = by(Request::post("/sessions", &json!({})), client);
    let session = api::text(&create.send(address).await.ok(), "session_id");
    let follow = by(Request::get(format!("/sessions/{session}/events")), client);
    let stream = follow.open(address).await;
    let path = format!("/sessions/{session}/prompt");
    let prompt = by(Request::post(path, &json!({"prompt": "say done"})), client);
    let run = api::text(&prompt.send(address).await.ok(), "run_id");
    let settled = async || {
        let run = by(Request::get(format!("/runs/{run}")), client);
        let run = run.send(address).await.ok();
        is_terminal(&run).then_some(run)
    };
    let ended = eventually("the run ends", Duration::from_secs(30), settled).await;
    assert_eq!(ended["status"], "completed");
    (session, stream)
}

async fn a_client_and_an_executor_do_a_run_with_tokens_of_their_own(place: Arc<Place>) {
    let of_file = place.path("token");
    std::fs::write(&of_file, format!("{TOKEN}\n")).unwrap();
    let start = |name| {
        let options = ServerOptions {
            name: Some(name),
            token_file: Some(of_file.clone()),
            ..ServerOptions::default()
        };
        Server::start_with(&place, options)
    };
    let server = start("server").await;
    let role = ["--role", "client"];
    let team = [&["ada"][..], &role, &["--namespace", "team"]].concat();
    let (ada, ada_file, client) = make(&place, &server, &of_file, &team).await;
    let other = [&["eve"][..], &role].concat();
    let (_, _, stranger) = make(&place, &server, &of_file, &other).await;
    let fleet = ["fleet", "--role", "executor"];
    let (_, fleet_file, machine) = make(&place, &server, &of_file, &fleet).await;

    let options = ExecutorOptions {
        token_file: Some(fleet_file),
        ..ExecutorOptions::named("x1")
    };
    let worker = executor(&place, &server.url(), &options);
    let address = server.address;
    let (session, mut stream) = does_a_run(&server, &client).await;

    let show = || Request::get(format!("/sessions/{session}"));
    let hidden = by(show(), &stranger).send(address).await;
    assert_eq!(hidden.problem(), (404, "session_not_found".to_owned()));
    let refused = by(show(), &machine).send(address).await;
    assert_eq!(refused.problem(), (403, "forbidden".to_owned()));
    let url = server.url();
    let as_ada = ["--server", &url, "--token-file", ada_file.to_str().unwrap()];
    place
        .run(&[&as_ada[..], &["token", "list"]].concat())
        .await
        .exits(6);
    place
        .run(&[&as_ada[..], &["sessions", "show", &session]].concat())
        .await
        .exits(0);

    // Where there can be two servers, the other one is told.
    let second = if place.is_on_postgres() {
        Some(start("second").await)
    } else {
        None
    };
    let teller = second.as_ref().unwrap_or(&server);
    let id = ada["token_id"].as_str().unwrap();
    let revoked = token(&place, teller, &of_file, &["revoke", id]).await;
    assert_eq!(revoked["revoked_by"], "token");
    let is_refused = async || {
        let answer = by(show(), &client).send(address).await;
        (answer.status == 401).then_some(answer)
    };
    let refused = eventually("the token is refused", Duration::from_secs(2), is_refused).await;
    assert!(
        refused.text().contains("not accepted"),
        "{}",
        refused.text()
    );
    let frames = stream.rest().await;
    let last = frames.last().unwrap();
    assert_eq!(last.kind, "stream.end", "{last:?}");
    assert_eq!(last.data, json!({"reason": "token_ended"}));
    for secret in [&client, &stranger, &machine] {
        assert!(!server.process.log().contains(secret.as_str()));
        assert!(!worker.log().contains(secret.as_str()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_token_is_made_on_the_data_directory_and_opens_the_server_to_others() {
    let place = Place::new();
    let data = place.data();
    let data = data.to_str().unwrap();
    let file = place.path("ops.token");
    let create = ["token", "create", "ops", "--role", "operator", "--out"];
    let on_data = [&create[..], &[file.to_str().unwrap(), "--data-dir", data]].concat();
    let made = place.run(&on_data).await.exits(0);
    assert!(made.out.contains("operator") && !made.out.contains("tdk_"));
    let permissions = file.metadata().unwrap().permissions();
    assert_eq!(permissions.mode() & 0o777, 0o600);
    // A file that is there is no new one, and then no token is made.
    place.run(&on_data).await.exits(4);
    let taken = [
        "token",
        "create",
        "ops",
        "--role",
        "client",
        "--data-dir",
        data,
    ];
    place.run(&taken).await.exits(4);
    let listed = place
        .run(&["token", "list", "--data-dir", data, "--json"])
        .await;
    assert_eq!(
        listed.exits(0).json_lines()[0]["tokens"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    let ready = place.path("ready");
    let mut serve = place.command(&["serve", "--listen", "0.0.0.0:0", "--data-dir", data]);
    serve.arg("--ready-file").arg(&ready);
    let server = place.start("server", serve);
    let read = async || std::fs::read_to_string(&ready).ok();
    let url = eventually("the server answers", Duration::from_secs(30), read).await;
    let url = url.trim();
    let list = ["sessions", "list", "--server", url];
    place.run(&list).await.exits(6);
    let held = ["--token-file", file.to_str().unwrap()];
    place.run(&[&list[..], &held].concat()).await.exits(0);
    // Its last token ends, and it stays closed.
    let listed = [&["token", "list", "--server", url, "--json"][..], &held].concat();
    let listed = place.run(&listed).await.exits(0).json_lines().remove(0);
    let id = listed["tokens"][0]["token_id"].as_str().unwrap().to_owned();
    let revoke = [&["token", "revoke", &id, "--server", url][..], &held].concat();
    let revoked = place.run(&revoke).await.exits(0);
    assert!(revoked.err.contains("revoked"), "{}", revoked.err);
    place.run(&list).await.exits(6);
    assert!(!server.log().contains("tdk_"));
}

#[tokio::test]
async fn whoever_may_read_the_data_directory_is_let_in_whatever_tokens_there_are() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let (data, url) = (place.data(), server.url());
    let data = data.to_str().unwrap();
    let here = async |arguments: &[&str]| {
        let all = [arguments, &["--json", "--data-dir", data]].concat();
        place.run(&all).await.exits(0).json_lines().remove(0)
    };
    let elsewhere = async |code: i32| {
        let list = ["sessions", "list", "--server", &url];
        place.run(&list).await.exits(code)
    };
    elsewhere(0).await;
    let made = here(&["token", "create", "ada", "--role", "client"]).await;
    elsewhere(6).await;
    let list = here(&["token", "list"]).await;
    assert_eq!(list["tokens"][0]["created_by"], "local");
    let file = place.data().join("server.token").metadata().unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    // A token that is configured for another server is none of this one's.
    let foreign = place.path("foreign");
    std::fs::write(&foreign, "another-servers").unwrap();
    let mut command = place.command(&["sessions", "list", "--data-dir", data]);
    command.env("TAPEDECK_TOKEN_FILE", &foreign);
    assert!(command.status().await.unwrap().success());
    here(&["token", "revoke", &api::text(&made, "token_id")]).await;
    elsewhere(0).await;
}
