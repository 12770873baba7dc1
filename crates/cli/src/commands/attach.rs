//! `tapedeck attach`: a session's newest run, live, without touching it.

use tapedeck_domain::SessionId;

use crate::commands::following::{self, Answers, Followed, OnInterrupt};
use crate::commands::run::answers;
use crate::commands::signals::Signals;
use crate::context::{Connection, Context};
use crate::exit::{Exit, Failed};

/// Follow a session's newest run from its beginning; Ctrl-C leaves it running.
///
/// Questions can be answered here. Ends with the run, with its exit code.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The session
    session: SessionId,
}

/// Follows.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let connection = context.connect().await?;
    let outcome = attach(args, &context, &connection, &mut signals).await;
    connection.close().await;
    outcome
}

async fn attach(
    args: Args,
    context: &Context,
    connection: &Connection,
    signals: &mut Signals,
) -> anyhow::Result<Exit> {
    let session = connection.client.session(args.session).await?;
    let Some(run_id) = session.active_run_id.or(session.last_run_id) else {
        return Err(Failed::with(Exit::NotFound, "the session has no run yet"));
    };
    let run = connection.client.run(run_id).await?;
    // A question of a run in another local process is that process's to answer.
    let answers = match answers(context, connection) {
        Answers::Nobody => Answers::Elsewhere,
        answers => answers,
    };
    let followed = Followed {
        session_id: args.session,
        run_id,
        after: run.admitted_seq.saturating_sub(1),
        on_interrupt: OnInterrupt::Leave,
        answers,
    };
    let ended = following::follow(&connection.client, context.printer, followed, signals).await?;
    Ok(ended.exit())
}
