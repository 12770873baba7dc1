//! The start of an agent under its guard. It owns the pipes to the guard and the three tasks that
//! serve them; it must never start an agent without a guard or with an inherited environment.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeWriter};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::environment::{EXECUTOR_MARK, Environment, RUN_MARK};
use super::pipes::Pipes;
use super::reaper::Awaited;
use super::stderr::StderrTail;
use super::tree::{Identity, Mark, Scope};
use super::{AgentExit, AgentProcess, blocking};
use crate::files::private_dir;
use crate::guard::{GuardSpec, GuardStatus, boot_clock_ms, deadline_line, lock_path};

/// After the guard's end; by then its own sweep is over.
const ORPHAN_LIMIT: Duration = Duration::from_secs(10);

/// How the guard is started: this program and these arguments, before the guard's own.
#[derive(Debug, Clone)]
pub struct GuardCommand {
    /// The binary, usually the running one.
    pub program: PathBuf,
    /// The hidden subcommand.
    pub arguments: Vec<OsString>,
}

/// What to start.
#[derive(Debug, Clone)]
pub struct AgentSpec {
    /// The run it works for.
    pub run_id: String,
    /// Program and arguments; never seen by a shell.
    pub command: Vec<OsString>,
    /// Its working directory, and what the lock is for.
    pub workspace: PathBuf,
    /// All its variables but the marks.
    pub environment: Environment,
}

/// Starts agents.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// How to start a guard.
    pub guard: GuardCommand,
    /// The executor's state directory. Executors that share workspaces have to share it too, for
    /// the locks lie in it.
    pub state_dir: PathBuf,
    /// This executor's instance, as in the mark.
    pub executor_instance: String,
    /// How long to wait for a workspace that another agent works in.
    pub lock_wait: Duration,
}

/// Why an agent was not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The workspace stayed in use.
    #[error("`{workspace}` is still in use by {holder}")]
    WorkspaceBusy {
        /// The workspace.
        workspace: PathBuf,
        /// The run that holds it, or that some run does.
        holder: String,
    },
    /// The program could not be started.
    #[error("cannot start `{program}`: {message}")]
    Program {
        /// The agent's program.
        program: String,
        /// The system's reason.
        message: String,
    },
    /// The guard ended first.
    #[error("the agent's guard ended before the agent started: {exit}{stderr}")]
    Guard {
        /// How it ended.
        exit: AgentExit,
        /// What it wrote, with a separator.
        stderr: String,
    },
    /// The guard could not be set up.
    #[error("cannot set up the agent's guard: {0}")]
    Setup(#[from] io::Error),
}

#[derive(Debug, Clone)]
pub(super) enum Phase {
    Starting,
    /// Another agent works in the workspace.
    Waiting,
    Running(i32),
    Parked,
    Resumed,
    Refused(GuardStatus),
}

impl Phase {
    /// Whether there is no agent yet.
    fn is_early(&self) -> bool {
        matches!(self, Self::Starting | Self::Waiting)
    }
}

/// Waits for a phase; without one the guard has ended.
async fn begun(phases: &mut watch::Receiver<Phase>, is_wanted: impl Fn(&Phase) -> bool) -> Phase {
    let found = phases.wait_for(|phase| is_wanted(phase)).await;
    found.map_or(Phase::Starting, |phase| phase.clone())
}

/// What a guard is told: a line, and whose deadlines count from now on.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) line: &'static str,
    pub(super) lease: watch::Receiver<Instant>,
}

impl Launcher {
    /// Starts an agent and returns once it runs. `lease` says when the guard has to begin to kill
    /// it; the caller pushes that forward with each renewal and leaves a margin to the lease's real
    /// end. Dropping the returned future ends the attempt.
    pub async fn launch(
        &self,
        spec: AgentSpec,
        lease: watch::Receiver<Instant>,
    ) -> Result<AgentProcess, LaunchError> {
        self.launch_telling(spec, lease, || {}).await
    }

    /// The same; `waits` is called if another agent works in the workspace for now.
    pub async fn launch_telling(
        &self,
        spec: AgentSpec,
        lease: watch::Receiver<Instant>,
        waits: impl FnOnce(),
    ) -> Result<AgentProcess, LaunchError> {
        self.start(spec, lease, None, waits).await
    }

    /// Starts a program beside an agent that has the workspace already: without a lock, without
    /// input, and with all that it puts out in one pipe.
    pub(crate) async fn launch_beside(
        &self,
        spec: AgentSpec,
        lease: watch::Receiver<Instant>,
    ) -> Result<(AgentProcess, pipe::Receiver), LaunchError> {
        let (output, input) = io::pipe()?;
        let output = pipe::Receiver::from_owned_fd(OwnedFd::from(output))?;
        let process = self.start(spec, lease, Some(input), || {}).await?;
        Ok((process, output))
    }

