//! `tapedeck acp`: an agent for editors, whose sessions a server keeps. Without a server of the
//! person's own it works with one in the background, and leaves executors behind that outlive it.

mod executing;
mod local;

use std::sync::Arc;

use anyhow::Context as _;
use tapedeck_acp_agent::{Host, Remote, serve, wire};
use tapedeck_domain::SessionId;
use tapedeck_domain::session::ApprovalPolicy;

use crate::commands::agents::{Agent, AgentArgs};
use crate::commands::local::unnamed;
use crate::commands::serve as server;
use crate::commands::starting::agent_is_the_servers;
use crate::context::{Background, Context};
use crate::exit::Exit;
use crate::words::one_of;
use local::LocalHost;

/// Be an agent for editors, over ACP on stdio, with sessions that last.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Who answers the agent's questions in new sessions: `yolo` approves all, `auto` asks before
    /// what changes something, `interactive` always asks
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "interactive",
        value_parser = one_of(ApprovalPolicy::ALL, ApprovalPolicy::as_str)
    )]
    approval_policy: ApprovalPolicy,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    /// What this process is to be for others of its kind
    ///
    /// An executor that starts a server adds to its own arguments: the last counts.
    #[arg(
        long,
        hide = true,
        overrides_with = "role",
        requires_if("executor", "session")
    )]
    role: Option<Role>,
    /// The session that an executor is for
    #[arg(long, hide = true, requires = "role")]
    session: Option<SessionId>,
}

const EXAMPLES: &str = "\
Examples:
  tapedeck acp --agent claude
  tapedeck acp --server https://tapedeck.example.com
  tapedeck --remote home acp

docs/editors.md shows how Zed, Neovim, JetBrains and VS Code start it.";

/// What a process of this command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// The server in the background.
    Server,
    /// The executor of one session.
    Executor,
}

impl Args {
    /// Whether it serves an editor, and not others of its kind.
    pub(crate) const fn is_for_an_editor(&self) -> bool {
        self.role.is_none()
    }
}

/// Serves one editor until it has gone.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    match (args.role, args.session) {
        (Some(role), session) => {
            // Nothing that ends the editor and its children shall end this, too. Whoever leads a
            // group already is out of their reach.
            let _leads = nix::unistd::setsid();
            match (role, session) {
                (Role::Executor, Some(session)) => executing::run(session, &context).await,
                (Role::Executor | Role::Server, _) => server::run_in_background(context).await,
            }
        }
        (None, _) => serve_editor(args, context).await,
    }
}

async fn serve_editor(args: Args, context: Context) -> anyhow::Result<Exit> {
    let policy = args.approval_policy;
    let is_given = args.agent.is_given();
    if let Some(server) = context.server().await?
        && (context.config.server.is_some() || !server.is_background)
    {
        let is_named = context.config.server.is_some() || context.config.remote.is_some();
        if is_given && is_named {
            return Err(agent_is_the_servers());
        }
        if is_given {
            // An editor's settings stay the same whether somebody has started a server here or not.
            tracing::warn!("the executors of the server that serves here choose the agent");
        }
        let host: Arc<dyn Host> = Arc::new(Remote(server.client()?));
        return on_stdio(host, policy).await;
    }
    let Some(agent) = Agent::configured(&context.config) else {
        return Err(unnamed());
    };
    agent.check(&context.config)?;
    let background = Background::enter(&context.config).await?;
    let host = Arc::new(LocalHost::new(background, agent));
    let serving = on_stdio(Arc::clone(&host) as Arc<dyn Host>, policy);
    tokio::select! {
        served = serving => served,
        () = host.keep() => Ok(Exit::Success),
    }
}

async fn on_stdio(host: Arc<dyn Host>, policy: ApprovalPolicy) -> anyhow::Result<Exit> {
    let incoming = wire::stdin_lines().context("can't read stdin")?;
    serve(host, policy, incoming, tokio::io::stdout()).await?;
    Ok(Exit::Success)
}
