//! `tapedeck completions`: what a shell needs to complete our command line.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::Exit;
use crate::output::Printer;

/// Print the completions for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck completions bash >~/.local/share/bash-completion/completions/tapedeck
  tapedeck completions zsh
  tapedeck completions fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints them.
pub(crate) fn run(args: &Args, printer: Printer) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tapedeck", &mut script);
    printer.text(String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}
