//! `tapedeck attach`: a session's newest run, live, without touching it.

use tapedeck_domain::SessionId;
use tapedeck_protocol::session::SessionResponse;

use crate::commands::following::{self, Answers, Followed, OnInterrupt};
use crate::commands::run::answers;
use crate::commands::signals::Signals;
use crate::context::{Connection, Context};
use crate::exit::{Exit, Failed};

/// Follow a session's newest run from its beginning; Ctrl-C leaves it running.
///
/// Questions can be answered here, unless the run belongs to a command that works without a server.
/// Ends with the run, with its exit code.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck attach SESSION
  tapedeck --remote home attach SESSION --read-only")]
pub(crate) struct Args {
    /// The session
    session: SessionId,
    /// Only watch: questions are for others to answer
    #[arg(long)]
    read_only: bool,
}

/// Follows.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let work =
        async |connection: &Connection| attach(args, &context, connection, &mut signals).await;
    context.connected(work).await
}

async fn attach(
    args: Args,
    context: &Context,
    connection: &Connection,
    signals: &mut Signals,
) -> anyhow::Result<Exit> {
    let session = connection.client.session(args.session).await?;
    let answers = if args.read_only {
        Answers::Elsewhere
    } else {
        answers(context, connection)
    };
    let followed = newest_run(connection, &session, answers).await?;
    let ended = following::follow(&connection.client, context.printer, followed, signals).await?;
    Ok(ended.exit())
}

/// A session's active or else newest run, from its beginning and without touching it.
pub(crate) async fn newest_run(
    connection: &Connection,
    session: &SessionResponse,
    answers: Answers,
) -> anyhow::Result<Followed> {
    let Some(run_id) = session.active_run_id.or(session.last_run_id) else {
        return Err(Failed::with(Exit::NotFound, "the session has no run yet"));
    };
    let run = connection.client.run(run_id).await?;
    // A question of a run in another local process is that process's to answer.
    let answers = if connection.embedded.is_some() {
        Answers::Owner
    } else {
        answers
    };
    Ok(Followed {
        session_id: session.session_id,
        run_id,
        after: run.admitted_seq.saturating_sub(1),
        on_interrupt: OnInterrupt::Leave,
        answers,
        is_prompt_next: false,
    })
}
