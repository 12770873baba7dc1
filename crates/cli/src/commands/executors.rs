//! `tapedeck executors`: the executors that the server knows.

use clap::Subcommand;
use tapedeck_protocol::executor::ExecutorResponse;

use crate::commands::sessions::{PageArgs, more};
use crate::context::{Connection, Context};
use crate::exit::Exit;
use crate::output::{Printer, or_nothing, time};

/// Executors that the server knows.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List executors by name
    List(PageArgs),
    /// Show one executor
    Show {
        /// Its name
        executor: String,
    },
}

/// Runs one of them.
pub(crate) async fn run(command: Command, context: Context) -> anyhow::Result<Exit> {
    let connection = context.connect().await?;
    let outcome = answer(command, &connection, context.printer).await;
    connection.close().await;
    outcome
}

async fn answer(
    command: Command,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<Exit> {
    match command {
        Command::List(page) => {
            let list = connection.client.executors(&page.paging()).await?;
            if printer.is_json() {
                printer.object(&list)?;
            } else {
                let rows: Vec<_> = list.executors.iter().map(row).collect();
                let head = ["EXECUTOR", "STATUS", "POOL", "KIND", "RUNS", "LAST SEEN"];
                printer.table(&head, &rows, "no executor was ever seen")?;
                more(printer, list.next_cursor.as_deref())?;
            }
        }
        Command::Show { executor } => {
            let executor = connection.client.executor(&executor).await?;
            if printer.is_json() {
                printer.object(&executor)?;
            } else {
                show(printer, &executor)?;
            }
        }
    }
    Ok(Exit::Success)
}

fn runs(executor: &ExecutorResponse) -> String {
    match executor.max_runs {
        Some(most) => format!("{}/{most}", executor.current_runs),
        None => executor.current_runs.to_string(),
    }
}

fn row(executor: &ExecutorResponse) -> Vec<String> {
    vec![
        executor.executor_id.clone(),
        executor.status.to_string(),
        executor.pool.clone(),
        executor.executor_kind.clone(),
        runs(executor),
        time(Some(executor.last_seen_at)),
    ]
}

fn show(printer: Printer, executor: &ExecutorResponse) -> std::io::Result<()> {
    let labels = executor
        .labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    printer.fields(&[
        ("executor", executor.executor_id.clone()),
        ("status", executor.status.to_string()),
        (
            "draining",
            if executor.draining {
                "yes".to_owned()
            } else {
                String::new()
            },
        ),
        ("pool", executor.pool.clone()),
        ("kind", executor.executor_kind.clone()),
        ("labels", labels.collect::<Vec<_>>().join(", ")),
        ("runs", runs(executor)),
        ("current run", or_nothing(executor.current_run_id)),
        ("current session", or_nothing(executor.current_session_id)),
        ("last run", or_nothing(executor.last_run_id)),
        ("last session", or_nothing(executor.last_session_id)),
        ("process", or_nothing(executor.process_id)),
        ("instance", or_nothing(executor.worker_instance_id.as_ref())),
        ("version", or_nothing(executor.version.as_ref())),
        ("capabilities", or_nothing(executor.capabilities.as_ref())),
        ("last seen", time(Some(executor.last_seen_at))),
        ("lease ends", time(executor.lease_expires_at)),
    ])
}
