//! The conversation at a terminal, with the real binary in a pseudo-terminal: prompts, questions,
//! Ctrl-C, kill -9 and what comes after it; alone, beside another terminal, and with a server.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use crate::api::text;
use crate::server::{ExecutorOptions, Output, Place, Server, executor, none_marked};
use crate::terminal::{CTRL_C, CTRL_D, Terminal};
use crate::wait::{eventually, within};

const LIMIT: Duration = Duration::from_secs(30);
const PROMPT: &str = "tapedeck> ";
const UP: &str = "\u{1b}[A";
const SEARCH: &str = "\u{12}";

/// A REPL without a server, on the place's data directory.
fn repl(place: &Place, arguments: &[&str]) -> Terminal {
    let mut command = place.command(&["repl"]);
    command.args(arguments).arg("--data-dir").arg(place.data());
    Terminal::start(command)
}

/// A run ends well, and the next prompt can be typed.
async fn completes(terminal: &mut Terminal) {
    terminal.shows("✓ completed").await;
    terminal.shows(PROMPT).await;
}

/// The newest session as scripts see it.
async fn newest(place: &Place) -> Value {
    let data = place.data();
    let data = data.to_str().unwrap();
    let list = ["sessions", "list", "--json", "--data-dir", data];
    let list = place.run(&list).await.exits(0);
    list.json_lines()[0]["sessions"][0].clone()
}

/// The statuses of the newest session's runs, the oldest first.
async fn statuses(place: &Place) -> Vec<String> {
    let session = text(&newest(place).await, "session_id");
    let data = place.data();
    let data = data.to_str().unwrap();
    let runs = ["runs", "list", &session, "--json", "--data-dir", data];
    let runs = place.run(&runs).await.exits(0);
    let runs = runs.json_lines()[0]["runs"].as_array().unwrap().clone();
    runs.iter().rev().map(|run| text(run, "status")).collect()
}

async fn nothing_runs(place: &Place) {
    none_marked(&place.mark(), LIMIT).await;
}

#[tokio::test]
async fn a_conversation_keeps_its_session_and_what_was_typed_is_remembered() {
    let place = Place::new();
    let mut terminal = repl(&place, &["--agent", "demo"]);
    terminal.shows(PROMPT).await;
    terminal.enters("plan Look | Leap; say first answer").await;
    terminal.shows("\n□ Look").await;
    terminal.shows("\nfirst answer").await;
    completes(&mut terminal).await;
    // A line that ends in a backslash goes on in the next one.
    terminal.enters("say one;\\").await;
    terminal.enters("say two").await;
    terminal.shows("\none").await;
    terminal.shows("\ntwo").await;
    completes(&mut terminal).await;
    // Pasted lines stay together.
    terminal
        .types("\u{1b}[200~say three\nsay four\u{1b}[201~")
        .await;
    terminal.shows("say four").await;
    terminal.types("\r").await;
    terminal.shows("\nthree").await;
    terminal.shows("\nfour").await;
    completes(&mut terminal).await;
    terminal.types("/check\t").await;
    terminal.shows("/checkpoint").await;
    terminal.enters(" here").await;
    terminal.shows("label          here").await;
    terminal.enters("/nonsense").await;
    terminal.shows("no command `/nonsense`").await;
    terminal.enters("/fork elsewhere").await;
    terminal.shows("forked from").await;
    terminal.shows(PROMPT).await;
    terminal.enters("/sessions").await;
    terminal.shows("1*").await;
    terminal.enters("/open 2").await;
    terminal.shows("/open 2").await;
    terminal.shows("plan Look").await;
    terminal.shows(PROMPT).await;
    terminal.enters("/model small").await;
    terminal.shows("model  small").await;
    terminal.enters("/restore here").await;
    terminal.shows("last run").await;
    terminal.shows(PROMPT).await;
    terminal.types(CTRL_D).await;
    terminal.shows("repl --session").await;
    assert!(terminal.ends().await.success());
    nothing_runs(&place).await;

    let history = place.path("home").join(".local/state/tapedeck/history");
    let mode = std::fs::metadata(&history).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut terminal = repl(&place, &["--last"]);
    terminal.shows(PROMPT).await;
    // The newest line, and another one by a part of it.
    terminal.types(UP).await;
    terminal.shows("/restore here").await;
    terminal.types(SEARCH).await;
    terminal.types("one;").await;
    terminal.shows("say two").await;
    terminal.types("\r").await;
    terminal.shows("\none").await;
    completes(&mut terminal).await;
    terminal.enters("/quit").await;
    assert!(terminal.ends().await.success());
}

