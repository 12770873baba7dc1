//! Servers by name: what is remembered of them, who can read it, and that every command goes where
//! the name says.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api;
use crate::http::Request;
use crate::server::{ExecutorOptions, Process};
use crate::server::{Output, Place, Server, ServerOptions, executor};
use crate::terminal::{CTRL_C, CTRL_D, Terminal};
use crate::wait::{eventually, within};

const TOKEN: &str = "a-token-that-nobody-guesses-123456";
const LIMIT: Duration = Duration::from_secs(30);

/// A server that asks for a token, as if on another machine, and the file with the token.
async fn guarded(place: &Arc<Place>) -> (Server, PathBuf) {
    let file = place.path("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let options = ServerOptions {
        token_file: Some(file.clone()),
        ..ServerOptions::default()
    };
    (Server::start_with(place, options).await, file)
}

fn remotes_file(place: &Place) -> PathBuf {
    place.path("home").join(".config/tapedeck/remotes.toml")
}

/// Commands look at another data directory than the server's, so that they find it by name only.
async fn run(place: &Place, arguments: &[&str]) -> Output {
    let elsewhere = place.path("elsewhere");
    let arguments = [arguments, &["--data-dir", elsewhere.to_str().unwrap()]].concat();
    place.run(&arguments).await
}

async fn add(place: &Place, name: &str, url: &str, token: Option<&PathBuf>) -> Output {
    let mut arguments = vec!["remote", "add", name, url];
    let file = token.map(|file| file.to_str().unwrap().to_owned());
    if let Some(file) = &file {
        arguments.extend(["--token-file", file]);
    }
    run(place, &arguments).await
}

#[tokio::test]
async fn remotes_are_added_listed_and_removed_and_no_secret_is_shown() {
    let place = Place::new();
    let token = place.path("token");
    std::fs::write(&token, TOKEN).unwrap();
    let empty = run(&place, &["remote", "list"]).await.exits(0);
    assert!(empty.err.contains("remote add"), "{}", empty.err);

    let url = "https://tapedeck.example.com/";
    let added = add(&place, "home", url, Some(&token)).await.exits(0);
    assert!(!added.err.contains("plain text"), "{}", added.err);
    let open = add(&place, "open", "http://tapedeck.example.com", Some(&token)).await;
    let open = open.exits(0);
    assert!(open.err.contains("plain text"), "{}", open.err);
    let file = remotes_file(&place);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let folder = file.parent().unwrap().metadata().unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);

    add(&place, "home", url, None).await.exits(4);
    add(&place, "-x", url, None).await.exits(2);
    add(&place, "x", "tapedeck.example.com", None)
        .await
        .exits(2);
    add(&place, "x", "https://me:secret@example.com", None)
        .await
        .exits(2);
    let words = place.path("words");
    std::fs::write(&words, "two words").unwrap();
    let words = add(&place, "x", url, Some(&words)).await.exits(2);
    assert!(words.err.contains("one word"), "{}", words.err);
    let listed = run(&place, &["remote", "list", "--json"]).await.exits(0);
    assert_eq!(
        listed.json_lines(),
        [json!({"remotes": [
            {"name": "home", "url": url, "has_token": true},
            {"name": "open", "url": "http://tapedeck.example.com/", "has_token": true},
        ]})]
    );
    let table = run(&place, &["remote", "list"]).await.exits(0);
    let shown = run(&place, &["config", "show", "--remote", "home"]).await;
    for output in [added, open, listed, table, shown.exits(0)] {
        let all = output.out + &output.err;
        assert!(!all.contains(TOKEN), "{all}");
    }
    run(&place, &["remote", "remove", "home"]).await.exits(0);
    let gone = run(&place, &["remote", "remove", "home"]).await.exits(3);
    assert!(gone.err.contains("there are open"), "{}", gone.err);
}

