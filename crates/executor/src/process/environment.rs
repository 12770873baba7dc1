//! What of the executor's environment an agent may see, and which of it is secret. It owns the
//! allow-list and the redaction; it must never read the process's environment itself, the caller
//! hands it in.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

const ALLOWED: [&str; 7] = ["PATH", "HOME", "LANG", "TERM", "USER", "SHELL", "TMPDIR"];
const SECRET_WORDS: [&str; 5] = ["AUTHORIZATION", "KEY", "TOKEN", "SECRET", "PASSWORD"];

/// Names the run in the environment of every process of an agent.
pub const RUN_MARK: &str = "TAPEDECK_RUN";
/// Names the executor instance in the environment of every process of an agent.
pub const EXECUTOR_MARK: &str = "TAPEDECK_EXECUTOR";

/// Shorter values are no secrets worth the name, and replacing them would garble all text.
const SHORTEST_SECRET: usize = 4;

/// The variables an agent starts with.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_list()
            .entries(self.variables.keys())
            .finish()
    }
}

impl Environment {
    /// Of `inherited` only the allow-list and `names` pass; `pairs` are added and win.
    pub fn select(
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
        names: &[String],
        pairs: &[(String, String)],
    ) -> Self {
        let allowed = |name: &OsStr| {
            name.to_str().is_some_and(|name| {
                ALLOWED.contains(&name)
                    || name.starts_with("XDG_")
                    || names.iter().any(|wanted| wanted == name)
            })
        };
        let mut variables: BTreeMap<_, _> = inherited
            .into_iter()
            .filter(|(name, _)| allowed(name))
            .collect();
        variables.extend(
            pairs
                .iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        Self { variables }
    }

    /// Sets one variable.
    pub fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.variables.insert(name.into(), value.into());
    }

    /// The variables in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.variables.iter()
    }

    /// Removes the values of secret variables from texts.
    pub fn redactor(&self) -> Redactor {
        let pairs = self.variables.iter();
        let pairs = pairs.filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)));
        Redactor::default().with(pairs)
    }
}

/// Replaces known secrets by `[redacted]`.
#[derive(Clone, Default)]
pub struct Redactor {
    secrets: Vec<String>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Redactor({} secrets)", self.secrets.len())
    }
}

impl Redactor {
    /// The same, for the secrets among these names and values too.
    #[must_use]
    pub fn with<'a>(&self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let secret = |name: &str| {
            let name = name.to_uppercase();
            SECRET_WORDS.iter().any(|word| name.contains(word))
        };
        let new = pairs
            .into_iter()
            .filter(|(name, value)| secret(name) && value.len() >= SHORTEST_SECRET)
            .map(|(_, value)| value.to_owned());
        let mut secrets: Vec<String> = self.secrets.iter().cloned().chain(new).collect();
        // The longest first, or a secret that begins with another would be left in part.
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self { secrets }
    }

    /// `text` without the secrets.
    pub fn redact(&self, mut text: String) -> String {
        for secret in &self.secrets {
            if text.contains(secret) {
                text = text.replace(secret, "[redacted]");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited() -> Vec<(OsString, OsString)> {
        [
            "PATH=/bin",
            "XDG_DATA_HOME=/d",
            "TAPEDECK_TOKEN=server-secret",
            "API_KEY=sk-12345",
            "X=y",
        ]
        .iter()
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
    }

    #[test]
    fn only_the_allow_list_and_named_variables_pass() {
        let pairs = [("PATH".to_owned(), "/own".to_owned())];
        let environment = Environment::select(inherited(), &["API_KEY".to_owned()], &pairs);
        let seen: Vec<_> = environment
            .iter()
            .map(|(n, v)| (n.to_str(), v.to_str()))
            .collect();
        assert_eq!(
            seen,
            [
                (Some("API_KEY"), Some("sk-12345")),
                (Some("PATH"), Some("/own")),
                (Some("XDG_DATA_HOME"), Some("/d"))
            ]
        );
    }

    #[test]
    fn values_of_secret_names_are_redacted_and_short_ones_are_not() {
        let pairs = [
            ("MY_password".to_owned(), "hunter2".to_owned()),
            ("LONG_TOKEN".to_owned(), "hunter2-long".to_owned()),
            ("DUMMY_KEY".to_owned(), "x".to_owned()),
            ("PLAIN".to_owned(), "visible".to_owned()),
        ];
        let redactor = Environment::select([], &[], &pairs).redactor();
        assert_eq!(
            redactor.redact("x hunter2-long hunter2 visible".to_owned()),
            "x [redacted] [redacted] visible"
        );
    }

    #[test]
    fn debug_output_shows_names_only() {
        let environment = Environment::select(inherited(), &["API_KEY".to_owned()], &[]);
        assert!(!format!("{environment:?}{:?}", environment.redactor()).contains("sk-12345"));
    }
}
