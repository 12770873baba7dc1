//! `tapedeck sessions`: sessions, their logs and tapes, and their checkpoints.

pub(crate) mod changes;
pub(crate) mod checkpoints;
mod past;

use clap::Subcommand;
use tapedeck_client::{Client, Follow, Frame, Paging, Start, StreamOptions};
use tapedeck_domain::{RunId, SessionId};
use tapedeck_protocol::event::{EventResponse, EventsQuery};
use tapedeck_protocol::session::SessionResponse;

use crate::commands::rendering::{brief, payload};
use crate::commands::signals::Signals;
use crate::context::{Connection, Context};
use crate::exit::Exit;
use crate::output::{Printer, or_nothing, short, time};

/// Sessions and their logs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List sessions, newest first
    #[command(after_help = "Examples:
  tapedeck sessions list
  tapedeck sessions list --limit 200 --json")]
    List(PageArgs),
    /// Show one session
    #[command(after_help = "Examples:
  tapedeck sessions show SESSION")]
    Show {
        /// The session
        session: SessionId,
    },
    /// Print a session's log
    Events(EventsArgs),
    /// Print a session's tape: its settled conversation
    Tape(past::TapeArgs),
    /// Write a session's tape as a document
    Export(past::ExportArgs),
    /// Print what a session's runs changed in its workspace
    Diff(changes::DiffArgs),
    /// Print what a session's newest settled run gave
    #[command(after_help = "Examples:
  tapedeck sessions result SESSION
  tapedeck sessions result SESSION --json")]
    Result {
        /// The session
        session: SessionId,
    },
    /// List a session's checkpoints, newest first
    Checkpoints(checkpoints::ListArgs),
    /// Capture a checkpoint
    Checkpoint(checkpoints::CaptureArgs),
    /// Delete a checkpoint; its record stays for audits
    #[command(after_help = "Examples:
  tapedeck sessions delete-checkpoint SESSION CHECKPOINT")]
    DeleteCheckpoint(checkpoints::One),
    /// Put a session back to a checkpoint; nothing is deleted
    #[command(after_help = "Examples:
  tapedeck sessions checkpoints SESSION
  tapedeck sessions restore SESSION CHECKPOINT
  tapedeck sessions restore SESSION 'before the rewrite'")]
    Restore(checkpoints::One),
    /// Make a new session that starts from a place of another
    Fork(checkpoints::ForkArgs),
    /// Delete a session and everything of it
    #[command(after_help = "Examples:
  tapedeck sessions delete SESSION
  tapedeck sessions delete SESSION --force")]
    Delete {
        /// The session
        session: SessionId,
        /// Cancel an active run first instead of refusing
        #[arg(long)]
        force: bool,
    },
}

/// Which page of a list.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct PageArgs {
    /// Items of a page, 1 to 200 [default: 50]
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Go on where the page before ended: its `next_cursor`
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

impl PageArgs {
    /// For the client.
    pub(crate) fn paging(self) -> Paging {
        Paging {
            limit: self.limit,
            cursor: self.cursor,
        }
    }
}

/// Which part of a log.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck sessions events SESSION --follow
  tapedeck sessions events SESSION --after 120 --kinds ToolCallBegin,TurnEnd --json")]
pub(crate) struct EventsArgs {
    /// The session
    session: SessionId,
    /// Only events after this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u64,
    /// Only these kinds, separated by commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    kinds: Vec<String>,
    /// Only events of this run
    #[arg(long, value_name = "ID")]
    run: Option<RunId>,
    /// Go on with new events until Ctrl-C
    #[arg(long)]
    follow: bool,
}

/// Runs one of them.
pub(crate) async fn run(command: Command, context: Context) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let work = async |connection: &Connection| {
        tokio::select! {
            outcome = answer(command, connection, context.printer) => outcome,
            _asked = signals.next() => Ok(Exit::Interrupted),
        }
    };
    context.connected(work).await
}

