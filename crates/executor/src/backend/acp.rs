//! Any agent that speaks the Agent Client Protocol, version 1, as a subprocess. It owns one turn:
//! start, session, prompt, cancel, end; it must never know one agent from another, nor trust one to
//! be quiet, to answer, or to end by itself.

mod connection;
mod permission;
mod rpc;
mod session;
mod tools;
mod updates;

use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::vigil::{Interrupt, Vigil};
use super::{Backend, Failure, FailureCode, Memory, Outcome, OutcomeStatus, Turn, TurnIo};
use crate::lines::DEFAULT_LINE_LIMIT;
use crate::process::{AgentProcess, AgentSpec, Environment, Launcher, Redactor, sweep_marked};
use connection::{Connection, Pipes};
use session::{Continuity, Opened, Opening, Stop, call};

/// An agent whose output ended is given this long to exit, for its exit status.
const EXIT_LIMIT: Duration = Duration::from_secs(2);

/// The same after a cancel, which has to settle within ten seconds in all.
const CANCELLED_GRACE: Duration = Duration::from_secs(1);

/// How an agent is driven.
#[derive(Debug, Clone)]
pub struct AcpOptions {
    /// The mode to set in each session; the turn fails if the agent does not have it.
    pub mode: Option<String>,
    /// The longest line, in bytes.
    pub line_limit: usize,
    /// Between the cancel and the kill.
    pub cancel_grace: Duration,
    /// Between the end of the turn and the kill.
    pub end_grace: Duration,
    /// After an earlier session was taken up, repetition is over once it was quiet so long.
    pub replay_quiet: Duration,
}

impl Default for AcpOptions {
    fn default() -> Self {
        Self {
            mode: None,
            line_limit: DEFAULT_LINE_LIMIT,
            cancel_grace: Duration::from_secs(5),
            end_grace: Duration::from_secs(5),
            replay_quiet: Duration::from_millis(500),
        }
    }
}

/// Runs an ACP agent for each turn.
#[derive(Debug, Clone)]
pub struct AcpBackend {
    command: Vec<String>,
    environment: Environment,
    launcher: Launcher,
    options: AcpOptions,
    redactor: Redactor,
}

impl AcpBackend {
    /// `command` is split like a shell does, without any of its other features.
    pub fn new(
        command: &str,
        environment: Environment,
        launcher: Launcher,
        options: AcpOptions,
    ) -> Result<Self, shell_words::ParseError> {
        let command = shell_words::split(command)?;
        let redactor = environment.redactor();
        Ok(Self {
            command,
            environment,
            launcher,
            options,
            redactor,
        })
    }

    async fn start(&self, turn: &Turn, io: &TurnIo) -> Result<AgentProcess, Failure> {
        let spec = AgentSpec {
            run_id: turn.run_id.clone(),
            command: self.command.iter().map(Into::into).collect(),
            workspace: turn.workspace.clone(),
            environment: self.environment.clone(),
        };
        let launched = self.launcher.launch(spec, io.lease.clone()).await;
        launched.map_err(|error| Failure::of_launch(&error, &self.redactor))
    }

    /// From the handshake to the prompt's answer.
    async fn converse(
        &self,
        connection: &Connection,
        turn: &Turn,
        memory: &dyn Memory,
        opened: &OnceLock<Opened>,
    ) -> Result<Value, Stop> {
        let opening = Opening {
            connection,
            turn,
            mode: self.options.mode.as_deref(),
            replay_quiet: self.options.replay_quiet,
            redactor: &self.redactor,
        };
        let session = opening.open().await?;
        let prompt = match session.continuity {
            Continuity::Resumed | Continuity::Loaded => &turn.raw_prompt,
            Continuity::New | Continuity::Broken => &turn.prompt_with_context,
        };
        let params = json!({
            "sessionId": session.state.session_id,
            "prompt": [{"type": "text", "text": prompt}],
        });
        if let Ok(state) = serde_json::to_value(&session.state) {
            memory.keep(state).await;
        }
        connection.updates().prompted();
        // From here on there is something to cancel.
        let _ = opened.set(session);
        call(connection, "session/prompt", params, &self.redactor).await
    }

