//! An agent's process as the executor sees it: started under a guard, fed through pipes, and killed
//! as a tree. It owns the start, the lease pushed to the guard and the end; it must never pass on
//! more of the executor's environment than [`Environment`] allows, nor leave a process behind.

pub mod environment;
mod hunt;
mod launch;
mod pipes;
pub(crate) mod reaper;
mod record;
mod stderr;
pub(crate) mod tree;

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use environment::{Environment, Redactor};
pub use launch::{AgentSpec, GuardCommand, LaunchError, Launcher};
pub use stderr::StderrTail;

use crate::guard::{KillReason, PARK_LINE, RESUME_LINE};
use tree::{Identity, Mark, Scope};

/// Between SIGTERM and SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// For processes that do not die at once.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// For a guard whose agent is gone.
const GUARD_GRACE: Duration = Duration::from_secs(4);

/// For a guard to do as it is told.
const ORDER_LIMIT: Duration = Duration::from_secs(5);

/// For a thread to begin with blocking work.
const THREAD_LIMIT: Duration = Duration::from_secs(1);

/// How an agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgentExit {
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Set if its guard killed it.
    pub killed: Option<KillReason>,
}

impl std::fmt::Display for AgentExit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.killed, self.code, self.signal) {
            (Some(KillReason::DeadlinePassed), ..) => {
                formatter.write_str("was killed because its lease was not renewed in time")
            }
            (Some(KillReason::ExecutorGone), ..) => {
                formatter.write_str("was killed because its executor was gone")
            }
            (Some(KillReason::Terminated), ..) => {
                formatter.write_str("was killed because its guard was told to end")
            }
            (Some(KillReason::WorkspaceTaken), ..) => {
                formatter.write_str("was killed because another agent took its workspace")
            }
            (None, Some(code), _) => write!(formatter, "exited with status {code}"),
            (None, None, Some(signal)) => match Signal::try_from(signal) {
                Ok(named) => write!(formatter, "was ended by {named}"),
                Err(_) => write!(formatter, "was ended by signal {signal}"),
            },
            (None, None, None) => formatter.write_str("ended with its guard"),
        }
    }
}

/// A running agent. Dropping it closes the guard's control pipe, which kills the whole tree.
#[derive(Debug)]
pub struct AgentProcess {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Arc<StderrTail>,
    agent: i32,
    guard: Identity,
    scope: Scope,
    exit: watch::Receiver<Option<AgentExit>>,
    phase: watch::Receiver<launch::Phase>,
    orders: mpsc::Sender<launch::Order>,
    /// Supervisor, deadline pusher and stderr reader end with the process.
    _tasks: JoinSet<()>,
}

impl AgentProcess {
    /// The agent's standard input, once.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// The agent's standard output, once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// The process id of the agent, leader of its own group.
    pub fn pid(&self) -> i32 {
        self.agent
    }

    /// What the agent wrote to stderr.
    pub fn stderr(&self) -> &StderrTail {
        &self.stderr
    }

    /// Waits for the agent and all its descendants to end.
    pub async fn wait(&self) -> AgentExit {
        self.exit().await
    }

    /// The same, for somebody who does not hold the process.
    pub(crate) fn exit(&self) -> impl Future<Output = AgentExit> + use<> {
        let mut exit = self.exit.clone();
        async move {
            let ended = exit.wait_for(Option::is_some).await;
            ended.ok().and_then(|exit| *exit).unwrap_or_default()
        }
    }

    /// Lets the agent rest between two runs. Its workspace is free for others, who kill it when
    /// they take it; until then it lives as long as `alive` is pushed on. `false` if it has ended.
    pub(crate) async fn park(&self, alive: watch::Receiver<Instant>) -> bool {
        self.order(PARK_LINE, alive, |phase| {
            matches!(phase, launch::Phase::Parked)
        })
        .await
    }

    /// The agent goes on under another run's lease. `false` if it has ended, or somebody took its
    /// workspace.
    pub(crate) async fn resume(&self, lease: watch::Receiver<Instant>) -> bool {
        self.order(RESUME_LINE, lease, |phase| {
            matches!(phase, launch::Phase::Resumed)
        })
        .await
    }

