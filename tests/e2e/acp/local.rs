//! An editor without a server of the person's own: the one in the background, and executors that
//! outlive the editor. All of them end by themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::v1::schema::{NewSessionRequest, SessionId};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::editor::Editor;
use super::{LIMIT, ended};
use crate::server::{Place, Server, none_marked, processes_marked};
use crate::wait::eventually;

/// What an executor waits for the next prompt.
const STAY: &str = "3";

fn command(place: &Place) -> tokio::process::Command {
    let mut command = place.command(&["acp", "--agent", "demo", "--warm-seconds", STAY]);
    command.arg("--data-dir").arg(place.data());
    command.env("TAPEDECK_TIMING_SCALE", "0.2");
    command
}

async fn editor(place: &Place) -> Editor {
    Editor::of_command(command(place)).await
}

/// The processes of a role.
fn of_role(place: &Place, role: &str) -> Vec<Pid> {
    let marked = processes_marked(&place.mark());
    let is_of_role = |pid: &i32| {
        let line = std::fs::read(PathBuf::from(format!("/proc/{pid}/cmdline"))).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        words
            .windows(2)
            .any(|pair| pair == [b"--role".as_slice(), role.as_bytes()])
    };
    marked
        .into_iter()
        .filter(is_of_role)
        .map(Pid::from_raw)
        .collect()
}

async fn nothing_runs(place: &Place) {
    none_marked(&place.mark(), LIMIT).await;
}

/// A command that works on the directory by itself.
fn alone<'a>(data: &'a Path, goal: &'a str) -> [&'a str; 8] {
    let data = data.to_str().unwrap();
    [
        "run",
        "--goal",
        goal,
        "--agent",
        "demo",
        "--json",
        "--data-dir",
        data,
    ]
}

async fn json(place: &Place, arguments: &[&str]) -> Value {
    let data = place.data();
    let mut all = arguments.to_vec();
    all.extend(["--json", "--data-dir", data.to_str().unwrap()]);
    let output = place.run(&all).await.exits(0);
    output.json_lines().remove(0)
}

#[tokio::test]
async fn a_run_outlives_the_editor_that_was_killed() {
    let place = Arc::new(Place::new());
    let first = editor(&place).await;
    let session = first.session(&place).await;
    ended(first.prompt(&session, "say hello").await);
    let running = first.prompt(&session, "slow 2; ask edit {}; say the end");
    tokio::select! {
        reason = running => panic!("the prompt ended: {reason:?}"),
        () = first.hears(&session, "tick 3\n") => {}
    }
    first.kill().await;
    // The agent goes on, and asks nobody.
    eventually("the question is open", LIMIT, async || {
        let shown = json(&place, &["sessions", "show", &session.0]).await;
        (shown["pending_interactions"] == 1).then_some(())
    })
    .await;

    let second = editor(&place).await;
    second.load(&place, &session).await.unwrap();
    assert_eq!(second.said(&session).matches("tick ").count(), 20);
    second.asked().await.choose("allow-once");
    second.hears(&session, "the end").await;
    ended(second.prompt(&session, "remember").await);
    assert!(second.leaves().await.success());
    nothing_runs(&place).await;
    // What they leave is a data directory like any other.
    let shown = json(&place, &["sessions", "show", &session.0]).await;
    assert_eq!(shown["status"], "completed");
}

#[tokio::test]
async fn the_end_of_stdin_ends_the_editors_agent_and_not_the_run() {
    let place = Arc::new(Place::new());
    let first = editor(&place).await;
    let session = first.session(&place).await;
    let running = first.prompt(&session, "say begun; slow 2; write made.txt done");
    tokio::select! {
        reason = running => panic!("the prompt ended: {reason:?}"),
        () = first.hears(&session, "tick 1\n") => {}
    }
    let left = std::time::Instant::now();
    assert!(first.leaves().await.success());
    assert!(
        left.elapsed() < Duration::from_secs(2),
        "{:?}",
        left.elapsed()
    );
    let made = place.work().join("made.txt");
    let look = async || made.exists().then_some(());
    eventually("the agent finishes its work", LIMIT, look).await;
    nothing_runs(&place).await;
}

#[tokio::test]
async fn a_background_server_that_is_killed_is_started_again_and_the_prompt_ends_well() {
    let place = Arc::new(Place::new());
    let editor = editor(&place).await;
    let session = editor.session(&place).await;
    let running = editor.prompt(&session, "slow 4; say the end");
    let (reason, ()) = tokio::join!(running, async {
        editor.hears(&session, "tick 3\n").await;
        let servers = of_role(&place, "server");
        assert_eq!(servers.len(), 1);
        kill(servers[0], Signal::SIGKILL).unwrap();
    });
    ended(reason);
    let said = editor.said(&session);
    assert_eq!(said.matches("tick ").count(), 40, "{said}");
    assert!(editor.leaves().await.success());
    nothing_runs(&place).await;
}

