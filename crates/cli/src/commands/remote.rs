//! `tapedeck remote`: the servers that `--remote` knows by name. A token comes from a file or from
//! stdin, never from the command line, where other users of the machine can read it.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;
use tapedeck_client::Secret;
use tokio::io::AsyncReadExt as _;

use crate::commands::keyboard::{Keyboard, Muted};
use crate::commands::signals::Signals;
use crate::config::MOST_TOKEN_BYTES;
use crate::context::Context;
use crate::exit::{Exit, Failed};
use crate::output::Printer;
use crate::remotes::{Remote, RemotesFile, address, is_on_this_machine};

/// Servers by name.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Remember a server under a name
    Add(AddArgs),
    /// List the names
    #[command(after_help = "Examples:
  tapedeck remote list
  tapedeck remote list --json")]
    List,
    /// Forget a server and its token
    #[command(after_help = "Examples:
  tapedeck remote remove home")]
    Remove {
        /// Its name
        name: String,
    },
}

/// Which server.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck remote add home https://tapedeck.example.com --token-file token
  tapedeck remote add home https://tapedeck.example.com --token-stdin
  tapedeck --remote home sessions list

The token of `--token-file` is copied into the file of remotes, which only you can read.")]
pub(crate) struct AddArgs {
    /// Its name: letters, digits, `-`, `_` and `.`
    name: String,
    /// Its address
    url: String,
    /// Read the token from stdin; on a terminal it is asked for and not shown
    #[arg(long, conflicts_with = "token_file")]
    token_stdin: bool,
    /// Replace the remote of that name
    #[arg(long)]
    replace: bool,
}

/// Runs one of them.
pub(crate) async fn run(command: Command, context: Context) -> anyhow::Result<Exit> {
    let file = RemotesFile::configured(&context.config)?;
    match command {
        Command::Add(args) => add(args, &file, &context).await?,
        Command::List => list(&file, &context)?,
        Command::Remove { name } => {
            file.change(|remotes| remotes.remove(&name))?;
            if context.printer.is_json() {
                let removed = json!({"name": name, "removed": true});
                context.printer.object(&removed)?;
            } else {
                context.printer.line(format!("remote {name}: removed"))?;
            }
        }
    }
    Ok(Exit::Success)
}

async fn add(args: AddArgs, file: &RemotesFile, context: &Context) -> anyhow::Result<()> {
    let (config, printer) = (&context.config, context.printer);
    let url = address(&args.url)?;
    let token = if args.token_stdin {
        Some(token_from_stdin(printer).await?)
    } else if config.is_from_flag("token_file") {
        config.token()?
    } else {
        None
    };
    if token.is_some() && url.scheme() == "http" && !is_on_this_machine(&url) {
        let text = "the token will cross the network in plain text: use https beyond this machine";
        printer.note(text)?;
    }
    let remote = Remote { url, token };
    let shown = shown(&args.name, &remote);
    file.change(|remotes| remotes.add(&args.name, remote, args.replace))?;
    if printer.is_json() {
        return Ok(printer.object(&shown)?);
    }
    Ok(printer.line(format!("remote {}: added", args.name))?)
}

async fn token_from_stdin(printer: Printer) -> anyhow::Result<Secret> {
    let line = if std::io::stdin().is_terminal() {
        asked_for(printer).await?
    } else {
        // All of it: of two lines neither is sure to be the token.
        let mut text = String::new();
        let most = u64::try_from(MOST_TOKEN_BYTES).unwrap_or(u64::MAX);
        let mut stdin = tokio::io::stdin().take(most);
        stdin.read_to_string(&mut text).await?;
        text
    };
    Secret::token(&line).context("stdin")
}

/// Asks for a token without showing what is typed, from before it is asked for.
async fn asked_for(printer: Printer) -> anyhow::Result<String> {
    let mut signals = Signals::listen()?;
    let _muted = Muted::all();
    printer.prompt("Token: ")?;
    let mut keyboard = Keyboard::wait()?;
    tokio::select! {
        line = keyboard.line() => Ok(line?.unwrap_or_default()),
        _asked = signals.next() => Err(Failed::with(Exit::Interrupted, "no token was given")),
    }
}

fn list(file: &RemotesFile, context: &Context) -> anyhow::Result<()> {
    let (remotes, printer) = (file.read()?, context.printer);
    if printer.is_json() {
        let all: Vec<_> = remotes
            .iter()
            .map(|(name, remote)| shown(name, remote))
            .collect();
        return Ok(printer.object(&json!({"remotes": all}))?);
    }
    let row = |(name, remote): (&str, &Remote)| {
        let token = if remote.token.is_some() { "yes" } else { "no" };
        vec![name.to_owned(), remote.url.to_string(), token.to_owned()]
    };
    let rows: Vec<_> = remotes.iter().map(row).collect();
    let nothing = "there are no remotes; `tapedeck remote add NAME URL` adds one";
    Ok(printer.table(&["NAME", "URL", "TOKEN"], &rows, nothing)?)
}

/// A remote without its secret.
fn shown(name: &str, remote: &Remote) -> serde_json::Value {
    json!({"name": name, "url": remote.url.as_str(), "has_token": remote.token.is_some()})
}
