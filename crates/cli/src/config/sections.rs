//! The settings themselves, one struct a section, with their defaults and their bounds.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use etcetera::BaseStrategy as _;
use serde::{Deserialize, Serialize};
use tapedeck_domain::git::Transport;
use tapedeck_executor::backend::command::{Format, PromptVia};

use super::database::DatabaseUrl;
use crate::exit::Failed;

/// Factors outside are mistakes.
const SCALE: std::ops::RangeInclusive<f64> = 0.001..=100.0;

/// All settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The server to talk to.
    pub(crate) server: Option<String>,
    /// The remote to talk to, by its name.
    pub(crate) remote: Option<String>,
    /// Where remotes are remembered.
    pub(crate) remotes_file: PathBuf,
    /// What was typed into the REPL.
    pub(crate) history_file: PathBuf,
    /// The file that holds the bearer token, for server, executor and clients.
    pub(crate) token_file: Option<PathBuf>,
    /// Where the database lies.
    pub(crate) data_dir: PathBuf,
    /// A PostgreSQL database, instead of one in the data directory.
    pub(crate) database: Option<DatabaseUrl>,
    /// Adds to the table of agents and changes it.
    pub(crate) agents_file: Option<PathBuf>,
    /// Logs.
    pub(crate) log: Log,
    /// Times.
    pub(crate) timing: Times,
    /// The database.
    pub(crate) store: Store,
    /// What becomes of old runs.
    pub(crate) retention: Retention,
    /// `tapedeck serve`.
    pub(crate) serve: Serve,
    /// `tapedeck executor`, and the executor inside `run` and `resume`.
    pub(crate) executor: Executor,
    /// Git, for an executor's workspaces.
    pub(crate) git: Git,
    /// Faults on purpose.
    pub(crate) testing: Testing,
}

/// Logs, which go to stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    /// Which records are written, e.g. `info` or `tapedeck_executor=debug`.
    pub(crate) filter: Option<String>,
    /// How they look.
    pub(crate) format: LogFormat,
}

/// How log records look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Times {
    /// Multiplies every lease, period and deadline of a server; for tests.
    pub(crate) scale: f64,
}

/// The database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Store {
    /// What a commit waits for.
    pub(crate) durability: Durability,
}

/// What becomes of old runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retention {
    /// Deltas of runs that settled so many days ago become whole messages; none never do.
    pub(crate) delta_days: Option<u32>,
}

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durability {
    /// The disk.
    Full,
    /// The operating system: a power cut may lose the last commits.
    Relaxed,
}

/// `tapedeck serve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Serve {
    /// Address and port.
    pub(crate) listen: String,
    /// Gets the base URL once the server answers.
    pub(crate) ready_file: Option<PathBuf>,
}

/// `tapedeck executor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Executor {
    /// Its stable name; the host's by default.
    pub(crate) id: Option<String>,
    /// Its pool.
    pub(crate) pool: String,
    /// The label that runs are matched by.
    pub(crate) kind: String,
    /// Further labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Local workspaces are allowed inside these directories.
    pub(crate) workspace_roots: Vec<PathBuf>,
    /// Spools, scratch directories and workspace locks.
    pub(crate) state_dir: PathBuf,
    /// Runs at a time.
    pub(crate) max_runs: u32,
    /// The lease of a run, in seconds.
    pub(crate) lease_seconds: u32,
    /// How long runs may go on after SIGTERM, in seconds.
    pub(crate) drain_seconds: u32,
    /// How long an agent may be silent, in seconds.
    pub(crate) idle_timeout_seconds: u32,
    /// An ACP agent's command, or `demo`.
    pub(crate) agent: Option<String>,
    /// Any program's command.
    pub(crate) command: Option<String>,
    /// How that program gets its prompt.
    pub(crate) command_prompt: Option<PromptVia>,
    /// The format of its output.
    pub(crate) command_format: Option<Format>,
    /// Its arguments that take its own conversation up again.
    pub(crate) command_resume: Option<String>,
    /// The mode to set in the agent's sessions.
    pub(crate) agent_mode: Option<String>,
    /// Variables for the agent, `NAME` or `NAME=VALUE`.
    pub(crate) agent_env: Vec<String>,
    /// How to authenticate with agents that offer ways to.
    pub(crate) agent_auth: Option<String>,
    /// Whether sessions may name programs to start.
    pub(crate) allow_session_command: bool,
    /// Whether agents may read and write files through the executor.
    pub(crate) agent_client_fs: bool,
    /// Whether agents may run commands through the executor.
    pub(crate) agent_client_terminal: bool,
    /// How long an agent stays for the next run of its session, in seconds.
    pub(crate) warm_seconds: u32,
    /// How many agents stay at a time.
    pub(crate) warm_agents: u32,
}

