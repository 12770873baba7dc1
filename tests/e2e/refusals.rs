//! What a command says that can't do as it was told: an exit code that fits, and once, by the name
//! that the user gave, what is wrong.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::api;
use crate::postgres::Cluster;
use crate::server::{Output, Place, Server};
use crate::wait::within;

const UNKNOWN: &str = "018f0000-0000-7000-8000-000000000001";

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Fails unless the error names `given`, and nothing that a program made up beside it.
#[track_caller]
fn assert_names(told: &Output, given: &str) {
    assert!(told.err.contains(&format!("`{given}`")), "{}", told.err);
    let others = told.err.replace(given, "");
    for passing in [".tmp", ".part", ".draft"] {
        assert!(!others.contains(passing), "{}", told.err);
    }
    assert!(told.err.matches("os error").count() < 2, "{}", told.err);
}

/// A data directory with a session in it.
async fn place() -> (Arc<Place>, String) {
    let place = Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    let claim = api::spoken(&server, "p", 3).await;
    claim.complete(server.address).await;
    server.process.kill().await;
    (place, claim.session_id)
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_named_as_it_was_given() {
    let (place, session) = place().await;
    let data = place.data();
    let data = name(&data);
    let (folder, nowhere) = (place.work(), place.path("nowhere/file"));
    let (folder, nowhere) = (name(&folder), name(&nowhere));
    let file = place.path("no-folder");
    std::fs::write(&file, "something else\n").unwrap();
    let below = file.join("file");
    let (file, below) = (name(&file), name(&below));

    let commands: [(&[&str], [i32; 4]); 8] = [
        (&["storage", "import", "FILE"], [2, 3, 2, 2]),
        (&["storage", "export", "FILE"], [4, 3, 4, 2]),
        (&["storage", "backup", "FILE"], [4, 3, 4, 2]),
        (&["storage", "check", "FILE"], [2, 3, 8, 2]),
        (
            &["sessions", "export", &session, "-o", "FILE"],
            [2, 3, 0, 2],
        ),
        (
            &["serve", "--listen", "127.0.0.1:0", "--token-file", "FILE"],
            [2, 3, 2, 2],
        ),
        (&["sessions", "list", "--config", "FILE"], [2, 3, 0, 2]),
        (
            &["serve", "--listen", "127.0.0.1:0", "--ready-file", "FILE"],
            [2, 3, 0, 2],
        ),
    ];
    for (command, codes) in commands {
        for (given, code) in [folder, nowhere, file, below].into_iter().zip(codes) {
            if code == 0 {
                continue;
            }
            let mut arguments = vec!["--data-dir", data];
            arguments.extend(command.iter().map(|word| match *word {
                "FILE" => given,
                word => word,
            }));
            let told = place.run(&arguments).await.exits(code);
            assert_names(&told, given);
        }
    }
    for command in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["sessions", "list"],
    ] {
        for given in [file, below] {
            let arguments = [command, &["--data-dir", given]].concat();
            let told = place.run(&arguments).await.exits(2);
            assert_names(&told, given);
        }
    }
}

#[tokio::test]
async fn a_reason_is_told_once() {
    let (place, session) = place().await;
    let data = place.data();
    let asked: [(&[&str], &str); 3] = [
        (&["sessions", "list", "--limit", "0"], "must be 1 to 200"),
        (
            &["sessions", "fork", &session, "--seq", "999999"],
            "lies after the newest event",
        ),
        (&["sessions", "show", UNKNOWN], "there is no such session"),
    ];
    for (command, reason) in asked {
        let arguments = [command, &["--data-dir", name(&data)]].concat();
        let told = place.run(&arguments).await;
        assert_eq!(told.err.matches(reason).count(), 1, "{}", told.err);
    }
    let show = ["sessions", "show", UNKNOWN, "--data-dir", name(&data)];
    let told = place.run(&show).await.exits(3);
    let hint = "hint: `tapedeck sessions list` shows the sessions";
    assert!(told.err.contains(hint), "{}", told.err);
}

#[tokio::test]
async fn what_cannot_be_shown_is_no_success() {
    let place = Place::new();
    for arguments in [&["--help"][..], &["completions", "bash"], &["man"]] {
        let full = File::options().write(true).open("/dev/full");
        let mut command = place.command(arguments);
        command.stdout(full.unwrap()).stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().await.unwrap();
        let told = Output::of("into a full disk", &output).exits(5);
        assert!(told.err.contains("No space left"), "{}", told.err);
    }
}

