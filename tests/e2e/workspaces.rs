//! Git workspaces on the real binary: what runs change can be read and applied, the user's own
//! checkout stays as it was, and a worktree goes with its session.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{self, prompt, session_of, text};
use crate::http::{Answer, Request};
use crate::server::{self, ExecutorOptions, Place, Process, Server};
use crate::terminal::Terminal;
use crate::wait::eventually;

const RUN_LIMIT: Duration = Duration::from_mins(1);

/// What the agent does in its first and in every later run.
const AGENT: &str = "
cat >/dev/null
if [ ! -e new/name.txt ]; then
  mkdir new && mv moved.txt new/name.txt
  rm gone.txt
  printf '\\000\\001another' >picture
  printf 'one\\n2\\nthree\\nfour\\n' >a.txt
  printf 'untracked\\n' >fresh.txt
  printf 'left out\\n' >ignored
  head -c 3000000 /dev/zero >huge.bin
else
  git -c user.name=Agent -c user.email=agent@example.com commit --quiet --all --message work
  printf 'second\\n' >>fresh.txt
  rm huge.bin
fi
echo done
";

/// Git as a user has it, with no settings of the machine.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(directory)
        .args([
            "-c",
            "user.name=Tester",
            "-c",
            "user.email=tester@example.com",
        ])
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A user's repository inside the executor's root, with work under way in it.
fn project(place: &Place) -> PathBuf {
    let project = place.work().join("project");
    std::fs::create_dir_all(&project).unwrap();
    git(&project, &["init", "--quiet", "--initial-branch=main"]);
    let lines = "a line\n".repeat(50);
    for (name, content) in [
        ("a.txt", "one\ntwo\nthree\n"),
        ("moved.txt", lines.as_str()),
        ("gone.txt", "gone\n"),
        ("picture", "\0\u{1}picture"),
        (".gitignore", "ignored\n"),
    ] {
        std::fs::write(project.join(name), content).unwrap();
    }
    git(&project, &["add", "--all"]);
    git(&project, &["commit", "--quiet", "--message", "first"]);
    project
}

fn executor(place: &Place, url: &str) -> Process {
    executor_of(place, url, AGENT)
}

fn executor_of(place: &Place, url: &str, agent: &str) -> Process {
    let script = place.path("agent.sh");
    std::fs::write(&script, agent).unwrap();
    let agent = format!("sh {}", script.display());
    let mut command = place.command(&["executor", "--server", url, "--command", &agent]);
    command
        .args(["--executor-id", "git-box", "--workspace-root"])
        .arg(place.work())
        .env("TAPEDECK_GIT_CHECK_SECONDS", "1");
    place.start("git-box", command)
}

/// A run to its end.
async fn turn(server: &Server, session: &str) -> Value {
    turn_of(server, session, "go on").await
}

async fn turn_of(server: &Server, session: &str, words: &str) -> Value {
    let (run_id, _) = prompt(server.address, session, words).await;
    let address = server.address;
    let run = eventually("the run is settled", RUN_LIMIT, async || {
        let run = api::run(address, &run_id).await;
        api::is_terminal(&run).then_some(run)
    })
    .await;
    assert_eq!(run["status"], "completed", "{run}");
    run
}

async fn get(server: &Server, session: &str, what: &str) -> Answer {
    let path = format!("/sessions/{session}/{what}");
    Request::get(path).send(server.address).await
}

async fn diff(server: &Server, session: &str, query: &str) -> Value {
    get(server, session, &format!("diff{query}")).await.ok()
}

/// The changed files by their paths: a letter, and whether they are in the patch.
fn files(diff: &Value) -> Vec<(String, String, bool)> {
    let files = diff["files"].as_array().unwrap().iter();
    files
        .map(|file| {
            let carried = !file["truncated"].as_bool().unwrap();
            (text(file, "path"), text(file, "status"), carried)
        })
        .collect()
}

fn expected(files: &[(&str, &str, bool)]) -> Vec<(String, String, bool)> {
    let owned = |(path, status, carried): &(&str, &str, bool)| {
        ((*path).to_owned(), (*status).to_owned(), *carried)
    };
    files.iter().map(owned).collect()
}