#[tokio::test]
async fn a_token_is_taken_from_stdin_and_asked_for_at_a_terminal_unseen() {
    let place = Place::new();
    let add = [
        "remote",
        "add",
        "home",
        "http://127.0.0.1:1",
        "--token-stdin",
    ];
    let mut terminal = Terminal::start(place.command(&add));
    terminal.shows("Token:").await;
    terminal.types(CTRL_C).await;
    assert_eq!(terminal.ends().await.code(), Some(7));
    let mut terminal = Terminal::start(place.command(&add));
    terminal.shows("Token:").await;
    terminal.enters(TOKEN).await;
    terminal.shows("added").await;
    assert!(terminal.ends().await.success());
    assert!(!terminal.text().contains(TOKEN), "{}", terminal.text());
    let stored = || std::fs::read_to_string(remotes_file(&place)).unwrap();
    assert!(stored().contains(TOKEN));

    let mut command = place.command(&[&add[..], &["--replace"]].concat());
    let input = place.path("input");
    std::fs::write(&input, "another-token\n").unwrap();
    command.stdin(std::fs::File::open(&input).unwrap());
    let output = within("remote add", LIMIT, command.output()).await.unwrap();
    Output::of("remote add", &output).exits(0);
    assert!(stored().contains("another-token") && !stored().contains(TOKEN));
    // Nothing on stdin is no token, and neither are two lines.
    run(&place, &[&add[..], &["--replace"]].concat())
        .await
        .exits(2);
    std::fs::write(&input, "one-token\ntwo-token\n").unwrap();
    let mut command = place.command(&[&add[..], &["--replace"]].concat());
    command.stdin(std::fs::File::open(&input).unwrap());
    let output = within("remote add", LIMIT, command.output()).await.unwrap();
    Output::of("remote add", &output).exits(2);
    assert!(stored().contains("another-token"));
}

#[tokio::test]
async fn every_command_goes_where_the_name_says() {
    let place = Arc::new(Place::new());
    let (server, token) = guarded(&place).await;
    let url = server.url();
    add(&place, "home", &url, Some(&token)).await.exits(0);
    let post = Request::post("/sessions", &json!({"title": "far away"}));
    let post = post.header("authorization", format!("Bearer {TOKEN}"));
    let session = post.send(server.address).await.ok();
    let session = api::text(&session, "session_id");

    for command in [
        "sessions list",
        &format!("sessions show {session}"),
        &format!("sessions checkpoint {session}"),
        "runs list",
        "approvals list",
        "executors list",
        "events",
    ] {
        let mut arguments: Vec<_> = command.split(' ').collect();
        arguments.extend(["--json", "--remote", "home"]);
        let output = run(&place, &arguments).await.exits(0);
        assert_eq!(output.err, "", "{command}");
    }
    let mut command = place.command(&["sessions", "list", "--json"]);
    command.env("TAPEDECK_REMOTE", "home");
    let output = within("sessions list", LIMIT, command.output()).await;
    let output = Output::of("sessions list", &output.unwrap()).exits(0);
    assert!(output.out.contains("far away"), "{}", output.out);

    // An executor serves a remote, too, and a run through it ends well.
    let mut command = place.command(&["executor", "--remote", "home", "--agent", "demo"]);
    command.arg("--workspace-root").arg(place.work());
    let _executor: Process = place.start("x1", command);
    let goal = ["run", "--goal", "say hello", "--remote", "home", "--json"];
    let output = run(&place, &goal).await.exits(0);
    let result = output.json_lines().pop().unwrap();
    assert_eq!(result["status"], "completed", "{result}");
}