    /// Asks the agent to stop, and waits a while for its answer.
    async fn cancel(
        &self,
        connection: &Connection,
        opened: &OnceLock<Opened>,
        vigil: &Vigil,
        conversation: impl Future<Output = Result<Value, Stop>>,
    ) -> Option<Value> {
        let session = opened.get()?;
        let told = async {
            let params = json!({"sessionId": session.state.session_id});
            connection.peer.notify("session/cancel", params).await;
            connection.cancel_questions();
            conversation.await.ok()
        };
        tokio::select! {
            biased;
            () = vigil.killed() => None,
            answer = timeout(self.options.cancel_grace, told) => answer.ok().flatten(),
        }
    }
}

#[async_trait]
impl Backend for AcpBackend {
    async fn run(&self, turn: Turn, io: TurnIo) -> Outcome {
        let (count, open_questions) = watch::channel(0);
        let vigil = Vigil::new(&io, turn.limits, open_questions);
        let started = tokio::select! {
            biased;
            interrupt = vigil.interrupted() => {
                sweep_marked(&turn.run_id).await;
                return interrupted(interrupt, json!({}), turn.agent_state);
            }
            started = self.start(&turn, &io) => started,
        };
        let mut process = match started {
            Ok(process) => process,
            Err(failure) => return Outcome::failed(failure, json!({}), turn.agent_state),
        };
        let (Some(stdin), Some(stdout)) = (process.take_stdin(), process.take_stdout()) else {
            process.kill_now().await;
            let failure = Failure::new(FailureCode::AgentStart, "the agent has no pipes");
            return Outcome::failed(failure, json!({}), turn.agent_state);
        };
        let (line_limit, redactor) = (self.options.line_limit, self.redactor.clone());
        let pipes = Pipes {
            stdin,
            stdout,
            line_limit,
            redactor,
        };
        let connection = Connection::start(pipes, &turn, &io, count);
        let opened = OnceLock::new();
        let (end, interrupt) = {
            let mut conversation =
                std::pin::pin!(self.converse(&connection, &turn, &*io.memory, &opened));
            tokio::select! {
                biased;
                interrupt = vigil.interrupted() => {
                    let answer = match interrupt {
                        Interrupt::Killed => None,
                        Interrupt::Cancelled | Interrupt::TimedOut(_) => {
                            self.cancel(&connection, &opened, &vigil, conversation).await
                        }
                    };
                    (answer.map(Ok), Some(interrupt))
                }
                end = &mut conversation => (Some(end), None),
            }
        };
        let finish = Finish {
            backend: self,
            connection: &connection,
            vigil: &vigil,
        };
        let session = opened.into_inner();
        finish
            .outcome(process, end, interrupt, session, turn.agent_state)
            .await
    }
}

/// The end of a turn: nothing is left running, and no tool call open.
struct Finish<'a> {
    backend: &'a AcpBackend,
    connection: &'a Connection,
    vigil: &'a Vigil,
}

