//! `tapedeck approvals`: the questions that wait for an answer.

use clap::Subcommand;
use tapedeck_domain::interaction::{InteractionStatus, Scope};
use tapedeck_domain::{InteractionId, SessionId};
use tapedeck_protocol::interaction::{InteractionResponse, ResolveRequest};

use crate::commands::rendering::brief;
use crate::commands::sessions::{PageArgs, more};
use crate::context::{Connection, Context};
use crate::exit::Exit;
use crate::output::{Printer, time};

/// Questions that wait for an answer.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List questions, newest first; those that wait, unless told otherwise
    List {
        /// Questions in this state: pending, approved, denied, expired, cancelled
        #[arg(long, value_parser = status, default_value = "pending", conflicts_with = "all")]
        status: InteractionStatus,
        /// Questions in any state
        #[arg(long)]
        all: bool,
        /// Only questions of this session
        #[arg(long, value_name = "ID")]
        session: Option<SessionId>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Say yes
    Approve {
        /// The question
        question: InteractionId,
        /// How far the yes reaches: once, session, always
        #[arg(long, value_parser = scope, default_value = "once")]
        scope: Scope,
        /// Words for the agent
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
    },
    /// Say no
    Deny {
        /// The question
        question: InteractionId,
        /// Words for the agent
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
    },
}

fn status(text: &str) -> Result<InteractionStatus, String> {
    let words = InteractionStatus::ALL.iter().map(|status| status.as_str());
    let words = words.collect::<Vec<_>>().join(", ");
    text.parse()
        .map_err(|_unknown| format!("must be one of {words}"))
}

fn scope(text: &str) -> Result<Scope, String> {
    let words = Scope::ALL.iter().map(|scope| scope.as_str());
    let words = words.collect::<Vec<_>>().join(", ");
    text.parse()
        .map_err(|_unknown| format!("must be one of {words}"))
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
        Command::List {
            status,
            all,
            session,
            page,
        } => {
            let status = (!all).then_some(status);
            let list = connection
                .client
                .interactions(status, session, &page.paging())
                .await?;
            if printer.is_json() {
                printer.object(&list)?;
            } else {
                let rows: Vec<_> = list.interactions.iter().map(row).collect();
                let head = [
                    "QUESTION",
                    "STATUS",
                    "ASKS TO USE",
                    "WITH",
                    "SESSION",
                    "EXPIRES",
                ];
                printer.table(&head, &rows, "no questions")?;
                more(printer, list.next_cursor.as_deref())?;
            }
        }
        Command::Approve {
            question,
            scope,
            feedback,
        } => {
            let request = ResolveRequest {
                approved: Some(true),
                scope: Some(scope),
                feedback,
                ..ResolveRequest::default()
            };
            resolve(connection, printer, question, &request).await?;
        }
        Command::Deny { question, feedback } => {
            let request = ResolveRequest {
                approved: Some(false),
                feedback,
                ..ResolveRequest::default()
            };
            resolve(connection, printer, question, &request).await?;
        }
    }
    Ok(Exit::Success)
}

async fn resolve(
    connection: &Connection,
    printer: Printer,
    question: InteractionId,
    request: &ResolveRequest,
) -> anyhow::Result<()> {
    let resolved = connection.client.resolve(question, request).await?;
    connection.touch(resolved.session_id);
    if printer.is_json() {
        printer.object(&resolved)?;
    } else {
        printer.line(format!("{}: {}", resolved.interaction_id, resolved.status))?;
    }
    Ok(())
}

fn row(question: &InteractionResponse) -> Vec<String> {
    let call = &question.request["tool_call"];
    vec![
        question.interaction_id.to_string(),
        question.status.to_string(),
        call["tool_name"].as_str().unwrap_or("-").to_owned(),
        brief(call.get("arguments")),
        question.session_id.to_string(),
        time(Some(question.expires_at)),
    ]
}