    async fn start(
        &self,
        spec: AgentSpec,
        lease: watch::Receiver<Instant>,
        output: Option<PipeWriter>,
        waits: impl FnOnce(),
    ) -> Result<AgentProcess, LaunchError> {
        // Should a guard be killed, its orphans come to us and not to init.
        set_child_subreaper(true).map_err(io::Error::from)?;
        let workspace = tokio::fs::canonicalize(&spec.workspace).await?;
        let pipes = Pipes::create(&self.state_dir)?;
        let marks = match output {
            None => vec![Mark::Run(spec.run_id.clone())],
            // The agent carries the same mark.
            Some(_) => Vec::new(),
        };
        let (mut child, awaited) = self.spawn_guard(&spec, &workspace, &pipes, &lease, output)?;
        let _names = pipes.names;
        let guard = Identity::of(awaited.pid());
        let guard = guard.ok_or_else(|| io::Error::other("it ended at once"))?;
        let scope = Scope {
            root: Some(guard),
            marks,
        };
        let stderr = Arc::new(StderrTail::new(spec.environment.redactor()));
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (phase, mut phases) = watch::channel(Phase::Starting);
        let (exited, exit) = watch::channel(None);
        let mut tasks = JoinSet::new();
        if let Some(pipe) = child.stderr.take() {
            let stderr = Arc::clone(&stderr);
            tasks.spawn(async move { stderr.fill(pipe).await });
        }
        let (orders, ordered) = mpsc::channel(1);
        tasks.spawn(push_deadlines(pipes.control, lease, ordered));
        let orphans = Scope {
            root: None,
            ..scope.clone()
        };
        tasks.spawn(supervise(
            (child, awaited),
            pipes.status,
            pipes.status_hold,
            orphans,
            phase,
            exited,
        ));

        let mut phase = begun(&mut phases, |phase| !matches!(phase, Phase::Starting)).await;
        if let Phase::Waiting = phase {
            waits();
            phase = begun(&mut phases, |phase| !phase.is_early()).await;
        }
        match phase {
            Phase::Running(agent) => Ok(AgentProcess {
                stdin,
                stdout,
                stderr,
                agent,
                guard,
                scope,
                exit,
                phase: phases,
                orders,
                _tasks: tasks,
            }),
            Phase::Refused(status) => Err(refusal(&spec, workspace, status, &stderr).await),
            Phase::Starting | Phase::Waiting | Phase::Parked | Phase::Resumed => {
                let exit = (*exit.borrow()).unwrap_or_default();
                Err(LaunchError::Guard {
                    exit,
                    stderr: quoted(&stderr).await,
                })
            }
        }
    }

    fn spawn_guard(
        &self,
        spec: &AgentSpec,
        workspace: &Path,
        pipes: &Pipes,
        lease: &watch::Receiver<Instant>,
        output: Option<PipeWriter>,
    ) -> io::Result<(Child, Awaited)> {
        let lock = output
            .is_none()
            .then(|| lock_path(&self.state_dir, workspace));
        if let Some(folder) = lock.as_deref().and_then(Path::parent) {
            private_dir(folder)?;
        }
        let guard = GuardSpec {
            run_id: spec.run_id.clone(),
            control: pipes.names.control.clone(),
            status: pipes.names.status.clone(),
            lock,
            lock_wait_ms: u64::try_from(self.lock_wait.as_millis()).unwrap_or(u64::MAX),
            deadline: on_boot_clock(*lease.borrow()),
        };
        let mut command = Command::new(&self.guard.program);
        command
            .args(&self.guard.arguments)
            .arg(serde_json::to_string(&guard)?)
            .args(&spec.command)
            .current_dir(workspace)
            .env_clear()
            .envs(spec.environment.iter())
            .env(RUN_MARK, &spec.run_id)
            .env(EXECUTOR_MARK, &self.executor_instance);
        match output {
            None => command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
            Some(output) => command
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output),
        };
        Awaited::spawn(&mut command)
    }
}

async fn refusal(
    spec: &AgentSpec,
    workspace: PathBuf,
    status: GuardStatus,
    stderr: &StderrTail,
) -> LaunchError {
    match status {
        GuardStatus::Busy { holder } => {
            let holder =
                holder.map_or_else(|| "another run".to_owned(), |run| format!("run `{run}`"));
            LaunchError::WorkspaceBusy { workspace, holder }
        }
        GuardStatus::SpawnFailed { message } => {
            let program = spec
                .command
                .first()
                .map(|name| name.to_string_lossy().into_owned());
            LaunchError::Program {
                program: program.unwrap_or_default(),
                message,
            }
        }
        GuardStatus::Killed { .. }
        | GuardStatus::Exited { .. }
        | GuardStatus::Started { .. }
        | GuardStatus::Parked
        | GuardStatus::Resumed
        | GuardStatus::Waiting => LaunchError::Guard {
            exit: exit_of(&status),
            stderr: quoted(stderr).await,
        },
    }
}

