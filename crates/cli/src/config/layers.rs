//! The list of settings with their variables, and single values as layers of the configuration.
//! A value from the environment is read as its setting's kind says, never guessed.

use figment::providers::Serialized;
use figment::value::{Dict, Map};
use figment::{Metadata, Profile, Provider};
use serde::Serialize;
use serde_json::Value;

use super::database::DatabaseUrl;
use crate::exit::Failed;

/// A setting: its name in the file, its variable, and how the variable is read.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its name in the file.
    pub(crate) key: &'static str,
    /// The variable that sets it.
    pub(crate) variable: &'static str,
    kind: Kind,
}

/// How a variable's text is read.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Whole,
    Decimal,
    /// `true` or `false`.
    Switch,
    /// Separated by commas.
    List,
    /// `name=value`, separated by commas.
    Pairs,
}

const fn setting(key: &'static str, variable: &'static str, kind: Kind) -> Setting {
    Setting {
        key,
        variable,
        kind,
    }
}

/// Every setting.
pub(crate) const SETTINGS: &[Setting] = &[
    setting("server", "TAPEDECK_SERVER", Kind::Text),
    setting("remote", "TAPEDECK_REMOTE", Kind::Text),
    setting("remotes_file", "TAPEDECK_REMOTES_FILE", Kind::Text),
    setting("history_file", "TAPEDECK_HISTORY_FILE", Kind::Text),
    setting("token_file", "TAPEDECK_TOKEN_FILE", Kind::Text),
    setting("data_dir", "TAPEDECK_DATA_DIR", Kind::Text),
    setting("database", "TAPEDECK_DATABASE", Kind::Text),
    setting("agents_file", "TAPEDECK_AGENTS_FILE", Kind::Text),
    setting("log.filter", "TAPEDECK_LOG", Kind::Text),
    setting("log.format", "TAPEDECK_LOG_FORMAT", Kind::Text),
    setting("timing.scale", "TAPEDECK_TIMING_SCALE", Kind::Decimal),
    setting("store.durability", "TAPEDECK_DURABILITY", Kind::Text),
    setting(
        "retention.delta_days",
        "TAPEDECK_RETENTION_DELTA_DAYS",
        Kind::Whole,
    ),
    setting("serve.listen", "TAPEDECK_LISTEN", Kind::Text),
    setting("serve.ready_file", "TAPEDECK_READY_FILE", Kind::Text),
    setting("executor.id", "TAPEDECK_EXECUTOR_ID", Kind::Text),
    setting("executor.pool", "TAPEDECK_POOL", Kind::Text),
    setting("executor.kind", "TAPEDECK_EXECUTOR_KIND", Kind::Text),
    setting("executor.labels", "TAPEDECK_LABELS", Kind::Pairs),
    setting(
        "executor.workspace_roots",
        "TAPEDECK_WORKSPACE_ROOTS",
        Kind::List,
    ),
    setting("executor.state_dir", "TAPEDECK_STATE_DIR", Kind::Text),
    setting("executor.max_runs", "TAPEDECK_MAX_RUNS", Kind::Whole),
    setting(
        "executor.lease_seconds",
        "TAPEDECK_LEASE_SECONDS",
        Kind::Whole,
    ),
    setting(
        "executor.drain_seconds",
        "TAPEDECK_DRAIN_SECONDS",
        Kind::Whole,
    ),
    setting(
        "executor.idle_timeout_seconds",
        "TAPEDECK_IDLE_TIMEOUT_SECONDS",
        Kind::Whole,
    ),
    setting("executor.agent", "TAPEDECK_AGENT", Kind::Text),
    setting("executor.command", "TAPEDECK_COMMAND", Kind::Text),
    setting(
        "executor.command_prompt",
        "TAPEDECK_COMMAND_PROMPT",
        Kind::Text,
    ),
    setting(
        "executor.command_format",
        "TAPEDECK_COMMAND_FORMAT",
        Kind::Text,
    ),
    setting(
        "executor.command_resume",
        "TAPEDECK_COMMAND_RESUME",
        Kind::Text,
    ),
    setting("executor.agent_mode", "TAPEDECK_AGENT_MODE", Kind::Text),
    setting("executor.agent_env", "TAPEDECK_AGENT_ENV", Kind::List),
    setting("executor.agent_auth", "TAPEDECK_AGENT_AUTH", Kind::Text),
    setting(
        "executor.allow_session_command",
        "TAPEDECK_ALLOW_SESSION_COMMAND",
        Kind::Switch,
    ),
    setting(
        "executor.agent_client_fs",
        "TAPEDECK_AGENT_CLIENT_FS",
        Kind::Switch,
    ),
    setting(
        "executor.agent_client_terminal",
        "TAPEDECK_AGENT_CLIENT_TERMINAL",
        Kind::Switch,
    ),
    setting(
        "executor.warm_seconds",
        "TAPEDECK_WARM_SECONDS",
        Kind::Whole,
    ),
    setting("executor.warm_agents", "TAPEDECK_WARM_AGENTS", Kind::Whole),
    setting("git.config_file", "TAPEDECK_GIT_CONFIG_FILE", Kind::Text),
    setting("git.protocols", "TAPEDECK_GIT_PROTOCOLS", Kind::List),
    setting(
        "git.fetch_seconds",
        "TAPEDECK_GIT_FETCH_SECONDS",
        Kind::Whole,
    ),
    setting(
        "git.check_seconds",
        "TAPEDECK_GIT_CHECK_SECONDS",
        Kind::Whole,
    ),
    setting(
        "git.keep_dirty_days",
        "TAPEDECK_GIT_KEEP_DIRTY_DAYS",
        Kind::Whole,
    ),
    setting("testing.hints", "TAPEDECK_TESTING_HINTS", Kind::Text),
];