/// The tree that a clone of `project` has with this patch.
fn applied(place: &Place, project: &Path, name: &str, patch: &[u8]) -> String {
    let clone = place.path(name);
    git(project, &["clone", "--quiet", ".", clone.to_str().unwrap()]);
    let mut apply = Command::new("git")
        .args(["apply", "--binary", "-"])
        .current_dir(&clone)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut apply.stdin.take().unwrap(), patch).unwrap();
    assert!(apply.wait().unwrap().success());
    git(&clone, &["add", "--all"]);
    git(&clone, &["write-tree"])
}

async fn a_git_session_tells_what_its_runs_changed_and_ends_with_its_worktree(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let project = project(&place);
    std::fs::write(project.join("a.txt"), "work of the user\n").unwrap();
    let before = git(&project, &["status", "--porcelain"]);
    let executor = executor(&place, &server.url());
    let workspace = json!({"kind": "git", "path": project});
    let body = json!({"run_target": {"workspace": workspace}});
    let session = session_of(server.address, &body).await;

    let first = turn(&server, &session).await;
    let run_diff = diff(&server, &session, "").await;
    assert_eq!(run_diff["run_id"], first["run_id"]);
    let told = [
        ("a.txt", "modified", true),
        ("fresh.txt", "added", true),
        ("gone.txt", "deleted", true),
        ("huge.bin", "added", false),
        ("new/name.txt", "renamed", true),
        ("picture", "modified", true),
    ];
    assert_eq!(files(&run_diff), expected(&told));
    assert_eq!(run_diff["files"][3]["size"], 3_000_000);
    assert_eq!(run_diff["files"][4]["old_path"], "moved.txt");
    assert_eq!(run_diff["files"][5]["binary"], true);
    let named = &first["result"]["changes"];
    assert_eq!(
        (&named["file_count"], &named["files"][0]["path"]),
        (&json!(6), &json!("a.txt"))
    );
    let log = api::log(server.address, &session).await;
    let begun = log
        .iter()
        .find(|event| event["kind"] == "TurnBegin")
        .unwrap();
    let branch = format!("tapedeck/{session}");
    assert_eq!(begun["payload"]["workspace"]["branch"], json!(branch));

    turn(&server, &session).await;
    let second = diff(&server, &session, "").await;
    let told = [
        ("fresh.txt", "modified", true),
        ("huge.bin", "deleted", false),
    ];
    assert_eq!(files(&second), expected(&told));
    let older = diff(
        &server,
        &session,
        &format!("?run_id={}", text(&first, "run_id")),
    )
    .await;
    assert_eq!(older, run_diff);

    both_runs_apply_to_a_fresh_clone(&place, &server, &project, &session).await;

    // What the user has stays as it is.
    assert_eq!(git(&project, &["status", "--porcelain"]), before);
    assert_eq!(git(&project, &["branch", "--list"]), "* main");

    the_worktree_goes_with_its_session(&place, &server, &session).await;
    drop(executor);
    place.is_healthy(1.0).await;
}

async fn both_runs_apply_to_a_fresh_clone(
    place: &Place,
    server: &Server,
    project: &Path,
    session: &str,
) {
    // Both runs together, on a fresh clone.
    let whole = diff(server, session, "?scope=session").await;
    assert_eq!(whole["file_count"], 5);
    assert_eq!(whole["truncated"], false);
    let patch = get(server, session, "patch?scope=session").await;
    assert_eq!(patch.header("content-type"), Some("text/x-diff"));
    assert_eq!(
        applied(place, project, "clone", &patch.body),
        text(&whole, "head")
    );
    let url = server.url();
    let printed = [
        "sessions", "diff", session, "--whole", "--patch", "--server", &url,
    ];
    let printed = place.run(&printed).await.exits(0);
    assert_eq!(
        printed.out.as_bytes(),
        String::from_utf8_lossy(&patch.body).as_bytes()
    );
    let stat = ["sessions", "diff", session, "--stat", "--server", &url];
    let stat = place.run(&stat).await.exits(0);
    assert!(stat.out.contains("2 files, 1 lines added"), "{}", stat.out);
}

