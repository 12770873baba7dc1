//! `tapedeck demo-agent`: an ACP agent that does what a script in the prompt says.

use std::path::PathBuf;

use crate::demo_agent::{Options, serve_stdio};
use crate::exit::Exit;

/// Be an agent without a model that does what a script in the prompt says, over ACP on stdio.
///
/// Steps, one a line or divided by `;`: say TEXT, think TEXT, plan A | B, tool NAME {json},
/// ask TOOL {json}, two-asks, stream `N [EVERY_MS]`, slow SECONDS, write PATH TEXT, read PATH, usage,
/// remember, and for tests begin TOOL {json}, noise, long BYTES, flood N, crash `CODE`, exit, hang,
/// ignore-cancel SECONDS, late-ask TOOL {json}, spawn, fail MESSAGE.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck run --agent demo --goal 'say hello; stream 5 200'")]
pub(crate) struct Args {
    /// Where it keeps what it remembers of its sessions
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Serves one client until it closes its end.
pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let state_dir = args.state_dir;
    serve_stdio(Options { state_dir }).await?;
    Ok(Exit::Success)
}