impl Finish<'_> {
    async fn outcome(
        &self,
        mut process: AgentProcess,
        end: Option<Result<Value, Stop>>,
        interrupt: Option<Interrupt>,
        session: Option<Opened>,
        earlier_state: Option<Value>,
    ) -> Outcome {
        if matches!(interrupt, Some(Interrupt::Killed)) {
            self.connection.updates().close("cancelled");
            process.kill_now().await;
            return interrupted(Interrupt::Killed, json!({}), earlier_state);
        }
        let answer = match &end {
            Some(Ok(answer)) => Some(answer),
            Some(Err(_)) | None => None,
        };
        let result = self.result(answer, session.as_ref());
        let failure = match end {
            Some(Err(stop)) => Some(self.failure(stop, &process).await),
            Some(Ok(answer)) if interrupt.is_none() => self.silence(&answer),
            Some(Ok(_)) | None => None,
        };
        // The agent's own answer leaves time for a good end; without it there is nothing to save.
        let answered = failure.is_none() && result.contains_key("stop_reason");
        let grace = match (answered, &interrupt) {
            (false, _) => Duration::ZERO,
            (true, None) => self.backend.options.end_grace,
            (true, Some(_)) => self.backend.options.end_grace.min(CANCELLED_GRACE),
        };
        let status = if interrupt.is_some() {
            "cancelled"
        } else {
            "unknown"
        };
        let closing = self.connection.updates().close(status);
        if self.end(&mut process, grace).await.is_none() {
            return interrupted(Interrupt::Killed, json!({}), earlier_state);
        }
        tokio::select! {
            biased;
            () = self.vigil.killed() => {}
            () = self.connection.emit(closing) => {}
        }
        let state = session.and_then(|session| serde_json::to_value(session.state).ok());
        let state = state.or(earlier_state);
        let result = Value::Object(result);
        match (interrupt, failure) {
            (Some(interrupt), _) => interrupted(interrupt, result, state),
            (None, Some(failure)) => Outcome::failed(failure, result, state),
            (None, None) => Outcome {
                status: OutcomeStatus::Completed,
                result,
                failure: None,
                agent_state: state,
            },
        }
    }

    /// Ends the process; `None` if the claim was lost meanwhile.
    async fn end(&self, process: &mut AgentProcess, grace: Duration) -> Option<()> {
        let ended = tokio::select! {
            biased;
            () = self.vigil.killed() => None,
            () = async {
                self.connection.finish_input().await;
                process.kill_tree(grace).await;
            } => Some(()),
        };
        if ended.is_none() {
            process.kill_now().await;
        }
        ended
    }

    fn result(&self, answer: Option<&Value>, session: Option<&Opened>) -> Map<String, Value> {
        let mut result = Map::new();
        if let Some(answer) = answer {
            result.insert("stop_reason".to_owned(), answer["stopReason"].clone());
            if let Some(usage) = answer.get("usage").filter(|usage| usage.is_object()) {
                result.insert("usage".to_owned(), usage.clone());
            }
        }
        if let Some(Opened { state, continuity }) = session {
            let agent = json!({"name": state.agent_name, "version": state.agent_version});
            result.insert("agent".to_owned(), agent);
            result.insert("continuity".to_owned(), json!(continuity.as_str()));
        }
        if let Some(noise) = self.connection.noise().as_json() {
            result.insert("noise".to_owned(), noise);
        }
        result
    }

    async fn failure(&self, stop: Stop, process: &AgentProcess) -> Failure {
        let method = match stop {
            Stop::Failed(failure) => return failure,
            Stop::Closed(method) => method,
        };
        if let Some(Err(failure)) = self.connection.ended() {
            return failure;
        }
        if let Ok(exit) = timeout(EXIT_LIMIT, process.wait()).await {
            let when = format!(" before it answered `{method}`");
            Failure::of_exit(exit, &when, process).await
        } else {
            let text = format!("the agent closed its output before it answered `{method}`");
            Failure::new(FailureCode::AgentExited, text)
        }
    }

    /// An answer without a word or a deed before it hides an error, as a rule.
    fn silence(&self, answer: &Value) -> Option<Failure> {
        let reason = answer["stopReason"].as_str();
        let Some(reason) = reason else {
            let text = "the answer to `session/prompt` has no `stopReason`";
            return Some(Failure::new(FailureCode::AgentProtocol, text));
        };
        if reason == "cancelled" || self.connection.updates().any_output() {
            return None;
        }
        let text = format!("the agent ended its turn (`{reason}`) without any output");
        Some(Failure::new(FailureCode::AgentSilent, text))
    }
}

fn interrupted(interrupt: Interrupt, result: Value, agent_state: Option<Value>) -> Outcome {
    match interrupt {
        Interrupt::TimedOut(failure) => Outcome::failed(failure, result, agent_state),
        Interrupt::Killed | Interrupt::Cancelled => Outcome {
            status: OutcomeStatus::Cancelled,
            result,
            failure: None,
            agent_state,
        },
    }
}
