//! `tapedeck approvals`: the questions that wait for an answer.

mod rules;

use clap::Subcommand;
use serde_json::Value;
use tapedeck_domain::interaction::{InteractionKind, InteractionStatus, Scope};
use tapedeck_domain::{InteractionId, SessionId};
use tapedeck_protocol::interaction::{InteractionList, InteractionResponse, ResolveRequest};

use crate::commands::forms;
use crate::commands::rendering::brief;
use crate::commands::sessions::{PageArgs, more};
use crate::context::{Connection, Context};
use crate::exit::{Exit, Failed};
use crate::output::{Printer, or_nothing, time};
use crate::words::one_of;

/// Questions that wait for an answer.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List questions, newest first; those that wait, unless told otherwise
    #[command(after_help = "Examples:
  tapedeck approvals list
  tapedeck approvals list --session SESSION --all
  tapedeck --remote home approvals list --json")]
    List {
        /// Questions in this state
        #[arg(
            long,
            default_value = "pending",
            conflicts_with = "all",
            value_parser = one_of(InteractionStatus::ALL, InteractionStatus::as_str)
        )]
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
    #[command(after_help = "Examples:
  tapedeck approvals approve QUESTION
  tapedeck approvals approve QUESTION --scope session")]
    Approve {
        /// The question
        question: InteractionId,
        /// How far the yes reaches
        #[arg(long, default_value = "once", value_parser = one_of(Scope::ALL, Scope::as_str))]
        scope: Scope,
        /// Words that go with the answer and are kept with it. Agents over ACP hear yes or no alone
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
    },
    /// Fill in the form that a question asks for
    #[command(after_help = "Examples:
  tapedeck approvals show QUESTION
  tapedeck approvals answer QUESTION --field branch=main --field push=yes
  tapedeck approvals answer QUESTION --response '{\"branch\": \"main\"}'")]
    Answer {
        /// The question
        question: InteractionId,
        /// A field's value; once for each field. A choice by its value, its title or its number
        #[arg(long = "field", value_name = "NAME=VALUE")]
        fields: Vec<String>,
        /// The whole form as JSON
        #[arg(long, value_name = "JSON", conflicts_with = "fields")]
        response: Option<String>,
        /// Words that go with the answer and are kept with it. Agents over ACP hear yes or no alone
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
    },
    /// Leave the form that a question asks for blank
    #[command(after_help = "Examples:
  tapedeck approvals decline QUESTION --feedback 'ask me tomorrow'")]
    Decline {
        /// The question
        question: InteractionId,
        /// Words that go with the answer and are kept with it. Agents over ACP hear yes or no alone
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
    },
    /// Show a question; of a form its fields
    #[command(after_help = "Examples:
  tapedeck approvals show QUESTION")]
    Show {
        /// The question
        question: InteractionId,
    },
    /// Standing answers to tools that want to run
    #[command(
        subcommand,
        after_help = "Examples:
  tapedeck approvals rules list
  tapedeck approvals rules add shell --match 'command=git *' --decision allow
  tapedeck approvals rules revoke RULE"
    )]
    Rules(rules::Command),
    /// Say no
    #[command(after_help = "Examples:
  tapedeck approvals deny QUESTION --feedback 'not on the main branch'")]
    Deny {
        /// The question
        question: InteractionId,
        /// How far the no reaches: once, session, always
        #[arg(long, default_value = "once")]
        scope: Scope,
        /// Words that go with the answer and are kept with it. Agents over ACP hear yes or no alone
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
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
        Command::List {
            status,
            all,
            session,
            page,
        } => {
            let status = (!all).then_some(status);
            let paging = page.paging();
            let client = &connection.client;
            list(
                printer,
                &client.interactions(status, session, &paging).await?,
            )?;
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
        Command::Answer {
            question,
            fields,
            response,
            feedback,
        } => {
            let response = match response {
                Some(text) => serde_json::from_str(&text)
                    .map_err(|error| Failed::usage(format!("`--response` holds no JSON: {error}"))),
                None => filled(connection, question, &fields).await,
            }?;
            let request = ResolveRequest {
                response: Some(response),
                feedback,
                ..ResolveRequest::default()
            };
            resolve(connection, printer, question, &request).await?;
        }
        Command::Decline { question, feedback } => {
            let request = ResolveRequest {
                declined: Some(true),
                feedback,
                ..ResolveRequest::default()
            };
            resolve(connection, printer, question, &request).await?;
        }
        Command::Rules(command) => rules::run(command, connection, printer).await?,
        Command::Show { question } => show(connection, printer, question).await?,
        Command::Deny {
            question,
            scope,
            feedback,
        } => {
            let request = ResolveRequest {
                approved: Some(false),
                scope: Some(scope),
                feedback,
                ..ResolveRequest::default()
            };
            resolve(connection, printer, question, &request).await?;
        }
    }
    Ok(Exit::Success)
}

