//! `tapedeck agents`, and which agent an executor of this binary drives: the one place that turns
//! settings into a backend.

mod check;
mod conversation;
mod listing;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tapedeck_executor::backend::command::{Format, PromptVia};
use tapedeck_executor::process::{Environment, GuardCommand, Launcher};
use tapedeck_executor::{EveryRun, Options};

use crate::GUARD;
use crate::config::{self, Given, Settings};
use crate::context::Context;
use crate::exit::{Exit, Failed};
use crate::profiles::start::{Start, Starts, acp_options, split};
use crate::profiles::{Places, Profiles, find};

/// How long a run waits for a workspace that another agent still works in.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Agents that can be attached.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the known agents that are installed here, and how they would be started
    List(listing::ListArgs),
    /// Show what is known of an agent
    #[command(after_help = "Examples:
  tapedeck agents show claude")]
    Show {
        /// Its name
        agent: String,
    },
    /// Start an agent as an executor does, have a conversation with it and tell what works
    Check(check::Args),
}

/// Runs one of them.
pub(crate) async fn run(command: Command, context: Context) -> anyhow::Result<Exit> {
    match command {
        Command::List(args) => listing::list(&args, &context).await,
        Command::Show { agent } => listing::show(&agent, &context).await,
        Command::Check(args) => check::run(args, &context).await,
    }
}

/// Which agent, on the command line.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AgentArgs {
    /// Drive this ACP agent: a name that `tapedeck agents list` shows, such as `demo`, or a command
    /// line [env: `TAPEDECK_AGENT`]
    #[arg(long, value_name = "CMD", conflicts_with = "command")]
    agent: Option<String>,
    /// Run this program for each prompt instead: a name that `tapedeck agents list` shows, or a
    /// command line. The prompt replaces `{prompt}`, or goes to stdin [env: `TAPEDECK_COMMAND`]
    #[arg(long, value_name = "CMD")]
    command: Option<String>,
    /// How that program gets its prompt: argument, stdin or environment
    /// [env: `TAPEDECK_COMMAND_PROMPT`]
    #[arg(long, value_name = "WAY")]
    command_prompt: Option<PromptVia>,
    /// The format of its output: text, claude-stream-json, codex-json, gemini-json or
    /// opencode-json [env: `TAPEDECK_COMMAND_FORMAT`]
    #[arg(long, value_name = "FORMAT")]
    command_format: Option<Format>,
    /// Its arguments that take its own conversation up again, e.g. "--resume {session}"; they go
    /// where `{resume}` stands, or to the end [env: `TAPEDECK_COMMAND_RESUME`]
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    command_resume: Option<String>,
    /// The mode to set in the agent's sessions [env: `TAPEDECK_AGENT_MODE`]
    #[arg(long, value_name = "NAME")]
    agent_mode: Option<String>,
    /// A variable for the agent: passed on, or set to a value; may be repeated
    /// [env: `TAPEDECK_AGENT_ENV`]
    #[arg(long, value_name = "NAME[=VALUE]")]
    agent_env: Vec<String>,
    /// How to authenticate with an agent that offers ways to [env: `TAPEDECK_AGENT_AUTH`]
    #[arg(long, value_name = "METHOD")]
    agent_auth: Option<String>,
    /// Let sessions name programs to start, as MCP servers on stdio are
    /// [env: `TAPEDECK_ALLOW_SESSION_COMMAND`]
    #[arg(long)]
    allow_session_command: bool,
    /// Offer the agent to read and write files through the executor
    /// [env: `TAPEDECK_AGENT_CLIENT_FS`]
    #[arg(long)]
    agent_client_fs: bool,
    /// Offer the agent to run commands through the executor [env: `TAPEDECK_AGENT_CLIENT_TERMINAL`]
    #[arg(long)]
    agent_client_terminal: bool,
    /// How long an agent stays for the next run of its session, 0 for not at all [default: 120]
    /// [env: `TAPEDECK_WARM_SECONDS`]
    #[arg(long, value_name = "N")]
    warm_seconds: Option<u32>,
    /// How many agents stay at a time [default: 2] [env: `TAPEDECK_WARM_AGENTS`]
    #[arg(long, value_name = "N")]
    warm_agents: Option<u32>,
}

