//! The `tapedeck` binary: it hands the command line to its command and ends as that says.

mod app;
mod args;
mod commands;
mod config;
mod context;
mod demo_agent;
mod exit;
mod hints;
mod logs;
mod mistake;
mod output;
mod profiles;
mod remotes;
mod threads;
mod whole_file;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;

/// Started by executors between themselves and an agent; not for people.
const GUARD: &str = "agent-guard";

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    // A guard runs beside every agent: it needs no configuration, no logs and no threads.
    if arguments.get(1).is_some_and(|name| name == GUARD) {
        return tapedeck_executor::guard::guard_main(arguments.drain(2..));
    }
    app::run(&arguments).into()
}
