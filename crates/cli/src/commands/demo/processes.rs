//! The demo's processes: a server and executors of this very binary, each in a group of its own, so
//! that Ctrl-C reaches them through us alone. It must leave none behind, even if it is killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::config::{self, SETTINGS};

/// A server is ready within a fraction of this.
const READY: Duration = Duration::from_secs(10);
/// Between two looks at a file.
const LOOK: Duration = Duration::from_millis(20);
/// For a process to end after SIGTERM.
const END: Duration = Duration::from_secs(10);
/// Lines of a process's log that are quoted when something goes wrong.
const QUOTED_LINES: usize = 5;
/// The shortest lease that there is, so that nobody has to wait for long.
pub(super) const LEASE_SECONDS: u32 = 10;

/// Where the demo plays.
#[derive(Debug)]
pub(super) struct Stage {
    program: PathBuf,
    base: PathBuf,
    /// Where the database lies.
    pub(super) data_dir: PathBuf,
    /// Where the agent works.
    pub(super) workspace: PathBuf,
    server: Option<Child>,
    executors: Vec<Executor>,
}

#[derive(Debug)]
struct Executor {
    name: &'static str,
    process: Child,
}

impl Stage {
    /// An empty stage.
    pub(super) fn new(base: PathBuf, data_dir: &Path) -> anyhow::Result<Self> {
        let workspace = config::make_private_dir(&base.join("workspace"))?;
        std::fs::write(workspace.join("notes.txt"), "The tape is the truth.\n")?;
        Ok(Self {
            program: std::env::current_exe().context("this binary can't be found")?,
            data_dir: config::make_private_dir(data_dir)?,
            workspace,
            base,
            server: None,
            executors: Vec::new(),
        })
    }

    fn state_dir(&self) -> PathBuf {
        self.base.join("executor")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.base.join(format!("{name}.log"))
    }

    fn spawn(
        &self,
        name: &str,
        arguments: &[&str],
        paths: &[(&str, &Path)],
    ) -> anyhow::Result<Child> {
        let log = File::create(self.log(name))?;
        let mut command = Command::new(&self.program);
        command
            .args(["--config", "/dev/null"])
            .args(arguments)
            .arg("--until-stdin-ends")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        for (flag, path) in paths {
            command.arg(flag).arg(path);
        }
        // What the caller's own Tapedeck is told doesn't concern these.
        for setting in SETTINGS {
            command.env_remove(setting.variable);
        }
        command
            .spawn()
            .with_context(|| format!("the {name} can't be started"))
    }

    /// Starts the server; gives its address.
    pub(super) async fn start_server(&mut self) -> anyhow::Result<String> {
        let ready = self.base.join("ready");
        let _stale = std::fs::remove_file(&ready);
        let paths: [(&str, &Path); 2] = [("--data-dir", &self.data_dir), ("--ready-file", &ready)];
        let server = self.spawn("server", &["serve", "--listen", "127.0.0.1:0"], &paths)?;
        let server = self.server.insert(server);
        let answers = async {
            loop {
                if let Ok(url) = std::fs::read_to_string(&ready) {
                    return Ok(url.trim().to_owned());
                }
                if let Some(status) = server.try_wait()? {
                    bail!("the server ended ({status})");
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(READY, answers)
            .await
            .context("the server does not get ready")?
    }

    /// Starts an executor that drives the demo agent; gives its process id.
    pub(super) fn start_executor(&mut self, name: &'static str, url: &str) -> anyhow::Result<u32> {
        let lease = LEASE_SECONDS.to_string();
        let arguments = [
            "executor",
            "--server",
            url,
            "--executor-id",
            name,
            "--agent",
            "demo",
            "--lease-seconds",
            &lease,
        ];
        let state_dir = self.state_dir();
        let paths: [(&str, &Path); 2] = [
            ("--workspace-root", &self.workspace),
            ("--state-dir", &state_dir),
        ];
        let process = self.spawn(name, &arguments, &paths)?;
        let pid = process.id().context("the executor ended at once")?;
        self.executors.push(Executor { name, process });
        Ok(pid)
    }

    /// Kills an executor with SIGKILL; gives its process id.
    pub(super) async fn kill_executor(&mut self, name: &str) -> anyhow::Result<u32> {
        let found = self
            .executors
            .iter_mut()
            .find(|executor| executor.name == name);
        let executor = found.context("there is no such executor")?;
        let pid = executor
            .process
            .id()
            .context("the executor ended by itself")?;
        executor.process.kill().await?;
        Ok(pid)
    }

    /// Kills every executor with SIGKILL; the guards of their agents then end those.
    pub(super) async fn kill_executors(&mut self) {
        for executor in &mut self.executors {
            let _gone = executor.process.kill().await;
        }
    }

    /// Ends all processes, the server last.
    pub(super) async fn clear(&mut self) {
        let executors = self
            .executors
            .iter_mut()
            .map(|executor| &mut executor.process);
        for process in executors.chain(self.server.as_mut()) {
            end(process).await;
        }
    }

    /// The last lines of every log, for when something went wrong.
    pub(super) fn last_words(&self) -> String {
        let executors = self.executors.iter().map(|executor| executor.name);
        let mut quoted = String::new();
        for name in executors.chain(self.server.as_ref().map(|_server| "server")) {
            let text = std::fs::read_to_string(self.log(name)).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(QUOTED_LINES)..] {
                quoted.extend(["\n  ", name, ": ", line]);
            }
        }
        quoted
    }
}

async fn end(process: &mut Child) {
    let Some(pid) = process.id().and_then(|pid| i32::try_from(pid).ok()) else {
        return;
    };
    let asked = kill(Pid::from_raw(pid), Signal::SIGTERM);
    let ended = tokio::time::timeout(END, process.wait()).await;
    if asked.is_err() || ended.is_err() {
        let _gone = process.kill().await;
    }
}