impl AgentArgs {
    /// The settings that the command line gives. One kind of agent unsets the other.
    pub(crate) fn flags(&self) -> Vec<Given> {
        let nothing = None::<String>;
        let mut flags: Vec<Given> = Vec::new();
        if let Some(agent) = &self.agent {
            flags.push(Given::flag("--agent", "executor.agent", agent));
            flags.push(Given::flag("--agent", "executor.command", &nothing));
        }
        if let Some(command) = &self.command {
            flags.push(Given::flag("--command", "executor.command", command));
            flags.push(Given::flag("--command", "executor.agent", &nothing));
        }
        let (prompt, format) = (self.command_prompt, self.command_format);
        let key = "executor.command_prompt";
        flags.extend(Given::option("--command-prompt", key, prompt));
        let key = "executor.command_format";
        flags.extend(Given::option("--command-format", key, format));
        let (key, resume) = ("executor.command_resume", self.command_resume.as_ref());
        flags.extend(Given::option("--command-resume", key, resume));
        let mode = self.agent_mode.as_ref();
        flags.extend(Given::option("--agent-mode", "executor.agent_mode", mode));
        flags.extend(Given::list(
            "--agent-env",
            "executor.agent_env",
            &self.agent_env,
        ));
        let auth = self.agent_auth.as_ref();
        flags.extend(Given::option("--agent-auth", "executor.agent_auth", auth));
        flags.extend(Given::switch(
            "--allow-session-command",
            "executor.allow_session_command",
            self.allow_session_command,
        ));
        flags.extend(Given::switch(
            "--agent-client-fs",
            "executor.agent_client_fs",
            self.agent_client_fs,
        ));
        flags.extend(Given::switch(
            "--agent-client-terminal",
            "executor.agent_client_terminal",
            self.agent_client_terminal,
        ));
        let key = "executor.warm_seconds";
        flags.extend(Given::option("--warm-seconds", key, self.warm_seconds));
        let key = "executor.warm_agents";
        flags.extend(Given::option("--warm-agents", key, self.warm_agents));
        flags
    }

    /// Whether an agent was named.
    pub(crate) const fn is_given(&self) -> bool {
        self.agent.is_some() || self.command.is_some()
    }
}

/// An agent as it was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Agent {
    /// An ACP agent.
    Acp(String),
    /// Any program.
    Command(Plain),
}

/// A program as an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Remembered")]
pub(crate) struct Plain {
    /// A name of the table or a command line.
    pub(crate) command: String,
    /// How it gets its prompt.
    pub(crate) prompt: Option<PromptVia>,
    /// The format of its output.
    pub(crate) format: Option<Format>,
    /// Its arguments that take its own conversation up again.
    pub(crate) resume: Option<String>,
}

/// A program as it was remembered: at first by its command alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Remembered {
    Command(String),
    Whole {
        command: String,
        prompt: Option<PromptVia>,
        format: Option<Format>,
        resume: Option<String>,
    },
}

impl From<Remembered> for Plain {
    fn from(remembered: Remembered) -> Self {
        match remembered {
            Remembered::Command(command) => Self::from_table(&command),
            Remembered::Whole {
                command,
                prompt,
                format,
                resume,
            } => Self {
                command,
                prompt,
                format,
                resume,
            },
        }
    }
}

impl Plain {
    /// A program by its name or command line, with nothing said beside that.
    pub(crate) fn from_table(command: &str) -> Self {
        Self {
            command: command.to_owned(),
            prompt: None,
            format: None,
            resume: None,
        }
    }

    /// The arguments that take its own conversation up again.
    pub(crate) fn resume_words(&self) -> anyhow::Result<Vec<String>> {
        let Some(resume) = &self.resume else {
            return Ok(Vec::new());
        };
        if !resume.contains("{session}") {
            return Err(Failed::usage(
                "the arguments that take a conversation up again lack `{session}`, its place",
            ));
        }
        split(resume)
    }
}

