//! `tapedeck executor workspaces`: the git worktrees that runs on this machine have left, and the
//! end of those whose sessions are over.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;
use tapedeck_domain::git::Upkeep;
use tapedeck_executor::end_sessions;
use tapedeck_executor::workspace::{HeldWorktree, Workspaces};

use crate::commands::executor;
use crate::config::{self, Given};
use crate::context::Context;
use crate::exit::{Exit, Failed};
use crate::output::Printer;

/// Below `tapedeck executor`.
#[derive(Debug, Subcommand)]
pub(crate) enum Below {
    /// Git worktrees of sessions on this machine
    #[command(after_help = "Examples:
  tapedeck executor workspaces list
  tapedeck executor workspaces prune")]
    Workspaces(Args),
}

/// Which worktrees, and what about them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the executor keeps its things [env: `TAPEDECK_STATE_DIR`]
    #[arg(long, value_name = "DIR", global = true)]
    state_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

impl Below {
    /// The settings that the command line gives.
    pub(crate) fn flags(&self) -> Option<Given> {
        let Self::Workspaces(args) = self;
        let state_dir = args.state_dir.as_ref();
        Given::option("--state-dir", "executor.state_dir", state_dir)
    }
}

/// Git worktrees on this machine.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the worktrees, and what was put aside
    #[command(after_help = "Examples:
  tapedeck executor workspaces list")]
    List,
    /// Remove the worktrees of sessions that are closed or deleted; their branches stay
    #[command(after_help = "Examples:
  tapedeck executor workspaces prune
  tapedeck executor workspaces prune --force --remote home")]
    Prune {
        /// Also those that hold work which is not committed, and what was put aside
        #[arg(long)]
        force: bool,
    },
}

/// Runs one of them.
pub(crate) async fn run(below: &Below, context: Context) -> anyhow::Result<Exit> {
    let Below::Workspaces(Args { command, .. }) = below;
    let settings = &context.config;
    let state_dir = config::make_private_dir(&settings.executor.state_dir)?;
    let git = executor::git_options(settings)?;
    let workspaces = Workspaces::new(&[], &state_dir, git)?;
    match command {
        Command::List => list(&workspaces, context.printer).await?,
        Command::Prune { force } => prune(&workspaces, *force, &context).await?,
    }
    Ok(Exit::Success)
}

async fn list(workspaces: &Workspaces, printer: Printer) -> anyhow::Result<()> {
    let held = workspaces.held().await?;
    if printer.is_json() {
        let listed: Vec<_> = held
            .iter()
            .map(|worktree| {
                let record = worktree.record.as_ref();
                json!({
                    "session_id": worktree.session_id,
                    "source": record.map(|record| &record.source),
                    "branch": record.map(|record| &record.branch),
                    "commit": record.map(|record| &record.commit),
                    "path": worktree.path,
                    "dirty": worktree.dirty,
                    "put_aside": record.is_none(),
                })
            })
            .collect();
        printer.object(&json!({"workspaces": listed}))?;
        return Ok(());
    }
    let rows: Vec<_> = held.iter().map(row).collect();
    let columns = ["SESSION", "STATE", "SOURCE", "PATH"];
    printer.table(&columns, &rows, "there are no worktrees")?;
    Ok(())
}

fn row(worktree: &HeldWorktree) -> Vec<String> {
    let record = worktree.record.as_ref();
    let state = match (record, worktree.dirty) {
        (None, _) => "put aside",
        (_, Some(false)) => "clean",
        (_, Some(true)) => "uncommitted work",
        (_, None) => "damaged",
    };
    vec![
        worktree.session_id.clone(),
        state.to_owned(),
        record.map_or_else(String::new, |record| record.source.clone()),
        worktree.path.display().to_string(),
    ]
}

async fn prune(workspaces: &Workspaces, force: bool, context: &Context) -> anyhow::Result<()> {
    let Some(server) = context.server().await? else {
        return Err(Failed::usage(
            "only the server knows which sessions are over: name it with `--server URL`",
        ));
    };
    let (client, printer) = (server.client()?, context.printer);
    let (mut removed, mut kept) = (Vec::new(), Vec::new());
    for (session_id, done) in end_sessions(&client, workspaces, force).await? {
        match done {
            Upkeep::Remove | Upkeep::RemoveDirty => removed.push(session_id),
            Upkeep::Keep | Upkeep::KeepDirty => kept.push(session_id),
        }
    }
    if printer.is_json() {
        printer.object(&json!({"removed": removed, "kept": kept}))?;
        return Ok(());
    }
    for session_id in &removed {
        printer.line(format!("session {session_id}: removed"))?;
    }
    for session_id in &kept {
        printer.line(format!(
            "session {session_id}: kept, it is in use or not clean"
        ))?;
    }
    if removed.is_empty() && kept.is_empty() {
        printer.line("no session with a worktree here is over")?;
    }
    Ok(())
}
