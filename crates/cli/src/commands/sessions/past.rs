//! What a session holds of its past: the tape, a transcript of it, and what its newest run gave.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::json;
use tapedeck_domain::SessionId;
use tapedeck_domain::tape::EntryKind;
use tapedeck_domain::transcript::TranscriptFormat;
use tapedeck_protocol::tape::TapeEntryResponse;
use tapedeck_protocol::views::TapeQuery;

use crate::commands::rendering::brief;
use crate::context::Connection;
use crate::output::{Printer, or_nothing, time};
use crate::whole_file::Output;
use crate::words::one_of;

/// Entries that are asked for at a time.
const PAGE: u32 = 200;

/// Which part of a tape.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck sessions tape SESSION
  tapedeck sessions tape SESSION --all --json")]
pub(crate) struct TapeArgs {
    /// The session
    session: SessionId,
    /// Only entries after this position
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u64,
    /// Also those that a restore has put aside or an executor's own entries have replaced
    #[arg(long)]
    all: bool,
}

/// What to write, and where.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck sessions export SESSION > session.md
  tapedeck sessions export SESSION --format jsonl -o session.jsonl")]
pub(crate) struct ExportArgs {
    /// The session
    session: SessionId,
    /// md for people, json or jsonl for programs [default: md; json with `--json`]
    #[arg(
        long,
        value_name = "FORMAT",
        value_parser = one_of(TranscriptFormat::ALL, TranscriptFormat::as_str)
    )]
    format: Option<TranscriptFormat>,
    /// Write into this file, which then is whole or as it was before
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Prints a tape, an entry a line.
pub(crate) async fn tape(
    args: TapeArgs,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<()> {
    connection.touch(args.session);
    let mut query = TapeQuery {
        after: Some(args.after.to_string()),
        limit: Some(PAGE.to_string()),
        include_superseded: args.all,
    };
    loop {
        let page = connection.client.tape(args.session, &query).await?;
        for entry in &page.entries {
            if printer.is_json() {
                printer.object(entry)?;
            } else {
                printer.line(line(entry).trim_end())?;
            }
        }
        let Some(next) = page.next_cursor else {
            return Ok(());
        };
        query.after = Some(next);
    }
}

fn line(entry: &TapeEntryResponse) -> String {
    let words = match entry.kind {
        EntryKind::UserMessage | EntryKind::AssistantMessage | EntryKind::Thinking => {
            brief(entry.payload.get("text").or(Some(&entry.payload)))
        }
        EntryKind::ToolCall => {
            let name = entry
                .payload
                .get("tool_name")
                .and_then(|name| name.as_str());
            let arguments = brief(entry.payload.get("arguments"));
            format!("{} {arguments}", name.unwrap_or("a tool"))
        }
        EntryKind::Anchor => entry.anchor_type.clone().unwrap_or_default(),
        EntryKind::Plan | EntryKind::RunEnd => brief(Some(&entry.payload)),
    };
    let aside = entry.superseded_by_checkpoint_id.map_or("", |_| "(aside) ");
    let (position, at) = (entry.position, time(Some(entry.created_at)));
    format!("{position:>6}  {at}  {:<18}  {aside}{words}", entry.kind)
}

/// Writes a transcript as it arrives.
pub(crate) async fn export(
    args: ExportArgs,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<()> {
    connection.touch(args.session);
    let format = args.format.unwrap_or(if printer.is_json() {
        TranscriptFormat::Json
    } else {
        TranscriptFormat::Markdown
    });
    let mut transcript = connection.client.transcript(args.session, format).await?;
    let Some(path) = &args.output else {
        let mut last = None;
        while let Some(piece) = transcript.next().await {
            let piece = piece?;
            last = piece.last().copied().or(last);
            printer.bytes(&piece)?;
        }
        if last != Some(b'\n') {
            printer.bytes(b"\n")?;
        }
        return Ok(());
    };
    let bytes = into_file(path, &mut transcript).await?;
    if printer.is_json() {
        let done =
            json!({"session_id": args.session, "format": format, "file": path, "bytes": bytes});
        return Ok(printer.object(&done)?);
    }
    Ok(printer.note(format!("{bytes} bytes in `{}`", path.display()))?)
}

/// A transcript that breaks off leaves the file as it was.
async fn into_file(
    path: &Path,
    transcript: &mut tapedeck_client::Transcript,
) -> anyhow::Result<usize> {
    let refused = || format!("`{}` can't be written", path.display());
    let mut output = Output::to(path).with_context(refused)?;
    let mut bytes = 0;
    while let Some(piece) = transcript.next().await {
        let piece = piece?;
        output.write_all(&piece).with_context(refused)?;
        bytes += piece.len();
    }
    output.finish().with_context(refused)?;
    Ok(bytes)
}

/// Prints what the newest settled run gave.
pub(crate) async fn result(
    session: SessionId,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<()> {
    let result = connection.client.result(session).await?;
    if printer.is_json() {
        return Ok(printer.object(&result)?);
    }
    if result.run_id.is_none() {
        return Ok(printer.note("no run of the session has ended yet")?);
    }
    Ok(printer.fields(&[
        ("run", or_nothing(result.run_id)),
        ("status", or_nothing(result.status)),
        ("error", or_nothing(result.error)),
        ("settled", time(result.settled_at)),
        ("result", or_nothing(result.result)),
    ])?)
}
