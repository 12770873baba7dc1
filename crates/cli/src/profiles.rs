//! The table of agents: what is known of each, read from a file in this binary and a file of the
//! user's. It owns the table's form and how a name becomes a command line; it must never start
//! anything itself.

pub(crate) mod find;
pub(crate) mod start;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use figment::Figment;
use figment::providers::{Format as _, Toml};
use serde::{Deserialize, Serialize};
use tapedeck_executor::backend::command::{Format, PromptVia};

use crate::config::{self, Settings};
use crate::exit::Failed;

const BUILT_IN: &str = include_str!("profiles/builtin.toml");

/// The agents by their names.
#[derive(Debug, Clone)]
pub(crate) struct Profiles(BTreeMap<String, Profile>);

/// What is known of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    /// What people call it; its name, if nothing is said.
    #[serde(default)]
    pub(crate) title: String,
    /// How it is started to speak ACP.
    pub(crate) acp: Option<AcpWay>,
    /// How it is started for one prompt, as a plain program.
    pub(crate) command: Option<CommandWay>,
    /// Variables that it gets from the executor's environment.
    #[serde(default)]
    pub(crate) environment: Vec<String>,
    /// Variables that are set for it.
    #[serde(default)]
    pub(crate) set: BTreeMap<String, String>,
    /// Whether it asks before it acts, where its protocol lets it.
    #[serde(default = "yes")]
    pub(crate) asks: bool,
    /// What a check asks of it.
    #[serde(default)]
    pub(crate) check: Script,
}

const fn yes() -> bool {
    true
}

/// How an agent is started to speak ACP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcpWay {
    /// Its program's names, of which the first that is found counts.
    pub(crate) programs: Vec<String>,
    /// Its arguments.
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    /// Further programs that it starts itself.
    #[serde(default)]
    pub(crate) needs: Vec<String>,
    /// The mode in which it asks before it acts.
    pub(crate) mode: Option<String>,
    /// The config option that chooses its model.
    pub(crate) model_option: Option<String>,
}

/// How an agent is started for one prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandWay {
    /// Its program's names, of which the first that is found counts.
    pub(crate) programs: Vec<String>,
    /// Its arguments.
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    /// How it gets the prompt.
    pub(crate) prompt: Option<PromptVia>,
    /// The format of its output.
    pub(crate) format: Option<Format>,
    /// Arguments that take its own conversation up again.
    #[serde(default)]
    pub(crate) resume: Vec<String>,
}

/// The prompts of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Script {
    /// Gets a short answer.
    pub(crate) prompt: String,
    /// Makes it change a file, which it should ask for.
    pub(crate) permission: String,
    /// Gets an answer that takes a while.
    pub(crate) cancel: String,
    /// Asks what the first prompt had in it.
    pub(crate) recall: String,
}

/// What a check asks an agent to remember.
pub(crate) const WORD: &str = "tangerine";
/// What a check asks an agent to make, in a scratch directory.
pub(crate) const FILE: &str = "tapedeck-check.txt";

impl Default for Script {
    fn default() -> Self {
        Self {
            prompt: format!(
                "This checks that you can be reached. Use no tools. Keep the word \"{WORD}\" in \
                 mind, and answer with the one word: ready"
            ),
            permission: format!(
                "With your shell tool run exactly this and nothing else: echo checked > {FILE}"
            ),
            cancel: "Use no tools. Count from 1 to 1000 in words, one number a line.".to_owned(),
            recall: "Use no tools. Which word did I ask you to keep in mind? Answer with that \
                     word alone."
                .to_owned(),
        }
    }
}

impl Profiles {
    /// The table, with what the user's file adds.
    pub(crate) fn load(settings: &Settings) -> anyhow::Result<Self> {
        let mut figment = Figment::from(Toml::string(BUILT_IN));
        if let Some(file) = user_file(settings)? {
            figment = config::with_file(figment, "the agents' file", &file)?;
        }
        let mut profiles: BTreeMap<String, Profile> =
            figment.extract().map_err(|error| config::mistake(&error))?;
        for (name, profile) in &mut profiles {
            profile.check(name)?;
            if profile.title.is_empty() {
                profile.title.clone_from(name);
            }
        }
        Ok(Self(profiles))
    }

    /// An agent by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&Profile> {
        self.0.get(name)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Profile)> {
        self.0
            .iter()
            .map(|(name, profile)| (name.as_str(), profile))
    }
}

