//! `tapedeck man`: manual pages from the same source as the help.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_mangen::Man;
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
        printer.bytes(&page(&Man::new(command))?)?;
        return Ok(Exit::Success);
    };
    let at = || format!("`{}`", dir.display());
    std::fs::create_dir_all(&dir).with_context(at)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write(&command, &dir).with_context(at)?;
    if printer.is_json() {
        printer.object(&json!({"dir": dir}))?;
    } else {
        printer.note(format!("the pages are in {}", at()))?;
    }
    Ok(Exit::Success)
}

/// Writes the pages of a command and of all below it.
fn write(command: &clap::Command, dir: &Path) -> io::Result<()> {
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        write(below, dir)?;
    }
    let man = Man::new(command.clone());
    std::fs::write(dir.join(man.get_filename()), page(&man)?)
}

/// A page. What stands behind a command's help has its first line for a heading, as manuals call it.
fn page(man: &Man) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8_lossy(&page);
    let page = page.replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n");
    let page = page.replace("\nExit codes:\n", "\n.SH \"EXIT STATUS\"\n");
    Ok(page.into_bytes())
}
