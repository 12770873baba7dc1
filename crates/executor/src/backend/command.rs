//! Any program as an agent: the prompt goes in, lines come out. It owns one turn of a program and
//! what its end means; it must never pass anything through a shell, nor know one program from
//! another.

mod format;
mod program;
mod transcript;

use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::vigil::{Interrupt, Vigil};
use super::{AgentEvent, Backend, Failure, FailureCode, Outcome, OutcomeStatus, Turn, TurnIo};
use crate::lines::{DEFAULT_LINE_LIMIT, LineError, LineReader};
use crate::place;
use crate::process::{
    AgentExit, AgentProcess, AgentSpec, Environment, LaunchError, Launcher, Redactor, sweep_marked,
};
pub use format::Format;
pub use program::{PROMPT_VARIABLE, PromptVia};
use program::{Program, Started};
use transcript::{Ending, Transcript};

/// How a program is driven.
#[derive(Debug, Clone)]
pub struct CommandOptions {
    /// How it gets its prompt; by its arguments if they have a place for it, else by stdin.
    pub prompt: Option<PromptVia>,
    /// The format of its output.
    pub format: Format,
    /// Arguments that take its own conversation up again, with `{session}` for its id. They go
    /// where `{resume}` stands, or to the end. Without them each turn begins a new one.
    pub resume: Vec<String>,
    /// The longest line, in bytes.
    pub line_limit: usize,
    /// Between SIGINT and the kill.
    pub cancel_grace: Duration,
}

impl Default for CommandOptions {
    fn default() -> Self {
        Self {
            prompt: None,
            format: Format::Text,
            resume: Vec::new(),
            line_limit: DEFAULT_LINE_LIMIT,
            cancel_grace: Duration::from_secs(5),
        }
    }
}

/// Runs a program for each turn.
#[derive(Debug, Clone)]
pub struct CommandBackend {
    program: Program,
    environment: Environment,
    launcher: Launcher,
    options: CommandOptions,
    redactor: Redactor,
    /// Where it keeps its conversations; unknown where that can't be read or written.
    place: Option<String>,
}

/// What is kept of a program's conversation between runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ProgramState {
    conversation: String,
    format: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<String>,
}

/// How much the program itself knows of earlier runs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Continuity {
    /// There was nothing to know.
    New,
    /// It goes on with this conversation.
    Resumed(String),
    /// It knows nothing any more, for this reason; the context is in the prompt.
    Broken(String),
}

impl Continuity {
    fn as_str(&self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Resumed(_) => "resumed",
            Self::Broken(_) => "broken",
        }
    }
}

impl CommandBackend {
    /// `command` is split like a shell does, without any of its other features.
    pub fn new(
        command: &str,
        environment: Environment,
        launcher: Launcher,
        options: CommandOptions,
    ) -> Result<Self, shell_words::ParseError> {
        let words = shell_words::split(command)?;
        let program = Program::new(words, options.resume.clone(), options.prompt);
        let redactor = environment.redactor();
        let place = place::of(&launcher.state_dir);
        Ok(Self {
            program,
            environment,
            launcher,
            options,
            redactor,
            place,
        })
    }

    /// How this turn begins, by what an earlier one left.
    fn continuity(&self, turn: &Turn) -> Continuity {
        // A program that never takes a conversation up has not lost one.
        let Some(state) = turn.agent_state.as_ref().filter(|_| self.program.resumes()) else {
            return Continuity::New;
        };
        let broken = |reason: &str| Continuity::Broken(reason.to_owned());
        let Ok(state) = ProgramState::deserialize(state) else {
            return broken("the state is of another agent");
        };
        if state.format != self.options.format.as_str() {
            return broken("the state is of another agent");
        }
        if place::is_elsewhere(state.place.as_deref(), self.place.as_deref()) {
            return broken("the state lies with another executor");
        }
        if !program::is_session_id(&state.conversation) {
            return broken("the state names no conversation");
        }
        Continuity::Resumed(state.conversation)
    }

    async fn start(
        &self,
        turn: &Turn,
        io: &TurnIo,
        continuity: &Continuity,
    ) -> Result<(AgentProcess, Option<String>), Failure> {
        let (prompt, session) = match continuity {
            Continuity::Resumed(session) => (&turn.raw_prompt, Some(session.as_str())),
            Continuity::New | Continuity::Broken(_) => (&turn.prompt_with_context, None),
        };
        let started = self.program.start(prompt, session, &self.environment);
        let started = started.map_err(|text| Failure::new(FailureCode::AgentStart, text))?;
        let Started {
            command,
            environment,
            input,
        } = started;
        let spec = AgentSpec {
            run_id: turn.run_id.clone(),
            command,
            workspace: turn.workspace.clone(),
            environment,
        };
        let waits = || io.waits_for_workspace();
        let lease = io.lease.clone();
        let launched = self.launcher.launch_telling(spec, lease, waits).await;
        let process =
            launched.map_err(|error: LaunchError| Failure::of_launch(&error, &self.redactor))?;
        Ok((process, input))
    }