fn list(printer: Printer, list: &InteractionList) -> anyhow::Result<()> {
    if printer.is_json() {
        return Ok(printer.object(list)?);
    }
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
    Ok(more(printer, list.next_cursor.as_deref())?)
}

/// The form of a question, filled in from arguments.
async fn filled(
    connection: &Connection,
    question: InteractionId,
    fields: &[String],
) -> anyhow::Result<Value> {
    let asked = connection.client.interaction(question).await?;
    forms::fill(&forms::form_of(&asked.request)?, fields)
}

/// Answers a question, and prints what became of it.
pub(crate) async fn resolve(
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

async fn show(
    connection: &Connection,
    printer: Printer,
    question: InteractionId,
) -> anyhow::Result<()> {
    let shown = connection.client.interaction(question).await?;
    if printer.is_json() {
        return Ok(printer.object(&shown)?);
    }
    let (what, _) = asks(&shown);
    let with = match shown.kind {
        InteractionKind::Approval => whole(&shown.request["tool_call"]["arguments"]),
        InteractionKind::Question => whole(&shown.request["message"]),
    };
    let mut fields = vec![
        ("question", shown.interaction_id.to_string()),
        ("status", shown.status.to_string()),
        ("asks to use", what),
        ("with", with),
        ("session", shown.session_id.to_string()),
        ("run", shown.run_id.to_string()),
        ("asked", time(Some(shown.created_at))),
        ("expires", time(Some(shown.expires_at))),
        ("answered", time(shown.resolved_at)),
        ("by", or_nothing(shown.resolved_by.as_ref())),
        ("answer", brief(shown.response.as_ref())),
    ];
    if shown.kind == InteractionKind::Question {
        let form = forms::form_of(&shown.request)?;
        fields.extend(form.fields.iter().map(|field| {
            let text = format!("{}: {}", field.name, forms::described(field));
            ("field", text)
        }));
    }
    Ok(printer.fields(&fields)?)
}

/// All of what is decided on: whoever answers must not miss the end of it.
fn whole(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        Value::String(text) => text.clone(),
        value => serde_json::to_string_pretty(value).unwrap_or_default(),
    }
}

/// What a question asks to use, and with what; a form with what it is for.
fn asks(question: &InteractionResponse) -> (String, String) {
    match question.kind {
        InteractionKind::Approval => {
            let call = &question.request["tool_call"];
            let name = call["tool_name"].as_str().unwrap_or("-").to_owned();
            (name, brief(call.get("arguments")))
        }
        InteractionKind::Question => (
            "(a form)".to_owned(),
            brief(question.request.get("message")),
        ),
    }
}

fn row(question: &InteractionResponse) -> Vec<String> {
    let (what, with) = asks(question);
    vec![
        question.interaction_id.to_string(),
        question.status.to_string(),
        what,
        with,
        question.session_id.to_string(),
        time(Some(question.expires_at)),
    ]
}