async fn quoted(stderr: &StderrTail) -> String {
    let tail = stderr.quoted().await;
    if tail.is_empty() {
        tail
    } else {
        format!(": {tail}")
    }
}

/// The boot clock is read first: a freeze between the two readings makes the deadline earlier.
fn on_boot_clock(deadline: Instant) -> u64 {
    let boot = boot_clock_ms();
    let left = deadline.saturating_duration_since(Instant::now());
    boot.saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
}

/// Tells the guard each new deadline, and what else it is ordered to. It keeps the pipe open after
/// the last one: only the end of this process or of the agent's owner closes it.
async fn push_deadlines(
    mut control: pipe::Sender,
    mut lease: watch::Receiver<Instant>,
    mut orders: mpsc::Receiver<Order>,
) {
    let mut line = "";
    loop {
        let deadline = *lease.borrow_and_update();
        // The new deadline comes before the order, which may leave the old one behind.
        let told = format!("{}{line}", deadline_line(on_boot_clock(deadline)));
        if control.write_all(told.as_bytes()).await.is_err() {
            return;
        }
        line = "";
        tokio::select! {
            Some(order) = orders.recv() => {
                (line, lease) = (order.line, order.lease);
            }
            // A lease that is over brings no more deadlines, but there may be another.
            () = async {
                if lease.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            } => {}
        }
    }
}

/// Reads the guard's reports until it ends, then makes sure that nothing of the run is left, which
/// the guard has done unless it was killed itself.
async fn supervise(
    (mut child, awaited): (Child, Awaited),
    status: pipe::Receiver,
    hold: File,
    orphans: Scope,
    phase: watch::Sender<Phase>,
    exited: watch::Sender<Option<AgentExit>>,
) {
    let mut reports = BufReader::new(status).lines();
    let mut exit = AgentExit::default();
    loop {
        tokio::select! {
            report = reports.next_line() => match report {
                Ok(Some(line)) => note(&line, &phase, &mut exit),
                Ok(None) | Err(_) => break,
            },
            _ = child.wait() => break,
        }
    }
    drop(child.wait().await);
    drop(awaited);
    drop(hold);
    drain(&mut reports, &phase, &mut exit).await;
    if let Some(Err(remaining)) = blocking(move || orphans.kill_all(ORPHAN_LIMIT)).await {
        tracing::error!(%remaining, "agent processes outlive their guard");
    }
    exited.send_replace(Some(exit));
}

async fn drain(
    reports: &mut Lines<BufReader<pipe::Receiver>>,
    phase: &watch::Sender<Phase>,
    exit: &mut AgentExit,
) {
    while let Ok(Some(line)) = reports.next_line().await {
        note(&line, phase, exit);
    }
}

fn note(line: &str, phase: &watch::Sender<Phase>, exit: &mut AgentExit) {
    let Ok(status) = serde_json::from_str::<GuardStatus>(line) else {
        return;
    };
    match status {
        GuardStatus::Waiting => drop(phase.send_replace(Phase::Waiting)),
        GuardStatus::Started { pid } => drop(phase.send_replace(Phase::Running(pid))),
        GuardStatus::Parked => drop(phase.send_replace(Phase::Parked)),
        GuardStatus::Resumed => drop(phase.send_replace(Phase::Resumed)),
        GuardStatus::Busy { .. } | GuardStatus::SpawnFailed { .. } => {
            phase.send_replace(Phase::Refused(status));
        }
        GuardStatus::Exited { .. } | GuardStatus::Killed { .. } => {
            *exit = exit_of(&status);
            phase.send_if_modified(|phase| {
                let early = phase.is_early();
                if early {
                    *phase = Phase::Refused(status);
                }
                early
            });
        }
    }
}

fn exit_of(status: &GuardStatus) -> AgentExit {
    match *status {
        GuardStatus::Exited { code, signal } => AgentExit {
            code,
            signal,
            killed: None,
        },
        GuardStatus::Killed { reason } => AgentExit {
            killed: Some(reason),
            ..AgentExit::default()
        },
        GuardStatus::Waiting
        | GuardStatus::Started { .. }
        | GuardStatus::Parked
        | GuardStatus::Resumed
        | GuardStatus::Busy { .. }
        | GuardStatus::SpawnFailed { .. } => AgentExit::default(),
    }
}
