//! Which agent an executor of this binary drives, and what it needs for that: the one place that
//! turns settings into a backend.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tapedeck_executor::backend::Backend;
use tapedeck_executor::backend::acp::{AcpBackend, AcpOptions};
use tapedeck_executor::backend::command::CommandBackend;
use tapedeck_executor::process::{Environment, GuardCommand, Launcher};
use tapedeck_executor::{EveryRun, Options};

use crate::GUARD;
use crate::config::{self, Given, Settings};
use crate::exit::Failed;

/// The word that stands for the agent in this binary.
const DEMO: &str = "demo";
/// How long a run waits for a workspace that another agent still works in.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Which agent, on the command line.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AgentArgs {
    /// Drive this ACP agent; `demo` is the one in this binary [env: `TAPEDECK_AGENT`]
    #[arg(long, value_name = "CMD", conflicts_with = "command")]
    agent: Option<String>,
    /// Run this program for each prompt instead: the prompt replaces `{prompt}`, or goes to stdin
    /// [env: `TAPEDECK_COMMAND`]
    #[arg(long, value_name = "CMD")]
    command: Option<String>,
    /// The mode to set in the agent's sessions [env: `TAPEDECK_AGENT_MODE`]
    #[arg(long, value_name = "NAME")]
    agent_mode: Option<String>,
    /// A variable for the agent: passed on, or set to a value; may be repeated
    /// [env: `TAPEDECK_AGENT_ENV`]
    #[arg(long, value_name = "NAME[=VALUE]")]
    agent_env: Vec<String>,
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
        let mode = self.agent_mode.as_ref();
        flags.extend(Given::option("--agent-mode", "executor.agent_mode", mode));
        flags.extend(Given::list(
            "--agent-env",
            "executor.agent_env",
            &self.agent_env,
        ));
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
    Command(String),
}

impl Agent {
    /// The configured agent, if there is one.
    pub(crate) fn configured(settings: &Settings) -> Option<Self> {
        let executor = &settings.executor;
        let acp = executor.agent.clone().map(Self::Acp);
        acp.or_else(|| executor.command.clone().map(Self::Command))
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Acp(_) => "acp",
            Self::Command(_) => "command",
        }
    }

    /// Refuses a command that can't be read as words, before anything is made for it.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let (Self::Acp(command) | Self::Command(command)) = self;
        check(command)?;
        match shell_words::split(command) {
            Ok(_) => Ok(()),
            Err(error) => Err(Failed::usage(format!("the agent's command: {error}"))),
        }
    }

    /// Gives the options of an executor the backend for this agent.
    pub(crate) fn drive(&self, settings: &Settings, options: &mut Options) -> anyhow::Result<()> {
        options.backends = Arc::new(EveryRun(self.backend(settings, options)?));
        options.capabilities = Some(json!({"backend": self.kind()}));
        Ok(())
    }

    fn backend(&self, settings: &Settings, options: &Options) -> anyhow::Result<Arc<dyn Backend>> {
        let program = std::env::current_exe().context("this binary can't be found")?;
        let environment = environment(&settings.executor.agent_env);
        let launcher = Launcher {
            guard: GuardCommand {
                program: program.clone(),
                arguments: vec![OsString::from(GUARD)],
            },
            state_dir: options.state_dir.clone(),
            executor_instance: options.instance_id.clone(),
            lock_wait: LOCK_WAIT,
        };
        let unreadable =
            |error: &dyn std::fmt::Display| Failed::usage(format!("the agent's command: {error}"));
        match self {
            Self::Acp(command) => {
                let command = match command.as_str() {
                    DEMO => demo_command(&program, &options.state_dir)?,
                    command => command.to_owned(),
                };
                check(&command)?;
                let acp = AcpOptions {
                    mode: settings.executor.agent_mode.clone(),
                    ..AcpOptions::default()
                };
                let backend = AcpBackend::new(&command, environment, launcher, acp);
                Ok(Arc::new(backend.map_err(|error| unreadable(&error))?))
            }
            Self::Command(command) => {
                check(command)?;
                let backend = CommandBackend::new(command, None, environment, launcher);
                Ok(Arc::new(backend.map_err(|error| unreadable(&error))?))
            }
        }
    }
}

fn check(command: &str) -> anyhow::Result<()> {
    if command.trim().is_empty() {
        return Err(Failed::usage("the agent's command is empty"));
    }
    Ok(())
}

/// Our own agent, which keeps its sessions beside the executor's state.
fn demo_command(program: &Path, state_dir: &Path) -> anyhow::Result<String> {
    let memory = state_dir.join("demo-agent");
    let words = [
        program.to_str().context("this binary's path is no text")?,
        "demo-agent",
        "--state-dir",
        memory
            .to_str()
            .context("the state directory's path is no text")?,
    ];
    Ok(shell_words::join(words))
}

fn environment(wanted: &[String]) -> Environment {
    let (mut names, mut pairs) = (Vec::new(), Vec::new());
    for item in wanted {
        match item.split_once('=') {
            Some((name, value)) => pairs.push((name.to_owned(), value.to_owned())),
            None => names.push(item.clone()),
        }
    }
    Environment::select(config::inherited_environment(), &names, &pairs)
}
