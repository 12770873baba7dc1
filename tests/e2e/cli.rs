//! The command line as people and scripts meet it: exit codes, JSON, help, and what a kill leaves.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{self, session_in, text};
use crate::database;
use crate::http::Request;
use crate::server::{Place, Server, none_marked, processes_marked};
use crate::terminal::{CTRL_C, Terminal};
use crate::wait::eventually;

const UNKNOWN: &str = "018f0000-0000-7000-8000-000000000001";

async fn nothing_runs(place: &Place) {
    none_marked(&place.mark(), Duration::from_secs(20)).await;
}

fn objects(lines: &[Value], field: &str, value: &str) -> Vec<Value> {
    lines
        .iter()
        .filter(|line| line[field] == value)
        .cloned()
        .collect()
}

#[tokio::test]
async fn the_demo_ends_well_and_leaves_nothing() {
    let place = Place::new();
    let demo = place
        .run_for(&["demo"], Duration::from_secs(90))
        .await
        .exits(0);
    assert!(!demo.out.is_empty(), "it tells its story");
    nothing_runs(&place).await;
    let left = std::fs::read_dir(place.path("home")).unwrap().count();
    assert_eq!(left, 0, "the demo writes nothing into the home directory");
}

#[tokio::test]
async fn a_killed_demo_takes_its_processes_along() {
    let place = Place::new();
    let mut demo = place.start("demo", place.command(&["demo"]));
    // The demo itself, its server, and an executor.
    let started = async || (processes_marked(&place.mark()).len() >= 3).then_some(());
    eventually("the demo's processes run", Duration::from_secs(30), started).await;
    demo.kill().await;
    nothing_runs(&place).await;
}

#[tokio::test]
async fn a_goal_runs_without_a_server() {
    let place = Place::new();
    let data = place.data();
    let data = data.to_str().unwrap();
    let goal = "say hello; write made.txt text; say bye";
    let run = [
        "run",
        "--goal",
        goal,
        "--agent",
        "demo",
        "--approval-policy",
        "yolo",
        "--json",
        "--data-dir",
        data,
    ];
    let output = place.run(&run).await.exits(0);
    let lines = output.json_lines();
    let result = lines.last().unwrap();
    assert_eq!(
        (&result["type"], &result["status"], &result["error"]),
        (&json!("result"), &json!("completed"), &Value::Null)
    );
    let said: String = objects(&lines, "type", "StreamDelta")
        .iter()
        .map(|line| text(line, "content"))
        .collect();
    assert_eq!(said, "hellobye");
    assert_eq!(
        std::fs::read_to_string(place.work().join("made.txt")).unwrap(),
        "text"
    );
    nothing_runs(&place).await;

    let session = text(result, "session_id");
    let shown = place
        .run(&["sessions", "show", &session, "--json", "--data-dir", data])
        .await
        .exits(0);
    let shown = &shown.json_lines()[0];
    assert_eq!(
        (&shown["status"], &shown["resumable"]),
        (&json!("completed"), &json!(true))
    );
    let events = place
        .run(&["sessions", "events", &session, "--json", "--data-dir", data])
        .await
        .exits(0);
    api::assert_dense(&events.json_lines());
    let runs = place
        .run(&["runs", "list", &session, "--json", "--data-dir", data])
        .await
        .exits(0);
    let runs = &runs.json_lines()[0];
    assert_eq!(
        (&runs["runs"][0]["status"], &runs["next_cursor"]),
        (&json!("completed"), &Value::Null)
    );
}

#[tokio::test]
async fn a_run_without_a_server_says_how_it_ended() {
    let place = Place::new();
    let data = place.data();
    let data = data.to_str().unwrap();
    // A question nobody can answer is denied, and the run goes on.
    let asking = [
        "run",
        "--goal",
        "ask edit {}; say on",
        "--agent",
        "demo",
        "--json",
        "--data-dir",
        data,
    ];
    let output = place.run(&asking).await.exits(0);
    assert!(output.out.contains("not allowed"), "{}", output.out);
    let failing = [
        "run",
        "--goal",
        "fail no luck",
        "--agent",
        "demo",
        "--json",
        "--data-dir",
        data,
    ];
    let failed = place.run(&failing).await.exits(1);
    let lines = failed.json_lines();
    assert!(text(lines.last().unwrap(), "error").contains("no luck"));
}