/// One value with its source, as a layer.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    source: String,
    key: &'static str,
    value: Value,
}

impl Given {
    /// A value from the command line.
    pub(crate) fn flag(flag: &str, key: &'static str, value: impl Serialize) -> Self {
        Self {
            source: flag.to_owned(),
            key,
            value: serde_json::to_value(value).unwrap_or_default(),
        }
    }

    /// Nothing for a setting that what `source` gave for another one excludes.
    pub(super) fn nothing(source: String, key: &'static str) -> Self {
        Self {
            source,
            key,
            value: Value::Null,
        }
    }

    /// The same for a flag that may be absent.
    pub(crate) fn option(
        flag: &str,
        key: &'static str,
        value: Option<impl Serialize>,
    ) -> Option<Self> {
        value.map(|value| Self::flag(flag, key, value))
    }

    /// The same for a flag without a value; one that is not given says nothing.
    pub(crate) fn switch(flag: &str, key: &'static str, given: bool) -> Option<Self> {
        given.then(|| Self::flag(flag, key, true))
    }

    /// The same for a flag that may be given several times; none is absent.
    pub(crate) fn list<T: Serialize>(flag: &str, key: &'static str, values: &[T]) -> Option<Self> {
        (!values.is_empty()).then(|| Self::flag(flag, key, values))
    }
}

impl Provider for Given {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.source.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Serialized::default(self.key, &self.value).data()
    }
}

/// The values that variables give; an empty one is as good as unset.
pub(super) fn of_environment(environment: &[(String, String)]) -> anyhow::Result<Vec<Given>> {
    let mut given = Vec::new();
    for setting in SETTINGS {
        let found = environment
            .iter()
            .find(|(name, _)| name == setting.variable);
        let Some((_, text)) = found.filter(|(_, text)| !text.is_empty()) else {
            continue;
        };
        let value = setting.kind.read(text).map_err(|expected| {
            Failed::usage(format!("`{}` must be {expected}", setting.variable))
        })?;
        given.push(Given {
            source: setting.variable.to_owned(),
            key: setting.key,
            value,
        });
    }
    Ok(given)
}

impl Kind {
    fn read(self, text: &str) -> Result<Value, &'static str> {
        let items = || {
            text.split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
        };
        match self {
            Self::Text => Ok(Value::from(text)),
            Self::Whole => text
                .parse::<u32>()
                .map(Value::from)
                .map_err(|_unread| "a whole number"),
            Self::Decimal => text
                .parse::<f64>()
                .map(Value::from)
                .map_err(|_unread| "a number"),
            Self::Switch => text
                .parse::<bool>()
                .map(Value::from)
                .map_err(|_unread| "`true` or `false`"),
            Self::List => Ok(items().collect()),
            Self::Pairs => items()
                .map(|item| {
                    let pair = item
                        .split_once('=')
                        .ok_or("`name=value`, separated by commas")?;
                    Ok((pair.0.to_owned(), Value::from(pair.1)))
                })
                .collect::<Result<serde_json::Map<_, _>, _>>()
                .map(Value::Object),
        }
    }
}

/// A value without what must not be shown: the values of an agent's variables, and what of a
/// database's URL may be a password.
pub(super) fn without_secrets(key: &str, value: Value) -> Value {
    match value {
        Value::String(url) if key == "database" => DatabaseUrl::new(url).to_string().into(),
        Value::Array(items) if key == "executor.agent_env" => items
            .iter()
            .filter_map(Value::as_str)
            .map(|item| {
                item.split_once('=')
                    .map_or(item.to_owned(), |(name, _)| format!("{name}=…"))
            })
            .collect(),
        value => value,
    }
}
