//! `tapedeck agents list` and `show`: what the table knows, and what of it is installed here.

use futures::future::join_all;
use serde::Serialize;
use tapedeck_executor::process::Environment;

use super::{Agent, Plain, this_binary};
use crate::config;
use crate::context::Context;
use crate::exit::{Exit, Failed};
use crate::output::{Printer, or_nothing};
use crate::profiles::start::{Starts, Way, program_of};
use crate::profiles::{Places, Profile, Profiles, find};

/// What to list.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck agents list
  tapedeck agents list --all --json")]
pub(crate) struct ListArgs {
    /// List those that are not installed, too
    #[arg(long)]
    all: bool,
}

/// A way to start an agent here.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    agent: String,
    title: String,
    /// How it would be driven.
    #[serde(flatten)]
    way: Way,
    /// Whether it can be started.
    installed: bool,
    /// Its program, found.
    program: Option<String>,
    version: Option<String>,
    /// Program and arguments.
    command: Vec<String>,
    /// Why it can't be started.
    missing: Option<String>,
}

/// Lists ways to start agents.
pub(super) async fn list(args: &ListArgs, context: &Context) -> anyhow::Result<Exit> {
    let printer = context.printer;
    let profiles = Profiles::load(&context.config)?;
    let ways = profiles
        .iter()
        .map(|(name, profile)| ways(name, profile, &profiles, context));
    let ways = join_all(ways)
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let listed: Vec<Listed> = ways
        .into_iter()
        .flatten()
        .filter(|way| way.installed || args.all)
        .collect();
    if printer.is_json() {
        printer.object(&serde_json::json!({"agents": listed}))?;
        return Ok(Exit::Success);
    }
    let row = |way: &Listed| {
        vec![
            way.agent.clone(),
            way.way.as_str().to_owned(),
            or_nothing(way.version.as_ref()),
            match &way.missing {
                Some(reason) => reason.clone(),
                None => shell_words::join(&way.command),
            },
        ]
    };
    let rows: Vec<_> = listed.iter().map(row).collect();
    let head = ["AGENT", "WAY", "VERSION", "STARTED AS"];
    printer.table(&head, &rows, "no known agent is installed")?;
    Ok(Exit::Success)
}

/// Shows one agent.
pub(super) async fn show(name: &str, context: &Context) -> anyhow::Result<Exit> {
    let profiles = Profiles::load(&context.config)?;
    let Some(profile) = profiles.get(name) else {
        return Err(unknown(name, &profiles));
    };
    let ways = ways(name, profile, &profiles, context).await?;
    if context.printer.is_json() {
        let shown = serde_json::json!({"agent": name, "profile": profile, "ways": ways});
        context.printer.object(&shown)?;
        return Ok(Exit::Success);
    }
    tell(context.printer, name, profile, &ways)?;
    Ok(Exit::Success)
}

/// Says that there is no such agent, and which there are.
pub(super) fn unknown(name: &str, profiles: &Profiles) -> anyhow::Error {
    let names: Vec<_> = profiles.iter().map(|(name, _)| name).collect();
    let names = names.join(", ");
    Failed::with(
        Exit::NotFound,
        format!("there is no agent `{name}` in the table; there are {names}"),
    )
}

fn tell(printer: Printer, name: &str, profile: &Profile, ways: &[Listed]) -> anyhow::Result<()> {
    printer.fields(&[
        ("agent", name.to_owned()),
        ("title", profile.title.clone()),
        ("asks", if profile.asks { "yes" } else { "no" }.to_owned()),
        ("gets", profile.environment.join(" ")),
        (
            "is set",
            profile.set.keys().cloned().collect::<Vec<_>>().join(" "),
        ),
    ])?;
    for listed in ways {
        printer.line("")?;
        let mut fields = vec![
            ("way", listed.way.as_str().to_owned()),
            ("command", shell_words::join(&listed.command)),
            ("missing", or_nothing(listed.missing.as_ref())),
            ("version", or_nothing(listed.version.as_ref())),
        ];
        match &listed.way {
            Way::Acp { mode, model_option } => {
                fields.push(("mode", or_nothing(mode.as_ref())));
                fields.push(("model option", or_nothing(model_option.as_ref())));
            }
            Way::Command {
                prompt,
                format,
                resume,
            } => {
                fields.push(("prompt", or_nothing(*prompt)));
                fields.push(("format", format.to_string()));
                fields.push(("resume", shell_words::join(resume)));
            }
        }
        printer.fields(&fields)?;
    }
    Ok(())
}

/// The ways to start an agent here, with what its programs say of themselves.
async fn ways(
    name: &str,
    profile: &Profile,
    profiles: &Profiles,
    context: &Context,
) -> anyhow::Result<Vec<Listed>> {
    let state = config::expand(&context.config.executor.state_dir)?;
    let starts = Starts {
        profiles,
        settings: &context.config,
        places: Places {
            tapedeck: &this_binary()?,
            state: &state,
        },
    };
    let mut listed = Vec::new();
    if let Some(way) = &profile.acp {
        let known = Way::Acp {
            mode: way.mode.clone(),
            model_option: way.model_option.clone(),
        };
        let words = way.programs.iter().take(1).chain(&way.arguments);
        let words = words.cloned().collect();
        listed.push(look(&starts, &Agent::Acp(name.to_owned()), known, words).await);
    }
    if let Some(way) = &profile.command {
        let known = Way::Command {
            prompt: way.prompt,
            format: way.format.unwrap_or_default(),
            resume: way.resume.clone(),
        };
        let words = way.programs.iter().take(1).chain(&way.arguments);
        let words = words.cloned().collect();
        let agent = Agent::Command(Plain::from_table(name));
        listed.push(look(&starts, &agent, known, words).await);
    }
    let named = |way: Found| Listed {
        agent: name.to_owned(),
        title: profile.title.clone(),
        way: way.way,
        installed: way.missing.is_none(),
        program: way.program,
        version: way.version,
        command: way.words,
        missing: way.missing,
    };
    Ok(listed.into_iter().map(named).collect())
}

struct Found {
    way: Way,
    words: Vec<String>,
    program: Option<String>,
    version: Option<String>,
    missing: Option<String>,
}

async fn look(starts: &Starts<'_>, agent: &Agent, known: Way, words: Vec<String>) -> Found {
    match starts.of(agent) {
        Ok(start) => {
            let program = program_of(&start);
            let version = match &program {
                Some(program) => find::version(program, &plain(&start.environment)).await,
                None => None,
            };
            Found {
                way: start.way,
                words: start.words,
                program: program.map(|path| path.display().to_string()),
                version,
                missing: None,
            }
        }
        Err(error) => Found {
            way: known,
            words,
            program: None,
            version: None,
            missing: Some(error.to_string()),
        },
    }
}

/// To say its version a program needs no secret.
fn plain(environment: &Environment) -> Environment {
    let variables = environment.iter();
    let variables = variables.map(|(name, value)| (name.clone(), value.clone()));
    Environment::select(variables, &[], &[])
}