#[tokio::test]
async fn a_killed_run_is_resumed_at_once() {
    let place = Place::new();
    let data = place.data();
    let data = data.to_str().unwrap();
    let goal = "say begin; slow 120";
    let mut command = place.command(&[
        "run",
        "--goal",
        goal,
        "--agent",
        "demo",
        "--json",
        "--data-dir",
        data,
    ]);
    command.args(["--approval-policy", "yolo"]);
    let mut process = place.start("run", command);
    let speaks = async || process.log().contains("tick 2").then_some(());
    eventually("the agent speaks", Duration::from_secs(30), speaks).await;
    process.kill().await;
    nothing_runs(&place).await;
    database::check(&place.data()).await;

    let resume = [
        "resume",
        "--last",
        "--prompt",
        "say again",
        "--json",
        "--data-dir",
        data,
    ];
    let resumed = place
        .run_for(&resume, Duration::from_secs(10))
        .await
        .exits(0);
    let lines = resumed.json_lines();
    let result = lines.last().unwrap();
    assert_eq!(result["status"], "completed", "{result}");
    let session = text(result, "session_id");
    let runs = place
        .run(&["runs", "list", &session, "--json", "--data-dir", data])
        .await
        .exits(0);
    let runs = runs.json_lines()[0]["runs"].as_array().unwrap().clone();
    let statuses: Vec<_> = runs.iter().map(|run| text(run, "status")).collect();
    assert_eq!(statuses, ["completed", "interrupted"]);
    assert_eq!(runs[0]["parent_run_id"], runs[1]["run_id"]);
    let events = place
        .run(&["sessions", "events", &session, "--json", "--data-dir", data])
        .await
        .exits(0);
    let events = events.json_lines();
    api::assert_dense(&events);
    // All that was printed before the kill is in the log: nothing is shown that isn't stored.
    let log = process.log();
    let printed = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    for event in printed.filter(|line| line["session_seq"].is_u64()) {
        let stored = &events[usize::try_from(api::seq(&event)).unwrap() - 1];
        assert_eq!(stored["event_id"], event["event_id"]);
    }
}

#[tokio::test]
async fn exit_codes_say_what_went_wrong() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let url = server.url();
    let data = place.path("elsewhere");
    let data = data.to_str().unwrap();
    place
        .run(&["sessions", "list", "--no-such-flag"])
        .await
        .exits(2);
    place.run(&["nonsense"]).await.exits(2);
    place
        .run(&["run", "--goal", "x", "--data-dir", data])
        .await
        .exits(2);
    place
        .run(&["sessions", "show", UNKNOWN, "--server", &url])
        .await
        .exits(3);
    place
        .run(&["runs", "cancel", UNKNOWN, "--server", &url])
        .await
        .exits(3);
    place
        .run(&["approvals", "approve", UNKNOWN, "--server", &url])
        .await
        .exits(3);
    place
        .run(&["resume", "--last", "--agent", "demo", "--data-dir", data])
        .await
        .exits(3);
    let session = session_in(server.address, "p").await;
    place
        .run(&["resume", "--session", &session, "--server", &url])
        .await
        .exits(4);
    // Nobody listens on a port that was just given back.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let away = format!("http://{free}");
    let unreachable = place
        .run(&["sessions", "list", "--server", &away])
        .await
        .exits(5);
    for says in ["tapedeck serve", &away] {
        assert!(unreachable.err.contains(says), "{}", unreachable.err);
    }
    place.run(&["--version"]).await.exits(0);
    // With `--json` errors are an object, too, and stdout stays clean.
    let refused = place
        .run(&["sessions", "show", UNKNOWN, "--server", &url, "--json"])
        .await
        .exits(3);
    assert_eq!(refused.out, "");
    let error: Value = serde_json::from_str(refused.err.trim()).unwrap();
    assert_eq!(
        (&error["code"], &error["exit"]),
        (&json!("session_not_found"), &json!(3))
    );
    // A pipe whose reader leaves is no error.
    let mut command = place.command(&["sessions", "list", "--server", &url]);
    command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

/// A value with the kinds of its leaves instead of the leaves.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), shape(value)))
            .collect(),
        Value::Array(items) => items.iter().map(shape).collect(),
        Value::String(_) => json!("text"),
        Value::Number(_) => json!("number"),
        Value::Bool(_) => json!("true or false"),
        Value::Null => Value::Null,
    }
}

