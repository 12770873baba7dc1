//! What a session's runs changed in its workspace: a table of files, or the patch.

use tapedeck_domain::{RunId, SessionId};
use tapedeck_protocol::changes::{ChangeSet, ChangesQuery, FileChange};

use crate::context::Connection;
use crate::output::{Printer, Tone, printable};

/// The widest bar of a file.
const BAR: u64 = 40;

/// Which changes, and in which form.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck sessions diff SESSION
  tapedeck sessions diff SESSION --whole --patch | git apply --binary")]
pub(crate) struct DiffArgs {
    /// The session
    pub(crate) session: SessionId,
    /// Print the patch
    #[arg(long, conflicts_with = "stat")]
    pub(crate) patch: bool,
    /// Print a line for each file, with how much of it has changed
    #[arg(long)]
    pub(crate) stat: bool,
    /// The run [default: the newest that told of its changes]
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<RunId>,
    /// All changes since the session began, up to the end of that run
    #[arg(long)]
    pub(crate) whole: bool,
}

/// Prints changes.
pub(crate) async fn diff(
    args: DiffArgs,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<()> {
    connection.touch(args.session);
    let query = ChangesQuery {
        run_id: args.run.map(|run| run.to_string()),
        scope: args.whole.then(|| "session".to_owned()),
    };
    if args.patch {
        let patch = connection.client.patch(args.session, &query).await?;
        if printer.is_terminal() {
            printer.text(coloured(printer, &patch))?;
        } else {
            printer.bytes(&patch)?;
        }
        return Ok(());
    }
    let told = connection.client.diff(args.session, &query).await?;
    if printer.is_json() {
        printer.object(&told)?;
    } else if args.stat {
        stat(printer, &told.changes)?;
    } else {
        let files = &told.changes.files;
        let rows: Vec<_> = files.iter().map(row).collect();
        let head = ["", "FILE", "ADDED", "DELETED", "NOTE"];
        printer.table(&head, &rows, "nothing has changed")?;
        rest(printer, &told.changes)?;
    }
    Ok(())
}

fn row(file: &FileChange) -> Vec<String> {
    let number = |lines: Option<u64>| lines.map_or_else(|| "-".to_owned(), |n| n.to_string());
    vec![
        file.status.letter().to_string(),
        name(file),
        number(file.additions),
        number(file.deletions),
        note(file),
    ]
}

/// Names come from repositories, so what could move the cursor is not printed.
fn name(file: &FileChange) -> String {
    let plain = |path: &str| path.escape_debug().to_string();
    match &file.old_path {
        Some(old) => format!("{} => {}", plain(old), plain(&file.path)),
        None => plain(&file.path),
    }
}

fn note(file: &FileChange) -> String {
    let size = file.size.map(|size| format!("{size} bytes"));
    match (file.truncated, file.binary) {
        (true, _) => {
            let size = size.map_or_else(String::new, |size| format!(", {size}"));
            format!("too large for the patch{size}")
        }
        (false, true) => size.map_or_else(|| "binary".to_owned(), |size| format!("binary, {size}")),
        (false, false) => String::new(),
    }
}

fn stat(printer: Printer, changes: &ChangeSet) -> std::io::Result<()> {
    let names: Vec<_> = changes.files.iter().map(name).collect();
    let width = names.iter().map(|name| name.chars().count()).max();
    let width = width.unwrap_or(0);
    let most = changes.files.iter().map(lines).max().unwrap_or(0).max(BAR);
    for (file, name) in changes.files.iter().zip(&names) {
        let bar = match (file.additions, file.deletions) {
            (Some(added), Some(deleted)) => {
                let part = |lines: u64, sign: &str| {
                    let length = (lines * BAR).div_ceil(most);
                    sign.repeat(usize::try_from(length).unwrap_or(0))
                };
                let added = printer.paint(Tone::Good, part(added, "+"));
                let deleted = printer.paint(Tone::Bad, part(deleted, "-"));
                format!("{:>5} {added}{deleted}", lines(file))
            }
            _ => note(file),
        };
        printer.line(format!(" {name:<width$} | {bar}").trim_end())?;
    }
    rest(printer, changes)
}

fn lines(file: &FileChange) -> u64 {
    file.additions.unwrap_or(0) + file.deletions.unwrap_or(0)
}

fn rest(printer: Printer, changes: &ChangeSet) -> std::io::Result<()> {
    if let Some(note) = &changes.note {
        printer.note(printable(note))?;
    }
    if changes.file_count == 0 {
        return Ok(());
    }
    let ChangeSet {
        file_count,
        additions,
        deletions,
        ..
    } = changes;
    printer.line(format!(
        "{file_count} files, {additions} lines added, {deletions} lines deleted"
    ))?;
    let unlisted = changes
        .file_count
        .saturating_sub(changes.files.len() as u64);
    if unlisted > 0 {
        printer.note(format!("{unlisted} further files are not listed"))?;
    }
    Ok(())
}

/// The patch for a person: in colours, and without what could move the cursor.
fn coloured(printer: Printer, patch: &[u8]) -> String {
    let text = String::from_utf8_lossy(patch);
    let mut out = String::with_capacity(text.len() * 2);
    for line in text.lines() {
        let tone = tone(line);
        let plain = |letter: char| match letter {
            '\t' => letter,
            _ if letter.is_control() => '\u{fffd}',
            _ => letter,
        };
        let line: String = line.chars().map(plain).collect();
        out.push_str(&printer.paint(tone, line));
        out.push('\n');
    }
    out
}

fn tone(line: &str) -> Tone {
    let heads = ["diff ", "+++ ", "--- "];
    if heads.iter().any(|head| line.starts_with(head)) {
        return Tone::Strong;
    }
    match line.as_bytes().first() {
        Some(b'@') => Tone::Quiet,
        Some(b'+') => Tone::Good,
        Some(b'-') => Tone::Bad,
        _ => Tone::Plain,
    }
}
