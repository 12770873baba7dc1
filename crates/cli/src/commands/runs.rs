//! `tapedeck runs`: single runs of a session.

use clap::Subcommand;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_protocol::run::RunResponse;
use tapedeck_protocol::views::RunsQuery;

use crate::commands::sessions::{PageArgs, more};
use crate::context::{Connection, Context};
use crate::exit::Exit;
use crate::output::{Printer, or_nothing, short, time};

/// Single runs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the runs of a session, or of all, newest first
    #[command(after_help = "Examples:
  tapedeck runs list
  tapedeck runs list SESSION --all
  tapedeck runs list --unservable")]
    List {
        /// The session
        session: Option<SessionId>,
        /// Also those that a restore has put aside
        #[arg(long)]
        all: bool,
        /// Only those that wait and that no executor can serve
        #[arg(long, conflicts_with = "all")]
        unservable: bool,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one run
    #[command(after_help = "Examples:
  tapedeck runs show RUN")]
    Show {
        /// The run
        run: RunId,
    },
    /// Cancel a run
    #[command(after_help = "Examples:
  tapedeck runs cancel RUN")]
    Cancel {
        /// The run
        run: RunId,
    },
}

/// Runs one of them.
pub(crate) async fn run(command: Command, context: Context) -> anyhow::Result<Exit> {
    let work = async |connection: &Connection| answer(command, connection, context.printer).await;
    context.connected(work).await
}

async fn answer(
    command: Command,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<Exit> {
    let client = &connection.client;
    match command {
        Command::List {
            session,
            all,
            unservable,
            page,
        } => {
            let query = query(page, all, unservable);
            let list = match session {
                Some(session) => client.runs(session, &query).await?,
                None => client.all_runs(&query).await?,
            };
            if printer.is_json() {
                printer.object(&list)?;
            } else if unservable {
                let rows: Vec<_> = list.runs.iter().map(waiting_row).collect();
                let head = ["RUN", "SESSION", "WAITS BECAUSE", "PROMPT", "REQUESTED"];
                printer.table(&head, &rows, "every run that waits can be served")?;
                more(printer, list.next_cursor.as_deref())?;
            } else {
                let rows: Vec<_> = list.runs.iter().map(row).collect();
                let head = ["RUN", "STATUS", "ATTEMPT", "PROMPT", "REQUESTED", "SETTLED"];
                let nothing = match session {
                    Some(_) => "the session has no runs",
                    None => "there are no runs",
                };
                printer.table(&head, &rows, nothing)?;
                more(printer, list.next_cursor.as_deref())?;
            }
        }
        Command::Show { run } => {
            let run = client.run(run).await?;
            if printer.is_json() {
                printer.object(&run)?;
            } else {
                show(printer, &run)?;
            }
        }
        Command::Cancel { run } => {
            let session = client.run(run).await?.session_id;
            connection.touch(session);
            let cancelled = client.cancel_run(run).await?;
            if printer.is_json() {
                printer.object(&cancelled)?;
            } else {
                printer.line(format!("run {run}: {}", cancelled.status))?;
            }
        }
    }
    Ok(Exit::Success)
}

fn query(page: PageArgs, all: bool, unservable: bool) -> RunsQuery {
    let paging = page.paging();
    RunsQuery {
        limit: paging.limit.map(|limit| limit.to_string()),
        cursor: paging.cursor,
        include_superseded: all,
        unservable,
    }
}

fn row(run: &RunResponse) -> Vec<String> {
    vec![
        run.run_id.to_string(),
        run.status.to_string(),
        run.attempt.to_string(),
        short(&run.prompt, 50),
        time(Some(run.requested_at)),
        time(run.settled_at),
    ]
}

/// A run that nobody can serve.
fn waiting_row(run: &RunResponse) -> Vec<String> {
    vec![
        run.run_id.to_string(),
        run.session_id.to_string(),
        or_nothing(run.unservable.as_ref()),
        short(&run.prompt, 40),
        time(Some(run.requested_at)),
    ]
}

fn show(printer: Printer, run: &RunResponse) -> std::io::Result<()> {
    printer.fields(&[
        ("run", run.run_id.to_string()),
        ("session", run.session_id.to_string()),
        ("continues", or_nothing(run.parent_run_id)),
        ("status", run.status.to_string()),
        ("error", or_nothing(run.error.as_ref())),
        ("reason", or_nothing(run.recovery_reason.as_ref())),
        ("waits because", or_nothing(run.unservable.as_ref())),
        ("prompt", run.prompt.clone()),
        ("attempt", run.attempt.to_string()),
        ("executor", or_nothing(run.executor_id.as_ref())),
        ("requested", time(Some(run.requested_at))),
        ("claimed", time(run.claimed_at)),
        ("started", time(run.started_at)),
        ("settled", time(run.settled_at)),
        ("put aside", time(run.superseded_at)),
        ("result", or_nothing(run.result.as_ref())),
    ])
}
