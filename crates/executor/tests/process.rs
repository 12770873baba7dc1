//! Agents' processes, with real trees of real processes: whatever ends, nothing may be left (rules
//! R13).

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions"
)]

mod support;

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{
    Fixture, GUARD, eventually, lease, long_lease, processes_with, unique, unique_seconds,
};
use tapedeck_executor::guard::{GuardSpec, KillReason};
use tapedeck_executor::process::{
    AgentExit, AgentProcess, Environment, LaunchError, sweep_executor_leftovers, sweep_marked,
};
use tokio::io::{AsyncReadExt, BufReader};
use tokio::time::Instant;

const NONE: [i32; 0] = [];

/// A tool command in a session of its own, another with no parent, mark or group in common, and the
/// agent itself, deaf to SIGTERM.
fn stubborn_tree(seconds: &str) -> String {
    format!(
        "trap '' TERM INT; setsid sleep {seconds} & \
         (setsid env -i /bin/sh -c 'sleep {seconds} & sleep {seconds}' &) ; \
         while true; do sleep {seconds}; done"
    )
}

async fn started(fixture: &Fixture, run: &str, seconds: &str) -> AgentProcess {
    let spec = fixture.spec(run, &stubborn_tree(seconds));
    let process = fixture.launcher.launch(spec, long_lease()).await.unwrap();
    whole_tree(seconds).await;
    process
}

async fn whole_tree(seconds: &str) {
    let sleep = format!("sleep\0{seconds}\0");
    eventually("the whole tree", || processes_with(&sleep).len() == 4).await;
}

