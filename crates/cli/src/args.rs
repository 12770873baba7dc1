//! The command line: what all commands share, and the list of commands. Each command's own
//! arguments stand beside the command.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::commands;
use crate::config::{Given, LogFormat};
use crate::exit;

const EXAMPLES: &str = "\
Examples:
  tapedeck demo
  tapedeck run --agent demo --goal 'say hello'
  tapedeck repl --agent opencode";

/// Durable sessions for coding agents: start one, close the laptop, go on from anywhere.
#[derive(Debug, Parser)]
#[command(
    name = "tapedeck",
    version,
    after_help = format!("{EXAMPLES}\n\n{}", exit::TABLE),
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    /// What all commands share.
    #[command(flatten)]
    pub(crate) globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What all commands share.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Talk to this server; without it to the server on the data directory, and without that to
    /// nobody: the command then works on the data directory itself [env: `TAPEDECK_SERVER`]
    #[arg(long, global = true, value_name = "URL")]
    server: Option<String>,
    /// Talk to the server of this name; `tapedeck remote list` shows the names
    /// [env: `TAPEDECK_REMOTE`]
    #[arg(long, global = true, value_name = "NAME")]
    remote: Option<String>,
    /// The file that holds the bearer token: what the server asks for and clients send
    /// [env: `TAPEDECK_TOKEN_FILE`]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Where the database lies [env: `TAPEDECK_DATA_DIR`]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// A PostgreSQL database instead of one in a data directory, e.g. `postgres://user@host/name`.
    /// Other users of the machine can read flags: a password belongs in the variable or the
    /// configuration file [env: `TAPEDECK_DATABASE`]
    #[arg(long, global = true, value_name = "URL")]
    database: Option<String>,
    /// The configuration file, instead of `~/.config/tapedeck/config.toml`
    /// [env: `TAPEDECK_CONFIG`]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print results as JSON, one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Which log records go to stderr, e.g. `info` or `tapedeck_executor=debug`
    /// [env: `TAPEDECK_LOG`]
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
    /// How log records look [env: `TAPEDECK_LOG_FORMAT`]
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

impl Globals {
    /// The command line of ours that leads to the same place, for another command behind it.
    pub(crate) fn called(&self) -> String {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let is_local = self.server.is_none() && self.remote.is_none();
        let given = [
            ("--server", self.server.clone()),
            ("--remote", self.remote.clone()),
            ("--token-file", path(&self.token_file)),
            ("--data-dir", path(&self.data_dir).filter(|_| is_local)),
            ("--database", self.database.clone().filter(|_| is_local)),
            ("--config", path(&self.config)),
        ];
        let given = given
            .into_iter()
            .filter_map(|(flag, value)| Some(format!(" {flag} {}", shell_words::quote(&value?))));
        format!("tapedeck{}", given.collect::<String>())
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(commands::demo::Args),
    Serve(commands::serve::Args),
    Executor(commands::executor::Args),
    Run(commands::run::Args),
    Repl(commands::repl::Args),
    Resume(commands::resume::Args),
    Attach(commands::attach::Args),
    /// Be an agent for editors, over ACP on stdio, with sessions that last
    ///
    /// An editor starts this command like any ACP agent. The agent that does the work is named here
    /// and runs on this machine, or with `--server` is the server's executors' choice. A run goes on
    /// when the editor is closed; when the editor loads the session again, it sees the rest.
    Acp(commands::acp::Args),
    /// Sessions and their logs
    #[command(
        subcommand,
        after_help = "Examples:
  tapedeck sessions list
  tapedeck sessions events SESSION --follow
  tapedeck sessions export SESSION > session.md"
    )]
    Sessions(commands::sessions::Command),
    Events(commands::events::Args),
    /// Single runs
    #[command(
        subcommand,
        after_help = "Examples:
  tapedeck runs list SESSION
  tapedeck runs cancel RUN"
    )]
    Runs(commands::runs::Command),
    /// Questions that wait for an answer
    #[command(
        subcommand,
        after_help = "Examples:
  tapedeck approvals list
  tapedeck approvals approve QUESTION --scope session
  tapedeck approvals rules list"
    )]
    Approvals(commands::approvals::Command),
    /// Executors that the server knows
    #[command(
        subcommand,
        after_help = "Examples:
  tapedeck executors list
  tapedeck executors drain laptop --wait"
    )]
    Executors(commands::executors::Command),
    /// What callers of a server prove who they are with
    #[command(
        subcommand,
        after_help = "Examples:
  tapedeck token create ci --role client --expires-in 30d
  tapedeck token list"
    )]
    Token(commands::token::Command),
    /// Servers by name
    #[command(
        subcommand,
        after_help = "Examples:
  tapedeck remote add home https://tapedeck.example.com --token-file token
  tapedeck --remote home sessions list"
    )]
    Remote(commands::remote::Command),
    /// Agents that can be attached
    #[command(
        subcommand,
        after_help = "Examples:
  tapedeck agents list
  tapedeck agents check opencode"
    )]
    Agents(commands::agents::Command),
    Doctor(commands::doctor::Args),
    /// Copies of the whole database
    #[command(
        subcommand,
        after_help = "Examples:
  tapedeck storage backup copy.db
  tapedeck storage check"
    )]
    Storage(commands::storage::Command),
    /// The configuration
    #[command(
        subcommand,
        after_help = "Examples:
  tapedeck config show"
    )]
    Config(commands::config::Command),
    DemoAgent(commands::demo_agent::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
}