    async fn order(
        &self,
        line: &'static str,
        lease: watch::Receiver<Instant>,
        done: impl Fn(&launch::Phase) -> bool,
    ) -> bool {
        let mut phase = self.phase.clone();
        if self
            .orders
            .send(launch::Order { line, lease })
            .await
            .is_err()
        {
            return false;
        }
        let done = async { phase.wait_for(|phase| done(phase)).await.is_ok() };
        let done = tokio::time::timeout(ORDER_LIMIT, done);
        tokio::select! {
            biased;
            _ = self.wait() => false,
            done = done => done.unwrap_or(false),
        }
    }

    /// Signals the agent's process group.
    pub async fn signal_group(&self, signal: Signal) {
        let (scope, group) = (self.scope.clone(), self.agent);
        blocking(move || scope.signal_group(group, signal)).await;
    }

    /// Closes stdin, unless it was taken and is the taker's to close, then waits `grace`, sends
    /// SIGTERM to the group, waits two seconds, and kills the tree.
    pub async fn kill_tree(&mut self, grace: Duration) -> AgentExit {
        drop(self.stdin.take());
        if let Some(exit) = self.wait_at_most(grace).await {
            return exit;
        }
        self.signal_group(Signal::SIGTERM).await;
        if let Some(exit) = self.wait_at_most(TERM_GRACE).await {
            return exit;
        }
        self.kill_now().await
    }

    /// SIGKILL to the whole tree at once. The guard goes last: as long as it lives, orphans are
    /// its children and can be found.
    pub async fn kill_now(&mut self) -> AgentExit {
        drop(self.stdin.take());
        let scope = self.scope.clone();
        if let Some(Err(remaining)) = blocking(move || scope.kill_all(KILL_LIMIT)).await {
            tracing::error!(%remaining, "agent processes survive SIGKILL");
        }
        if let Some(exit) = self.wait_at_most(GUARD_GRACE).await {
            return exit;
        }
        let guard = self.guard;
        blocking(move || guard.signal(Signal::SIGKILL)).await;
        self.wait_at_most(GUARD_GRACE).await.unwrap_or_default()
    }

    async fn wait_at_most(&self, limit: Duration) -> Option<AgentExit> {
        tokio::time::timeout(limit, self.wait()).await.ok()
    }
}

/// Does blocking work on another thread. Where agents have used up all processes there may be none to
/// be had, and killing them can't wait until there is: it is done here then.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let work = Arc::new(Mutex::new(Some(work)));
    let to_do = Arc::clone(&work);
    let mut elsewhere = tokio::task::spawn_blocking(move || {
        let work = to_do.lock().take();
        work.map(|work| work())
    });
    if let Ok(done) = tokio::time::timeout(THREAD_LIMIT, &mut elsewhere).await {
        // It fails only if the runtime is shutting down.
        return done.ok().flatten();
    }
    let left = work.lock().take();
    match left {
        Some(work) => {
            tracing::warn!("no thread could be had to signal processes from");
            Some(work())
        }
        None => elsewhere.await.ok().flatten(),
    }
}

/// Kills all processes that carry the mark of this run. `false` if some did not die.
pub async fn sweep_marked(run_id: &str) -> bool {
    sweep(vec![Mark::Run(run_id.to_owned())]).await
}

/// Kills what executors that are dead left behind. The caller has to know that they are dead.
pub async fn sweep_executor_leftovers(dead_instances: &[String]) -> bool {
    sweep(dead_instances.iter().cloned().map(Mark::Executor).collect()).await
}

async fn sweep(marks: Vec<Mark>) -> bool {
    if marks.is_empty() {
        return true;
    }
    let scope = Scope {
        marks,
        ..Scope::default()
    };
    match blocking(move || scope.kill_all(KILL_LIMIT)).await {
        Some(Ok(())) => true,
        Some(Err(remaining)) => {
            tracing::error!(%remaining, "processes of a dead run survive SIGKILL");
            false
        }
        None => false,
    }
}