async fn the_worktree_goes_with_its_session(place: &Place, server: &Server, session: &str) {
    let branch = format!("tapedeck/{session}");
    let list = ["executor", "workspaces", "list", "--json"];
    let held = place.run(&list).await.exits(0).json_lines()[0]["workspaces"][0].clone();
    assert_eq!(
        (&held["session_id"], &held["dirty"]),
        (&json!(session), &json!(true))
    );
    let worktree = PathBuf::from(text(&held, "path"));
    git(&worktree, &["add", "--all"]);
    git(&worktree, &["commit", "--quiet", "--message", "kept"]);
    let common = git(
        &worktree,
        &["rev-parse", "--path-format=absolute", "--git-common-dir"],
    );
    // A server that never had the session says nothing about it.
    let stranger = Arc::new(Place::new());
    let stranger = Server::start(&stranger).await;
    let elsewhere = stranger.url();
    let prune = [
        "executor",
        "workspaces",
        "prune",
        "--force",
        "--json",
        "--server",
        &elsewhere,
    ];
    let pruned = place.run(&prune).await.exits(0).json_lines()[0].clone();
    assert_eq!(pruned, json!({"removed": [], "kept": []}));
    assert!(worktree.exists());

    let close = Request::post(format!("/sessions/{session}/close"), &json!({}));
    close.send(server.address).await.ok();
    eventually("the worktree is gone", RUN_LIMIT, async || {
        (!worktree.exists()).then_some(())
    })
    .await;
    let kept = git(Path::new(&common), &["log", "--format=%s", "-1", &branch]);
    assert_eq!(kept, "kept");
}

/// Does what the last line of its prompt says.
const SHELL: &str = "tail -n 1 | sh -e; echo done";

/// The notes on the session's workspace, one for each run.
async fn notes(server: &Server, session: &str) -> Vec<Value> {
    let log = api::log(server.address, session).await;
    let begun = log.iter().filter(|event| event["kind"] == "TurnBegin");
    begun
        .map(|event| event["payload"]["workspace"]["note"].clone())
        .collect()
}

async fn close_and_see_it_go(server: &Server, session: &str, worktree: &Path) {
    let close = Request::post(format!("/sessions/{session}/close"), &json!({}));
    close.send(server.address).await.ok();
    eventually("the worktree is gone", RUN_LIMIT, async || {
        (!worktree.exists()).then_some(())
    })
    .await;
}

async fn whatever_an_agent_does_to_its_worktree_its_work_stays(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let project = project(&place);
    let _executor = executor_of(&place, &server.url(), SHELL);
    let body = json!({"run_target": {"workspace": {"kind": "git", "path": project}}});
    let one = session_of(server.address, &body).await;
    turn_of(&server, &one, "rm .git; echo work >work.txt").await;
    let list = ["executor", "workspaces", "list", "--json"];
    let listed = place.run(&list).await.exits(0).json_lines()[0].clone();
    let worktree = PathBuf::from(text(&listed["workspaces"][0], "path"));
    assert_eq!(listed["workspaces"][0]["dirty"], Value::Null);

    // Another session of the same repository breaks its own and goes, and a third one only goes.
    let broken = session_of(server.address, &body).await;
    turn_of(&server, &broken, "rm .git; git init -q .").await;
    let two = session_of(server.address, &body).await;
    turn_of(&server, &two, "true").await;
    close_and_see_it_go(&server, &two, &worktree.with_file_name(&two)).await;

    let commit = "git checkout -q --detach; git add --all; git -c user.name=Agent \
                  -c user.email=agent@example.com commit -q -m precious";
    let run = turn_of(&server, &one, &format!("echo more >more.txt; {commit}")).await;
    let changes = &run["result"]["changes"];
    assert_eq!(changes["files"][0]["path"], "more.txt", "{run}");
    let notes = notes(&server, &one).await;
    assert_eq!(notes[0], Value::Null);
    let note = notes[1].as_str().unwrap();
    assert!(note.contains("lost its `.git`"), "{note}");
    assert!(!worktree.with_extension("aside-1").exists());

    let absolute = ["rev-parse", "--path-format=absolute", "--git-common-dir"];
    let mirror = PathBuf::from(git(&worktree, &absolute));
    close_and_see_it_go(&server, &one, &worktree).await;
    let kept = format!("refs/tapedeck/kept/{one}");
    let kept = git(&mirror, &["for-each-ref", "--format=%(refname)", &kept]);
    git(&mirror, &["gc", "--quiet", "--prune=now"]);
    for (file, content) in [("work.txt", "work"), ("more.txt", "more")] {
        assert_eq!(git(&mirror, &["show", &format!("{kept}:{file}")]), content);
    }
}

