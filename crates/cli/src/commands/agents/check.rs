//! `tapedeck agents check`: a conversation with an agent through the very backend of executors, and
//! what of it works. It owns the steps and their judgement; it must never write anywhere but into a
//! scratch directory.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;
use tapedeck_executor::backend::OutcomeStatus;
use tapedeck_executor::backend::acp::AcpOptions;

use super::conversation::{Cancel, Conversation, Played, TURN_LIMIT};
use super::{Agent, Plain, launcher, this_binary};
use crate::commands::signals::Signals;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Printer, Tone, short};
use crate::profiles::start::{Start, Starts, Way, acp_options, program_of};
use crate::profiles::{FILE, Places, Profile, Profiles, Script, WORD, find};

/// What of an answer is shown.
const SHOWN: usize = 60;
/// A cancel that takes longer is one that the agent doesn't follow.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);

/// Start an agent as an executor does, have a conversation with it and tell what works.
///
/// The agent works in a scratch directory, with your own credentials and model: the check costs a few
/// short turns. What it asks is approved.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck agents check demo
  tapedeck agents check opencode
  tapedeck agents check claude --way command --json
  tapedeck agents check \"my-agent --acp\"

It exits with 0 where nothing is wrong and with 8 where a step failed.")]
pub(crate) struct Args {
    /// A name that `tapedeck agents list` shows, or a command line
    agent: String,
    /// Which way to start it [default: acp, where it has that]
    #[arg(long, value_name = "WAY")]
    way: Option<WayName>,
    /// Ask this first, instead of the check's own words
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
}

/// How an agent is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WayName {
    /// Over ACP
    Acp,
    /// As a program for each prompt
    Command,
}

/// How a step went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// It is worth knowing and no fault.
    Note,
    Failed,
    Skipped,
}

impl Verdict {
    const fn word(self) -> (&'static str, Tone) {
        match self {
            Self::Ok => ("ok", Tone::Good),
            Self::Note => ("note", Tone::Alert),
            Self::Failed => ("failed", Tone::Bad),
            Self::Skipped => ("skipped", Tone::Quiet),
        }
    }
}

/// A step of the check.
#[derive(Debug, Serialize)]
struct Step {
    #[serde(rename = "step")]
    name: &'static str,
    result: Verdict,
    detail: String,
    seconds: f64,
}

/// What was found, for programs.
#[derive(Serialize)]
struct Report<'a> {
    agent: &'a str,
    #[serde(flatten)]
    way: &'a Way,
    command: &'a [String],
    version: Option<String>,
    ok: bool,
    steps: &'a [Step],
}

/// Runs the check.
pub(super) async fn run(args: Args, context: &Context) -> anyhow::Result<Exit> {
    let profiles = Profiles::load(&context.config)?;
    let profile = profiles.get(args.agent.trim());
    let scratch = tempfile::tempdir().context("a scratch directory can't be made")?;
    let root = scratch.path().canonicalize()?;
    let (state, workspace) = (root.join("state"), root.join("workspace"));
    for folder in [&state, &workspace] {
        std::fs::create_dir(folder)?;
    }
    let starts = Starts {
        profiles: &profiles,
        settings: &context.config,
        places: Places {
            tapedeck: &this_binary()?,
            state: &state,
        },
    };
    let start = starts.of(&chosen(&args, profile))?;
    let version = match program_of(&start) {
        Some(program) => find::version(&program, &start.environment).await,
        None => None,
    };
    let name = tapedeck_client::instance_id();
    // The steps look at each start and each end, so no agent stays.
    let acp = AcpOptions {
        warm_stay: Duration::ZERO,
        ..acp_options(&context.config)
    };
    let backend = start.clone().backend(launcher(&state, &name)?, acp)?;
    let conversation = Conversation {
        backend,
        workspace: workspace.clone(),
        name,
        turns: 0,
    };
    let printer = context.printer;
    if !printer.is_json() {
        let version = version.as_deref().unwrap_or("version unknown");
        let line = shell_words::join(&start.words);
        printer.note(format!("{} ({version}): {line}", start.way.as_str()))?;
        let minutes = TURN_LIMIT.as_secs() / 60;
        printer.note(format!("each step takes at most {minutes} minutes"))?;
    }
    let script = profile.map_or_else(Script::default, |profile| profile.check.clone());
    let mut check = Check {
        conversation,
        workspace: &workspace,
        asks: profile.is_none_or(|profile| profile.asks),
        start: &start,
        printer,
        steps: Vec::new(),
    };
    let mut signals = Signals::listen()?;
    let broken_off = tokio::select! {
        done = check.all(args.prompt.as_deref(), &script) => {
            done?;
            false
        }
        _asked = signals.next() => true,
    };
    let steps = check.steps;
    let ok = !broken_off && steps.iter().all(|step| step.result != Verdict::Failed);
    if printer.is_json() {
        printer.object(&Report {
            agent: &args.agent,
            way: &start.way,
            command: &start.words,
            version,
            ok,
            steps: &steps,
        })?;
    }
    Ok(match (broken_off, ok) {
        (true, _) => Exit::Interrupted,
        (false, true) => Exit::Success,
        (false, false) => Exit::Findings,
    })
}