async fn answer(
    command: Command,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<Exit> {
    let client = &connection.client;
    match command {
        Command::List(page) => {
            let list = client.sessions(&page.paging()).await?;
            if printer.is_json() {
                printer.object(&list)?;
            } else {
                let rows: Vec<_> = list.sessions.iter().map(row).collect();
                let head = ["SESSION", "STATUS", "TITLE", "EVENTS", "LAST ACTIVITY"];
                printer.table(&head, &rows, "there are no sessions")?;
                more(printer, list.next_cursor.as_deref())?;
            }
        }
        Command::Show { session } => {
            let session = client.session(session).await?;
            if printer.is_json() {
                printer.object(&session)?;
            } else {
                show(printer, &session)?;
            }
        }
        Command::Events(args) if args.follow => follow(client, args, printer).await?,
        Command::Events(args) => events(client, args, printer).await?,
        Command::Tape(args) => past::tape(args, connection, printer).await?,
        Command::Export(args) => past::export(args, connection, printer).await?,
        Command::Diff(args) => changes::diff(args, connection, printer).await?,
        Command::Result { session } => past::result(session, connection, printer).await?,
        Command::Checkpoints(args) => checkpoints::list(args, connection, printer).await?,
        Command::Checkpoint(args) => checkpoints::capture(args, connection, printer).await?,
        Command::DeleteCheckpoint(one) => checkpoints::delete(one, connection, printer).await?,
        Command::Restore(one) => {
            let which = Some(one.checkpoint.as_str());
            checkpoints::restore(one.session, which, connection, printer).await?;
        }
        Command::Fork(args) => {
            checkpoints::fork(args, connection, printer).await?;
        }
        Command::Delete { session, force } => {
            connection.touch(session);
            client.delete_session(session, force).await?;
            if printer.is_json() {
                let deleted = serde_json::json!({"session_id": session, "deleted": true});
                printer.object(&deleted)?;
            } else {
                printer.line(format!("session {session}: deleted"))?;
            }
        }
    }
    Ok(Exit::Success)
}

/// Says how to get the next page.
pub(crate) fn more(printer: Printer, next_cursor: Option<&str>) -> std::io::Result<()> {
    match next_cursor {
        Some(cursor) => printer.note(format!("there are more: `--cursor {cursor}`")),
        None => Ok(()),
    }
}

/// A session as a line of a list.
pub(crate) fn row(session: &SessionResponse) -> Vec<String> {
    vec![
        session.session_id.to_string(),
        session.status.to_string(),
        short(session.title.as_deref().unwrap_or("-"), 60),
        session.head_seq.to_string(),
        time(Some(session.last_activity_at)),
    ]
}

/// Prints a session.
pub(crate) fn show(printer: Printer, session: &SessionResponse) -> std::io::Result<()> {
    let workspace = session.workspace.as_ref().map(|workspace| {
        let path = workspace.fields.get("path").and_then(|path| path.as_str());
        path.map_or_else(|| workspace.kind.to_string(), str::to_owned)
    });
    let owner = session.owner.as_ref().map(|owner| match owner.expires_at {
        Some(until) => format!("{} until {}", owner.owner_id, time(Some(until))),
        None => format!("{} (released)", owner.owner_id),
    });
    let target = &session.run_target.executor;
    let last_run = session
        .last_run_id
        .map(|run| match session.last_run_status {
            Some(status) => format!("{run} ({status})"),
            None => run.to_string(),
        });
    let checkpoint =
        session
            .latest_checkpoint_id
            .map(|id| match &session.latest_checkpoint_label {
                Some(label) => format!("{id} ({label})"),
                None => id.to_string(),
            });
    let origin = session
        .forked_from
        .map(|origin| format!("{} at event {}", origin.session_id, origin.session_seq));
    printer.fields(&[
        ("session", session.session_id.to_string()),
        ("title", or_nothing(session.title.as_ref())),
        ("status", session.status.to_string()),
        ("turn", session.turn_status.to_string()),
        ("last run", or_nothing(last_run)),
        ("active run", or_nothing(session.active_run_id)),
        ("queued runs", nonzero(session.queued_runs)),
        ("open questions", nonzero(session.pending_interactions)),
        (
            "resumable",
            if session.resumable { "yes" } else { "no" }.to_owned(),
        ),
        ("approvals", session.approval_policy.to_string()),
        ("workspace", or_nothing(workspace)),
        ("pool", target.pool.clone()),
        ("executor kind", target.executor_kind.clone()),
        ("events", session.head_seq.to_string()),
        ("checkpoints", nonzero(session.checkpoint_count)),
        ("latest checkpoint", or_nothing(checkpoint)),
        ("forked from", or_nothing(origin)),
        ("owner", or_nothing(owner)),
        ("created", time(Some(session.created_at))),
        ("last activity", time(Some(session.last_activity_at))),
        ("closed", time(session.closed_at)),
    ])
}

fn nonzero(count: u32) -> String {
    if count == 0 {
        String::new()
    } else {
        count.to_string()
    }
}

async fn events(client: &Client, args: EventsArgs, printer: Printer) -> anyhow::Result<()> {
    let mut after = args.after;
    loop {
        let query = EventsQuery {
            after: Some(after.to_string()),
            kinds: (!args.kinds.is_empty()).then(|| args.kinds.join(",")),
            run_id: args.run.map(|run| run.to_string()),
            ..EventsQuery::default()
        };
        let page = client.events(args.session, &query).await?;
        if page.events.is_empty() {
            return Ok(());
        }
        for event in &page.events {
            print(printer, event)?;
        }
        after = page.next_cursor;
    }
}

fn print(printer: Printer, event: &EventResponse) -> std::io::Result<()> {
    if printer.is_json() {
        return printer.object(event);
    }
    let payload = brief(Some(&event.payload.value()));
    line(
        printer,
        event.session_seq,
        &time(Some(event.recorded_at)),
        &event.kind,
        &payload,
    )
}

fn line(printer: Printer, seq: u64, at: &str, kind: &str, payload: &str) -> std::io::Result<()> {
    printer.line(format!("{seq:>6}  {at}  {kind:<18}  {payload}").trim_end())
}

async fn follow(client: &Client, args: EventsArgs, printer: Printer) -> anyhow::Result<()> {
    let selection = Follow {
        start: Start::After(args.after),
        run_id: args.run,
        kinds: args.kinds,
    };
    let mut frames = client.follow(args.session, selection, StreamOptions::default());
    while let Some(frame) = frames.next().await {
        if let Frame::Event(event) = frame? {
            if printer.is_json() {
                printer.object(&event.data)?;
                continue;
            }
            line(
                printer,
                event.session_seq,
                &time(Some(event.timestamp)),
                &event.kind,
                &payload(&event),
            )?;
        }
    }
    Ok(())
}