async fn a_run_in_the_users_own_checkout_leaves_its_repository_alone(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let project = project(&place);
    std::fs::write(project.join("fresh.txt"), "the user's\n").unwrap();
    git(&project, &["add", "fresh.txt"]);
    let index = std::fs::read(project.join(".git/index")).unwrap();
    let _executor = executor(&place, &server.url());
    let workspace = json!({"kind": "local_path", "path": project});
    let body = json!({"run_target": {"workspace": workspace}});
    let session = session_of(server.address, &body).await;
    turn(&server, &session).await;
    let told = diff(&server, &session, "").await;
    let fresh = ("fresh.txt".to_owned(), "modified".to_owned(), true);
    assert!(files(&told).contains(&fresh), "{told}");
    assert_eq!(told["file_count"], 6);
    assert_eq!(std::fs::read(project.join(".git/index")).unwrap(), index);
    assert_eq!(
        git(&project, &["count-objects"]).split(' ').next(),
        Some("8")
    );
}

async fn a_workspace_that_can_not_be_had_fails_its_run_in_words(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let _executor = executor(&place, &server.url());
    for (workspace, expected) in [
        (
            json!({"kind": "git", "path": place.path("data")}),
            "outside the allowed roots",
        ),
        (
            json!({"kind": "git", "path": place.work()}),
            "`git fetch` failed",
        ),
        (
            json!({"kind": "git", "url": "http://127.0.0.1:1/a"}),
            "no git repositories by http",
        ),
    ] {
        let body = json!({"run_target": {"workspace": workspace}});
        let session = session_of(server.address, &body).await;
        let (run_id, _) = prompt(server.address, &session, "go").await;
        let address = server.address;
        let run = eventually("the run is settled", RUN_LIMIT, async || {
            let run = api::run(address, &run_id).await;
            api::is_terminal(&run).then_some(run)
        })
        .await;
        assert_eq!(run["status"], "failed");
        assert!(text(&run, "error").contains(expected), "{run}");
        let missing = get(&server, &session, "diff").await;
        assert_eq!(missing.problem(), (404, "artifact_not_found".to_owned()));
    }
}

on_both_stores!(
    a_git_session_tells_what_its_runs_changed_and_ends_with_its_worktree,
    whatever_an_agent_does_to_its_worktree_its_work_stays,
    a_run_in_the_users_own_checkout_leaves_its_repository_alone,
    a_workspace_that_can_not_be_had_fails_its_run_in_words,
);

#[tokio::test]
async fn a_run_that_waits_for_another_in_its_workspace_says_so() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let options = ExecutorOptions {
        max_runs: 2,
        ..ExecutorOptions::named("both")
    };
    let _executor = server::executor(&place, &server.url(), &options);
    let workspace = place.work();
    let workspace = workspace.to_str().unwrap();
    let goal = |goal: &str| {
        let arguments = ["run", "--goal", goal, "--workspace", workspace];
        let mut command = place.command(&arguments);
        command.args(["--server", &server.url()]);
        command
    };
    let mut first = Terminal::start(goal("say mine; ask edit {}"));
    first.shows("[y]es").await;
    let mut second = Terminal::start(goal("say at last"));
    second
        .shows("waiting: another run works in the workspace")
        .await;
    first.enters("y").await;
    assert!(first.ends().await.success());
    second.shows("\nat last").await;
    assert!(second.ends().await.success());
}
