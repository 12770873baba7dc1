//! `tapedeck executor`: claims runs from a server and drives agents through them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tapedeck_client::Client;
use tapedeck_executor::backend::Backend;
use tapedeck_executor::{Backends, Executor, GitOptions, Options, Shutdown};
use tapedeck_protocol::executor::ClaimResponse;

use crate::commands::agents::{Agent, AgentArgs};
use crate::commands::signals::{Signals, Tether};
use crate::commands::workspaces::{self, Below};
use crate::config::{self, Given, Settings};
use crate::context::Context;
use crate::exit::{Exit, Failed};

/// Run an executor: claim runs and drive agents through them.
///
/// SIGTERM drains: no new runs, the present ones may finish within the grace period and are handed
/// back after it; a second signal hands them back at once.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  tapedeck executor --agent demo
  tapedeck executor --remote home --agent claude --workspace-root ~/code
  tapedeck executor --executor-id laptop --label gpu=yes --max-runs 2 --agent \"opencode acp\"")]
pub(crate) struct Args {
    #[command(subcommand)]
    below: Option<Below>,
    /// Its stable name [default: the host's] [env: `TAPEDECK_EXECUTOR_ID`]
    #[arg(long, value_name = "NAME")]
    executor_id: Option<String>,
    /// Its pool [default: default] [env: `TAPEDECK_POOL`]
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// The label that runs are matched by [default: `local_cli`] [env: `TAPEDECK_EXECUTOR_KIND`]
    #[arg(long, value_name = "NAME")]
    executor_kind: Option<String>,
    /// A further label; may be repeated [env: `TAPEDECK_LABELS`]
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Allow local workspaces inside this directory; may be repeated
    /// [env: `TAPEDECK_WORKSPACE_ROOTS`]
    #[arg(long = "workspace-root", value_name = "DIR")]
    workspace_roots: Vec<PathBuf>,
    /// Runs at a time [default: 1] [env: `TAPEDECK_MAX_RUNS`]
    #[arg(long, value_name = "N")]
    max_runs: Option<u32>,
    /// How long a run is held without a sign of life, 10 to 300 [default: 60]
    /// [env: `TAPEDECK_LEASE_SECONDS`]
    #[arg(long, value_name = "N")]
    lease_seconds: Option<u32>,
    /// How long runs may go on after SIGTERM [default: 30] [env: `TAPEDECK_DRAIN_SECONDS`]
    #[arg(long, value_name = "N")]
    drain_seconds: Option<u32>,
    /// How long an agent may be silent [default: 600] [env: `TAPEDECK_IDLE_TIMEOUT_SECONDS`]
    #[arg(long, value_name = "N")]
    idle_timeout_seconds: Option<u32>,
    /// Spools, scratch directories and workspace locks; executors may share it
    /// [env: `TAPEDECK_STATE_DIR`]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    tether: Tether,
}

