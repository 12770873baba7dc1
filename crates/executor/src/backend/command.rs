//! Any program as an agent: the prompt goes in, lines come out. It owns how the prompt is handed
//! over and what the exit means; it must never pass anything through a shell.

use std::ffi::OsString;
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::Signal;
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::vigil::{Interrupt, Vigil};
use super::{AgentEvent, Backend, Failure, FailureCode, Outcome, OutcomeStatus, Turn, TurnIo};
use crate::lines::{DEFAULT_LINE_LIMIT, LineError, LineReader};
use crate::process::{
    AgentExit, AgentProcess, AgentSpec, Environment, LaunchError, Launcher, Redactor, sweep_marked,
};

const PLACEHOLDER: &str = "{prompt}";

/// The variable of [`PromptVia::Environment`].
pub const PROMPT_VARIABLE: &str = "TAPEDECK_PROMPT";

/// Linux takes 128 KiB for one argument or variable, its name included.
const ARGUMENT_LIMIT: usize = 128 * 1024 - 256;

/// Between SIGINT and the kill.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// How a program gets its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptVia {
    /// In place of `{prompt}` in its arguments, or as one more argument.
    Argument,
    /// On its standard input, which is then closed.
    Stdin,
    /// In the variable `TAPEDECK_PROMPT`.
    Environment,
}

/// Runs a program for each turn.
#[derive(Debug, Clone)]
pub struct CommandBackend {
    command: Vec<String>,
    via: PromptVia,
    environment: Environment,
    launcher: Launcher,
    line_limit: usize,
}

impl CommandBackend {
    /// `command` is split like a shell does, without any of its other features. Without `via` the
    /// prompt replaces `{prompt}` if that stands in an argument, else it goes to stdin.
    pub fn new(
        command: &str,
        via: Option<PromptVia>,
        environment: Environment,
        launcher: Launcher,
    ) -> Result<Self, shell_words::ParseError> {
        let command = shell_words::split(command)?;
        let placed = command
            .iter()
            .skip(1)
            .any(|argument| argument.contains(PLACEHOLDER));
        let found = if placed {
            PromptVia::Argument
        } else {
            PromptVia::Stdin
        };
        let via = via.unwrap_or(found);
        Ok(Self {
            command,
            via,
            environment,
            launcher,
            line_limit: DEFAULT_LINE_LIMIT,
        })
    }

    /// Another limit than the default for one line of output.
    #[must_use]
    pub fn with_line_limit(self, line_limit: usize) -> Self {
        Self { line_limit, ..self }
    }

    fn spec(&self, turn: &Turn) -> AgentSpec {
        let prompt = &turn.prompt_with_context;
        let mut environment = self.environment.clone();
        let mut command: Vec<OsString> = Vec::with_capacity(self.command.len() + 1);
        let mut placed = self.via != PromptVia::Argument;
        for (position, word) in self.command.iter().enumerate() {
            if position > 0 && self.via == PromptVia::Argument && word.contains(PLACEHOLDER) {
                command.push(word.replace(PLACEHOLDER, prompt).into());
                placed = true;
            } else {
                command.push(word.into());
            }
        }
        if !placed {
            command.push(prompt.into());
        }
        if self.via == PromptVia::Environment {
            environment.set(PROMPT_VARIABLE, prompt);
        }
        let (run_id, workspace) = (turn.run_id.clone(), turn.workspace.clone());
        AgentSpec {
            run_id,
            command,
            workspace,
            environment,
        }
    }

    async fn start(&self, turn: &Turn, io: &TurnIo) -> Result<AgentProcess, Failure> {
        let length = turn.prompt_with_context.len();
        if self.via != PromptVia::Stdin && length > ARGUMENT_LIMIT {
            let text = format!("a prompt of {length} bytes can only be handed over by stdin");
            return Err(Failure::new(FailureCode::AgentStart, text));
        }
        let launched = self
            .launcher
            .launch(self.spec(turn), io.lease.clone())
            .await;
        launched
            .map_err(|error: LaunchError| Failure::of_launch(&error, &self.environment.redactor()))
    }
}

