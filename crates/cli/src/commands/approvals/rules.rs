//! `tapedeck approvals rules`: standing answers to tools that want to run.

use std::collections::BTreeMap;

use clap::Subcommand;
use tapedeck_domain::rule::{ArgumentPattern, Decision};
use tapedeck_domain::{RuleId, SessionId};
use tapedeck_protocol::rule::{CreateRuleRequest, RuleResponse};

use crate::commands::rendering::brief;
use crate::commands::sessions::{PageArgs, more};
use crate::context::Connection;
use crate::exit::Failed;
use crate::output::{Printer, or_nothing, time};
use crate::words::one_of;

/// Standing answers to tools that want to run.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the rules that stand, newest first
    #[command(after_help = "Examples:
  tapedeck approvals rules list
  tapedeck approvals rules list --session SESSION --all")]
    List {
        /// Only rules of this session
        #[arg(long, value_name = "ID")]
        session: Option<SessionId>,
        /// Also those that were revoked
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show a rule
    #[command(after_help = "Examples:
  tapedeck approvals rules show RULE")]
    Show {
        /// The rule
        rule: RuleId,
    },
    /// Make a rule. One that denies wins over all that allow
    #[command(after_help = "Examples:
  tapedeck approvals rules add shell --match 'command=git *' --decision allow
  tapedeck approvals rules add 'write*' --decision deny --session SESSION")]
    Add {
        /// The tool by its name, with `*` for any characters and `?` for one
        tool: String,
        /// What the rule says
        #[arg(long, value_parser = one_of(Decision::ALL, Decision::as_str))]
        decision: Decision,
        /// What a field of the tool's arguments must look like, with `*` and `?`; once for each
        /// field, and all must match
        #[arg(long = "match", value_name = "FIELD=PATTERN")]
        matching: Vec<String>,
        /// Only in this session
        #[arg(long, value_name = "ID")]
        session: Option<SessionId>,
    },
    /// End a rule; what it has answered stays answered
    #[command(after_help = "Examples:
  tapedeck approvals rules revoke RULE")]
    Revoke {
        /// The rule
        rule: RuleId,
    },
}

/// Runs one of them.
pub(crate) async fn run(
    command: Command,
    connection: &Connection,
    printer: Printer,
) -> anyhow::Result<()> {
    let client = &connection.client;
    match command {
        Command::List { session, all, page } => {
            let list = client.rules(session, all, &page.paging()).await?;
            if printer.is_json() {
                printer.object(&list)?;
            } else {
                let rows: Vec<_> = list.rules.iter().map(row).collect();
                let head = [
                    "RULE", "SAYS", "TOOL", "WITH", "WHERE", "MADE BY", "REVOKED",
                ];
                printer.table(&head, &rows, "no rules")?;
                more(printer, list.next_cursor.as_deref())?;
            }
        }
        Command::Show { rule } => show(printer, &client.rule(rule).await?)?,
        Command::Add {
            tool,
            decision,
            matching,
            session,
        } => {
            let request = CreateRuleRequest {
                tool_name: Some(tool),
                arguments: pattern(&matching)?
                    .as_ref()
                    .map(serde_json::to_value)
                    .transpose()?,
                decision: Some(decision),
                session_id: session,
                command_id: None,
            };
            show(printer, &client.create_rule(&request).await?)?;
        }
        Command::Revoke { rule } => {
            client.revoke_rule(rule).await?;
            show(printer, &client.rule(rule).await?)?;
        }
    }
    Ok(())
}

fn pattern(matching: &[String]) -> anyhow::Result<Option<ArgumentPattern>> {
    let mut fields = BTreeMap::new();
    for argument in matching {
        let (field, pattern) = argument
            .split_once('=')
            .filter(|(field, _)| !field.is_empty())
            .ok_or_else(|| Failed::usage(format!("`{argument}` is no FIELD=PATTERN")))?;
        if fields
            .insert(field.to_owned(), pattern.to_owned())
            .is_some()
        {
            return Err(Failed::usage(format!("`{field}` is given twice")));
        }
    }
    Ok((!fields.is_empty()).then_some(ArgumentPattern::Fields(fields)))
}

fn show(printer: Printer, rule: &RuleResponse) -> anyhow::Result<()> {
    if printer.is_json() {
        return Ok(printer.object(rule)?);
    }
    Ok(printer.fields(&[
        ("rule", rule.rule_id.to_string()),
        ("says", rule.decision.to_string()),
        ("tool", rule.tool_name.clone()),
        ("with", with(rule)),
        ("where", place(rule)),
        ("made by", or_nothing(rule.created_by.as_ref())),
        ("from question", or_nothing(rule.interaction_id)),
        ("made", time(Some(rule.created_at))),
        ("revoked", time(rule.revoked_at)),
        ("revoked by", or_nothing(rule.revoked_by.as_ref())),
    ])?)
}

fn row(rule: &RuleResponse) -> Vec<String> {
    vec![
        rule.rule_id.to_string(),
        rule.decision.to_string(),
        rule.tool_name.clone(),
        with(rule),
        place(rule),
        or_nothing(rule.created_by.as_ref()),
        time(rule.revoked_at),
    ]
}

fn with(rule: &RuleResponse) -> String {
    match &rule.arguments {
        None => "anything".to_owned(),
        Some(ArgumentPattern::Equals(arguments)) => format!("exactly {}", brief(Some(arguments))),
        Some(ArgumentPattern::Fields(fields)) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|(field, pattern)| brief(Some(&format!("{field}={pattern}").into())))
                .collect();
            fields.join(", ")
        }
    }
}

fn place(rule: &RuleResponse) -> String {
    rule.session_id
        .map_or_else(|| "everywhere".to_owned(), |id| format!("session {id}"))
}
