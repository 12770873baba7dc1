//! `tapedeck storage`: copies of the whole database, and whether one is sound.

mod lines;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::json;
use tapedeck_store::ArchiveError;

use self::lines::{Reading, Writing};
use crate::commands::doctor;
use crate::config;
use crate::context::{Beside, Context, Database};
use crate::exit::{Exit, Failed};

/// Copies of the whole database.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copy the database of a data directory into a file, while a server may be working on it
    ///
    /// The copy is of one moment, checked, and has a log of its own: cursors of the original are
    /// refused there. To restore it, put it into an empty data directory as `tapedeck.db`.
    #[command(after_help = "Examples:
  tapedeck storage backup /backup/tapedeck.db
  tapedeck storage backup /backup/tapedeck.db --data-dir /var/lib/tapedeck --json")]
    Backup {
        /// Where to; nothing may be there
        file: PathBuf,
    },
    /// Check the database, or a backup of one
    ///
    /// The same checks as `tapedeck doctor`, with the same exit codes.
    #[command(after_help = "Examples:
  tapedeck storage check
  tapedeck storage check /backup/tapedeck.db")]
    Check {
        /// A backup, instead of the configured database
        file: Option<PathBuf>,
    },
    /// Write every row as JSON Lines, from either kind of database
    ///
    /// The rows are of one moment; servers may go on meanwhile. The last line holds a digest of all
    /// others, so that a part of an export is never taken for the whole.
    #[command(after_help = "Examples:
  tapedeck storage export tapedeck.jsonl
  tapedeck storage export - | zstd >tapedeck.jsonl.zst
  TAPEDECK_DATABASE=postgres://… tapedeck storage export tapedeck.jsonl")]
    Export {
        /// Where to, `-` for stdout; no file may be there
        file: PathBuf,
    },
    /// Read an export into an empty database, of either kind
    ///
    /// All of it or nothing. No server may hold the data directory. Runs, claims and open questions
    /// go on where they were; the time since the export counts against none of them.
    #[command(after_help = "Examples:
  tapedeck storage import tapedeck.jsonl --data-dir ./data
  zstd -d <tapedeck.jsonl.zst | tapedeck storage import -
  TAPEDECK_DATABASE=postgres://… tapedeck storage import tapedeck.jsonl")]
    Import {
        /// The export, `-` for stdin
        file: PathBuf,
    },
}

/// Runs one of them.
pub(crate) async fn run(command: Command, context: Context) -> anyhow::Result<Exit> {
    match command {
        Command::Backup { file } => backup(&file, &context).await,
        Command::Check { file } => check(file.as_deref(), &context).await,
        Command::Export { file } => export(&file, &context).await,
        Command::Import { file } => import(&file, &context).await,
    }
}

async fn backup(target: &Path, context: &Context) -> anyhow::Result<Exit> {
    let target = config::expand(target)?;
    let on_postgres = || {
        Failed::usage(
            "a backup is a copy of a data directory's file; for PostgreSQL there are `pg_dump`, \
             base backups, and `tapedeck storage export`",
        )
    };
    if context.config.database.is_some() {
        return Err(on_postgres());
    }
    let Beside::File { file, .. } = Beside::open(&context.config).await? else {
        return Err(on_postgres());
    };
    let name = named(&target);
    let printer = context.printer;
    let working = printer.working("copying the database");
    let backup = file
        .backup(&target)
        .await
        .map_err(failed("written", &name))?;
    drop(working);
    if printer.is_json() {
        printer.object(&json!({
            "file": target,
            "bytes": backup.bytes,
            "log_id": backup.log_id,
        }))?;
    } else {
        printer.line(format!("{}: {} bytes", target.display(), backup.bytes))?;
    }
    Ok(Exit::Success)
}

async fn check(file: Option<&Path>, context: &Context) -> anyhow::Result<Exit> {
    let beside = match file {
        Some(file) => Beside::file(&config::expand(file)?).await?,
        None => Beside::open(&context.config).await?,
    };
    let checked = doctor::examine(beside.audit(), context).await?;
    doctor::tell(context.printer, &beside.to_string(), &checked)
}

async fn export(target: &Path, context: &Context) -> anyhow::Result<Exit> {
    let beside = Beside::open(&context.config).await?;
    let is_stdout = target == Path::new("-");
    let target = config::expand(target)?;
    let name = if is_stdout {
        "stdout".to_owned()
    } else {
        named(&target)
    };
    let failed = failed("written", &name);
    let working = context.printer.working("exporting");
    let mut writing = if is_stdout {
        Writing::to_stdout(working)
    } else {
        Writing::to_file(&target, working).await.map_err(&failed)?
    };
    beside.export(&mut writing).await.map_err(&failed)?;
    let rows = writing.finish().await.map_err(&failed)?;
    if is_stdout {
        return Ok(Exit::Success);
    }
    told(context, &target, rows)
}

async fn import(source: &Path, context: &Context) -> anyhow::Result<Exit> {
    let is_stdin = source == Path::new("-");
    let path = config::expand(source)?;
    let name = if is_stdin {
        "stdin".to_owned()
    } else {
        named(&path)
    };
    let failed = failed("read", &name);
    let mut reading = if is_stdin {
        Reading::of_stdin()
    } else {
        Reading::of_file(&path).await.map_err(&failed)?
    };
    // Before the database is made or touched.
    reading.begin().await.map_err(&failed)?;
    let database = Database::open(&context.config).await?;
    reading.shown(context.printer.working("importing"));
    let imported = database.archive().import(&mut reading).await;
    let rows = reading.finish();
    let checked = match imported {
        Ok(()) => doctor::examine(database.audit(), context).await,
        Err(error) => Err(failed(error)),
    };
    database.store().close().await;
    let checked = checked?;
    if doctor::count(&checked) > 0 {
        return doctor::tell(context.printer, &database.to_string(), &checked);
    }
    told(context, &path, rows)
}

fn told(context: &Context, file: &Path, rows: u64) -> anyhow::Result<Exit> {
    if context.printer.is_json() {
        context
            .printer
            .object(&json!({"file": file, "rows": rows}))?;
    } else {
        context
            .printer
            .line(format!("{}: {rows} rows", file.display()))?;
    }
    Ok(Exit::Success)
}

fn named(file: &Path) -> String {
    format!("`{}`", file.display())
}

/// What an error of a copy leads to, told of the file by the name that it was given.
fn failed(verb: &str, name: &str) -> impl Fn(ArchiveError) -> anyhow::Error {
    move |error| match error {
        ArchiveError::Store(error) => error.into(),
        ArchiveError::File(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let message = format!("{name} is there already, and a copy overwrites nothing");
            Failed::with(Exit::Conflict, message)
        }
        ArchiveError::File(error) => {
            anyhow::Error::new(error).context(format!("{name} can't be {verb}"))
        }
        ArchiveError::NotEmpty { .. } => Failed::with(Exit::Conflict, error.to_string()),
        ArchiveError::NotAnExport
        | ArchiveError::Version { .. }
        | ArchiveError::Schema { .. }
        | ArchiveError::Line { .. }
        | ArchiveError::Truncated { .. }
        | ArchiveError::Altered { .. } => Failed::usage(format!("{name}: {error}")),
    }
}
