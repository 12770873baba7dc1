//! From the command line to the exit: reads the configuration, starts logs and runtime, runs one
//! command and reports its error.

use std::ffi::OsString;
use std::io;

use clap::Parser as _;
use serde_json::json;
use tapedeck_protocol::ErrorCode;

use crate::args::{Cli, Command};
use crate::commands;
use crate::config::Config;
use crate::context::{Context, GOES_ON, ServerIsGone};
use crate::exit::{self, Exit};
use crate::hints;
use crate::logs;
use crate::mistake::Mistake;
use crate::output::Printer;
use crate::threads;

/// Runs the command that the arguments name.
pub(crate) fn run(arguments: &[OsString]) -> Exit {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return unread(&error, arguments),
    };
    // For as long as the process lives.
    let called = cli.globals.called().leak();
    let printer = Printer::of(called, cli.globals.json);
    match start(cli, printer) {
        Ok(exit) => exit,
        Err(error) if exit::reader_has_gone(&error) => Exit::Success,
        // As by the signal that comes with it.
        Err(_) if printer.has_lost_its_terminal() => Exit::Interrupted,
        Err(error) => {
            let exit = Exit::of_error(&error);
            report(printer, &error, exit, hints::of_code);
            exit
        }
    }
}

/// Tells why a command line can't be read. Help and version come this way, too.
fn unread(error: &clap::Error, arguments: &[OsString]) -> Exit {
    let printer = Printer::new(arguments.iter().any(|argument| argument == "--json"));
    match Mistake::of(error, arguments) {
        Some(Mistake { text, .. }) if printer.is_json() => {
            let exit = Exit::Usage.code();
            printer
                .error_object(&json!({"error": text, "code": null, "exit": exit, "problem": null}));
        }
        Some(Mistake { text, hint }) => printer.error(text, Some(&hint)),
        None => {
            if let Err(error) = error.print()
                && error.kind() != io::ErrorKind::BrokenPipe
            {
                let error = error.into();
                let exit = Exit::of_error(&error);
                report(printer, &error, exit, hints::of_code);
                return exit;
            }
        }
    }
    if error.use_stderr() {
        Exit::Usage
    } else {
        Exit::Success
    }
}

fn start(cli: Cli, printer: Printer) -> anyhow::Result<Exit> {
    // These must work whatever the configuration says.
    let cli = match cli {
        Cli {
            command: Command::DemoAgent(args),
            ..
        } => {
            return runtime()?.block_on(commands::demo_agent::run(args));
        }
        Cli {
            command: Command::Completions(args),
            ..
        } => {
            return commands::completions::run(&args, printer);
        }
        Cli {
            command: Command::Man(args),
            ..
        } => {
            return commands::man::run(args, printer);
        }
        cli => cli,
    };
    let config = Config::load(cli.globals.config.as_deref(), cli.flags())?;
    logs::start(&config, cli.default_filter())?;
    let runtime = runtime()?;
    let exit = runtime.block_on(dispatch(cli.command, Context { config, printer }));
    // A thread may still wait for a line from the terminal; nobody needs it.
    runtime.shutdown_background();
    exit
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    threads::check()?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.enable_all().build()?)
}

async fn dispatch(command: Command, context: Context) -> anyhow::Result<Exit> {
    match command {
        Command::Demo(args) => Box::pin(commands::demo::run(args, context)).await,
        Command::Serve(args) => Box::pin(commands::serve::run(args, context)).await,
        Command::Executor(args) => Box::pin(commands::executor::run(args, context)).await,
        Command::Run(args) => Box::pin(commands::run::run(args, context)).await,
        Command::Resume(args) => Box::pin(commands::resume::run(args, context)).await,
        Command::Repl(args) => Box::pin(commands::repl::run(args, context)).await,
        Command::Attach(args) => Box::pin(commands::attach::run(args, context)).await,
        Command::Acp(args) => Box::pin(commands::acp::run(args, context)).await,
        Command::Sessions(command) => Box::pin(commands::sessions::run(command, context)).await,
        Command::Events(args) => Box::pin(commands::events::run(args, context)).await,
        Command::Runs(command) => Box::pin(commands::runs::run(command, context)).await,
        Command::Approvals(command) => Box::pin(commands::approvals::run(command, context)).await,
        Command::Executors(command) => Box::pin(commands::executors::run(command, context)).await,
        Command::Token(command) => Box::pin(commands::token::run(command, context)).await,
        Command::Remote(command) => Box::pin(commands::remote::run(command, context)).await,
        Command::Agents(command) => Box::pin(commands::agents::run(command, context)).await,
        Command::Doctor(_) => Box::pin(commands::doctor::run(context)).await,
        Command::Storage(command) => Box::pin(commands::storage::run(command, context)).await,
        Command::Config(command) => commands::config::run(&command, &context),
        Command::DemoAgent(args) => commands::demo_agent::run(args).await,
        Command::Completions(args) => commands::completions::run(&args, context.printer),
        Command::Man(args) => commands::man::run(args, context.printer),
    }
}

/// Tells an error, and what `hint` has to say to its code.
pub(crate) fn report(
    printer: Printer,
    error: &anyhow::Error,
    exit: Exit,
    hint: fn(ErrorCode) -> Option<&'static str>,
) {
    let problem = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<tapedeck_client::Error>()?.problem());
    let mut text = sentence(error);
    for field in problem.iter().flat_map(|problem| &problem.errors) {
        // Most often the server's sentence has told it.
        let reason = field.to_string();
        if !text.contains(&reason) {
            text.push_str("\n  ");
            text.push_str(&reason);
        }
    }
    if printer.is_json() {
        printer.error_object(&json!({
            "error": text,
            "code": problem.map(|problem| problem.code),
            "exit": exit.code(),
            "problem": problem,
        }));
        return;
    }
    let is_orphaned = error.is::<ServerIsGone>();
    let orphaned = is_orphaned.then_some(GOES_ON);
    let hint = orphaned.or_else(|| problem.and_then(|problem| hint(problem.code)));
    let of_store = error
        .chain()
        .find_map(|cause| hints::of_store(cause.downcast_ref()?));
    // Where something else answers, starting a server would help nobody.
    let is_of_client = error.chain().any(|cause| {
        let error = cause.downcast_ref::<tapedeck_client::Error>();
        error.is_some_and(|error| !matches!(error, tapedeck_client::Error::Foreign { .. }))
    });
    let away = (exit == Exit::Unreachable && problem.is_none() && is_of_client).then_some(
        "is the server running? `tapedeck serve` starts one there; where none is named none is needed",
    );
    printer.error(text, hint.or(of_store).or(away));
}

/// An error with its causes. Some have their cause's words in their own: those are told once.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let words = cause.to_string();
        if text.ends_with(&words) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&words);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;
    use tapedeck_store::StoreError;

    #[test]
    fn an_error_whose_words_have_its_causes_is_told_once() {
        let broken = StoreError::Internal("it broke".into());
        let error = Err::<(), _>(broken).context("while asking").unwrap_err();
        assert_eq!(sentence(&error), "while asking: the store failed: it broke");
    }
}