#[async_trait]
impl Backend for CommandBackend {
    async fn run(&self, turn: Turn, io: TurnIo) -> Outcome {
        let (_questions, none) = watch::channel(0);
        let vigil = Vigil::new(&io, turn.limits, none);
        let started = tokio::select! {
            biased;
            interrupt = vigil.interrupted() => {
                sweep_marked(&turn.run_id).await;
                return interrupted_outcome(interrupt, json!({}));
            }
            started = self.start(&turn, &io) => started,
        };
        let mut process = match started {
            Ok(process) => process,
            Err(failure) => return Outcome::failed(failure, json!({}), None),
        };
        let mut input = JoinSet::new();
        let prompt = (self.via == PromptVia::Stdin).then(|| turn.prompt_with_context.clone());
        if let Some(stdin) = process.take_stdin() {
            input.spawn(feed(stdin, prompt));
        }
        let stdout = process.take_stdout();
        let redactor = self.environment.redactor();
        let (end, interrupt) = {
            let pump = pump(&process, stdout, self.line_limit, &io, &redactor);
            let mut pump = std::pin::pin!(pump);
            tokio::select! {
                biased;
                interrupt = vigil.interrupted() => {
                    let end = stop(&process, &interrupt, &vigil, pump.as_mut()).await;
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
        let result = json!({"exit_code": exit.code, "signal": exit.signal});
        match (interrupt, end) {
            (Some(interrupt), _) => interrupted_outcome(interrupt, result),
            (None, Some(Err(error))) => Outcome::failed(Failure::of_line(&error), result, None),
            (None, Some(Ok(_)) | None) if exit == success() => Outcome {
                status: OutcomeStatus::Completed,
                result,
                failure: None,
                agent_state: None,
            },
            (None, Some(Ok(_)) | None) => {
                Outcome::failed(Failure::of_exit(exit, "", &process).await, result, None)
            }
        }
    }
}

fn success() -> AgentExit {
    AgentExit {
        code: Some(0),
        ..AgentExit::default()
    }
}

fn interrupted_outcome(interrupt: Interrupt, result: Value) -> Outcome {
    match interrupt {
        Interrupt::TimedOut(failure) => Outcome::failed(failure, result, None),
        Interrupt::Killed | Interrupt::Cancelled => Outcome {
            status: OutcomeStatus::Cancelled,
            result,
            failure: None,
            agent_state: None,
        },
    }
}

/// A program that reads nothing and ends is no failure.
async fn feed(mut stdin: ChildStdin, prompt: Option<String>) {
    if let Some(prompt) = prompt {
        drop(stdin.write_all(prompt.as_bytes()).await);
        drop(stdin.shutdown().await);
    }
}

/// Turns lines into events until the program's end.
async fn pump(
    process: &AgentProcess,
    stdout: Option<ChildStdout>,
    limit: usize,
    io: &TurnIo,
    redactor: &Redactor,
) -> Result<AgentExit, LineError> {
    if let Some(stdout) = stdout {
        let mut lines = LineReader::new(stdout, limit);
        let fields = Map::from_iter([("role".to_owned(), json!("assistant"))]);
        while let Some(mut line) = lines.next_line().await? {
            io.activity.touch();
            if line.ended {
                line.text.push('\n');
            }
            let events = AgentEvent::texts("StreamDelta", "content", &line.text, &fields, redactor);
            for event in events {
                // The vigil notices a receiver that is gone.
                drop(io.events.send(event).await);
            }
        }
    }
    Ok(process.wait().await)
}

/// SIGINT, and time to come to an end; not for a claim that is lost.
async fn stop(
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
        end = tokio::time::timeout(CANCEL_GRACE, pump) => end.ok(),
    }
}