impl Profile {
    fn check(&self, name: &str) -> anyhow::Result<()> {
        let refuse = |why: &str| Failed::usage(format!("the agent `{name}`: {why}"));
        if self.acp.is_none() && self.command.is_none() {
            return Err(refuse("it needs `acp` or `command`, a way to be started"));
        }
        let programs = [
            self.acp.as_ref().map(|way| &way.programs),
            self.command.as_ref().map(|way| &way.programs),
        ];
        for programs in programs.into_iter().flatten() {
            if programs.is_empty() || programs.iter().any(|name| name.trim().is_empty()) {
                return Err(refuse("`programs` must name at least one"));
            }
        }
        if name.trim().is_empty() {
            return Err(refuse("an agent has a name"));
        }
        for name in self.environment.iter().chain(self.set.keys()) {
            variable(name).map_err(|why| refuse(&format!("the variable `{name}` {why}")))?;
        }
        let way = self.command.as_ref();
        let resume = way.map_or(&[][..], |way| &way.resume);
        if !(resume.is_empty() || resume.iter().any(|word| word.contains("{session}"))) {
            return Err(refuse("`resume` must have `{session}` in it"));
        }
        let of_acp = self.acp.iter().flat_map(|way| &way.arguments);
        let of_command = way.into_iter().flat_map(|way| &way.arguments);
        let places = [
            of_acp
                .map(|word| (word, &["{tapedeck}", "{state}"][..]))
                .collect::<Vec<_>>(),
            of_command
                .map(|word| (word, &["{tapedeck}", "{state}", "{prompt}", "{resume}"][..]))
                .collect(),
        ];
        for (word, known) in places.into_iter().flatten() {
            let is_place = |word: &str| word.starts_with('{') && word.ends_with('}');
            if is_place(word) && !known.contains(&word.as_str()) {
                let known = known.join(", ");
                return Err(refuse(&format!(
                    "`{word}` stands for nothing; known are {known}"
                )));
            }
        }
        Ok(())
    }
}

/// What is wrong with the name of a variable.
pub(crate) fn variable(name: &str) -> Result<(), &'static str> {
    let odd = |letter: char| letter == '=' || letter.is_whitespace() || letter.is_control();
    if name.is_empty() || name.contains(odd) {
        return Err("can't be a variable's name");
    }
    Ok(())
}

/// The user's file: the named one, which must be there, or the usual one if it is.
fn user_file(settings: &Settings) -> anyhow::Result<Option<PathBuf>> {
    let Some(named) = &settings.agents_file else {
        return Ok(config::usual_file("agents.toml"));
    };
    let file = config::expand(named)?;
    std::fs::metadata(&file).with_context(|| format!("the agents' file `{}`", file.display()))?;
    Ok(Some(file))
}

/// What a profile's words are filled with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places<'a> {
    /// This binary.
    pub(crate) tapedeck: &'a Path,
    /// The executor's state directory.
    pub(crate) state: &'a Path,
}

impl Places<'_> {
    /// A word with its places filled.
    pub(crate) fn fill(&self, word: &str) -> anyhow::Result<String> {
        let text = |path: &Path| match path.to_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(Failed::usage(format!("`{}` is no text", path.display()))),
        };
        let mut word = word.to_owned();
        for (place, path) in [("{tapedeck}", self.tapedeck), ("{state}", self.state)] {
            if word.contains(place) {
                word = word.replace(place, &text(path)?);
            }
        }
        Ok(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str) -> anyhow::Result<Profiles> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("agents.toml");
        std::fs::write(&file, text)?;
        let mut settings = Settings::defaults()?;
        settings.agents_file = Some(file);
        Profiles::load(&settings)
    }

    #[test]
    fn the_table_in_the_binary_is_sound() {
        let profiles = with_file("").unwrap();
        let names: Vec<_> = profiles.iter().map(|(name, _)| name).collect();
        for name in [
            "claude",
            "codex",
            "demo",
            "fast-agent",
            "gemini",
            "opencode",
            "pi",
            "vibe",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        for (name, profile) in profiles.iter() {
            let formats = profile.command.as_ref().map(|way| way.format);
            assert_ne!(formats, Some(Some(Format::Text)), "{name}");
        }
    }

    #[test]
    fn a_file_adds_agents_and_changes_single_fields() {
        let profiles = with_file(
            r#"
            [opencode.acp]
            arguments = ["acp", "--print-logs"]
            [mine]
            title = "Mine"
            [mine.command]
            programs = ["mine"]
            format = "codex-json"
            prompt = "environment"
            "#,
        )
        .unwrap();
        let opencode = profiles.get("opencode").unwrap().acp.clone().unwrap();
        assert_eq!(opencode.programs, ["opencode"]);
        assert_eq!(opencode.arguments, ["acp", "--print-logs"]);
        let mine = profiles.get("mine").unwrap().command.clone().unwrap();
        assert_eq!(mine.format, Some(Format::CodexJson));
        assert_eq!(mine.prompt, Some(PromptVia::Environment));
    }

    #[test]
    fn a_file_that_breaks_a_rule_is_refused_with_the_reason() {
        for (text, reason) in [
            ("[x]\ntitle = 'X'", "a way to be started"),
            ("[x]\ntitle = 'X'\n[x.acp]\nprograms = []", "at least one"),
            ("[demo]\ncolour = 'red'", "colour"),
            ("[x]\nenvironment=['A=B']\n[x.acp]\nprograms=['x']", "`A=B`"),
            ("[x]\nset={' '='1'}\n[x.acp]\nprograms=['x']", "variable"),
            ("[x.acp]\nprograms=['x']\narguments=['{nope}']", "{nope}"),
            (
                "[x.command]\nprograms=['x']\nresume=['--again']",
                "{session}",
            ),
            ("[' '.acp]\nprograms=['x']", "has a name"),
            (
                "[x]\ntitle='X'\n[x.command]\nprograms=['x']\nformat='xml'",
                "codex-json",
            ),
        ] {
            let error = format!("{:#}", with_file(text).unwrap_err());
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_named_file_must_be_there() {
        let mut settings = Settings::defaults().unwrap();
        settings.agents_file = Some(PathBuf::from("no/such/file.toml"));
        let error = Profiles::load(&settings).unwrap_err();
        assert!(error.to_string().contains("no/such/file.toml"), "{error}");
    }
}
