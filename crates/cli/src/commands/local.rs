//! The executor inside `run` and `resume`, where no server has executors: it serves one session and
//! ends with the command. Which agent a session was started with is remembered in a file of ours:
//! what a database says is never run as a program.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;
use tapedeck_client::Client;
use tapedeck_domain::SessionId;
use tapedeck_executor::{Drained, Executor, ExecutorError, Shutdown};
use tapedeck_protocol::session::SessionResponse;
use tokio::task::JoinSet;

use crate::commands::agents::Agent;
use crate::commands::executor;
use crate::config::{self, Settings};
use crate::exit::Failed;
use crate::whole_file::write_whole;

/// The executor's name, unless its session wants another.
const NAME: &str = "cli";

/// An executor in this process.
#[derive(Debug)]
pub(crate) struct LocalExecutor {
    shutdown: Shutdown,
    task: JoinSet<Result<Drained, ExecutorError>>,
}

impl LocalExecutor {
    /// Starts an executor for a session's runs.
    ///
    /// Heartbeats need connections of their own, unless the server is in this process.
    pub(crate) fn start(
        settings: &Settings,
        (client, heartbeat_client): (&Client, Client),
        session: &SessionResponse,
        agent: &Agent,
    ) -> anyhow::Result<Self> {
        let target = &session.run_target.executor;
        let id = target.executor_id.as_deref().unwrap_or(NAME);
        let mut options = executor::options(settings, client.clone(), id)?;
        options.heartbeat_client = heartbeat_client;
        options.session_id = Some(session.session_id);
        options.pool.clone_from(&target.pool);
        options.executor_kind.clone_from(&target.executor_kind);
        options.labels.clone_from(&target.labels);
        options.max_runs = 1;
        if let Some(path) = local_path(session) {
            options.workspace_roots.push(config::absolute(&path)?);
        }
        options.workspace_roots.extend(directories(session));
        agent.drive(settings, &mut options)?;
        let shutdown = Shutdown::default();
        let executor = Executor::new(options)?;
        let mut task = JoinSet::new();
        task.spawn(executor.run(shutdown.clone()));
        Ok(Self { shutdown, task })
    }

    /// Resolves only if the executor fails.
    pub(crate) async fn failed(&mut self) -> anyhow::Error {
        match self.task.join_next().await {
            Some(Ok(Err(error))) => anyhow::Error::from(error).context("the executor failed"),
            Some(Err(error)) => anyhow::Error::from(error).context("the executor failed"),
            Some(Ok(Ok(_))) | None => std::future::pending().await,
        }
    }

    /// Whether it has failed.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_empty()
    }

    /// Takes no more runs and ends when the present one has.
    pub(crate) async fn finish(mut self) {
        self.shutdown.drain.cancel();
        while self.task.join_next().await.is_some() {}
    }

    /// Ends it; a run that is still under way is handed back.
    pub(crate) async fn end(mut self) {
        self.shutdown.drain.cancel();
        self.shutdown.now.cancel();
        while self.task.join_next().await.is_some() {}
    }
}

/// The directory that a session works in, if it has one of the person's.
pub(crate) fn local_path(session: &SessionResponse) -> Option<PathBuf> {
    let workspace = session.workspace.as_ref()?;
    let path = workspace.fields.get("path")?.as_str()?;
    Some(PathBuf::from(path))
}

/// Where the agent may work besides; what isn't there is the executor's to refuse.
fn directories(session: &SessionResponse) -> impl Iterator<Item = PathBuf> {
    let listed = session.agent.get("additional_directories");
    let listed = listed.and_then(Value::as_array).into_iter().flatten();
    let paths = listed.filter_map(|path| path.as_str().map(PathBuf::from));
    paths.filter_map(|path| config::absolute(&path).ok())
}

/// The agent that a session was started with here.
pub(crate) fn remembered(dir: &Path, session: SessionId) -> anyhow::Result<Option<Agent>> {
    match std::fs::read_to_string(memory(dir, session)) {
        Ok(text) => serde_json::from_str(&text).context("the session's agent can't be read"),
        // It was started elsewhere.
        Err(_absent) => Ok(None),
    }
}

/// The configured agent, or the one that this session was started with here.
pub(crate) fn agent_of(
    settings: &Settings,
    dir: &Path,
    session: Option<SessionId>,
) -> anyhow::Result<Agent> {
    if let Some(agent) = Agent::configured(settings) {
        return Ok(agent);
    }
    let remembered = session
        .map(|session| remembered(dir, session))
        .transpose()?;
    remembered.flatten().ok_or_else(unnamed)
}

/// No agent was named anywhere.
pub(crate) fn unnamed() -> anyhow::Error {
    Failed::usage("name the agent: `--agent CMD`, `--command CMD`, or `--agent demo` to try it out")
}

/// Remembers which agent a session was started with.
pub(crate) fn remember(dir: &Path, session: SessionId, agent: &Agent) -> anyhow::Result<()> {
    let path = memory(dir, session);
    if let Some(folder) = path.parent() {
        config::make_private_dir(folder)?;
    }
    write_whole(&path, &serde_json::to_string(agent)?)
}

/// Lets a fork be driven by the agent that its source was started with here.
pub(crate) fn inherit(dir: &Path, source: SessionId, fork: SessionId) -> anyhow::Result<()> {
    match std::fs::read_to_string(memory(dir, source)) {
        Ok(text) => write_whole(&memory(dir, fork), &text),
        // The source was started elsewhere.
        Err(_absent) => Ok(()),
    }
}

fn memory(dir: &Path, session: SessionId) -> PathBuf {
    dir.join("agents").join(format!("{session}.json"))
}
