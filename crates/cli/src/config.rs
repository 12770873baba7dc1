//! The configuration: defaults, then a TOML file, then `TAPEDECK_*` variables, then flags. It is the
//! only place that reads the environment, and it remembers where every value came from; it must
//! never act on a value.

mod database;
mod files;
mod layers;
mod paths;
mod sections;
mod token_file;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::Serialized;
use figment::value::Value;
use tapedeck_client::Secret;
use tapedeck_domain::Timing;

use crate::exit::Failed;
pub(crate) use database::DatabaseUrl;
pub(crate) use files::{mistake, with_file};
pub(crate) use layers::{Given, SETTINGS};
pub(crate) use paths::{absolute, expand, make_private_dir};
pub(crate) use sections::{Durability, HintFate, LogFormat, Settings, usual_file};
pub(crate) use token_file::{MOST_BYTES as MOST_TOKEN_BYTES, read_token};

const DAY_MS: i64 = 24 * 3_600_000;
const ONE_DATABASE: &str = "the database is in the data directory or on PostgreSQL";
const ONE_SERVER: &str = "a remote is a server by its name";
/// Names the file.
const FILE_VARIABLE: &str = "TAPEDECK_CONFIG";

/// The settings of this process and where they came from.
#[derive(Debug)]
pub(crate) struct Config {
    settings: Settings,
    figment: Figment,
}

/// One setting as `config show` shows it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Shown {
    /// Its name in the file.
    pub(crate) key: &'static str,
    /// Its value as JSON, without what must stay secret.
    pub(crate) value: serde_json::Value,
    /// Where it came from.
    pub(crate) source: String,
    /// The variable that sets it.
    pub(crate) variable: &'static str,
}

impl std::ops::Deref for Config {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl Config {
    /// Puts the layers together for this process. `file` is `--config`.
    pub(crate) fn load(file: Option<&Path>, flags: Vec<Given>) -> anyhow::Result<Self> {
        Self::layered(file, &environment(), flags)
    }

    fn layered(
        file: Option<&Path>,
        environment: &[(String, String)],
        flags: Vec<Given>,
    ) -> anyhow::Result<Self> {
        let named = environment
            .iter()
            .find(|(name, value)| name == FILE_VARIABLE && !value.is_empty())
            .map(|(_, value)| PathBuf::from(value));
        let given = layers::of_environment(environment)?;
        let mut figment = Figment::from(Serialized::defaults(Settings::defaults()?));
        let file = match file.map(Path::to_path_buf).or(named) {
            // A file that was asked for by name must be there.
            Some(file) => Some(expand(&file)?),
            None => usual_file("config.toml"),
        };
        if let Some(file) = file {
            figment = with_file(figment, "the configuration", &file)?;
        }
        for given in given.into_iter().chain(flags) {
            figment = figment.merge(given);
        }
        let settings: Settings = figment.extract().map_err(|error| mistake(&error))?;
        settings.check()?;
        Self { settings, figment }
            .without_rival("database", "data_dir", ONE_DATABASE)?
            .without_rival("server", "remote", ONE_SERVER)?
            .without_rival("remote", "server", ONE_SERVER)
    }

    /// Of two settings that exclude each other, the one that a later layer names: `key` gives way
    /// here. One layer that names both contradicts itself.
    fn without_rival(
        mut self,
        key: &'static str,
        rival: &'static str,
        why: &str,
    ) -> anyhow::Result<Self> {
        if !(self.is_set(key) && self.is_set(rival)) {
            return Ok(self);
        }
        let (ours, theirs) = (self.layer(key), self.layer(rival));
        if ours == theirs {
            let (rival, key) = (self.given_as(rival), self.given_as(key));
            let message = format!("`{rival}` and `{key}` exclude each other: {why}");
            return Err(Failed::usage(message));
        }
        if ours < theirs {
            let source = self.source(rival);
            self.figment = self.figment.merge(Given::nothing(source, key));
            self.settings = self.figment.extract().map_err(|error| mistake(&error))?;
        }
        Ok(self)
    }

    fn is_set(&self, key: &str) -> bool {
        let value = self.figment.find_value(key);
        value.is_ok_and(|value| !matches!(value, Value::Empty(..)))
    }