impl Args {
    /// The settings that the command line gives.
    pub(crate) fn flags(&self) -> Vec<Given> {
        let labels: BTreeMap<_, _> = self.labels.iter().cloned().collect();
        let labels = (!labels.is_empty()).then_some(labels);
        let roots = &self.workspace_roots;
        let mut flags: Vec<Given> = [
            Given::option("--executor-id", "executor.id", self.executor_id.as_ref()),
            Given::option("--pool", "executor.pool", self.pool.as_ref()),
            Given::option(
                "--executor-kind",
                "executor.kind",
                self.executor_kind.as_ref(),
            ),
            Given::option("--label", "executor.labels", labels),
            Given::list("--workspace-root", "executor.workspace_roots", roots),
            Given::option("--max-runs", "executor.max_runs", self.max_runs),
            Given::option(
                "--lease-seconds",
                "executor.lease_seconds",
                self.lease_seconds,
            ),
            Given::option(
                "--drain-seconds",
                "executor.drain_seconds",
                self.drain_seconds,
            ),
            Given::option(
                "--idle-timeout-seconds",
                "executor.idle_timeout_seconds",
                self.idle_timeout_seconds,
            ),
            Given::option("--state-dir", "executor.state_dir", self.state_dir.as_ref()),
        ]
        .into_iter()
        .flatten()
        .collect();
        flags.extend(self.agent.flags());
        flags.extend(self.below.as_ref().and_then(Below::flags));
        flags
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as `name=value`")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Works until a signal comes or the server refuses.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    if let Some(below) = &args.below {
        return workspaces::run(below, context).await;
    }
    let mut names = BTreeSet::new();
    if let Some((name, _)) = args.labels.iter().find(|(name, _)| !names.insert(name)) {
        return Err(Failed::usage(format!("the label `{name}` is given twice")));
    }
    let config = &context.config;
    let Some(agent) = Agent::configured(config) else {
        return Err(Failed::usage(
            "name what to drive: `--agent CMD`, `--command CMD`, or `--agent demo` to try it out",
        ));
    };
    let Some(server) = context.server().await? else {
        return Err(Failed::usage(
            "an executor needs a server: name it with `--server URL`, or start one on the data \
             directory with `tapedeck serve`",
        ));
    };
    let mut signals = Signals::listen_at(args.tether)?;
    let id = config
        .executor
        .id
        .clone()
        .unwrap_or_else(|| config::host_name().unwrap_or_else(|| "executor".to_owned()));
    let mut options = options(config, server.client()?, &id)?;
    options.heartbeat_client = server.client()?;
    agent.drive(config, &mut options)?;
    let shutdown = Shutdown::default();
    let executor = Executor::new(options)?;
    tracing::info!(executor_id = id, server = server.url, "executor.started");
    let working = executor.run(shutdown.clone());
    let mut working = std::pin::pin!(working);
    loop {
        tokio::select! {
            drained = &mut working => {
                let drained = drained?;
                tracing::info!(
                    settled = drained.settled,
                    handed_back = drained.handed_back,
                    lost = drained.lost,
                    "executor.ended"
                );
                return Ok(Exit::Success);
            }
            asked = signals.next() => {
                if shutdown.drain.is_cancelled() {
                    shutdown.now.cancel();
                } else {
                    tracing::info!(?asked, "executor.draining");
                    shutdown.drain.cancel();
                }
            }
        }
    }
}

/// What the settings say of an executor that still has to be given an agent.
pub(crate) fn options(
    settings: &Settings,
    client: Client,
    executor_id: &str,
) -> anyhow::Result<Options> {
    let section = &settings.executor;
    let roots = section.workspace_roots.iter();
    let roots: anyhow::Result<Vec<PathBuf>> = roots.map(|root| workspace_root(root)).collect();
    let state_dir = config::make_private_dir(&section.state_dir)?;
    let backends = Arc::new(NoBackend);
    Ok(Options {
        pool: section.pool.clone(),
        executor_kind: section.kind.clone(),
        labels: section.labels.clone(),
        workspace_roots: roots?,
        max_runs: section.max_runs,
        lease_seconds: section.lease_seconds,
        drain_grace: Duration::from_secs(section.drain_seconds.into()),
        idle_timeout: Some(Duration::from_secs(section.idle_timeout_seconds.into())),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        git: git_options(settings)?,
        ..Options::new(client, executor_id, state_dir, backends)
    })
}

/// How the settings want git to be used.
pub(crate) fn git_options(settings: &Settings) -> anyhow::Result<GitOptions> {
    let section = &settings.git;
    let config_file = section.config_file.as_deref().map(config::absolute);
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    Ok(GitOptions {
        environment: config::inherited_environment(),
        config_file: config_file.transpose()?,
        transports: section.transports()?,
        fetch_limit: seconds(section.fetch_seconds),
        keep_dirty: seconds(86_400) * section.keep_dirty_days,
        check_every: seconds(section.check_seconds),
    })
}

fn workspace_root(root: &Path) -> anyhow::Result<PathBuf> {
    let path = config::absolute(root)
        .map_err(|error| Failed::usage(format!("workspace root {error:#}")))?;
    if path.is_file() {
        let text = format!("workspace root `{}` is no directory", path.display());
        return Err(Failed::usage(text));
    }
    Ok(path)
}

/// Stands in until an agent is chosen.
#[derive(Debug)]
struct NoBackend;

impl Backends for NoBackend {
    fn backend(&self, _claim: &ClaimResponse) -> Result<Arc<dyn Backend>, String> {
        Err("this executor drives no agent".to_owned())
    }
}