#[tokio::test]
async fn what_is_wrong_with_a_remote_is_one_line_and_its_own_exit() {
    let place = Arc::new(Place::new());
    let (server, token) = guarded(&place).await;
    let url = server.url();
    let list = |name: &'static str| ["sessions", "list", "--remote", name];
    let unknown = run(&place, &list("home")).await.exits(3);
    assert_eq!(unknown.err.lines().count(), 1, "{}", unknown.err);
    add(&place, "home", &url, None).await.exits(0);

    let both = [&list("home")[..], &["--server", &url]].concat();
    let both = run(&place, &both).await.exits(2);
    assert!(both.err.contains("exclude each other"), "{}", both.err);
    // The token of the configuration is another server's: it isn't shown to this one.
    let mut command = place.command(&list("home"));
    command.env("TAPEDECK_TOKEN_FILE", &token);
    let output = within("sessions list", LIMIT, command.output()).await;
    Output::of("sessions list", &output.unwrap()).exits(6);
    let file = token.to_str().unwrap();
    let named = [&list("home")[..], &["--token-file", file]].concat();
    run(&place, &named).await.exits(0);
    // What looks at the database itself needs it here.
    run(&place, &["doctor", "--remote", "home"]).await.exits(2);

    std::fs::set_permissions(remotes_file(&place), PermissionsExt::from_mode(0o644)).unwrap();
    run(&place, &list("home")).await.exits(6);
    add(&place, "with", &url, Some(&token)).await.exits(0);
    std::fs::set_permissions(remotes_file(&place), PermissionsExt::from_mode(0o644)).unwrap();
    let open = run(&place, &list("with")).await.exits(2);
    assert!(open.err.contains("chmod 600"), "{}", open.err);
    drop(server);
}

#[tokio::test]
async fn attach_follows_from_elsewhere_over_a_restart_and_answers_at_the_terminal() {
    let place = Arc::new(Place::new());
    let (mut server, token) = guarded(&place).await;
    add(&place, "home", &server.url(), Some(&token))
        .await
        .exits(0);
    let options = ExecutorOptions {
        lease_seconds: 30,
        token_file: Some(token),
        ..ExecutorOptions::named("x1")
    };
    let _executor = executor(&place, &server.url(), &options);
    let goal = "say first words; slow 2; ask edit {\"path\": \"a.txt\"}; say last words";
    let mut command = place.command(&["run", "--goal", goal, "--remote", "home", "--json"]);
    command.arg("--data-dir").arg(place.path("elsewhere"));
    let starter = place.start("run", command);
    let begun = async || {
        let line = starter.log().lines().next()?.to_owned();
        serde_json::from_str::<serde_json::Value>(&line).ok()
    };
    let begun = eventually("the run begins", LIMIT, begun).await;
    let session = api::text(&begun, "session_id");

    let elsewhere = place.path("elsewhere");
    let mut command = place.command(&["attach", &session, "--remote", "home"]);
    command.arg("--data-dir").arg(&elsewhere);
    let mut terminal = Terminal::start(command);
    terminal.shows("first words").await;
    server.process.kill().await;
    terminal.shows("the server is away").await;
    server.restart().await;
    terminal.shows("the server is back").await;
    terminal.shows("[y]es").await;
    terminal.enters("what?").await;
    terminal.shows("[y]es").await;
    terminal.enters("n not that file").await;
    terminal.shows("denied").await;
    terminal.shows("not that file").await;
    terminal.shows("last words").await;
    terminal.shows("completed").await;
    assert!(terminal.ends().await.success());
    let text = terminal.text();
    assert_eq!(
        text.matches("first words").count(),
        2,
        "prompt and words: {text}"
    );
}

#[tokio::test]
async fn a_form_is_filled_in_at_the_terminal_or_left_for_somebody_else() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let address = server.address;
    add(&place, "home", &server.url(), None).await.exits(0);
    let session = api::session_of(address, &json!({"title": "forms"})).await;
    api::prompt(address, &session, "go").await;
    let claim = api::Claim::take(address, "default").await;
    let form = json!({
        "type": "object",
        "properties": {"branch": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["branch"],
    });
    let ask = async || {
        let body = json!({
            "request_id": "q", "message": "Where to?", "form": form, "wait_seconds": 0,
        });
        claim.request("question", body).send(address).await.ok()
    };
    ask().await;
    let attach = |arguments: &[&str]| {
        let mut command = place.command(&["attach", &session, "--remote", "home"]);
        command.args(arguments);
        command.arg("--data-dir").arg(place.path("elsewhere"));
        Terminal::start(command)
    };
    let mut reader = attach(&["--read-only"]);
    reader
        .shows("tapedeck --remote home approvals answer")
        .await;
    let mut first = attach(&[]);
    first.shows("branch").await;
    first.types(CTRL_D).await;
    first.shows("tapedeck --remote home approvals answer").await;
    assert_eq!(ask().await["status"], "pending");

    let mut second = attach(&[]);
    second.shows("branch").await;
    second.enters("main").await;
    second.shows("count").await;
    second.enters("many").await;
    second.shows("count must").await;
    second.shows("count").await;
    second.enters("3").await;
    for terminal in [&mut first, &mut second, &mut reader] {
        terminal.shows("answered").await;
    }
    let told = ask().await;
    assert_eq!(told["response"], json!({"branch": "main", "count": 3}));
    claim.complete(address).await;
    for mut terminal in [first, second, reader] {
        terminal.shows("completed").await;
        assert!(terminal.ends().await.success());
    }
}

