//! `tapedeck demo`: the whole idea in half a minute, on real processes of this binary. It tells what
//! happens and how to do it by hand, and fails if anything isn't as it should be.

mod processes;
mod story;
mod telling;
mod watching;

use std::path::PathBuf;

use anyhow::Context as _;

use crate::commands::signals::Signals;
use crate::config;
use crate::context::Context;
use crate::exit::{Exit, Failed};
use processes::Stage;
use telling::Telling;

/// Show it all in half a minute: a run loses its executor and is resumed.
///
/// Starts a server and an executor, kills the executor with SIGKILL while its agent works, waits for
/// the server to notice, starts another executor, resumes, answers the agent's question, and checks
/// that the log has no gap. Needs no key and no network; cleans up after itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck demo
  tapedeck demo --keep --data-dir ./demo")]
pub(crate) struct Args {
    /// Keep the data directory, and say how to look at it
    #[arg(long)]
    keep: bool,
}

/// Tells the story.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    let why = "the demo starts a server of its own";
    context.config.without_named_server(why)?;
    let mut signals = Signals::listen()?;
    let telling = Telling::new(context.printer);
    let given = context.config.is_from_flag("data_dir");
    let (base, data_dir, temporary) = if given {
        let data_dir = config::make_private_dir(&context.config.data_dir)?;
        (data_dir.join("demo"), data_dir, None)
    } else {
        let temporary = tempfile::Builder::new()
            .prefix("tapedeck-demo-")
            .tempdir()?;
        let base = temporary.path().canonicalize()?;
        (base.clone(), base.join("data"), Some(temporary))
    };
    let mut stage = Stage::new(base, &data_dir)?;
    let outcome = tokio::select! {
        outcome = Box::pin(story::tell(&mut stage, telling)) => outcome,
        _asked = signals.next() => Err(Failed::with(Exit::Interrupted, "interrupted")),
    };
    if outcome.is_err() {
        stage.kill_executors().await;
    }
    let quoted = if outcome.is_err() {
        stage.last_words()
    } else {
        String::new()
    };
    stage.clear().await;
    let kept = keep(args.keep, temporary, &data_dir)?;
    match outcome {
        Ok(()) => {
            telling.end(kept.as_deref())?;
            Ok(Exit::Success)
        }
        Err(error) if Exit::of_error(&error) == Exit::Interrupted => Err(error),
        Err(error) => {
            let text = format!("the demo did not go as it should: {error:#}{quoted}");
            Err(Failed::with(Exit::RunFailed, text))
        }
    }
}

/// Keeps or removes the temporary directory; gives the data directory that stays.
fn keep(
    wanted: bool,
    temporary: Option<tempfile::TempDir>,
    data_dir: &std::path::Path,
) -> anyhow::Result<Option<PathBuf>> {
    match temporary {
        Some(temporary) if !wanted => {
            temporary
                .close()
                .context("the temporary directory stays behind")?;
            Ok(None)
        }
        Some(temporary) => {
            let _path = temporary.keep();
            Ok(Some(data_dir.to_path_buf()))
        }
        None => Ok(Some(data_dir.to_path_buf())),
    }
}