impl Cli {
    /// The settings that the command line gives.
    pub(crate) fn flags(&self) -> Vec<Given> {
        let globals = &self.globals;
        let format = globals.log_format;
        let mut flags: Vec<Given> = [
            Given::option("--server", "server", globals.server.as_ref()),
            Given::option("--remote", "remote", globals.remote.as_ref()),
            Given::option("--token-file", "token_file", globals.token_file.as_ref()),
            Given::option("--data-dir", "data_dir", globals.data_dir.as_ref()),
            Given::option("--database", "database", globals.database.as_ref()),
            Given::option("--log", "log.filter", globals.log.as_ref()),
            Given::option("--log-format", "log.format", format),
        ]
        .into_iter()
        .flatten()
        .collect();
        match &self.command {
            Command::Serve(args) => flags.extend(args.flags()),
            Command::Executor(args) => flags.extend(args.flags()),
            Command::Run(args) => flags.extend(args.new.agent.flags()),
            Command::Repl(args) => flags.extend(args.new.agent.flags()),
            Command::Resume(args) => flags.extend(args.agent.flags()),
            Command::Acp(args) => flags.extend(args.agent.flags()),
            Command::Demo(_)
            | Command::Attach(_)
            | Command::Sessions(_)
            | Command::Events(_)
            | Command::Runs(_)
            | Command::Approvals(_)
            | Command::Executors(_)
            | Command::Token(_)
            | Command::Remote(_)
            | Command::Agents(_)
            | Command::Doctor(_)
            | Command::Storage(_)
            | Command::Config(_)
            | Command::DemoAgent(_)
            | Command::Completions(_)
            | Command::Man(_) => {}
        }
        flags
    }

    /// Which log records are written where nobody says.
    pub(crate) const fn default_filter(&self) -> &'static str {
        match &self.command {
            Command::Serve(_) | Command::Executor(_) => "info",
            Command::Acp(args) if !args.is_for_an_editor() => "warn",
            Command::Demo(_)
            | Command::Run(_)
            | Command::Repl(_)
            | Command::Resume(_)
            | Command::Attach(_)
            | Command::Acp(_)
            | Command::Sessions(_)
            | Command::Events(_)
            | Command::Runs(_)
            | Command::Approvals(_)
            | Command::Executors(_)
            | Command::Token(_)
            | Command::Remote(_)
            | Command::Agents(_)
            | Command::Doctor(_)
            | Command::Storage(_)
            | Command::Config(_)
            | Command::DemoAgent(_)
            | Command::Completions(_)
            | Command::Man(_) => "error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn shared_flags_stand_anywhere() {
        for line in [
            "tapedeck --json --server http://x sessions list",
            "tapedeck sessions --json list --server http://x",
        ] {
            let cli = parse(line).unwrap();
            assert!(cli.globals.json);
            assert_eq!(cli.globals.server.as_deref(), Some("http://x"));
        }
    }

