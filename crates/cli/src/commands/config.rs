//! `tapedeck config`: which settings hold, and where each came from.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Exit;

/// The configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show every setting, its value, where that came from and which variable sets it
    #[command(after_help = "Examples:
  tapedeck config show
  tapedeck config show --json")]
    Show,
}

/// Runs one of them.
pub(crate) fn run(command: &Command, context: &Context) -> anyhow::Result<Exit> {
    let Command::Show = command;
    let shown = context.config.shown();
    if context.printer.is_json() {
        context.printer.object(&json!({"settings": shown}))?;
        return Ok(Exit::Success);
    }
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let rows: Vec<Vec<String>> = shown
        .into_iter()
        .map(|row| {
            vec![
                row.key.to_owned(),
                text(&row.value),
                row.source,
                row.variable.to_owned(),
            ]
        })
        .collect();
    let head = ["SETTING", "VALUE", "FROM", "VARIABLE"];
    context
        .printer
        .table(&head, &rows, "there are no settings")?;
    Ok(Exit::Success)
}
