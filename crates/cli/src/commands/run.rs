//! `tapedeck run`: a session with a goal, and its first run followed to the end.

use std::path::PathBuf;

use serde_json::Map;
use tapedeck_domain::session::{ApprovalPolicy, WorkspaceKind};
use tapedeck_protocol::run::PromptRequest;
use tapedeck_protocol::run_target::{RunTargetRequest, WorkspaceBody};
use tapedeck_protocol::session::{CreateSessionRequest, SessionResponse};

use crate::commands::agents::AgentArgs;
use crate::commands::following::{self, Answers, Ended, Followed, OnInterrupt};
use crate::commands::local::{self, LocalExecutor};
use crate::commands::signals::Signals;
use crate::config;
use crate::context::{Connection, Context};
use crate::exit::{Exit, Failed};
use crate::output::short;

/// Characters of a goal that become the session's title.
const TITLE_CHARS: usize = 80;

/// Start a session with a goal and follow its run.
///
/// Ctrl-C cancels the run and keeps following it to its end; a second Ctrl-C leaves. With a server
/// its executors choose the agent; without one the agent is named here and runs in this process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What the agent should do
    #[arg(long, value_name = "TEXT")]
    goal: String,
    /// Where it works [default: the current directory; with a server on another machine a scratch
    /// directory]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Work in an empty directory of the executor's
    #[arg(long, conflicts_with = "workspace")]
    scratch: bool,
    /// Who answers the agent's questions: `yolo` approves all, `auto` asks before what changes
    /// something, `interactive` always asks
    #[arg(long, value_name = "POLICY", default_value = "interactive")]
    approval_policy: ApprovalPolicy,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// Runs the goal.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let connection = context.connect().await?;
    let outcome = start_and_follow(args, &context, &connection, &mut signals).await;
    connection.close().await;
    outcome
}

async fn start_and_follow(
    args: Args,
    context: &Context,
    connection: &Connection,
    signals: &mut Signals,
) -> anyhow::Result<Exit> {
    let agent = match &connection.embedded {
        Some(embedded) => Some(local::agent_of(&context.config, embedded, None)?),
        None if args.agent.is_given() => return Err(agent_is_the_servers()),
        None => None,
    };
    // What would be refused later is refused before there is a session.
    if args.goal.trim().is_empty() {
        return Err(Failed::usage("`--goal` must not be blank"));
    }
    if let Some(agent) = &agent {
        agent.check(&context.config)?;
    }
    let request = CreateSessionRequest {
        title: Some(short(&args.goal, TITLE_CHARS)),
        run_target: Some(RunTargetRequest {
            workspace: Some(workspace(&args, connection)?),
            ..RunTargetRequest::default()
        }),
        approval_policy: Some(args.approval_policy),
        origin: Some("cli".to_owned()),
        ..CreateSessionRequest::default()
    };
    let session = connection.client.create_session(&request).await?;
    connection.touch(session.session_id);
    if let (Some(embedded), Some(agent)) = (&connection.embedded, &agent) {
        local::remember(embedded, session.session_id, agent)?;
    }
    let executor = agent
        .map(|agent| LocalExecutor::start(&context.config, &connection.client, &session, &agent))
        .transpose()?;
    let request = PromptRequest {
        prompt: Some(args.goal),
        ..PromptRequest::default()
    };
    let accepted = connection
        .client
        .prompt(session.session_id, &request)
        .await?;
    let followed = Followed {
        session_id: session.session_id,
        run_id: accepted.run_id,
        after: accepted.session_seq.saturating_sub(1),
        on_interrupt: OnInterrupt::CancelRun,
        answers: answers(context, connection),
    };
    follow_with(context, connection, executor, followed, signals).await
}

/// Who answers a run's questions.
pub(crate) fn answers(context: &Context, connection: &Connection) -> Answers {
    if context.printer.can_ask() {
        Answers::Here
    } else if connection.embedded.is_some() {
        Answers::Nobody
    } else {
        Answers::Elsewhere
    }
}

/// Follows a run while the executor that serves it, if it is ours, works.
pub(crate) async fn follow_with(
    context: &Context,
    connection: &Connection,
    mut executor: Option<LocalExecutor>,
    followed: Followed,
    signals: &mut Signals,
) -> anyhow::Result<Exit> {
    let printer = context.printer;
    if !printer.is_json() {
        printer.note(format!("session {}", followed.session_id))?;
    }
    let failed = async {
        match &mut executor {
            Some(executor) => executor.failed().await,
            None => std::future::pending().await,
        }
    };
    let outcome = tokio::select! {
        ended = following::follow(&connection.client, printer, followed, signals) => ended,
        error = failed => Err(error),
    };
    if let Some(executor) = executor {
        executor.end().await;
    }
    let ended = outcome?;
    if ended != (Ended::Left) && ended.exit() == Exit::Success {
        return Ok(Exit::Success);
    }
    if !printer.is_json() {
        let id = followed.session_id;
        printer.note(match &connection.embedded {
            None if ended == Ended::Left => format!("it goes on; follow it: tapedeck attach {id}"),
            _ => format!("go on with it: tapedeck resume --session {id}"),
        })?;
    }
    Ok(ended.exit())
}

/// With a server the agent is its executors' choice.
pub(crate) fn agent_is_the_servers() -> anyhow::Error {
    Failed::usage(
        "with a server its executors choose the agent: start one with `tapedeck executor --agent \
         CMD`, and leave the agent out here",
    )
}

fn workspace(args: &Args, connection: &Connection) -> anyhow::Result<WorkspaceBody> {
    let is_here = connection.embedded.is_some() || is_on_this_machine(connection);
    let path = match &args.workspace {
        Some(path) => Some(path.clone()),
        None if is_here && !args.scratch => Some(PathBuf::from(".")),
        None => None,
    };
    let Some(path) = path else {
        return Ok(WorkspaceBody {
            kind: WorkspaceKind::Scratch,
            fields: Map::new(),
        });
    };
    // A path on another machine can't be looked at from here.
    let path = if is_here {
        config::absolute(&path).map_err(|error| Failed::usage(format!("workspace {error:#}")))?
    } else {
        path
    };
    let text = path
        .to_str()
        .ok_or_else(|| Failed::usage("the workspace's path is no text"))?;
    Ok(WorkspaceBody {
        kind: WorkspaceKind::LocalPath,
        fields: Map::from_iter([("path".to_owned(), text.into())]),
    })
}

fn is_on_this_machine(connection: &Connection) -> bool {
    match connection.client.base_url().host() {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// The session as a resume needs it.
pub(crate) fn start_executor(
    context: &Context,
    connection: &Connection,
    session: &SessionResponse,
) -> anyhow::Result<Option<LocalExecutor>> {
    let Some(embedded) = &connection.embedded else {
        return Ok(None);
    };
    let agent = local::agent_of(&context.config, embedded, Some(session.session_id))?;
    local::remember(embedded, session.session_id, &agent)?;
    LocalExecutor::start(&context.config, &connection.client, session, &agent).map(Some)
}
