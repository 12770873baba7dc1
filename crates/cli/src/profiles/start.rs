//! From an agent as somebody named it to what is started: the words, the variables, and what a
//! backend has to know. A name of the table stands for its entry, all else is a command line.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tapedeck_executor::backend::Backend;
use tapedeck_executor::backend::acp::{AcpBackend, AcpOptions};
use tapedeck_executor::backend::command::{CommandBackend, CommandOptions, Format, PromptVia};
use tapedeck_executor::process::{Environment, Launcher};

use super::{AcpWay, CommandWay, Places, Profile, Profiles, find, variable};
use crate::commands::agents::{Agent, Plain};
use crate::config::{self, Settings};
use crate::exit::Failed;

/// What is started for an agent.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// Program and arguments.
    pub(crate) words: Vec<String>,
    /// Its variables.
    pub(crate) environment: Environment,
    /// How it is driven.
    pub(crate) way: Way,
}

/// How an agent is driven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "way", rename_all = "lowercase")]
pub(crate) enum Way {
    /// As an agent that speaks ACP.
    Acp {
        /// The mode to set in its sessions.
        mode: Option<String>,
        /// The config option that chooses its model.
        model_option: Option<String>,
    },
    /// As a program that is run for each prompt.
    Command {
        /// How it gets the prompt.
        prompt: Option<PromptVia>,
        /// The format of its output.
        format: Format,
        /// Its arguments that take its own conversation up again.
        resume: Vec<String>,
    },
}

impl Way {
    /// Its name.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Acp { .. } => "acp",
            Self::Command { .. } => "command",
        }
    }
}

/// What starts are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Starts<'a> {
    /// The table.
    pub(crate) profiles: &'a Profiles,
    /// The settings.
    pub(crate) settings: &'a Settings,
    /// What the table's places stand for.
    pub(crate) places: Places<'a>,
}

impl Starts<'_> {
    /// How an agent is started here.
    pub(crate) fn of(&self, agent: &Agent) -> anyhow::Result<Start> {
        for item in &self.settings.executor.agent_env {
            let name = item.split_once('=').map_or(item.as_str(), |(name, _)| name);
            variable(name).map_err(|why| Failed::usage(format!("`--agent-env {item}`: {why}")))?;
        }
        match agent {
            Agent::Acp(text) => match self.profiles.get(text.trim()) {
                Some(profile) => match &profile.acp {
                    Some(way) => self.acp(text.trim(), profile, way),
                    None => Err(Failed::usage(format!(
                        "the agent `{text}` speaks no ACP: use `--command {text}`"
                    ))),
                },
                None => Ok(Start {
                    words: split(text)?,
                    environment: self.environment(None),
                    way: Way::Acp {
                        mode: self.settings.executor.agent_mode.clone(),
                        model_option: None,
                    },
                }),
            },
            Agent::Command(plain) => {
                let name = plain.command.trim();
                let known = self.profiles.get(name);
                match known.and_then(|profile| Some((profile, profile.command.as_ref()?))) {
                    Some((profile, way)) => self.command(name, profile, way, plain),
                    None if self.profiles.get(name).is_some() => Err(Failed::usage(format!(
                        "the agent `{name}` is known over ACP only: use `--agent {name}`, or name \
                         a program by its path"
                    ))),
                    None => Ok(Start {
                        words: split(&plain.command)?,
                        environment: self.environment(None),
                        way: Way::Command {
                            prompt: plain.prompt,
                            format: plain.format.unwrap_or_default(),
                            resume: plain.resume_words()?,
                        },
                    }),
                }
            }
        }
    }

    fn acp(&self, name: &str, profile: &Profile, way: &AcpWay) -> anyhow::Result<Start> {
        let environment = self.environment(Some(profile));
        for needed in &way.needs {
            let there = find::program(std::slice::from_ref(needed), &environment);
            there.ok_or_else(|| missing(name, std::slice::from_ref(needed)))?;
        }
        let words = self.words(name, &way.programs, &way.arguments, &environment)?;
        let mode = self.settings.executor.agent_mode.as_ref();
        Ok(Start {
            words,
            environment,
            way: Way::Acp {
                mode: mode.or(way.mode.as_ref()).cloned(),
                model_option: way.model_option.clone(),
            },
        })
    }

    fn command(
        &self,
        name: &str,
        profile: &Profile,
        way: &CommandWay,
        plain: &Plain,
    ) -> anyhow::Result<Start> {
        let environment = self.environment(Some(profile));
        let words = self.words(name, &way.programs, &way.arguments, &environment)?;
        let resume = match &plain.resume {
            Some(_) => plain.resume_words()?,
            None => way.resume.clone(),
        };
        Ok(Start {
            words,
            environment,
            way: Way::Command {
                prompt: plain.prompt.or(way.prompt),
                format: plain.format.or(way.format).unwrap_or_default(),
                resume,
            },
        })
    }

    fn words(
        &self,
        name: &str,
        programs: &[String],
        arguments: &[String],
        environment: &Environment,
    ) -> anyhow::Result<Vec<String>> {
        let fill = |word: &String| self.places.fill(word);
        let programs = programs.iter().map(fill).collect::<Result<Vec<_>, _>>()?;
        let found = find::program(&programs, environment);
        let program = found.ok_or_else(|| missing(name, &programs))?;
        let program = program
            .into_os_string()
            .into_string()
            .map_err(|path| Failed::usage(format!("`{}` is no text", path.display())))?;
        let arguments = arguments.iter().map(fill);
        std::iter::once(Ok(program)).chain(arguments).collect()
    }

    /// What the agent gets of our environment: what all get, what its entry names, and what the
    /// settings say, which win.
    fn environment(&self, profile: Option<&Profile>) -> Environment {
        let (mut names, mut pairs) = (Vec::new(), Vec::new());
        if let Some(profile) = profile {
            names.clone_from(&profile.environment);
            pairs.extend(profile.set.clone());
        }
        for item in &self.settings.executor.agent_env {
            if let Some((name, value)) = item.split_once('=') {
                pairs.push((name.to_owned(), value.to_owned()));
            } else {
                // Passed on, it wins over what the entry sets.
                pairs.retain(|(set, _)| set != item);
                names.push(item.clone());
            }
        }
        Environment::select(config::inherited_environment(), &names, &pairs)
    }
}