#[tokio::test]
async fn questions_are_answered_inline_once_for_the_session_and_with_a_reason() {
    let place = Place::new();
    let mut terminal = repl(&place, &["--agent", "demo"]);
    terminal.shows(PROMPT).await;
    terminal.enters("ask edit {\"path\": \"a\"}").await;
    terminal.shows("[y]es").await;
    terminal.enters("y").await;
    terminal.shows("approved").await;
    terminal.shows("was allowed").await;
    terminal.shows(PROMPT).await;
    // Yes to one is no yes to the next.
    terminal.enters("ask edit {\"path\": \"b\"}").await;
    terminal.shows("[y]es").await;
    terminal.enters("n not b please").await;
    terminal.shows("denied").await;
    terminal.shows("not b please").await;
    terminal.shows("was not allowed").await;
    terminal.shows(PROMPT).await;
    // A command is none of the answers, but for those that mean one.
    terminal
        .enters("ask edit {\"path\": \"c\"}; ask edit {\"path\": \"d\"}")
        .await;
    terminal.shows("[y]es").await;
    terminal.enters("/sessions").await;
    terminal.shows("`/cancel` cancels the run").await;
    terminal.shows("[y]es").await;
    terminal.enters("/approve").await;
    terminal.shows("was allowed").await;
    terminal.shows("[y]es").await;
    terminal.enters("/cancel").await;
    terminal.shows("! cancelled").await;
    terminal.shows(PROMPT).await;
    terminal.enters("ask edit {\"path\": \"c\"}").await;
    terminal.shows("[y]es").await;
    terminal.enters("s").await;
    terminal.shows("was allowed").await;
    terminal.shows(PROMPT).await;
    let asked = terminal.text().matches("[y]es").count();
    terminal
        .enters("ask edit {\"path\": \"c\"}; ask shell {}")
        .await;
    terminal.shows("was allowed").await;
    terminal.shows("shell: [y]es").await;
    terminal.enters("a").await;
    terminal.shows("was allowed").await;
    terminal.shows(PROMPT).await;
    assert_eq!(terminal.text().matches("[y]es").count(), asked + 1);
    // Always holds in the next session, too.
    terminal.enters("/new").await;
    terminal.shows(PROMPT).await;
    terminal.enters("ask shell {}").await;
    terminal.shows("was allowed").await;
    terminal.shows(PROMPT).await;
    assert_eq!(terminal.text().matches("[y]es").count(), asked + 1);
    terminal.enters("/quit").await;
    assert!(terminal.ends().await.success());
}

#[tokio::test]
async fn an_answer_is_for_the_question_that_was_asked_last_and_nobody_else_has_it() {
    let place = Place::new();
    let mut terminal = repl(&place, &["--agent", "demo"]);
    terminal.shows(PROMPT).await;
    terminal.enters("two-asks; say the end").await;
    // The second question comes below the first one's prompt, which is put again.
    terminal.shows("\n? asks to use ").await;
    terminal.shows("\n? asks to use ").await;
    let text = terminal.text();
    let asked = |line: &str| Some(line.strip_prefix("? asks to use ")?.trim().to_owned());
    let prompt = |tool: String| format!("\n  {tool}: [y]es");
    let prompts: Vec<_> = text.lines().filter_map(asked).map(prompt).collect();
    terminal.shows(&prompts[0]).await;
    // Without a server the question can't be left to anybody.
    terminal.types(CTRL_D).await;
    terminal.shows("nobody else can answer it").await;
    terminal.shows(&prompts[0]).await;
    terminal.enters("y").await;
    terminal.shows("approved").await;
    terminal.shows(&prompts[1]).await;
    terminal.types(CTRL_C).await;
    terminal.shows("\ncancelling the run").await;
    terminal.shows("! cancelled").await;
    terminal.shows(PROMPT).await;
    terminal.enters("/quit").await;
    assert!(terminal.ends().await.success());
}