#[tokio::test]
async fn a_run_outlives_its_editor_and_its_server() {
    let place = Arc::new(Place::new());
    let first = editor(&place).await;
    let session = first.session(&place).await;
    let running = first.prompt(&session, "slow 4; write made.txt done; say the end");
    tokio::select! {
        reason = running => panic!("the prompt ended: {reason:?}"),
        () = first.hears(&session, "tick 3\n") => {}
    }
    first.kill().await;
    let killed = of_role(&place, "server");
    kill(killed[0], Signal::SIGKILL).unwrap();
    // Nobody is left but the executor, which needs a server to tell.
    eventually("the executor has started a server", LIMIT, async || {
        let servers = of_role(&place, "server");
        (servers.len() == 1 && servers != killed).then_some(())
    })
    .await;
    let made = place.work().join("made.txt");
    let look = async || made.exists().then_some(());
    eventually("the agent finishes its work", LIMIT, look).await;
    let second = editor(&place).await;
    second.load(&place, &session).await.unwrap();
    second.hears(&session, "the end").await;
    assert_eq!(second.said(&session).matches("tick ").count(), 40);
    assert!(second.leaves().await.success());
    nothing_runs(&place).await;
    let runs = json(&place, &["runs", "list", &session.0]).await;
    assert_eq!(runs["runs"][0]["status"], "completed");
}

#[tokio::test]
async fn an_executor_that_is_killed_interrupts_the_run_and_the_next_prompt_goes_on() {
    let place = Arc::new(Place::new());
    let editor = editor(&place).await;
    let session = editor.session(&place).await;
    let running = editor.prompt(&session, "slow 600");
    let (reason, ()) = tokio::join!(running, async {
        editor.hears(&session, "tick 3\n").await;
        let executors = of_role(&place, "executor");
        assert_eq!(executors.len(), 1);
        kill(executors[0], Signal::SIGKILL).unwrap();
    });
    let error = reason.unwrap_err();
    assert_eq!(i32::from(error.code), -32603);
    assert!(error.message.contains("interrupted"), "{error:?}");
    ended(editor.prompt(&session, "say again").await);
    assert!(editor.said(&session).ends_with("again"));
    assert!(editor.leaves().await.success());
    nothing_runs(&place).await;
}

#[tokio::test]
async fn other_commands_work_beside_an_editor() {
    let place = Arc::new(Place::new());
    let (here, there) = (editor(&place).await, editor(&place).await);
    let session = here.session(&place).await;
    there.load(&place, &session).await.unwrap();
    ended(there.prompt(&session, "say from there").await);
    here.hears(&session, "from there").await;
    assert_eq!(of_role(&place, "server").len(), 1, "they share one");
    let data = place.data();
    let output = place.run(&alone(&data, "say beside")).await.exits(0);
    assert!(output.out.contains("beside"), "{}", output.out);
    // The session of the command can be gone on with in the editor.
    let id = output.json_lines().last().unwrap()["session_id"].clone();
    let id = SessionId::new(id.as_str().unwrap().to_owned());
    here.load(&place, &id).await.unwrap();
    assert_eq!(here.said(&id), "beside");
    ended(here.prompt(&id, "say more").await);
    assert!(here.leaves().await.success());
    assert!(there.leaves().await.success());
    nothing_runs(&place).await;
}

#[tokio::test]
async fn a_command_that_works_on_the_directory_by_itself_is_named_as_the_obstacle() {
    let place = Arc::new(Place::new());
    let data = place.data();
    let mut working = place.start("alone", place.command(&alone(&data, "slow 600")));
    let speaks = async || working.log().contains("tick 1").then_some(());
    eventually("the command works", LIMIT, speaks).await;
    let editor = editor(&place).await;
    let refused = editor.ask(NewSessionRequest::new(place.work())).await;
    let refused = refused.unwrap_err();
    assert_eq!(i32::from(refused.code), -32603);
    assert!(
        refused.message.contains("another command works there"),
        "{refused:?}"
    );
    // Once that has ended the same editor goes on.
    working.kill().await;
    let session = editor.session(&place).await;
    ended(editor.prompt(&session, "say hello").await);
    assert!(editor.leaves().await.success());
    nothing_runs(&place).await;
}