    /// Runs the program once.
    async fn attempt(
        &self,
        turn: &Turn,
        io: &TurnIo,
        vigil: &Vigil,
        continuity: &Continuity,
    ) -> Attempt {
        let mut attempt = Attempt {
            transcript: Transcript::new(self.redactor.clone()),
            exit: None,
            end: End::Exited,
        };
        let started = tokio::select! {
            biased;
            interrupt = vigil.interrupted() => {
                sweep_marked(&turn.run_id).await;
                attempt.end = End::Interrupted(interrupt);
                return attempt;
            }
            started = self.start(turn, io, continuity) => started,
        };
        let (mut process, input) = match started {
            Ok(started) => started,
            Err(failure) => {
                attempt.end = End::Failed(failure);
                return attempt;
            }
        };
        let mut feeding = JoinSet::new();
        if let Some(stdin) = process.take_stdin() {
            feeding.spawn(feed(stdin, input));
        }
        let stdout = process.take_stdout();
        let (end, interrupt) = {
            let pump = self.pump(&process, stdout, io, &mut attempt.transcript);
            let mut pump = std::pin::pin!(pump);
            tokio::select! {
                biased;
                interrupt = vigil.interrupted() => {
                    let end = self.stop(&process, &interrupt, vigil, pump.as_mut()).await;
                    (end, Some(interrupt))
                }
                end = &mut pump => (Some(end), None),
            }
        };
        let exit = match (&end, &interrupt) {
            (Some(Ok(exit)), _) => *exit,
            (_, Some(Interrupt::Killed)) => process.kill_now().await,
            (Some(Err(_)) | None, _) => process.kill_tree(Duration::ZERO).await,
        };
        attempt.exit = Some(exit);
        attempt.end = match (interrupt, end) {
            (Some(interrupt), _) => End::Interrupted(interrupt),
            (None, Some(Err(error))) => End::Failed(Failure::of_line(&error)),
            (None, Some(Ok(_)) | None) => {
                match self.judge(exit, &attempt.transcript, &process).await {
                    Some(failure) => End::Failed(failure),
                    None => End::Exited,
                }
            }
        };
        attempt
    }

    /// What is wrong with how a program ended by itself: success is its own word and its exit.
    async fn judge(
        &self,
        exit: AgentExit,
        transcript: &Transcript,
        process: &AgentProcess,
    ) -> Option<Failure> {
        if !self.options.format.tells_its_end() {
            if exit == success() {
                return None;
            }
            return Some(Failure::of_exit(exit, "", process).await);
        }
        match transcript.ending() {
            Some(Ending::Failed(reason)) => Some(Failure::new(FailureCode::AgentError, reason)),
            Some(Ending::Finished) if exit != success() => {
                Some(Failure::of_exit(exit, " after its turn had ended", process).await)
            }
            Some(Ending::Finished) if !transcript.any_output() => {
                let text = "the agent ended its turn without any output";
                Some(Failure::new(FailureCode::AgentSilent, text))
            }
            Some(Ending::Finished) => None,
            None => Some(Failure::of_exit(exit, " before it ended its turn", process).await),
        }
    }

    /// Turns lines into events until the program's end.
    async fn pump(
        &self,
        process: &AgentProcess,
        stdout: Option<ChildStdout>,
        io: &TurnIo,
        transcript: &mut Transcript,
    ) -> Result<AgentExit, LineError> {
        if let Some(stdout) = stdout {
            let mut lines = LineReader::new(stdout, self.options.line_limit);
            let mut dialect = self.options.format.dialect();
            let mut kept = None;
            while let Some(line) = lines.next_line().await? {
                io.activity.touch();
                dialect.read(&line, transcript);
                send(io, transcript).await;
                self.keep(io, transcript, &mut kept).await;
            }
        }
        Ok(process.wait().await)
    }

    /// SIGINT, and time to come to an end; not for a claim that is lost.
    async fn stop(
        &self,
        process: &AgentProcess,
        interrupt: &Interrupt,
        vigil: &Vigil,
        pump: impl Future<Output = Result<AgentExit, LineError>>,
    ) -> Option<Result<AgentExit, LineError>> {
        if matches!(interrupt, Interrupt::Killed) {
            return None;
        }
        process.signal_group(Signal::SIGINT).await;
        tokio::select! {
            biased;
            () = vigil.killed() => None,
            end = tokio::time::timeout(self.options.cancel_grace, pump) => end.ok(),
        }
    }