#[tokio::test]
async fn ctrl_c_cancels_the_run_and_keeps_the_session() {
    let place = Place::new();
    let mut terminal = repl(&place, &["--agent", "demo"]);
    terminal.shows(PROMPT).await;
    // At the prompt it only drops the line.
    terminal.types("half a line").await;
    terminal.shows("half a line").await;
    terminal.types(CTRL_C).await;
    terminal.shows("Ctrl-D or `/quit` ends").await;
    terminal.shows(PROMPT).await;
    terminal.enters("say begin; slow 120").await;
    terminal.shows("tick 1").await;
    terminal.types(CTRL_C).await;
    terminal.shows("cancelling the run").await;
    terminal.shows("! cancelled").await;
    terminal.shows(PROMPT).await;
    terminal.enters("say still here").await;
    terminal.shows("\nstill here").await;
    completes(&mut terminal).await;
    // Twice leaves the run to itself; the prompt comes back and says what can be done.
    terminal.enters("ignore-cancel 4; slow 120").await;
    terminal.shows("tick 1").await;
    terminal.types(CTRL_C).await;
    terminal.shows("cancelling the run").await;
    terminal.types(CTRL_C).await;
    terminal.shows("it goes on without you").await;
    terminal.shows(PROMPT).await;
    terminal.enters("say too early").await;
    terminal.shows("`/attach` follows the active run").await;
    terminal.shows(PROMPT).await;
    terminal.enters("/attach").await;
    terminal.shows("! cancelled").await;
    terminal.shows(PROMPT).await;
    terminal.enters("say all is well").await;
    terminal.shows("\nall is well").await;
    completes(&mut terminal).await;
    terminal.types(CTRL_D).await;
    assert!(terminal.ends().await.success());
    assert_eq!(
        statuses(&place).await,
        ["cancelled", "completed", "cancelled", "completed"]
    );
}

#[tokio::test]
async fn after_kill_9_it_tells_of_the_interrupted_run_and_resumes_it() {
    let place = Place::new();
    let mut terminal = repl(&place, &["--agent", "demo"]);
    terminal.shows(PROMPT).await;
    terminal.enters("say begin; slow 120").await;
    terminal.shows("tick 2").await;
    terminal.kill().await;
    nothing_runs(&place).await;

    let mut terminal = repl(&place, &["--last"]);
    terminal
        .shows("its last run was interrupted: say begin")
        .await;
    // Ctrl-C is a no, and the offer stands.
    terminal.shows("resume it? [Y/n]").await;
    terminal.types(CTRL_C).await;
    terminal.shows("`/resume` goes on with it").await;
    terminal.shows(PROMPT).await;
    terminal.types(CTRL_D).await;
    assert!(terminal.ends().await.success());
    let mut terminal = repl(&place, &["--last"]);
    terminal.shows("resume it? [Y/n]").await;
    terminal.enters("").await;
    completes(&mut terminal).await;
    terminal.enters("say after it").await;
    terminal.shows("\nafter it").await;
    completes(&mut terminal).await;
    terminal.types(CTRL_D).await;
    assert!(terminal.ends().await.success());
    assert_eq!(
        statuses(&place).await,
        ["interrupted", "completed", "completed"]
    );
}