/// Git, for an executor's workspaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Git {
    /// Git's settings for fetching, such as a credential helper.
    pub(crate) config_file: Option<PathBuf>,
    /// How remote repositories may be reached: `https`, `ssh`, `http`.
    pub(crate) protocols: Vec<String>,
    /// How long a fetch may take, in seconds.
    pub(crate) fetch_seconds: u32,
    /// How often the server is asked which sessions are over, in seconds.
    pub(crate) check_seconds: u32,
    /// How long a closed session's worktree with uncommitted work is kept, in days.
    pub(crate) keep_dirty_days: u32,
}

impl Git {
    /// How remote repositories may be reached.
    pub(crate) fn transports(&self) -> anyhow::Result<Vec<Transport>> {
        let known = [Transport::Https, Transport::Ssh, Transport::Http];
        let transport = |word: &String| {
            let found = known.into_iter().find(|known| known.as_str() == word);
            found.ok_or_else(|| {
                Failed::usage(format!(
                    "`git.protocols` names `{word}`; known are https, ssh and http"
                ))
            })
        };
        self.protocols.iter().map(transport).collect()
    }
}

/// Faults on purpose, for tests of what must hold in spite of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Testing {
    /// What becomes of a server's hints.
    pub(crate) hints: HintFate,
}

/// What becomes of the hints that wake followers and held requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HintFate {
    /// They are sent, within the server and to the others.
    Sent,
    /// None is sent, and none is listened for: only the slow poll notices what has changed.
    Dropped,
}

impl Settings {
    /// What holds where nothing else is said.
    pub(crate) fn defaults() -> anyhow::Result<Self> {
        let base = etcetera::choose_base_strategy().context("the home directory is unknown")?;
        let state = base.state_dir().unwrap_or_else(|| base.data_dir());
        Ok(Self {
            server: None,
            remote: None,
            remotes_file: base.config_dir().join("tapedeck").join("remotes.toml"),
            history_file: state.join("tapedeck").join("history"),
            token_file: None,
            data_dir: base.data_dir().join("tapedeck"),
            database: None,
            agents_file: None,
            log: Log {
                filter: None,
                format: LogFormat::Text,
            },
            timing: Times { scale: 1.0 },
            store: Store {
                durability: Durability::Full,
            },
            retention: Retention { delta_days: None },
            serve: Serve {
                listen: "127.0.0.1:7070".to_owned(),
                ready_file: None,
            },
            executor: Executor {
                id: None,
                pool: tapedeck_domain::session::DEFAULT_POOL.to_owned(),
                kind: tapedeck_domain::session::DEFAULT_EXECUTOR_KIND.to_owned(),
                labels: BTreeMap::new(),
                workspace_roots: Vec::new(),
                state_dir: state.join("tapedeck").join("executor"),
                max_runs: 1,
                lease_seconds: 60,
                drain_seconds: 30,
                idle_timeout_seconds: 600,
                agent: None,
                command: None,
                command_prompt: None,
                command_format: None,
                command_resume: None,
                agent_mode: None,
                agent_env: Vec::new(),
                agent_auth: None,
                allow_session_command: false,
                agent_client_fs: false,
                agent_client_terminal: false,
                warm_seconds: 120,
                warm_agents: 2,
            },
            git: Git {
                config_file: None,
                protocols: vec!["https".to_owned(), "ssh".to_owned()],
                fetch_seconds: 600,
                check_seconds: 300,
                keep_dirty_days: 14,
            },
            testing: Testing {
                hints: HintFate::Sent,
            },
        })
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        if !SCALE.contains(&self.timing.scale) {
            return Err(Failed::usage(format!(
                "`timing.scale` must be {} to {}",
                SCALE.start(),
                SCALE.end()
            )));
        }
        if let Some(database) = &self.database {
            database.check()?;
        }
        if self.retention.delta_days == Some(0) {
            return Err(Failed::usage(
                "`retention.delta_days` must be at least 1; leave it out to keep deltas as they are",
            ));
        }
        if self.testing.hints == HintFate::Dropped && self.database.is_none() {
            return Err(Failed::usage(
                "`testing.hints` can be `dropped` on PostgreSQL only: the one server of a data \
                 directory doesn't poll",
            ));
        }
        if self.executor.agent.is_some() && self.executor.command.is_some() {
            let text = "`executor.agent` and `executor.command` exclude each other";
            return Err(Failed::usage(text));
        }
        if self.git.fetch_seconds == 0 || self.git.check_seconds == 0 {
            let text = "`git.fetch_seconds` and `git.check_seconds` must be at least 1";
            return Err(Failed::usage(text));
        }
        self.git.transports().map(drop)
    }
}

/// A file of our configuration directory that is read where none is named, if it is there.
pub(crate) fn usual_file(name: &str) -> Option<PathBuf> {
    let base = etcetera::choose_base_strategy().ok()?;
    let file = base.config_dir().join("tapedeck").join(name);
    file.exists().then_some(file)
}