fn chosen(args: &Args, profile: Option<&Profile>) -> Agent {
    let is_plain_only = profile.is_some_and(|profile| profile.acp.is_none());
    let way = args.way.unwrap_or(if is_plain_only {
        WayName::Command
    } else {
        WayName::Acp
    });
    match way {
        WayName::Acp => Agent::Acp(args.agent.clone()),
        WayName::Command => Agent::Command(Plain::from_table(&args.agent)),
    }
}

struct Check<'a> {
    conversation: Conversation,
    workspace: &'a Path,
    asks: bool,
    start: &'a Start,
    printer: Printer,
    steps: Vec<Step>,
}

impl Check<'_> {
    async fn all(&mut self, prompt: Option<&str>, script: &Script) -> anyhow::Result<()> {
        let first = prompt.unwrap_or(&script.prompt);
        let played = self.conversation.play(first, None, Cancel::Never).await;
        if !self.first(&played)? {
            for step in ["permission", "cancel", "resume"] {
                let why = "the first turn did not work".to_owned();
                self.tell(step, Verdict::Skipped, why, Duration::ZERO)?;
            }
            return Ok(());
        }
        let state = played.outcome.agent_state;
        let conversation = &mut self.conversation;
        let played = conversation
            .play(&script.permission, None, Cancel::Never)
            .await;
        let (verdict, detail) = self.permission(&played);
        self.tell("permission", verdict, detail, played.took)?;
        let conversation = &mut self.conversation;
        let played = conversation.play(&script.cancel, None, Cancel::Soon).await;
        let (verdict, detail) = cancel(&played);
        self.tell("cancel", verdict, detail, played.took)?;
        if state.is_none() {
            let why = "the agent left nothing to go on with".to_owned();
            return self.tell("resume", Verdict::Note, why, Duration::ZERO);
        }
        let played = self
            .conversation
            .play(&script.recall, state, Cancel::Never)
            .await;
        let asked = prompt.is_none() && script.prompt.contains(WORD);
        let (verdict, detail) = resume(&played, asked);
        self.tell("resume", verdict, detail, played.took)
    }

    /// The steps up to the first answer; whether it came.
    fn first(&mut self, played: &Played) -> anyhow::Result<bool> {
        let result = &played.outcome.result;
        let failure = played.outcome.failure.as_ref().map(ToString::to_string);
        let until = played.first_piece.unwrap_or(played.took);
        let has_begun = match &self.start.way {
            Way::Acp { .. } => result["agent"].is_object(),
            Way::Command { .. } => result["exit_code"].is_i64() || result["signal"].is_i64(),
        };
        if !has_begun {
            let why = failure.unwrap_or_else(|| "the agent did not begin".to_owned());
            self.tell("session", Verdict::Failed, why, played.took)?;
            self.tell("prompt", Verdict::Skipped, String::new(), Duration::ZERO)?;
            return Ok(false);
        }
        self.tell("session", Verdict::Ok, self.opened(result), until)?;
        let (verdict, detail) = match failure {
            Some(why) => (Verdict::Failed, why),
            None => (
                Verdict::Ok,
                format!("answered: {}", short(&played.text, SHOWN)),
            ),
        };
        self.tell("prompt", verdict, detail, played.took)?;
        Ok(verdict == Verdict::Ok)
    }

    /// How the conversation began.
    fn opened(&self, result: &Value) -> String {
        match &self.start.way {
            Way::Acp { mode, .. } => {
                let text = |field: &str| result["agent"][field].as_str().unwrap_or_default();
                let mode = mode.as_ref().map(|mode| format!(", mode {mode}"));
                let mode = mode.unwrap_or_default();
                let (name, version) = (text("name"), text("version"));
                let words = format!("ACP version 1, {name} {version}");
                format!("{}{mode}", words.trim_end().trim_end_matches(','))
            }
            Way::Command { format, .. } => format!("it ran, its output is read as {format}"),
        }
    }

    /// Whether the agent asked before it acted.
    fn permission(&self, played: &Played) -> (Verdict, String) {
        let has_acted = self.workspace.join(FILE).exists();
        let tools = short(&played.tools.join(", "), SHOWN);
        if let Some(failure) = &played.outcome.failure {
            return (Verdict::Failed, failure.to_string());
        }
        if let Some(asked) = played.asked.first() {
            let asked = short(asked, SHOWN);
            return if has_acted {
                (
                    Verdict::Ok,
                    format!("asked before `{asked}`, and acted once allowed"),
                )
            } else {
                let text = format!("asked before `{asked}`; `{FILE}` was not made");
                (Verdict::Note, text)
            };
        }
        let can_ask = matches!(self.start.way, Way::Acp { .. });
        match (has_acted, can_ask && self.asks) {
            (true, true) => {
                let text = "acted without asking: set the mode in which it asks";
                (Verdict::Failed, text.to_owned())
            }
            (true, false) => (Verdict::Note, format!("acts unasked, by `{tools}`")),
            (false, _) if tools.is_empty() => (
                Verdict::Note,
                "used no tool, so nothing is known".to_owned(),
            ),
            (false, _) => {
                let text = format!("asked nothing and made no `{FILE}`, by `{tools}`");
                (Verdict::Note, text)
            }
        }
    }

    fn tell(
        &mut self,
        name: &'static str,
        result: Verdict,
        detail: String,
        took: Duration,
    ) -> anyhow::Result<()> {
        if !self.printer.is_json() {
            let (word, tone) = result.word();
            let word = self.printer.paint(tone, format!("{word:8}"));
            let seconds = if took.is_zero() {
                String::new()
            } else {
                format!("{:.1} s", took.as_secs_f64())
            };
            let line = format!("{word} {name:11} {seconds:>7}  {}", short(&detail, 400));
            self.printer.line(line.trim_end())?;
        }
        self.steps.push(Step {
            name,
            result,
            detail,
            seconds: (took.as_secs_f64() * 1000.0).round() / 1000.0,
        });
        Ok(())
    }
}