/// What the settings say of every ACP agent.
pub(crate) fn acp_options(settings: &Settings) -> AcpOptions {
    let section = &settings.executor;
    AcpOptions {
        auth_method: section.agent_auth.clone(),
        session_programs: section.allow_session_command,
        client_files: section.agent_client_fs,
        client_terminals: section.agent_client_terminal,
        warm_stay: Duration::from_secs(section.warm_seconds.into()),
        warm_most: section.warm_agents as usize,
        ..AcpOptions::default()
    }
}

impl Start {
    /// Drives it.
    pub(crate) fn backend(
        self,
        launcher: Launcher,
        acp: AcpOptions,
    ) -> anyhow::Result<Arc<dyn Backend>> {
        let line = shell_words::join(&self.words);
        let unreadable =
            |error: shell_words::ParseError| Failed::usage(format!("the agent's command: {error}"));
        match self.way {
            Way::Acp { mode, .. } => {
                let options = AcpOptions { mode, ..acp };
                let backend = AcpBackend::new(&line, self.environment, launcher, options);
                Ok(Arc::new(backend.map_err(unreadable)?))
            }
            Way::Command {
                prompt,
                format,
                resume,
            } => {
                let options = CommandOptions {
                    prompt,
                    format,
                    resume,
                    ..CommandOptions::default()
                };
                let backend = CommandBackend::new(&line, self.environment, launcher, options);
                Ok(Arc::new(backend.map_err(unreadable)?))
            }
        }
    }
}

fn missing(name: &str, programs: &[String]) -> anyhow::Error {
    let programs: Vec<_> = programs.iter().map(|name| format!("`{name}`")).collect();
    let programs = programs.join(" or ");
    Failed::usage(format!(
        "the agent `{name}` needs {programs}, which is not on its PATH"
    ))
}

/// The words of a command line.
pub(crate) fn split(command: &str) -> anyhow::Result<Vec<String>> {
    let words = shell_words::split(command)
        .map_err(|error| Failed::usage(format!("the agent's command: {error}")))?;
    if words
        .first()
        .is_none_or(|program| program.trim().is_empty())
    {
        return Err(Failed::usage("the agent's command is empty"));
    }
    Ok(words)
}

/// The program of a start as a path, where it is one.
pub(crate) fn program_of(start: &Start) -> Option<PathBuf> {
    find::program(start.words.get(..1)?, &start.environment)
}
