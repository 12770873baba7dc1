//! `tapedeck executors`: the executors that the server knows.

use std::time::Duration;

use clap::Subcommand;
use tapedeck_domain::executor::ExecutorStatus;
use tapedeck_protocol::executor::{ExecutorResponse, ExecutorsQuery};

use crate::commands::sessions::{PageArgs, more};
use crate::context::{Connection, Context};
use crate::exit::Exit;
use crate::output::{Printer, or_nothing, time};
use crate::words::one_of;

/// Between two looks at an executor that is waited for.
const WAIT_PERIOD: Duration = Duration::from_millis(500);

/// Executors that the server knows.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List executors by name
    #[command(after_help = "Examples:
  tapedeck executors list
  tapedeck executors list --pool gpu --status offline")]
    List {
        /// Only executors of this pool
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Only executors with this status
        #[arg(
            long,
            value_name = "STATUS",
            value_parser = one_of(ExecutorStatus::ALL, ExecutorStatus::as_str)
        )]
        status: Option<ExecutorStatus>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one executor
    #[command(after_help = "Examples:
  tapedeck executors show laptop")]
    Show {
        /// Its name
        executor: String,
    },
    /// Tell an executor to take no new runs; those it has go on
    #[command(after_help = "Examples:
  tapedeck executors drain laptop --wait")]
    Drain {
        /// Its name
        executor: String,
        /// Wait until it has no run any more
        #[arg(long)]
        wait: bool,
    },
    /// Let an executor take new runs again
    #[command(after_help = "Examples:
  tapedeck executors undrain laptop")]
    Undrain {
        /// Its name
        executor: String,
    },
    /// Remove an executor that is offline from the list
    #[command(after_help = "Examples:
  tapedeck executors forget laptop")]
    Forget {
        /// Its name
        executor: String,
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
    match command {
        Command::List { pool, status, page } => {
            let query = query(page, pool, status);
            let list = connection.client.executors(&query).await?;
            if printer.is_json() {
                printer.object(&list)?;
            } else {
                let rows: Vec<_> = list.executors.iter().map(row).collect();
                let head = [
                    "EXECUTOR",
                    "STATUS",
                    "POOL",
                    "KIND",
                    "LABELS",
                    "RUNS",
                    "VERSION",
                    "LAST SEEN",
                ];
                let nothing = if query.pool.is_none() && query.status.is_none() {
                    "no executor was ever seen"
                } else {
                    "no such executor"
                };
                printer.table(&head, &rows, nothing)?;
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
        Command::Drain { executor, wait } => {
            let mut shown = connection.client.drain_executor(&executor).await?;
            if wait && shown.current_runs > 0 {
                let _working = printer.working(format!("waiting for {} runs", shown.current_runs));
                while shown.current_runs > 0 {
                    tokio::time::sleep(WAIT_PERIOD).await;
                    shown = connection.client.executor(&executor).await?;
                }
            }
            told(printer, &shown)?;
        }
        Command::Undrain { executor } => {
            let shown = connection.client.undrain_executor(&executor).await?;
            told(printer, &shown)?;
        }
        Command::Forget { executor } => {
            connection.client.forget_executor(&executor).await?;
            if !printer.is_json() {
                printer.line(format!("executor {executor}: forgotten"))?;
            }
        }
    }
    Ok(Exit::Success)
}

fn query(page: PageArgs, pool: Option<String>, status: Option<ExecutorStatus>) -> ExecutorsQuery {
    let paging = page.paging();
    ExecutorsQuery {
        limit: paging.limit.map(|limit| limit.to_string()),
        cursor: paging.cursor,
        pool,
        status: status.map(|status| status.to_string()),
    }
}

/// What became of an executor that was told something.
fn told(printer: Printer, executor: &ExecutorResponse) -> std::io::Result<()> {
    if printer.is_json() {
        return printer.object(executor);
    }
    let new_runs = if executor.draining {
        "takes no new runs"
    } else {
        "takes new runs"
    };
    printer.line(format!(
        "executor {}: {new_runs}, has {}",
        executor.executor_id, executor.current_runs
    ))
}

fn labels(executor: &ExecutorResponse) -> String {
    let labels = executor
        .labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    labels.collect::<Vec<_>>().join(", ")
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
        labels(executor),
        runs(executor),
        or_nothing(executor.version.as_ref()),
        time(Some(executor.last_seen_at)),
    ]
}

fn show(printer: Printer, executor: &ExecutorResponse) -> std::io::Result<()> {
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
        ("labels", labels(executor)),
        ("runs", runs(executor)),
        ("current run", or_nothing(executor.current_run_id)),
        ("current session", or_nothing(executor.current_session_id)),
        ("last run", or_nothing(executor.last_run_id)),
        ("last session", or_nothing(executor.last_session_id)),
        ("process", or_nothing(executor.process_id)),
        ("instance", or_nothing(executor.worker_instance_id.as_ref())),
        ("version", or_nothing(executor.version.as_ref())),
        ("workspace", or_nothing(executor.workspace.as_ref())),
        ("capabilities", or_nothing(executor.capabilities.as_ref())),
        ("last seen", time(Some(executor.last_seen_at))),
        ("lease ends", time(executor.lease_expires_at)),
    ])
}