/// Whether the agent stopped when it was told to.
fn cancel(played: &Played) -> (Verdict, String) {
    let Some(after) = played.after_cancel else {
        return match &played.outcome.failure {
            Some(failure) => (Verdict::Failed, failure.to_string()),
            None => (
                Verdict::Note,
                "it was done before it could be cancelled".to_owned(),
            ),
        };
    };
    let seconds = format!("{:.1} s after the cancel", after.as_secs_f64());
    match (played.outcome.status, after <= CANCEL_LIMIT) {
        (OutcomeStatus::Cancelled, true) => {
            let by_itself = played.outcome.result["stop_reason"].is_string()
                || played.outcome.result["signal"] != 9;
            let how = if by_itself {
                "ended"
            } else {
                "had to be killed"
            };
            (Verdict::Ok, format!("{how} {seconds}"))
        }
        (OutcomeStatus::Cancelled, false) => (Verdict::Failed, format!("ended only {seconds}")),
        (OutcomeStatus::Completed | OutcomeStatus::Failed, _) => {
            let status = played.outcome.error();
            let status = status.unwrap_or_else(|| "it ended its turn as if never told".to_owned());
            (Verdict::Failed, status)
        }
    }
}

/// Whether the agent took its own conversation up again.
fn resume(played: &Played, asked: bool) -> (Verdict, String) {
    if let Some(failure) = &played.outcome.failure {
        return (Verdict::Failed, failure.to_string());
    }
    let continuity = played.outcome.result["continuity"].as_str();
    let continuity = continuity.unwrap_or("new");
    if let Some(reason) = &played.broken {
        let text = format!("it offers to and can't: {reason}");
        return (Verdict::Failed, text);
    }
    if continuity == "new" {
        let text = "it offers no way to; resumed runs get a note of what happened";
        return (Verdict::Note, text.to_owned());
    }
    let answer = short(&played.text, SHOWN);
    if asked && !played.text.to_lowercase().contains(WORD) {
        let text = format!("{continuity}, but it does not remember: {answer}");
        return (Verdict::Note, text);
    }
    (Verdict::Ok, format!("{continuity}: {answer}"))
}