#[tokio::test]
async fn the_shapes_that_scripts_read_are_stable() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let address = server.address;
    let session = api::session_of(address, &json!({"title": "shapes"})).await;
    let path = format!("/sessions/{session}/checkpoints");
    let label = json!({"label": "place"});
    Request::post(path, &label).send(address).await.ok();
    let (run, _) = api::prompt(address, &session, "go").await;
    let claim = api::Claim::take(address, "default").await;
    let question = json!({"request_id": "q", "tool_name": "edit", "wait_seconds": 0});
    claim.request("approval", question).send(address).await.ok();
    let url = server.url();
    let mut shapes = serde_json::Map::new();
    for command in [
        "sessions list",
        &format!("sessions show {session}"),
        &format!("sessions events {session} --kinds RunRequested"),
        &format!("sessions result {session}"),
        &format!("sessions tape {session}"),
        &format!("sessions checkpoints {session}"),
        &format!("runs list {session}"),
        &format!("runs show {run}"),
        "approvals list",
        "executors list",
    ] {
        let mut arguments: Vec<_> = command.split(' ').collect();
        arguments.extend(["--json", "--server", &url]);
        let output = place.run(&arguments).await.exits(0);
        let name = command.replace(&session, "ID").replace(&run, "ID");
        shapes.insert(name, output.json_lines().iter().map(shape).collect());
    }
    insta::assert_json_snapshot!(shapes);
}

#[tokio::test]
async fn the_tables_that_people_read_are_stable() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let address = server.address;
    let session = api::session_of(address, &json!({"title": "tables"})).await;
    let path = format!("/sessions/{session}/checkpoints");
    let label = json!({"label": "place"});
    Request::post(path, &label).send(address).await.ok();
    let (run, _) = api::prompt(address, &session, "go").await;
    let claim = api::Claim::take(address, "default").await;
    let question = json!({
        "request_id": "q", "tool_name": "edit", "arguments": {"path": "a"}, "wait_seconds": 0,
    });
    claim.request("approval", question).send(address).await.ok();
    let url = server.url();
    place
        .run(&["remote", "add", "home", "https://tapedeck.example.com"])
        .await
        .exits(0);
    let mut tables = String::new();
    for command in [
        "sessions list",
        &format!("sessions show {session}"),
        &format!("sessions events {session} --kinds RunRequested,ApprovalRequest"),
        &format!("sessions tape {session}"),
        &format!("sessions checkpoints {session}"),
        &format!("runs list {session}"),
        &format!("runs show {run}"),
        "approvals list",
        "executors list",
        "remote list",
    ] {
        let mut arguments: Vec<_> = command.split(' ').collect();
        arguments.extend(["--server", &url]);
        let output = place.run(&arguments).await.exits(0);
        tables.extend(["$ tapedeck ", command, "\n", &output.out, "\n"]);
    }
    insta::with_settings!({filters => [
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "[id of thirty-six characters ......]"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "[a second in time..]"),
        (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "[time]"),
    ]}, { insta::assert_snapshot!(tables) });
}

#[tokio::test]
async fn tables_fit_the_terminal_and_colours_can_be_refused() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let title = "a title that is rather long ".repeat(4);
    api::session_of(server.address, &json!({"title": title})).await;
    let url = server.url();
    let list = |variables: &[(&str, &str)]| {
        let mut command = place.command(&["sessions", "list", "--server", &url]);
        command.envs(variables.iter().copied());
        command
    };
    let mut terminal = Terminal::sized(list(&[]), 100);
    assert!(terminal.ends().await.success());
    terminal.shows("created").await;
    assert!(!terminal.has_long_lines(), "{}", terminal.text());
    assert!(terminal.is_coloured());
    let mut terminal = Terminal::sized(list(&[("NO_COLOR", "1")]), 100);
    assert!(terminal.ends().await.success());
    terminal.shows("created").await;
    assert!(!terminal.is_coloured());
    // Where a table has no room each row is a paragraph.
    let mut terminal = Terminal::sized(list(&[]), 40);
    assert!(terminal.ends().await.success());
    terminal.shows("status").await;
    terminal.shows("created").await;
    assert!(!terminal.has_long_lines(), "{}", terminal.text());
    // Nothing but text goes where no terminal is.
    let listed = place.run(&["sessions", "list", "--server", &url]).await;
    let listed = listed.exits(0);
    assert!(!listed.out.contains('\u{1b}'), "{}", listed.out);

    let run = |variables: &[(&str, &str)]| {
        let goal = ["run", "--agent", "demo", "--goal", "fail no luck"];
        let mut command = place.command(&goal);
        command.arg("--data-dir").arg(place.path("elsewhere"));
        command.envs(variables.iter().copied());
        Terminal::start(command)
    };
    let mut terminal = run(&[]);
    assert_eq!(terminal.ends().await.code(), Some(1));
    terminal.shows("no luck").await;
    assert!(terminal.is_coloured());
    let mut terminal = run(&[("NO_COLOR", "1")]);
    assert_eq!(terminal.ends().await.code(), Some(1));
    terminal.shows("no luck").await;
    assert!(!terminal.is_coloured());
}