#[tokio::test]
async fn a_conversation_with_a_remote_outlives_its_restart() {
    let place = Arc::new(Place::new());
    let (mut server, token) = guarded(&place).await;
    add(&place, "home", &server.url(), Some(&token))
        .await
        .exits(0);
    let mut command = place.command(&["repl", "--remote", "home"]);
    command.arg("--data-dir").arg(place.path("elsewhere"));
    // A history that can't be kept is told of and is no reason to refuse.
    command.env("TAPEDECK_HISTORY_FILE", place.path("token").join("history"));
    let mut terminal = Terminal::start(command);
    terminal.shows("can't be used").await;
    terminal.shows("prompts go to the server").await;
    terminal.shows("tapedeck> ").await;
    terminal.enters("say first; slow 2; say second").await;
    terminal.shows_for_now("waiting for an executor").await;
    let options = ExecutorOptions {
        lease_seconds: 30,
        token_file: Some(token),
        ..ExecutorOptions::named("x1")
    };
    let _executor = executor(&place, &server.url(), &options);
    terminal.shows("\nfirst").await;
    server.restart().await;
    terminal.shows("\nsecond").await;
    terminal.shows("✓ completed").await;
    terminal.shows("tapedeck> ").await;
    server.restart().await;
    terminal.enters("say third").await;
    terminal.shows("\nthird").await;
    terminal.shows("✓ completed").await;
    // A question that is put away is answered later.
    terminal.shows("tapedeck> ").await;
    terminal.enters("ask shell {}; say fourth").await;
    terminal.shows("[y]es").await;
    terminal.types(CTRL_D).await;
    terminal.shows("`/approve` or `/deny` answers it").await;
    terminal.shows("tapedeck> ").await;
    terminal.enters("/approve").await;
    terminal.shows("tapedeck> ").await;
    terminal.enters("/attach").await;
    terminal.shows("\nfourth").await;
    terminal.shows("✓ completed").await;
    terminal.shows("tapedeck> ").await;
    terminal.types(CTRL_D).await;
    assert!(terminal.ends().await.success());
}

#[tokio::test]
async fn what_a_command_cannot_use_is_refused_and_told_in_a_line() {
    let place = Place::new();
    let url = "http://127.0.0.1:1";
    // A server that a command has no use for is not left out in silence.
    for command in ["serve", "demo", "doctor", "storage check"] {
        let mut arguments: Vec<_> = command.split(' ').collect();
        arguments.extend(["--server", url]);
        let refused = place.run(&arguments).await.exits(2);
        assert!(refused.err.contains("--server"), "{}", refused.err);
    }
    let mut meant = place.command(&["doctor"]);
    meant.env("TAPEDECK_SERVER", url);
    let meant = Output::of("doctor", &meant.output().await.unwrap()).exits(2);
    assert!(meant.err.contains("TAPEDECK_SERVER"), "{}", meant.err);
    let secret = [
        "sessions",
        "list",
        "--server",
        "http://me:secret@127.0.0.1:1",
    ];
    let secret = place.run(&secret).await.exits(2);
    assert!(!secret.err.contains("secret@"), "{}", secret.err);
    let missing = [
        "sessions",
        "list",
        "--server",
        url,
        "--token-file",
        "missing",
    ];
    place.run(&missing).await.exits(3);
    // One line says what is wrong, one where to read more.
    let wrong = place.run(&["run", "--gaol", "x"]).await.exits(2);
    assert_eq!(wrong.err.lines().count(), 2, "{}", wrong.err);
    assert!(wrong.err.contains("'--goal'"), "{}", wrong.err);
}