#[tokio::test]
async fn a_run_that_could_not_begin_leaves_no_session() {
    let place = Place::new();
    let (data, file) = (place.data(), place.path("notes.txt"));
    std::fs::write(&file, "").unwrap();
    let begin = ["run", "--goal", "x", "--data-dir", name(&data)];
    for (wrong, says) in [
        (
            ["--agent", "demo", "--workspace", name(&file)],
            "is no directory",
        ),
        (
            ["--agent", "no-such-agent", "--workspace", "."],
            "`no-such-agent` is not there",
        ),
    ] {
        let told = place.run(&[&begin[..], &wrong].concat()).await.exits(2);
        assert!(told.err.contains(says), "{}", told.err);
    }
    let list = ["sessions", "list", "--json", "--data-dir", name(&data)];
    let listed = place.run(&list).await.exits(0).json_lines();
    assert_eq!(listed[0]["sessions"].as_array().unwrap().len(), 0);
}

#[tokio::test]
async fn another_service_at_the_address_is_told_from_a_server() {
    let place = Place::new();
    for (media_type, body) in [
        ("text/html", "<html>"),
        ("application/json", r#"{"ok":true}"#),
    ] {
        let (url, _service) = another_service(media_type, body).await;
        for command in [&["sessions", "list"][..], &["events", "--follow"]] {
            let told = place.run(&[command, &["--server", &url]].concat()).await;
            let told = told.exits(5);
            let says = format!("{url} does not answer like a Tapedeck server");
            assert!(told.err.contains(&says), "{}", told.err);
            assert!(!told.err.contains("hint"), "{}", told.err);
        }
    }
}

/// Answers every request with this until it is dropped.
async fn another_service(media_type: &str, body: &str) -> (String, JoinSet<()>) {
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut service = JoinSet::new();
    service.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _request = stream.read(&mut [0; 4096]).await;
            let _gone = stream.write_all(answer.as_bytes()).await;
        }
    });
    (url, service)
}

#[tokio::test]
async fn what_a_gone_server_owns_is_for_the_next_server() {
    let place = Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    let session = api::spoken(&server, "p", 3).await.session_id;
    server.process.kill().await;
    let data = place.data();
    let resume = [
        "resume",
        "--session",
        &session,
        "--agent",
        "demo",
        "--data-dir",
        name(&data),
    ];
    let told = place.run(&resume).await.exits(4);
    assert!(told.err.contains("server is gone"), "{}", told.err);
    assert!(told.err.contains("`tapedeck serve`"), "{}", told.err);
    assert!(!told.err.contains("try again once"), "{}", told.err);
    let repl = ["repl", "--session", &session, "--data-dir", name(&data)];
    let told = place.run(&repl).await;
    assert!(told.err.contains("server is gone"), "{}", told.err);
}

#[tokio::test]
async fn a_secret_that_cannot_be_shown_opens_nothing() {
    let place = Place::new();
    let data = place.data();
    let create = [
        "token",
        "create",
        "lost",
        "--role",
        "client",
        "--json",
        "--data-dir",
        name(&data),
    ];
    let mut command = place.command(&create);
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    command.stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let output = within(
        "a command",
        Duration::from_mins(1),
        child.wait_with_output(),
    )
    .await;
    let told = Output::of("token create", &output.unwrap());
    assert!(
        told.err.contains("the token is revoked again"),
        "{}",
        told.err
    );
    let list = [
        "token",
        "list",
        "--all",
        "--json",
        "--data-dir",
        name(&data),
    ];
    let listed = place.run(&list).await.exits(0).json_lines();
    assert!(
        listed[0]["tokens"][0]["revoked_at"].is_string(),
        "{listed:?}"
    );
}

#[tokio::test]
async fn a_database_that_the_server_does_not_have_is_not_there() {
    let missing = Cluster::shared().await.url_of("no_such_database");
    let (place, _) = place().await;
    let data = place.data();
    let export = place.path("export.jsonl");
    let made = [
        "storage",
        "export",
        name(&export),
        "--data-dir",
        name(&data),
    ];
    place.run(&made).await.exits(0);
    let commands: [&[&str]; 5] = [
        &["doctor"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["storage", "check"],
        &["storage", "export", "-"],
        &["storage", "import", name(&export)],
    ];
    for arguments in commands {
        let mut command = place.command(arguments);
        command.env("TAPEDECK_DATABASE", &missing);
        let output = within("a command", Duration::from_mins(1), command.output()).await;
        let told = Output::of(&arguments.join(" "), &output.unwrap()).exits(3);
        let sentence = "there is no database `no_such_database` on the PostgreSQL server";
        assert!(told.err.contains(sentence), "{}", told.err);
        assert!(!told.err.contains("is the server running"), "{}", told.err);
    }
}
