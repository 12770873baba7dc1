//! `tapedeck man`: manual pages from the same source as the help.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;
use serde_json::json;

use crate::args::Cli;
use crate::exit::Exit;
use crate::output::Printer;

/// Print the manual page, or write a page for each command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck man | man -l -
  tapedeck man --dir ~/.local/share/man/man1")]
pub(crate) struct Args {
    /// Write `tapedeck.1`, `tapedeck-run.1` and so on into this directory, which is made if need be
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints or writes them.
pub(crate) fn run(args: Args, printer: Printer) -> anyhow::Result<Exit> {
    let command = Cli::command();
    let Some(dir) = args.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        printer.bytes(&page)?;
        return Ok(Exit::Success);
    };
    let at = || format!("`{}`", dir.display());
    std::fs::create_dir_all(&dir).with_context(at)?;
    clap_mangen::generate_to(command, &dir).with_context(at)?;
    if printer.is_json() {
        printer.object(&json!({"dir": dir}))?;
    } else {
        printer.note(format!("the pages are in {}", at()))?;
    }
    Ok(Exit::Success)
}
