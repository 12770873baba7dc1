//! `tapedeck run`: a session with a goal, and its first run followed to the end.

use tapedeck_protocol::run::PromptRequest;

use crate::commands::following::{self, Answers, Ended, Followed, OnInterrupt};
use crate::commands::local::LocalExecutor;
use crate::commands::signals::Signals;
use crate::commands::starting::{NewSession, start_executor};
use crate::context::{Connection, Context};
use crate::exit::{Exit, Failed, reader_has_gone};

/// Start a session with a goal and follow its run.
///
/// Ctrl-C cancels the run and keeps following it to its end; a second Ctrl-C leaves. With a server
/// its executors choose the agent; without one the agent is named here and runs in this process.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck run --agent claude --goal 'Fix the flaky test'
  tapedeck run --agent demo --goal 'say hello' --scratch --json
  tapedeck --remote home run --goal 'Fix the flaky test' --approval-policy auto")]
pub(crate) struct Args {
    /// What the agent should do
    #[arg(long, value_name = "TEXT")]
    goal: String,
    #[command(flatten)]
    pub(crate) new: NewSession,
}

/// Runs the goal.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let work = async |connection: &Connection| {
        start_and_follow(args, &context, connection, &mut signals).await
    };
    context.connected(work).await
}

async fn start_and_follow(
    args: Args,
    context: &Context,
    connection: &Connection,
    signals: &mut Signals,
) -> anyhow::Result<Exit> {
    if args.goal.trim().is_empty() {
        return Err(Failed::usage("`--goal` must not be blank"));
    }
    let session = args.new.create(&args.goal, context, connection).await?;
    let executor = start_executor(context, connection, &session)?;
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
        is_prompt_next: false,
    };
    follow_with(context, connection, executor, followed, signals).await
}

/// Who answers a run's questions.
pub(crate) fn answers(context: &Context, connection: &Connection) -> Answers {
    if context.printer.can_ask() && connection.embedded.is_some() {
        Answers::OnlyHere
    } else if context.printer.can_ask() {
        Answers::Here
    } else if connection.local_dir().is_some() {
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
    let ended = match outcome {
        // Whoever reads along leaves like that, too.
        Err(error) if reader_has_gone(&error) => Ended::Left {
            is_terminated: false,
        },
        outcome => outcome?,
    };
    let has_left = matches!(ended, Ended::Left { .. });
    if !has_left && ended.exit() == Exit::Success {
        return Ok(Exit::Success);
    }
    if !printer.is_json() {
        let id = followed.session_id;
        printer.note(match connection.local_dir() {
            None if has_left => {
                let command = printer.command(format_args!("attach {id}"));
                format!("it goes on; follow it: {command}")
            }
            _ => {
                let command = printer.command(format_args!("resume --session {id}"));
                format!("go on with it: {command}")
            }
        })?;
    }
    Ok(ended.exit())
}