#[tokio::test]
async fn a_person_sees_that_work_goes_on_and_a_script_reads_plain_lines() {
    let place = Place::new();
    let data = place.data();
    let data = data.to_str().unwrap();
    let goal = ["run", "--agent", "demo", "--goal", "begin shell {}; hang"];
    let mut command = place.command(&goal);
    command.args(["--data-dir", data]);
    let mut terminal = Terminal::start(command);
    terminal.shows("▸ shell").await;
    terminal.shows_for_now("working (").await;
    terminal.types(CTRL_C).await;
    terminal.shows("! cancelled").await;
    assert_eq!(terminal.ends().await.code(), Some(7));
    assert!(
        !terminal.text().contains("working ("),
        "{}",
        terminal.text()
    );

    let export = |name: &'static str| {
        let file = place.path(name).to_str().unwrap().to_owned();
        ["storage".to_owned(), "export".to_owned(), file]
    };
    let mut command = place.command(&[]);
    command.args(export("a")).args(["--data-dir", data]);
    let mut terminal = Terminal::start(command);
    assert!(terminal.ends().await.success());
    terminal.shows(" rows").await;
    assert!(
        !terminal.text().contains("exporting"),
        "{}",
        terminal.text()
    );
    let run = async |arguments: &[&str]| {
        let [storage, export, file] = export("b");
        let _absent = std::fs::remove_file(&file);
        let all = [
            &[&*storage, &*export, &*file, "--data-dir", data],
            arguments,
        ]
        .concat();
        place.run(&all).await.exits(0)
    };
    assert_eq!(run(&[]).await.err, "exporting\n");
    assert_eq!(run(&["--json"]).await.err, "");
}

#[tokio::test]
async fn the_manual_has_a_page_for_each_command() {
    let place = Place::new();
    let page = place.run(&["man"]).await.exits(0);
    assert!(page.out.contains(".TH tapedeck 1"), "{}", page.out);
    assert!(page.out.contains("\n.SH \"EXIT STATUS\"\n"), "{}", page.out);
    let dir = place.path("man");
    let into = ["man", "--dir", dir.to_str().unwrap()];
    let written = place.run(&into).await.exits(0);
    assert_eq!(written.out, "");
    for command in ["", "-run", "-repl", "-remote-add", "-approvals-rules-add"] {
        let page = dir.join(format!("tapedeck{command}.1"));
        let page = std::fs::read_to_string(&page).unwrap();
        assert!(page.contains("\n.SH EXAMPLES\n"), "{page}");
        assert!(!page.contains("EXTRA"), "{page}");
    }
    let in_the_way = place.path("file");
    std::fs::write(&in_the_way, "").unwrap();
    place
        .run(&["man", "--dir", in_the_way.to_str().unwrap()])
        .await
        .exits(4);
}

/// Each page names the pages below it. What all commands share is shown with the first alone.
#[tokio::test]
async fn the_help_is_as_documented() {
    let place = Place::new();
    let mut help = String::new();
    let mut pages = vec![String::new()];
    while let Some(command) = pages.pop() {
        let mut arguments: Vec<_> = command.split_whitespace().collect();
        arguments.push("--help");
        let page = place.run(&arguments).await.exits(0).out;
        assert!(page.contains("\nExamples:\n  tapedeck "), "{page}");
        let below = page.lines().skip_while(|line| *line != "Commands:").skip(1);
        let below: Vec<_> = below
            .take_while(|line| !line.is_empty())
            .filter_map(|line| line.strip_prefix("  "))
            .filter(|line| !line.starts_with(' '))
            .filter_map(|line| line.split(' ').next())
            .filter(|name| *name != "help")
            .map(|name| format!("{command} {name}"))
            .collect();
        pages.extend(below.into_iter().rev());
        help.extend(["$ tapedeck ", &arguments.join(" "), "\n"]);
        let mut in_shared = false;
        for line in page.lines() {
            in_shared = match line {
                "Global options:" => !command.is_empty(),
                _ => in_shared && (line.is_empty() || line.starts_with(' ')),
            };
            if !in_shared {
                help.extend([line, "\n"]);
            }
        }
        help.push('\n');
    }
    insta::assert_snapshot!(help);
}