    #[test]
    fn the_flags_that_scripts_rely_on_are_there() {
        for line in [
            "tapedeck serve --listen 127.0.0.1:0 --data-dir d --ready-file r --token-file t",
            "tapedeck executor --server u --token-file t --executor-id e --pool p --executor-kind k \
             --label a=b --label c=d --workspace-root w --max-runs 2 --lease-seconds 10 \
             --state-dir s --agent demo --agent-mode m --agent-env A --agent-env B=c",
            "tapedeck run --goal g --workspace w --agent demo --approval-policy yolo",
            "tapedeck resume --last --prompt p",
            "tapedeck attach 0198c0de-0000-7000-8000-000000000000",
            "tapedeck approvals approve 0198c0de-0000-7000-8000-000000000000 --scope session",
            "tapedeck events --follow --kind TurnEnd --kind Plan --after c --json",
            "tapedeck demo --keep --data-dir d",
            "tapedeck executor --command c --command-prompt stdin --command-format codex-json",
            "tapedeck agents check demo --way acp --prompt p --json",
            "tapedeck acp --agent demo --approval-policy auto --warm-seconds 1 --data-dir d",
        ] {
            let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(parse(&line).is_ok(), "{line}: {:?}", parse(&line).err());
        }
    }

    #[test]
    fn what_excludes_each_other_is_refused() {
        for line in [
            "tapedeck executor --agent a --command b",
            "tapedeck resume --last --session 0198c0de-0000-7000-8000-000000000000",
            "tapedeck run --workspace w --scratch --goal g",
            "tapedeck run",
            "tapedeck resume",
            "tapedeck attach not-an-id",
            "tapedeck nonsense",
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn a_role_is_added_to_arguments_that_name_one() {
        let executor = "tapedeck acp --agent demo --role executor --session \
                        0198c0de-0000-7000-8000-000000000000 --role server";
        let executor = executor.split_whitespace().collect::<Vec<_>>().join(" ");
        let cli = parse(&executor).unwrap();
        let Command::Acp(args) = cli.command else {
            panic!("another command")
        };
        assert!(!args.is_for_an_editor());
        assert!(parse("tapedeck acp --role executor").is_err());
    }

    #[test]
    fn an_agent_on_the_command_line_unsets_a_configured_program() {
        let cli = parse("tapedeck executor --agent demo").unwrap();
        let keys = format!("{:?}", cli.flags());
        assert!(
            keys.contains("executor.agent") && keys.contains("executor.command"),
            "{keys}"
        );
    }

    /// The examples under a command's help, and under those of all commands below it.
    fn examples(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string);
        let lines = help.iter().flat_map(|help| help.lines());
        let lines = lines.filter(|line| line.starts_with("  "));
        let mut found: Vec<_> = lines.map(str::to_owned).collect();
        found.extend(command.get_subcommands().flat_map(examples));
        found
    }

    #[test]
    fn every_example_is_a_command_line_that_holds() {
        const PLACES: [&str; 8] = [
            "SESSION",
            "CHECKPOINT",
            "RUN",
            "QUESTION",
            "RULE",
            "TOKEN",
            "CURSOR",
            "EXECUTOR",
        ];
        let mut checked = 0;
        for example in examples(&Cli::command()) {
            let Some(at) = example.find("tapedeck ") else {
                continue;
            };
            // What a shell would do with the rest is no business of ours.
            let line = example[at..].split(['|', '>']).next().unwrap();
            let mut words = shell_words::split(line).unwrap();
            for word in &mut words {
                if PLACES.contains(&word.as_str()) {
                    "0198c0de-0000-7000-8000-000000000000".clone_into(word);
                }
            }
            let parsed = Cli::try_parse_from(words);
            assert!(parsed.is_ok(), "{example}\n{:?}", parsed.err());
            checked += 1;
        }
        assert!(checked > 50, "{checked}");
    }
}
