//! `tapedeck acp`: an agent for editors, whose sessions a server keeps.

use std::sync::Arc;

use anyhow::Context as _;
use tapedeck_acp_agent::{Remote, serve, wire};
use tapedeck_domain::session::ApprovalPolicy;

use crate::commands::agents::AgentArgs;
use crate::context::Context;
use crate::exit::Exit;

/// Be an agent for editors, over ACP on stdio, with sessions that last.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Who answers the agent's questions in new sessions: `yolo` approves all, `auto` asks before
    /// what changes something, `interactive` always asks
    #[arg(long, value_name = "POLICY", default_value = "interactive")]
    approval_policy: ApprovalPolicy,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// Serves one editor until it has gone.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    let server = context.server().await?.context("no server")?;
    let host = Arc::new(Remote(server.client()?));
    let incoming = wire::stdin_lines().context("can't read stdin")?;
    serve(host, args.approval_policy, incoming, tokio::io::stdout()).await?;
    Ok(Exit::Success)
}