#[tokio::test]
async fn the_most_talkative_log_has_no_prompt_in_it() {
    let place = Arc::new(Place::new());
    let log = place.path("talk.log");
    let mut talkative = command(&place);
    talkative
        .args(["--log", "trace"])
        .stderr(std::fs::File::create(&log).unwrap());
    let editor = Editor::of_command(talkative).await;
    let session = editor.session(&place).await;
    ended(editor.prompt(&session, "say xylophone; usage").await);
    assert!(editor.said(&session).contains("xylophone"));
    assert!(editor.leaves().await.success());
    nothing_runs(&place).await;
    for file in [log, place.data().join("background.log")] {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.is_empty());
        let line = text.lines().find(|line| line.contains("xylophone"));
        assert_eq!(line, None, "{}", file.display());
    }
}

#[tokio::test]
async fn a_wrong_command_line_is_told_before_the_protocol_begins() {
    let place = Place::new();
    let data = place.data();
    let data = data.to_str().unwrap();
    let unnamed = place.run(&["acp", "--data-dir", data]).await.exits(2);
    assert!(
        unnamed.out.is_empty() && unnamed.err.contains("--agent"),
        "{}",
        unnamed.err
    );
    let both = ["acp", "--agent", "demo", "--server", "http://127.0.0.1:1"];
    let both = place.run(&both).await.exits(2);
    assert!(
        both.out.is_empty() && both.err.contains("executors choose"),
        "{}",
        both.err
    );
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_told_before_anything_waits_for_it() {
    let place = Arc::new(Place::new());
    let editor = editor(&place).await;
    for wrong in ["missing", "a-file"] {
        std::fs::write(place.path("a-file"), "").unwrap();
        let request = NewSessionRequest::new(place.path(wrong));
        let refused = editor.ask(request).await.unwrap_err();
        assert_eq!(i32::from(refused.code), -32602, "{refused:?}");
        assert!(refused.message.contains(wrong), "{refused:?}");
    }
    let session = editor.session(&place).await;
    // The directory goes, and with it what the next executor would work in.
    std::fs::remove_dir_all(place.work()).unwrap();
    let error = editor.prompt(&session, "say hello").await.unwrap_err();
    assert!(error.message.contains("isn't there"), "{error:?}");
    std::fs::create_dir(place.work()).unwrap();
    ended(editor.prompt(&session, "say hello").await);
    assert!(editor.leaves().await.success());
    nothing_runs(&place).await;
}

#[tokio::test]
async fn executors_that_cannot_start_end_the_prompt_with_the_place_of_the_reason() {
    let place = Arc::new(Place::new());
    // What executors keep can't be kept where a file is in the way.
    std::fs::write(place.path("in-the-way"), "").unwrap();
    let mut hindered = command(&place);
    hindered.env("TAPEDECK_STATE_DIR", place.path("in-the-way"));
    let editor = Editor::of_command(hindered).await;
    let session = editor.session(&place).await;
    for _again in 0..2 {
        let error = editor.prompt(&session, "say hello").await.unwrap_err();
        assert_eq!(i32::from(error.code), -32603);
        assert!(error.message.contains("background.log"), "{error:?}");
    }
    // Its runs are over and in nobody's way.
    eventually("nothing waits", LIMIT, async || {
        let shown = json(&place, &["sessions", "show", &session.0]).await;
        shown["active_run_id"].is_null().then_some(())
    })
    .await;
    assert!(editor.leaves().await.success());
    nothing_runs(&place).await;
}

#[tokio::test]
async fn an_editor_that_comes_back_finds_the_executor_that_it_left() {
    let place = Arc::new(Place::new());
    let first = editor(&place).await;
    let session = first.session(&place).await;
    ended(first.prompt(&session, "say hello").await);
    let left = of_role(&place, "executor");
    assert_eq!(left.len(), 1);
    first.kill().await;
    let second = editor(&place).await;
    second.load(&place, &session).await.unwrap();
    ended(second.prompt(&session, "say again").await);
    assert_eq!(of_role(&place, "executor"), left);
    assert!(second.leaves().await.success());
    nothing_runs(&place).await;
}

#[tokio::test]
async fn a_server_that_somebody_starts_in_place_of_the_background_s_is_found() {
    let place = Arc::new(Place::new());
    let editor = editor(&place).await;
    let session = editor.session(&place).await;
    ended(editor.prompt(&session, "say hello").await);
    // Nobody may start another one in the background meanwhile.
    let servers = of_role(&place, "server");
    let all = processes_marked(&place.mark()).into_iter();
    let others: Vec<_> = all
        .map(Pid::from_raw)
        .filter(|pid| !servers.contains(pid))
        .collect();
    for pid in &others {
        kill(*pid, Signal::SIGSTOP).unwrap();
    }
    kill(servers[0], Signal::SIGKILL).unwrap();
    let server = Server::start(&place).await;
    for pid in &others {
        kill(*pid, Signal::SIGCONT).unwrap();
    }
    ended(editor.prompt(&session, "say again").await);
    editor.hears(&session, "again").await;
    assert!(editor.leaves().await.success());
    drop(server);
    nothing_runs(&place).await;
}
