//! Checkpoints of a session: capture, list, delete, restore; and forks.

use tapedeck_client::{Client, Paging};
use tapedeck_domain::{CheckpointId, SessionId};
use tapedeck_protocol::checkpoint::{
    CheckpointResponse, CreateCheckpointRequest, ForkRequest, RestoreRequest,
};
use tapedeck_protocol::session::SessionResponse;

use super::{PageArgs, more};
use crate::commands::local;
use crate::context::Connection;
use crate::exit::{Exit, Failed};
use crate::output::{Printer, or_nothing, short, time};

/// Checkpoints of one page when one is looked for.
const PAGE: u32 = 200;

/// Which checkpoints.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck sessions checkpoints SESSION
  tapedeck sessions checkpoints SESSION --all --json")]
pub(crate) struct ListArgs {
    /// The session
    pub(crate) session: SessionId,
    /// Also those that were deleted or put aside by a restore
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// What to capture.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck sessions checkpoint SESSION
  tapedeck sessions checkpoint SESSION --label 'before the rewrite'")]
pub(crate) struct CaptureArgs {
    /// The session; no run may be active
    pub(crate) session: SessionId,
    /// What to call the place
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
}

/// A checkpoint of a session.
#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// The session; no run may be active
    pub(crate) session: SessionId,
    /// The checkpoint: its id, or its label, of which the newest counts
    pub(crate) checkpoint: String,
}

/// From where to fork.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck sessions fork SESSION
  tapedeck sessions fork SESSION --checkpoint CHECKPOINT --title 'another way'
  tapedeck sessions fork SESSION --seq 120

Without a place the fork starts from what has settled by now.")]
pub(crate) struct ForkArgs {
    /// The session
    pub(crate) session: SessionId,
    /// Start from this checkpoint, with its settings
    #[arg(long, value_name = "ID|LABEL", conflicts_with = "seq")]
    pub(crate) checkpoint: Option<String>,
    /// Start from what had settled by the event with this number
    #[arg(long, value_name = "N")]
    pub(crate) seq: Option<u64>,
    /// The new session's title [default: that of the session]
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
}

/// Lists checkpoints.
pub(crate) async fn list(
    args: ListArgs,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<()> {
    let paging = args.page.paging();
    let client = &connection.client;
    let list = client.checkpoints(args.session, args.all, &paging).await?;
    if printer.is_json() {
        return Ok(printer.object(&list)?);
    }
    let rows: Vec<_> = list.checkpoints.iter().map(row).collect();
    let head = ["CHECKPOINT", "LABEL", "EVENT", "CREATED", "STATE"];
    printer.table(&head, &rows, "the session has no checkpoints")?;
    Ok(more(printer, list.next_cursor.as_deref())?)
}

fn row(checkpoint: &CheckpointResponse) -> Vec<String> {
    let state = match (checkpoint.deleted_at, checkpoint.superseded_at) {
        (Some(_), _) => "deleted",
        (None, Some(_)) => "put aside",
        (None, None) => "active",
    };
    vec![
        checkpoint.checkpoint_id.to_string(),
        short(checkpoint.label.as_deref().unwrap_or("-"), 60),
        checkpoint.session_seq.to_string(),
        time(Some(checkpoint.created_at)),
        state.to_owned(),
    ]
}

/// Captures a checkpoint.
pub(crate) async fn capture(
    args: CaptureArgs,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<()> {
    connection.touch(args.session);
    let request = CreateCheckpointRequest {
        label: args.label,
        command_id: None,
    };
    let client = &connection.client;
    let checkpoint = client.create_checkpoint(args.session, &request).await?;
    if printer.is_json() {
        return Ok(printer.object(&checkpoint)?);
    }
    Ok(printer.fields(&[
        ("checkpoint", checkpoint.checkpoint_id.to_string()),
        ("label", or_nothing(checkpoint.label.as_ref())),
        ("event", checkpoint.session_seq.to_string()),
        ("tape position", checkpoint.tape_position.to_string()),
        ("created", time(Some(checkpoint.created_at))),
    ])?)
}

/// Drops a checkpoint from the active list.
pub(crate) async fn delete(
    one: One,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<()> {
    connection.touch(one.session);
    let client = &connection.client;
    let id = find(client, one.session, Some(&one.checkpoint)).await?;
    client.delete_checkpoint(one.session, id).await?;
    if printer.is_json() {
        let deleted = serde_json::json!({"checkpoint_id": id, "deleted": true});
        return Ok(printer.object(&deleted)?);
    }
    Ok(printer.line(format!("checkpoint {id}: deleted"))?)
}

/// A checkpoint by its id, or the newest active one of a label, or of all.
async fn find(
    client: &Client,
    session: SessionId,
    which: Option<&str>,
) -> anyhow::Result<CheckpointId> {
    if let Some(id) = which.and_then(|which| which.parse().ok()) {
        return Ok(id);
    }
    let mut paging = Paging {
        limit: Some(PAGE),
        cursor: None,
    };
    loop {
        let list = client.checkpoints(session, false, &paging).await?;
        let mut listed = list.checkpoints.into_iter();
        let found = listed.find(|found| which.is_none() || found.label.as_deref() == which);
        if let Some(found) = found {
            return Ok(found.checkpoint_id);
        }
        paging.cursor = list.next_cursor;
        if paging.cursor.is_none() {
            let text = match which {
                Some(which) => format!("no checkpoint is called `{}`", which.escape_debug()),
                None => "the session has no checkpoint".to_owned(),
            };
            return Err(Failed::with(Exit::NotFound, text));
        }
    }
}

/// Puts a session back to a checkpoint, to the newest if none is named.
pub(crate) async fn restore(
    session: SessionId,
    which: Option<&str>,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<()> {
    connection.touch(session);
    let request = RestoreRequest::default();
    let client = &connection.client;
    let checkpoint = find(client, session, which).await?;
    let restored = client
        .restore_session(session, checkpoint, &request)
        .await?;
    if printer.is_json() {
        return Ok(printer.object(&restored)?);
    }
    Ok(printer.fields(&[
        ("session", restored.session_id.to_string()),
        ("checkpoint", checkpoint.to_string()),
        (
            "label",
            or_nothing(restored.latest_checkpoint_label.as_ref()),
        ),
        ("status", restored.status.to_string()),
        ("last run", or_nothing(restored.last_run_id)),
    ])?)
}

/// Makes a new session from a place of another, and prints it.
pub(crate) async fn fork(
    args: ForkArgs,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<SessionResponse> {
    let source = args.session;
    connection.touch(source);
    let client = &connection.client;
    let checkpoint_id = match args.checkpoint.as_deref() {
        None => None,
        which => Some(find(client, source, which).await?),
    };
    let request = ForkRequest {
        checkpoint_id,
        session_seq: args.seq,
        title: args.title,
        command_id: None,
    };
    let fork = client.fork_session(source, &request).await?;
    connection.touch(fork.session_id);
    if let Some(dir) = connection.local_dir() {
        local::inherit(dir, source, fork.session_id)?;
    }
    if printer.is_json() {
        printer.object(&fork)?;
        return Ok(fork);
    }
    let origin = fork.forked_from;
    printer.fields(&[
        ("session", fork.session_id.to_string()),
        ("title", or_nothing(fork.title.as_ref())),
        ("forked from", source.to_string()),
        (
            "at event",
            or_nothing(origin.map(|origin| origin.session_seq)),
        ),
    ])?;
    Ok(fork)
}