    /// How late a setting's value comes: later layers win.
    fn layer(&self, key: &str) -> u8 {
        match self.source(key).as_str() {
            "default" => 0,
            flag if flag.starts_with("--") => 3,
            variable if variable.starts_with("TAPEDECK_") => 2,
            _file => 1,
        }
    }

    /// What a person wrote to set it.
    fn given_as(&self, key: &'static str) -> String {
        match self.layer(key) {
            0 | 1 => key.to_owned(),
            _ => self.source(key),
        }
    }

    /// All times, on this configuration's scale.
    pub(crate) fn timings(&self) -> Timing {
        let days = self.settings.retention.delta_days.map(i64::from);
        Timing {
            keep_deltas_ms: days.map(|days| days * DAY_MS),
            ..Timing::scaled(self.settings.timing.scale)
        }
    }

    /// Whether the value came from the command line.
    pub(crate) fn is_from_flag(&self, key: &str) -> bool {
        self.source(key).starts_with("--")
    }

    /// Refuses a server that the command line names: the command has no use for one.
    pub(crate) fn without_named_server(&self, why: &str) -> anyhow::Result<()> {
        let named =
            ["remote", "server"].map(|key| self.is_from_flag(key).then(|| self.source(key)));
        match named.into_iter().flatten().next() {
            Some(flag) => Err(Failed::usage(format!("`{flag}` says nothing here: {why}"))),
            None => Ok(()),
        }
    }

    /// Refuses to look at a database beside a server that is meant, wherever that is named, unless the
    /// command line names the database.
    pub(crate) fn without_server(&self) -> anyhow::Result<()> {
        let why = "this looks at the database itself: name it with `--data-dir` or `--database`";
        self.without_named_server(why)?;
        if self.is_from_flag("data_dir") || self.is_from_flag("database") {
            return Ok(());
        }
        let named = ["remote", "server"]
            .into_iter()
            .find(|key| self.is_set(key));
        match named {
            Some(key) => {
                let source = self.source(key);
                let text = format!("a server is meant by `{key}` of {source}; {why}");
                Err(Failed::usage(text))
            }
            None => Ok(()),
        }
    }

    /// Every setting, in the order of the file's reference.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        let shown = |setting: &layers::Setting| {
            let value = self.figment.find_value(setting.key).ok();
            let value = value.and_then(|value| serde_json::to_value(value).ok());
            Shown {
                key: setting.key,
                value: layers::without_secrets(setting.key, value.unwrap_or_default()),
                source: self.source(setting.key),
                variable: setting.variable,
            }
        };
        SETTINGS.iter().map(shown).collect()
    }

    fn source(&self, key: &str) -> String {
        let tag = match self.figment.find_value(key) {
            // A table's own tag says nothing: its newest entry's does.
            Ok(Value::Dict(tag, entries)) => entries.values().next_back().map_or(tag, Value::tag),
            Ok(value) => value.tag(),
            Err(_absent) => return "default".to_owned(),
        };
        let Some(metadata) = self.figment.get_metadata(tag) else {
            return "default".to_owned();
        };
        match &metadata.source {
            Some(figment::Source::File(path)) => path.display().to_string(),
            Some(_) if metadata.name.starts_with("tapedeck") => "default".to_owned(),
            _ => match metadata.name.as_ref() {
                name if name.starts_with("--") || name.starts_with("TAPEDECK_") => name.to_owned(),
                _ => "default".to_owned(),
            },
        }
    }

    /// The bearer token, where a token file is configured.
    pub(crate) fn token(&self) -> anyhow::Result<Option<Secret>> {
        let Some(file) = &self.settings.token_file else {
            return Ok(None);
        };
        read_token(&expand(file)?).map(Some)
    }
}

/// Our variables in the environment.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("TAPEDECK_"))
        .collect()
}

/// The whole environment, of which agents get a part.
pub(crate) fn inherited_environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// What the machine calls itself.
pub(crate) fn host_name() -> Option<String> {
    let read = |file: &str| std::fs::read_to_string(file).ok();
    let name = read("/proc/sys/kernel/hostname").or_else(|| read("/etc/hostname"))?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Whether colours are unwelcome.
pub(crate) fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|value| value == "dumb")
}

#[cfg(test)]
mod tests;
