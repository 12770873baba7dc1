//! How a session begins: where it works, who answers for it, and the executor that serves it where
//! no server has executors.

use std::path::{Path, PathBuf};

use serde_json::Map;
use tapedeck_domain::session::{ApprovalPolicy, WorkspaceKind};
use tapedeck_protocol::run_target::{RunTargetRequest, WorkspaceBody};
use tapedeck_protocol::session::{CreateSessionRequest, SessionResponse};

use crate::commands::agents::AgentArgs;
use crate::commands::local::{self, LocalExecutor};
use crate::config;
use crate::context::{Connection, Context};
use crate::exit::Failed;
use crate::output::short;
use crate::remotes::is_on_this_machine;
use crate::words::one_of;

/// Characters of a goal that become the session's title.
const TITLE_CHARS: usize = 80;

/// What a new session is like.
#[derive(Debug, clap::Args)]
pub(crate) struct NewSession {
    /// Where it works [default: the current directory; with a server on another machine a scratch
    /// directory]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Work in an empty directory of the executor's
    #[arg(long, conflicts_with = "workspace")]
    scratch: bool,
    /// Who answers the agent's questions: `yolo` approves all, `auto` asks before what changes
    /// something, `interactive` always asks
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "interactive",
        value_parser = one_of(ApprovalPolicy::ALL, ApprovalPolicy::as_str)
    )]
    approval_policy: ApprovalPolicy,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

impl NewSession {
    /// Makes a session that is called by its first prompt. What would be refused later is refused
    /// before there is one.
    pub(crate) async fn create(
        &self,
        prompt: &str,
        context: &Context,
        connection: &Connection,
    ) -> anyhow::Result<SessionResponse> {
        let agent = match connection.local_dir() {
            Some(dir) => Some(local::agent_of(&context.config, dir, None)?),
            None if self.agent.is_given() => return Err(agent_is_the_servers()),
            None => None,
        };
        if let Some(agent) = &agent {
            agent.check(&context.config)?;
        }
        let request = CreateSessionRequest {
            title: Some(short(prompt, TITLE_CHARS)),
            run_target: Some(RunTargetRequest {
                workspace: Some(workspace(self, connection)?),
                ..RunTargetRequest::default()
            }),
            approval_policy: Some(self.approval_policy),
            origin: Some("cli".to_owned()),
            ..CreateSessionRequest::default()
        };
        let session = connection.client.create_session(&request).await?;
        connection.touch(session.session_id);
        if let (Some(dir), Some(agent)) = (connection.local_dir(), &agent) {
            local::remember(dir, session.session_id, agent)?;
        }
        Ok(session)
    }
}

/// With a server the agent is its executors' choice.
pub(crate) fn agent_is_the_servers() -> anyhow::Error {
    Failed::usage(
        "with a server its executors choose the agent: start one with `tapedeck executor --agent \
         CMD`, and leave the agent out here",
    )
}

/// Starts what serves a session's runs, unless a server's executors do.
pub(crate) fn start_executor(
    context: &Context,
    connection: &Connection,
    session: &SessionResponse,
) -> anyhow::Result<Option<LocalExecutor>> {
    let Some(dir) = connection.local_dir() else {
        return Ok(None);
    };
    let agent = local::agent_of(&context.config, dir, Some(session.session_id))?;
    local::remember(dir, session.session_id, &agent)?;
    let clients = connection.executor_clients();
    LocalExecutor::start(&context.config, clients, session, &agent).map(Some)
}

fn workspace(new: &NewSession, connection: &Connection) -> anyhow::Result<WorkspaceBody> {
    let is_here =
        connection.local_dir().is_some() || is_on_this_machine(connection.client.base_url());
    let path = match &new.workspace {
        Some(path) => Some(path.as_path()),
        None if is_here && !new.scratch => Some(Path::new(".")),
        None => None,
    };
    let Some(path) = path else {
        return Ok(WorkspaceBody {
            kind: WorkspaceKind::Scratch,
            fields: Map::new(),
        });
    };
    let path = if is_here { here(path)? } else { there(path)? };
    let text = path
        .to_str()
        .ok_or_else(|| Failed::usage("the workspace's path is no text"))?;
    Ok(WorkspaceBody {
        kind: WorkspaceKind::LocalPath,
        fields: Map::from_iter([("path".to_owned(), text.into())]),
    })
}

/// A directory of this machine by its whole path.
fn here(path: &Path) -> anyhow::Result<PathBuf> {
    let found = config::absolute(path);
    let found = found.map_err(|error| Failed::usage(format!("workspace {error:#}")))?;
    if !found.is_dir() {
        let text = format!("workspace `{}` is no directory", path.display());
        return Err(Failed::usage(text));
    }
    Ok(found)
}

/// A path on another machine, which can't be looked at from here.
fn there(path: &Path) -> anyhow::Result<PathBuf> {
    if !path.is_absolute() {
        return Err(Failed::usage(format!(
            "workspace `{}` would lie on another machine: give its whole path there, or none for a \
             scratch directory",
            path.display()
        )));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_path_on_another_machine_is_whole() {
        assert_eq!(
            there(Path::new("/srv/shop")).unwrap(),
            Path::new("/srv/shop")
        );
        for relative in [".", "shop", "../shop", ""] {
            let error = there(Path::new(relative)).unwrap_err();
            assert_eq!(Exit::of_error(&error), Exit::Usage, "{relative}");
        }
    }
}