    /// Leaves the conversation's id for later turns as soon as it is known.
    async fn keep(&self, io: &TurnIo, transcript: &Transcript, kept: &mut Option<String>) {
        let session = transcript.session();
        if session == kept.as_deref() {
            return;
        }
        *kept = session.map(str::to_owned);
        if let Some(state) = self.state(transcript) {
            io.memory.keep(state).await;
        }
    }

    fn state(&self, transcript: &Transcript) -> Option<Value> {
        let conversation = transcript.session().filter(|_| self.program.resumes())?;
        serde_json::to_value(ProgramState {
            conversation: conversation.to_owned(),
            format: self.options.format.as_str().to_owned(),
            place: self.place.clone(),
        })
        .ok()
    }

    fn result(&self, attempt: &Attempt, continuity: &Continuity) -> Value {
        let mut result = Map::new();
        if let Some(exit) = attempt.exit {
            result.insert("exit_code".to_owned(), json!(exit.code));
            result.insert("signal".to_owned(), json!(exit.signal));
        }
        if let Some(usage) = attempt.transcript.last_usage() {
            result.insert("usage".to_owned(), usage.clone());
        }
        if self.program.resumes() {
            result.insert("continuity".to_owned(), json!(continuity.as_str()));
        }
        result.into()
    }
}

#[async_trait]
impl Backend for CommandBackend {
    async fn run(&self, turn: Turn, io: TurnIo) -> Outcome {
        let (_questions, none) = watch::channel(0);
        let vigil = Vigil::new(&io, turn.limits, none);
        let mut continuity = self.continuity(&turn);
        if let Continuity::Broken(reason) = &continuity {
            self.tell_broken(reason, &io).await;
        }
        let mut attempt = self.attempt(&turn, &io, &vigil, &continuity).await;
        if let Continuity::Resumed(wanted) = &continuity
            && let Some(reason) = attempt.lost(wanted)
        {
            // Nothing was said and nothing done: beginning anew repeats nothing.
            self.tell_broken(&reason, &io).await;
            continuity = Continuity::Broken(reason);
            attempt = self.attempt(&turn, &io, &vigil, &continuity).await;
        }
        if !matches!(attempt.end, End::Interrupted(Interrupt::Killed)) {
            let status = match attempt.end {
                End::Interrupted(_) => "cancelled",
                End::Exited | End::Failed(_) => "unknown",
            };
            attempt.transcript.close(status);
            tokio::select! {
                biased;
                () = vigil.killed() => {}
                () = send(&io, &mut attempt.transcript) => {}
            }
        }
        let state = self.state(&attempt.transcript).or(turn.agent_state);
        let result = self.result(&attempt, &continuity);
        let (status, failure) = match attempt.end {
            End::Exited => (OutcomeStatus::Completed, None),
            End::Failed(failure) | End::Interrupted(Interrupt::TimedOut(failure)) => {
                (OutcomeStatus::Failed, Some(failure))
            }
            End::Interrupted(Interrupt::Killed | Interrupt::Cancelled) => {
                (OutcomeStatus::Cancelled, None)
            }
        };
        Outcome {
            status,
            result,
            failure,
            agent_state: state,
        }
    }
}

impl CommandBackend {
    async fn tell_broken(&self, reason: &str, io: &TurnIo) {
        let event = AgentEvent::continuity_broken(reason, &self.redactor);
        // The vigil notices a receiver that is gone.
        drop(io.events.send(event).await);
    }
}

/// One start of a program and what came of it.
#[derive(Debug)]
struct Attempt {
    transcript: Transcript,
    exit: Option<AgentExit>,
    end: End,
}

/// How a program came to its end.
#[derive(Debug)]
enum End {
    /// By itself, as it should.
    Exited,
    Failed(Failure),
    Interrupted(Interrupt),
}

impl Attempt {
    /// Why the wanted conversation is no more, if that is what the failure comes from: the program
    /// ran, did nothing, and never was in that conversation.
    fn lost(&self, wanted: &str) -> Option<String> {
        let End::Failed(failure) = &self.end else {
            return None;
        };
        let was_there = self.transcript.session() == Some(wanted);
        let by_itself = self.exit.is_some_and(|exit| exit.killed.is_none());
        if !by_itself || was_there || self.transcript.any_output() {
            return None;
        }
        Some(failure.message.clone())
    }
}

fn success() -> AgentExit {
    AgentExit {
        code: Some(0),
        ..AgentExit::default()
    }
}

async fn send(io: &TurnIo, transcript: &mut Transcript) {
    for event in transcript.take_events() {
        // The vigil notices a receiver that is gone.
        drop(io.events.send(event).await);
    }
}

/// A program that reads nothing and ends is no failure.
async fn feed(mut stdin: ChildStdin, prompt: Option<String>) {
    if let Some(prompt) = prompt {
        drop(stdin.write_all(prompt.as_bytes()).await);
        drop(stdin.shutdown().await);
    }
}