async fn read_all(process: &mut AgentProcess) -> String {
    let mut text = String::new();
    let mut stdout = BufReader::new(process.take_stdout().unwrap());
    stdout.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn kill_now_leaves_nothing_of_a_tree_with_sessions_of_its_own() {
    let (fixture, seconds) = (Fixture::new(), unique_seconds());
    let mut process = started(&fixture, &unique("run"), &seconds).await;
    process.kill_now().await;
    assert_eq!(processes_with(&seconds), NONE);
}

#[tokio::test]
async fn kill_tree_ends_an_agent_that_ignores_every_polite_request() {
    let (fixture, seconds) = (Fixture::new(), unique_seconds());
    let mut process = started(&fixture, &unique("run"), &seconds).await;
    let exit = process.kill_tree(Duration::from_millis(50)).await;
    assert_eq!(exit.signal, Some(9));
    assert_eq!(processes_with(&seconds), NONE);
}

#[tokio::test]
async fn an_agent_that_ends_when_its_input_does_is_not_signalled() {
    let fixture = Fixture::new();
    let spec = fixture.spec(&unique("run"), "cat >/dev/null; exit 7");
    let mut process = fixture.launcher.launch(spec, long_lease()).await.unwrap();
    let exit = process.kill_tree(Duration::from_secs(20)).await;
    assert_eq!(
        exit,
        AgentExit {
            code: Some(7),
            ..AgentExit::default()
        }
    );
}

#[tokio::test]
async fn what_an_agent_leaves_behind_at_its_end_is_killed() {
    let (fixture, seconds) = (Fixture::new(), unique_seconds());
    let script = format!("setsid sleep {seconds} & sleep 0.1; kill -SEGV $$");
    let spec = fixture.spec(&unique("run"), &script);
    let process = fixture.launcher.launch(spec, long_lease()).await.unwrap();
    let exit = process.wait().await;
    assert_eq!(exit.to_string(), "was ended by SIGSEGV");
    assert_eq!(processes_with(&seconds), NONE);
}

#[tokio::test]
async fn a_dropped_agent_is_killed_by_its_guard() {
    let (fixture, seconds) = (Fixture::new(), unique_seconds());
    drop(started(&fixture, &unique("run"), &seconds).await);
    eventually("the end of the tree", || {
        processes_with(&seconds).is_empty()
    })
    .await;
}

#[tokio::test]
async fn an_agent_outlives_its_deadline_only_if_a_later_one_is_pushed() {
    let (fixture, seconds) = (Fixture::new(), unique_seconds());
    let (renew, deadline) = lease(Duration::from_millis(1500));
    let begun = Instant::now();
    let spec = fixture.spec(&unique("run"), &stubborn_tree(&seconds));
    let process = fixture.launcher.launch(spec, deadline).await.unwrap();
    renew.send_replace(begun + Duration::from_secs(3));
    let exit = process.wait().await;
    assert_eq!(exit.killed, Some(KillReason::DeadlinePassed));
    assert!(
        begun.elapsed() >= Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(processes_with(&seconds), NONE);
}

fn hold(fixture: &Fixture, run: &str, lease_ms: &str, script: &str) -> std::process::Child {
    Command::new(GUARD)
        .args(["hold", run])
        .args([&fixture.launcher.state_dir, &fixture.workspace])
        .args([lease_ms, &fixture.launcher.executor_instance, "sh", "-c"])
        .arg(script)
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

fn guards_of(run: &str) -> Vec<i32> {
    processes_with(&format!("{{\"run_id\":\"{run}\""))
}

#[tokio::test]
async fn an_executor_killed_with_sigkill_leaves_no_agent_behind() {
    let (fixture, seconds, run) = (Fixture::new(), unique_seconds(), unique("run"));
    let mut executor = hold(&fixture, &run, "600000", &stubborn_tree(&seconds));
    whole_tree(&seconds).await;
    executor.kill().unwrap();
    executor.wait().unwrap();
    eventually("the end of the tree", || {
        processes_with(&seconds).is_empty()
    })
    .await;
    eventually("the end of the guard", || guards_of(&run).is_empty()).await;
}

#[tokio::test]
async fn a_frozen_executor_cannot_keep_an_agent_alive_beyond_its_lease() {
    let (fixture, seconds, run) = (Fixture::new(), unique_seconds(), unique("run"));
    let mut executor = hold(&fixture, &run, "2000", &stubborn_tree(&seconds));
    whole_tree(&seconds).await;
    let pid = executor.id().cast_signed();
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    // The executor itself has the agent's script among its arguments.
    eventually("the end of the tree", || processes_with(&seconds) == [pid]).await;
    executor.kill().unwrap();
    executor.wait().unwrap();
}

#[tokio::test]
async fn a_killed_guard_does_not_leave_its_agent_to_itself() {
    let (fixture, seconds, run) = (Fixture::new(), unique_seconds(), unique("run"));
    let script = format!("setsid sleep {seconds} & sleep {seconds}");
    let process = fixture
        .launcher
        .launch(fixture.spec(&run, &script), long_lease())
        .await
        .unwrap();
    let sleep = format!("sleep\0{seconds}\0");
    eventually("the tree", || processes_with(&sleep).len() == 2).await;
    let [guard] = guards_of(&run)[..] else {
        panic!("one guard")
    };
    kill(Pid::from_raw(guard), Signal::SIGKILL).unwrap();
    let exit = process.wait().await;
    assert_eq!(exit.to_string(), "ended with its guard");
    assert_eq!(processes_with(&seconds), NONE);
}

/// An agent whose guard and executor were both killed, guard first.
async fn abandoned(fixture: &Fixture, run: &str, seconds: &str) {
    let script = format!("setsid sleep {seconds} & sleep {seconds}");
    let mut executor = hold(fixture, run, "600000", &script);
    let sleep = format!("sleep\0{seconds}\0");
    eventually("the tree", || processes_with(&sleep).len() == 2).await;
    let [guard] = guards_of(run)[..] else {
        panic!("one guard")
    };
    kill_both(&mut executor, guard);
    assert_eq!(processes_with(&sleep).len(), 2);
}

fn kill_both(executor: &mut std::process::Child, guard: i32) {
    // A stopped executor cannot clean up.
    kill(Pid::from_raw(executor.id().cast_signed()), Signal::SIGSTOP).unwrap();
    kill(Pid::from_raw(guard), Signal::SIGKILL).unwrap();
    executor.kill().unwrap();
    executor.wait().unwrap();
}

#[tokio::test]
async fn the_next_run_in_a_workspace_kills_what_dead_runs_left_in_it() {
    let (fixture, seconds) = (Fixture::new(), unique_seconds());
    abandoned(&fixture, &unique("run"), &seconds).await;
    let spec = fixture.spec(&unique("run"), "cat");
    let mut process = fixture.launcher.launch(spec, long_lease()).await.unwrap();
    assert_eq!(processes_with(&seconds), NONE);
    process.kill_now().await;
}

#[tokio::test]
async fn leftovers_are_found_by_run_and_by_executor_and_others_are_spared() {
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let (seconds, others, run) = (unique_seconds(), unique_seconds(), unique("run"));
    abandoned(&fixture, &run, &seconds).await;
    let mut spared = started(&other, &unique("run"), &others).await;
    assert!(sweep_marked(&run).await);
    assert_eq!(processes_with(&seconds), NONE);

    abandoned(&fixture, &run, &seconds).await;
    let dead = [fixture.launcher.executor_instance.clone()];
    assert!(sweep_executor_leftovers(&dead).await);
    assert_eq!(processes_with(&seconds), NONE);
    assert_eq!(processes_with(&format!("sleep\0{others}\0")).len(), 4);
    spared.kill_now().await;
}

#[tokio::test]
async fn a_workspace_in_use_is_refused_after_a_while_and_free_when_its_run_ends() {
    let (mut fixture, run) = (Fixture::new(), unique("run"));
    let first = fixture.spec(&run, "cat");
    let mut first = fixture.launcher.launch(first, long_lease()).await.unwrap();

    fixture.launcher.lock_wait = Duration::from_millis(200);
    let second = fixture.spec(&unique("run"), "cat");
    let error = fixture
        .launcher
        .launch(second.clone(), long_lease())
        .await
        .unwrap_err();
    assert!(
        matches!(error, LaunchError::WorkspaceBusy { .. }),
        "{error}"
    );
    assert!(error.to_string().contains(&run), "{error}");

    fixture.launcher.lock_wait = Duration::from_secs(20);
    let (waited, _) = tokio::join!(fixture.launcher.launch(second, long_lease()), async {
        eventually("a waiting guard", || {
            processes_with(r#""lock_wait_ms":20000"#).len() == 1
        })
        .await;
        first.kill_now().await
    });
    waited.unwrap().kill_now().await;
}

/// A tool process that is never the same when it is looked for again.
struct Chain {
    said: PathBuf,
}

impl Chain {
    fn new(fixture: &Fixture) -> Self {
        let said = fixture.dir.path().join("said");
        nix::unistd::mkfifo(&said, nix::sys::stat::Mode::S_IRWXU).unwrap();
        Self { said }
    }

    /// What an agent does that has such a tool.
    fn script(&self) -> String {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/chain.py");
        format!(
            "trap '' TERM; python3 {program} {} & while :; do sleep 1; done",
            self.said.display()
        )
    }

    /// Waits until it has gone on for a while. What it says ends with it.
    async fn goes_on(&self) -> Said {
        let path = self.said.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let mut said = File::open(path).unwrap();
            said.read_exact(&mut [0; 20]).unwrap();
            said
        });
        let said = tokio::time::timeout(Duration::from_secs(20), reading).await;
        Said(said.unwrap().unwrap())
    }
}

struct Said(File);

impl Said {
    /// Fails if somebody is there who could say more.
    async fn has_ended(mut self) {
        let reading = tokio::task::spawn_blocking(move || self.0.read_to_end(&mut Vec::new()));
        let ended = tokio::time::timeout(Duration::from_secs(10), reading).await;
        ended.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_process_that_goes_on_in_ever_new_ones_ends_with_its_agent() {
    for _ in 0..3 {
        let fixture = Fixture::new();
        let chain = Chain::new(&fixture);
        let spec = fixture.spec(&unique("run"), &chain.script());
        let mut process = fixture.launcher.launch(spec, long_lease()).await.unwrap();
        let said = chain.goes_on().await;
        process.kill_now().await;
        said.has_ended().await;
    }
}

#[tokio::test]
async fn a_guard_ends_a_process_that_goes_on_in_ever_new_ones() {
    for _ in 0..3 {
        let fixture = Fixture::new();
        let chain = Chain::new(&fixture);
        let spec = fixture.spec(&unique("run"), &chain.script());
        let process = fixture.launcher.launch(spec, long_lease()).await.unwrap();
        let said = chain.goes_on().await;
        drop(process);
        said.has_ended().await;
    }
}

#[tokio::test]
async fn a_process_that_goes_on_in_ever_new_ones_is_found_by_its_mark() {
    for _ in 0..3 {
        let fixture = Fixture::new();
        let chain = Chain::new(&fixture);
        let run = unique("run");
        let mut executor = hold(&fixture, &run, "600000", &chain.script());
        let said = chain.goes_on().await;
        let [guard] = guards_of(&run)[..] else {
            panic!("one guard")
        };
        kill_both(&mut executor, guard);
        let dead = [fixture.launcher.executor_instance.clone()];
        assert!(sweep_executor_leftovers(&dead).await);
        said.has_ended().await;
    }
}

/// The children of a process that are dead and wait to be reaped.
fn zombies_of(parent: i32) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap();
    let stats =
        entries.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    let of_parent = format!(" Z {parent} ");
    stats.filter(|stat| stat.contains(&of_parent)).count()
}

#[tokio::test]
async fn what_tools_leave_behind_is_reaped_while_the_agent_lives() {
    let (fixture, run) = (Fixture::new(), unique("run"));
    let script = "for i in $(seq 300); do (setsid sleep 0.02 &) ; done; echo done; sleep 60";
    let spec = fixture.spec(&run, script);
    let mut process = fixture.launcher.launch(spec, long_lease()).await.unwrap();
    let mut stdout = BufReader::new(process.take_stdout().unwrap());
    stdout.read_exact(&mut [0; 4]).await.unwrap();
    let [guard] = guards_of(&run)[..] else {
        panic!("one guard")
    };
    eventually("all are reaped", || zombies_of(guard) == 0).await;
    process.kill_now().await;
}

fn path() -> String {
    std::env::var_os("PATH").unwrap().into_string().unwrap()
}

#[tokio::test]
async fn an_agent_sees_only_what_it_may_see_and_its_secrets_are_not_quoted() {
    let fixture = Fixture::new();
    let run = unique("run");
    let pairs = [
        ("MY_API_KEY".to_owned(), "sk-very-secret".to_owned()),
        ("PATH".to_owned(), path()),
    ];
    let mut spec = fixture.spec(&run, "env; pwd; echo \"refused $MY_API_KEY\" >&2");
    spec.environment = Environment::select([], &[], &pairs);
    let mut process = fixture.launcher.launch(spec, long_lease()).await.unwrap();
    let output = read_all(&mut process).await;
    let mut names: Vec<_> = output
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    // What the shell itself sets.
    names.retain(|(name, _)| !["PWD", "SHLVL", "_", "OLDPWD"].contains(name));
    names.sort_unstable();
    let path = path();
    let executor = fixture.launcher.executor_instance.as_str();
    let expected = [
        ("MY_API_KEY", "sk-very-secret"),
        ("PATH", path.as_str()),
        ("TAPEDECK_EXECUTOR", executor),
        ("TAPEDECK_RUN", run.as_str()),
    ];
    assert_eq!(names, expected);
    assert_eq!(output.lines().last(), fixture.workspace.to_str());
    process.wait().await;
    assert_eq!(process.stderr().quoted().await, "refused [redacted]");
}

#[tokio::test]
async fn a_program_that_is_missing_is_named() {
    let fixture = Fixture::new();
    let mut spec = fixture.spec(&unique("run"), "");
    spec.command = vec!["no-such-agent".into()];
    let error = fixture
        .launcher
        .launch(spec, long_lease())
        .await
        .unwrap_err();
    assert!(matches!(error, LaunchError::Program { .. }));
    assert!(
        error
            .to_string()
            .starts_with("cannot start `no-such-agent`: No such file"),
        "{error}"
    );
}

#[tokio::test]
async fn no_pipe_is_left_in_the_state_directory() {
    let fixture = Fixture::new();
    let spec = fixture.spec(&unique("run"), "exit 0");
    let process = fixture.launcher.launch(spec, long_lease()).await.unwrap();
    assert_eq!(process.wait().await.code, Some(0));
    let left = std::fs::read_dir(fixture.launcher.state_dir.join("guards"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_guard_whose_executor_died_before_it_began_starts_nothing_and_ends() {
    let (fixture, seconds) = (Fixture::new(), unique_seconds());
    let pipe = |name: &str| {
        let path = fixture.dir.path().join(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        path
    };
    let spec = GuardSpec {
        run_id: unique("run"),
        control: pipe("control"),
        status: pipe("status"),
        lock: Some(fixture.dir.path().join("lock")),
        lock_wait_ms: 1_000,
        deadline: u64::MAX,
    };
    let mut guard = tokio::process::Command::new(GUARD)
        .arg(serde_json::to_string(&spec).unwrap())
        .args(["sleep", &seconds])
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(10), guard.wait()).await;
    assert_eq!(ended.expect("it ends").unwrap().code(), Some(125));
    assert_eq!(processes_with(&seconds), NONE);
    assert!(!spec.control.exists() && !spec.status.exists());
}
