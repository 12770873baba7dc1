//! Any agent that speaks the Agent Client Protocol, version 1, as a subprocess. It owns one turn:
//! start, session, prompt, cancel, end; it must never know one agent from another, nor trust one to
//! be quiet, to answer, or to end by itself.

mod asking;
mod choices;
mod connection;
mod content;
mod elicitation;
mod files;
mod finish;
mod handshake;
mod offer;
mod permission;
mod rpc;
mod services;
mod session;
mod terminals;
mod tools;
mod updates;
mod warm;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::vigil::{Interrupt, Vigil};
use super::{Backend, Failure, FailureCode, McpServer, Outcome, Transport, Turn, TurnIo};
use crate::lines::DEFAULT_LINE_LIMIT;
use crate::place;
use crate::process::{AgentProcess, AgentSpec, Environment, Launcher, Redactor, sweep_marked};
use connection::{Connection, Pipes};
use files::Files;
use finish::{Finish, interrupted};
use handshake::{Offered, shake_hands};
use services::Services;
use session::{Continuity, Opened, Opening, Stop};
use terminals::Terminals;
use warm::{Home, Left, Pool, Resting};

/// How an agent is driven.
#[derive(Debug, Clone)]
pub struct AcpOptions {
    /// The mode to set where the session names none; the turn fails if the agent does not have it.
    pub mode: Option<String>,
    /// How to authenticate with agents that offer ways to.
    pub auth_method: Option<String>,
    /// Whether a session may name programs to start, as servers of tools do.
    pub session_programs: bool,
    /// Whether the agent is offered to read and write files through us.
    pub client_files: bool,
    /// Whether it is offered to run commands through us.
    pub client_terminals: bool,
    /// How long an agent stays after a run that ended well, for the next run of its session.
    pub warm_stay: Duration,
    /// How many agents stay at a time.
    pub warm_most: usize,
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
            auth_method: None,
            session_programs: false,
            client_files: false,
            client_terminals: false,
            warm_stay: Duration::ZERO,
            warm_most: 2,
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
    /// Where its agents keep what they remember; unknown where that can't be read or written.
    place: Option<String>,
    warm: Arc<Pool>,
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
        let warm = Arc::new(Pool::new(&options));
        let place = place::of(&launcher.state_dir);
        Ok(Self {
            command,
            environment,
            launcher,
            options,
            redactor,
            place,
            warm,
        })
    }

    /// What this executor does not do for a session, before anything is started.
    fn check(&self, turn: &Turn) -> Result<(), Failure> {
        let programs = |server: &&McpServer| server.transport == Transport::Stdio;
        let Some(server) = turn.settings.mcp_servers.iter().find(programs) else {
            return Ok(());
        };
        if self.options.session_programs {
            return Ok(());
        }
        let text = format!(
            "this executor starts no programs that a session names, as the MCP server `{}` is \
             one; it was started without `--allow-session-command`",
            server.name
        );
        Err(Failure::new(FailureCode::AgentCapabilityMissing, text))
    }

    /// The agent that the run before left, or a new one.
    async fn agent(&self, turn: &Turn, io: &TurnIo) -> Result<(Agent, Option<Opened>), Failure> {
        if let Some(Resting { mut agent, opened }) = self.warm.take(&Left::wanted(turn)).await {
            if agent.process.resume(io.lease.clone()).await {
                return Ok((agent, Some(opened)));
            }
            tracing::debug!(run.id = turn.run_id, "the resting agent is gone");
            agent.process.kill_now().await;
        }
        Ok((self.start(turn, io).await?, None))
    }

    async fn start(&self, turn: &Turn, io: &TurnIo) -> Result<Agent, Failure> {
        let pairs = turn.settings.mcp_servers.iter().flat_map(McpServer::pairs);
        let redactor = self.redactor.with(pairs);
        let spec = AgentSpec {
            run_id: turn.run_id.clone(),
            command: self.command.iter().map(Into::into).collect(),
            workspace: turn.workspace.clone(),
            environment: self.environment.clone(),
        };
        let home = Home::open(&turn.workspace).await;
        let waits = || io.waits_for_workspace();
        let lease = io.lease.clone();
        let launched = self.launcher.launch_telling(spec, lease, waits).await;
        let mut process = launched.map_err(|error| Failure::of_launch(&error, &redactor))?;
        let (Some(stdin), Some(stdout)) = (process.take_stdin(), process.take_stdout()) else {
            process.kill_now().await;
            let text = "the agent has no pipes";
            return Err(Failure::new(FailureCode::AgentStart, text));
        };
        let connection = Connection::start(Pipes {
            stdin,
            stdout,
            line_limit: self.options.line_limit,
            redactor: redactor.clone(),
        });
        Ok(Agent {
            process,
            home,
            connection,
            redactor,
        })
    }

    /// What the agent may have done through us in this turn.
    fn services(&self, agent: &Agent, turn: &Turn, io: &TurnIo) -> Services {
        let roots = std::iter::once(&turn.workspace).chain(&turn.settings.directories);
        let files = Files::new(roots.cloned().collect());
        let terminals = self.options.client_terminals.then(|| {
            Terminals::new(
                self.launcher.clone(),
                turn.run_id.clone(),
                self.environment.clone(),
                files.clone(),
                io.lease.clone(),
                agent.redactor.clone(),
            )
        });
        Services::new(self.options.client_files.then_some(files), terminals)
    }

    /// From the handshake to the prompt's answer; the agent that rested has shaken hands.
    async fn converse(
        &self,
        agent: &Agent,
        rested: Option<Opened>,
        (turn, io): (&Turn, &TurnIo),
        opened: &Mutex<Option<Opened>>,
    ) -> Result<Value, Stop> {
        let (connection, redactor) = (&agent.connection, &agent.redactor);
        let hello = if let Some(rested) = &rested {
            rested.hello.clone()
        } else {
            let offered = Offered {
                files: self.options.client_files,
                terminals: self.options.client_terminals,
                forms: io.questions.takes_forms(),
            };
            let auth_method = self.options.auth_method.as_deref();
            shake_hands(connection, offered, auth_method, redactor).await?
        };
        let opening = Opening {
            connection,
            turn,
            hello: &hello,
            place: self.place.as_deref(),
            mode: self.options.mode.as_deref(),
            replay_quiet: self.options.replay_quiet,
            redactor,
        };
        let session = match rested {
            Some(rested) => opening.again(rested).await?,
            None => opening.open().await?,
        };
        let is_warm = session.continuity == Continuity::Warm;
        let answer = prompt(session, &opening, io, opened).await;
        // What it had open may be gone without the process. As long as nothing has come of the
        // prompt, the session is taken up as in a new process.
        if is_warm && matches!(answer, Err(Stop::Failed(_))) && !connection.updates().any_output() {
            let session = opening.open().await?;
            return prompt(session, &opening, io, opened).await;
        }
        answer
    }

    /// Asks the agent to stop, and waits a while for its answer.
    async fn cancel(
        &self,
        connection: &Connection,
        opened: &Mutex<Option<Opened>>,
        vigil: &Vigil,
        conversation: impl Future<Output = Result<Value, Stop>>,
    ) -> Option<Value> {
        let session_id = opened.lock().as_ref()?.state.session_id.clone();
        let told = async {
            let params = json!({"sessionId": session_id});
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

/// A running agent.
#[derive(Debug)]
struct Agent {
    process: AgentProcess,
    home: Home,
    connection: Connection,
    redactor: Redactor,
}

#[async_trait]
impl Backend for AcpBackend {
    async fn run(&self, turn: Turn, io: TurnIo) -> Outcome {
        let (count, open_questions) = watch::channel(0);
        let vigil = Vigil::new(&io, turn.limits, open_questions);
        if let Err(failure) = self.check(&turn) {
            return Outcome::failed(failure, json!({}), turn.agent_state);
        }
        let started = tokio::select! {
            biased;
            interrupt = vigil.interrupted() => {
                sweep_marked(&turn.run_id).await;
                return interrupted(interrupt, json!({}), turn.agent_state);
            }
            started = self.agent(&turn, &io) => started,
        };
        let (agent, rested) = match started {
            Ok(started) => started,
            Err(failure) => return Outcome::failed(failure, json!({}), turn.agent_state),
        };
        let services = Arc::new(self.services(&agent, &turn, &io));
        agent
            .connection
            .attach(&turn, &io, Arc::clone(&services), count);
        let opened = Mutex::new(None);
        let (answer, interrupt) = {
            let mut conversation =
                std::pin::pin!(self.converse(&agent, rested, (&turn, &io), &opened));
            tokio::select! {
                biased;
                interrupt = vigil.interrupted() => {
                    let answer = match interrupt {
                        Interrupt::Killed => None,
                        Interrupt::Cancelled | Interrupt::TimedOut(_) => {
                            self.cancel(&agent.connection, &opened, &vigil, conversation).await
                        }
                    };
                    (answer.map(Ok), Some(interrupt))
                }
                answer = &mut conversation => (Some(answer), None),
            }
        };
        let finish = Finish {
            options: &self.options,
            warm: &self.warm,
            vigil: &vigil,
            turn: &turn,
            agent,
            session: opened.into_inner(),
        };
        let outcome = finish.outcome(answer, interrupt).await;
        services.close().await;
        outcome
    }

    async fn close(&self) {
        self.warm.close().await;
    }
}

/// Sends the prompt, and gives its answer.
async fn prompt(
    session: Opened,
    opening: &Opening<'_>,
    io: &TurnIo,
    opened: &Mutex<Option<Opened>>,
) -> Result<Value, Stop> {
    let Opening {
        connection, turn, ..
    } = *opening;
    let prompt = match session.continuity {
        Continuity::Warm | Continuity::Resumed | Continuity::Loaded => &turn.raw_prompt,
        Continuity::New | Continuity::Broken => &turn.prompt_with_context,
    };
    let params = json!({
        "sessionId": session.state.session_id,
        "prompt": [{"type": "text", "text": prompt}],
    });
    if let Ok(state) = serde_json::to_value(&session.state) {
        io.memory.keep(state).await;
    }
    connection.updates().prompted();
    // From here on there is something to cancel.
    *opened.lock() = Some(session);
    opening.call("session/prompt", params).await
}