#[tokio::test]
async fn a_second_terminal_is_told_who_has_the_session_and_reads_along() {
    let place = Place::new();
    let mut first = repl(&place, &["--agent", "demo"]);
    first.shows(PROMPT).await;
    first.enters("say hello").await;
    first.shows("✓ completed").await;
    let session = newest(&place).await;
    let owner = text(&session["owner"], "owner_id");
    let session = text(&session, "session_id");

    // The first keeps it, also while nothing runs.
    let data = place.data();
    let resume = ["resume", "--last", "--data-dir", data.to_str().unwrap()];
    let refused = place.run(&resume).await.exits(4);
    assert!(
        refused.err.contains(&owner) && refused.err.contains("tapedeck attach"),
        "{}",
        refused.err
    );
    let mut second = repl(&place, &["--session", &session]);
    second.shows(&owner).await;
    second.shows("can only be read").await;
    second.shows(PROMPT).await;
    second.enters("say mine").await;
    second.shows("another process works on the session").await;
    second.shows(PROMPT).await;
    first.enters("say for both; ask edit {}; say the end").await;
    first.shows("[y]es").await;
    second.enters("/attach").await;
    second.shows("\nfor both").await;
    second
        .shows("the question is for the terminal that runs it")
        .await;
    first.enters("y").await;
    second.shows("approved").await;
    second.shows("\nthe end").await;
    completes(&mut second).await;
    completes(&mut first).await;
    first.enters("/quit").await;
    assert!(first.ends().await.success());
    second.enters("say now mine").await;
    second.shows("\nnow mine").await;
    completes(&mut second).await;
    second.types(CTRL_D).await;
    assert!(second.ends().await.success());
}

#[tokio::test]
async fn an_idle_terminal_keeps_its_session_beyond_the_lease() {
    let place = Place::new();
    let mut command = place.command(&["repl", "--agent", "demo", "--data-dir"]);
    // A lease of a fraction of a second.
    command
        .arg(place.data())
        .env("TAPEDECK_TIMING_SCALE", "0.03");
    let mut terminal = Terminal::start(command);
    terminal.shows(PROMPT).await;
    terminal.enters("say hello").await;
    completes(&mut terminal).await;
    let until = async || text(&newest(&place).await["owner"], "expires_at");
    let mut last = until().await;
    for _ in 0..3 {
        // What a settled run has left behind ends at some time; from there on it is the terminal's.
        let renewed = async || Some(until().await).filter(|now| *now > last);
        last = eventually("the lease is renewed", Duration::from_mins(1), renewed).await;
    }
    let data = place.data();
    let resume = ["resume", "--last", "--data-dir", data.to_str().unwrap()];
    place.run(&resume).await.exits(4);
    terminal.types(CTRL_D).await;
    assert!(terminal.ends().await.success());
    let released = newest(&place).await["owner"]["expires_at"].is_null();
    assert!(released, "the session is given back");
}

#[tokio::test]
async fn a_second_terminal_of_a_running_session_is_offered_to_read_along() {
    let place = Place::new();
    let mut first = repl(&place, &["--agent", "demo"]);
    first.shows(PROMPT).await;
    first.enters("slow 120").await;
    first.shows("tick 1").await;
    let mut second = repl(&place, &["--last"]);
    second.shows("read along? [Y/n]").await;
    second.enters("y").await;
    second.shows("tick 2").await;
    // Leaving is all that a reader can do.
    second.types(CTRL_C).await;
    second.shows("it goes on without you").await;
    second.shows(PROMPT).await;
    second.types(CTRL_D).await;
    second.ends().await;
    first.types(CTRL_C).await;
    first.shows("! cancelled").await;
    first.shows(PROMPT).await;
    first.types(CTRL_D).await;
    first.ends().await;
}