impl Agent {
    /// The configured agent, if there is one.
    pub(crate) fn configured(settings: &Settings) -> Option<Self> {
        let executor = &settings.executor;
        let acp = executor.agent.clone().map(Self::Acp);
        let plain = |command| {
            Self::Command(Plain {
                command,
                prompt: executor.command_prompt,
                format: executor.command_format,
                resume: executor.command_resume.clone(),
            })
        };
        acp.or_else(|| executor.command.clone().map(plain))
    }

    /// What a person wrote to name it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Acp(name) => name,
            Self::Command(plain) => &plain.command,
        }
    }

    /// Refuses an agent that can't be started, before anything is made for it.
    pub(crate) fn check(&self, settings: &Settings) -> anyhow::Result<()> {
        let state_dir = config::expand(&settings.executor.state_dir)?;
        let start = self.start(settings, &state_dir)?;
        match start.words.first() {
            Some(name) if !is_findable(name, &start.environment) => Err(Failed::usage(format!(
                "the agent's program `{name}` is not there; `tapedeck agents list` shows the agents"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// Gives the options of an executor the backend for this agent.
    pub(crate) fn drive(&self, settings: &Settings, options: &mut Options) -> anyhow::Result<()> {
        let start = self.start(settings, &options.state_dir)?;
        options.capabilities = Some(json!({"backend": start.way.as_str()}));
        let launcher = launcher(&options.state_dir, &options.instance_id)?;
        let acp = acp_options(settings);
        options.backends = Arc::new(EveryRun(start.backend(launcher, acp)?));
        Ok(())
    }

    fn start(&self, settings: &Settings, state_dir: &Path) -> anyhow::Result<Start> {
        let starts = Starts {
            profiles: &Profiles::load(settings)?,
            settings,
            places: Places {
                tapedeck: &this_binary()?,
                state: state_dir,
            },
        };
        starts.of(self)
    }
}

/// Whether a program is there. A path that begins in an agent's directory is looked up there only.
fn is_findable(name: &str, environment: &Environment) -> bool {
    let is_of_the_directory = name.contains('/') && !Path::new(name).is_absolute();
    is_of_the_directory || find::program(&[name.to_owned()], environment).is_some()
}

fn this_binary() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("this binary can't be found")
}

/// Starts agents under this binary as their guard.
fn launcher(state_dir: &Path, instance: &str) -> anyhow::Result<Launcher> {
    Ok(Launcher {
        guard: GuardCommand {
            program: this_binary()?,
            arguments: vec![OsString::from(GUARD)],
        },
        state_dir: state_dir.to_path_buf(),
        executor_instance: instance.to_owned(),
        lock_wait: LOCK_WAIT,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_remembered_and_older_memories_are_understood() {
        let whole = Agent::Command(Plain {
            command: "x {prompt}".to_owned(),
            prompt: Some(PromptVia::Argument),
            format: Some(Format::CodexJson),
            resume: Some("-r {session}".to_owned()),
        });
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<Agent>(&text).unwrap(), whole);
        let older: Agent = serde_json::from_str(r#"{"Command": "cat"}"#).unwrap();
        assert!(matches!(older, Agent::Command(Plain { command, .. }) if command == "cat"));
        let acp: Agent = serde_json::from_str(r#"{"Acp": "demo"}"#).unwrap();
        assert_eq!(acp, Agent::Acp("demo".to_owned()));
    }

    #[test]
    fn what_cannot_be_started_is_refused_beforehand() {
        let settings = Settings::defaults().unwrap();
        let plain = |command: &str, resume: Option<&str>| {
            Agent::Command(Plain {
                command: command.to_owned(),
                prompt: None,
                format: None,
                resume: resume.map(str::to_owned),
            })
        };
        for (agent, reason) in [
            (Agent::Acp(" ".to_owned()), "is empty"),
            (plain("", None), "is empty"),
            (plain("'", None), "the agent's command"),
            (plain("cat", Some("--again")), "{session}"),
            (
                plain("no-such-agent -x", None),
                "`no-such-agent` is not there",
            ),
            (Agent::Acp("/no/such/agent".to_owned()), "is not there"),
        ] {
            let error = format!("{:#}", agent.check(&settings).unwrap_err());
            assert!(error.contains(reason), "{error}");
        }
        Agent::Acp("demo".to_owned()).check(&settings).unwrap();
        plain("cat", Some("-r {session}")).check(&settings).unwrap();
    }
}