#[tokio::test]
async fn with_a_server_the_run_outlives_the_terminal_and_the_next_one_goes_on_with_it() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let _executor = executor(&place, &server.url(), &ExecutorOptions::named("x1"));
    let mut terminal = repl(&place, &[]);
    terminal.shows("prompts go to the server").await;
    terminal.shows(PROMPT).await;
    terminal.enters("say begin; ask edit {}; say the end").await;
    terminal.shows("[y]es").await;
    terminal.kill().await;

    let mut terminal = repl(&place, &["--last"]);
    terminal.shows("a run is under way").await;
    terminal.shows("\nbegin").await;
    terminal.shows("[y]es").await;
    terminal.enters("y").await;
    terminal.shows("\nthe end").await;
    completes(&mut terminal).await;
    // The agent is the executors' choice.
    let data = place.data();
    let agent = [
        "repl",
        "--agent",
        "demo",
        "--data-dir",
        data.to_str().unwrap(),
    ];
    let mut command = place.command(&agent);
    command.stdin(Stdio::piped());
    let (code, _, err) = scripted(command, "say hello\n").await;
    assert_eq!(code, Some(2), "{err}");
    // A signal that ends it gives the terminal back.
    terminal.signal(Signal::SIGTERM);
    assert_eq!(terminal.ends().await.code(), Some(7));
    let given_back = async || (!terminal.pastes_are_marked()).then_some(());
    eventually("the terminal is given back", LIMIT, given_back).await;
}

/// Runs a REPL on lines from a pipe.
async fn scripted(
    mut command: tokio::process::Command,
    lines: impl AsRef<[u8]>,
) -> (Option<i32>, String, String) {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines.as_ref()).await.unwrap();
    drop(stdin);
    let output = within("a script", LIMIT, child.wait_with_output()).await;
    let output = Output::of("tapedeck repl", &output.unwrap());
    (output.code, output.out, output.err)
}

#[tokio::test]
async fn a_script_is_read_line_by_line() {
    let place = Place::new();
    let command = |arguments: &[&str]| {
        let mut command = place.command(&["repl", "--agent", "demo"]);
        command.args(arguments).arg("--data-dir").arg(place.data());
        command
    };
    let script = "say one; \\\nsay two\n\n/help\n/checkpoint place\nask edit {}\n//say a slash\n";
    let (code, out, err) = scripted(command(&["--json"]), script).await;
    assert_eq!(code, Some(0), "{out}\n{err}");
    let lines: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let results: Vec<_> = lines
        .iter()
        .filter(|line| line["type"] == "result")
        .collect();
    assert_eq!(results.len(), 3, "{out}");
    assert!(results.iter().all(|line| line["status"] == "completed"));
    assert!(lines.iter().any(|line| line["label"] == "place"));
    // Nobody is there to be asked.
    assert!(out.contains("nobody was there to be asked"), "{out}");

    // It goes on behind what did not go well, and its exit tells of that.
    let script = "fail no luck\n/restore nowhere\nsay after it\n";
    let (code, out, err) = scripted(command(&["--last"]), script).await;
    assert_eq!(code, Some(3), "{err}");
    assert!(
        out.contains("no luck") && out.contains("\nafter it\n"),
        "{out}"
    );
    assert!(err.contains("no checkpoint is called `nowhere`"), "{err}");
    let script = b"say first\nsay \xff\nsay last\n";
    let (code, out, err) = scripted(command(&["--last"]), script).await;
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("no UTF-8 text"), "{err}");
    assert!(
        out.contains("\nfirst\n") && out.contains("\nlast\n"),
        "{out}"
    );
    let (code, ..) = scripted(command(&["--last", "--scratch"]), "").await;
    assert_eq!(code, Some(2));
}

/// Whatever is met first: the signal, or a terminal that can be neither read nor written any more.
#[tokio::test]
async fn a_closed_terminal_ends_a_command_as_its_signal_does() {
    for (arguments, seen) in [
        (&["repl", "--agent", "demo"][..], PROMPT),
        (
            &["run", "--agent", "demo", "--goal", "say up; stream 2000 5"],
            "up",
        ),
        (
            &["run", "--agent", "demo", "--goal", "ask shell {}"],
            "[y]es",
        ),
    ] {
        let place = Place::new();
        let mut command = place.command(arguments);
        command.arg("--data-dir").arg(place.data());
        let mut terminal = Terminal::start(command);
        terminal.shows(seen).await;
        let status = terminal.close().await;
        assert_eq!(status.code(), Some(7), "{arguments:?}: {status}");
        nothing_runs(&place).await;
    }
}
