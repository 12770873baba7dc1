//! The way to a session in which the prompt can be sent. It owns taking an earlier session up again
//! and the wishes of our own session; it must never go on with an agent that lacks what is wanted,
//! and a lost session must never fail the turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::choices::{Missing, Wish, wishes};
use super::connection::Connection;
use super::handshake::{Hello, call, needs_authentication};
use super::offer::offer;
use super::rpc::{CallError, RpcError};
use crate::backend::{AgentEvent, Failure, FailureCode, McpServer, Turn};
use crate::place;
use crate::process::Redactor;

/// A replay that never gets quiet is cut off here.
const REPLAY_LIMIT: Duration = Duration::from_secs(10);

/// Error data can be whole requests.
const DATA_LENGTH: usize = 1000;

/// For the agent's word on a choice whose answer contradicts it.
const CONFIRM_LIMIT: Duration = Duration::from_secs(2);

const CONFIRM_LOOK: Duration = Duration::from_millis(20);

/// What is kept of an agent between runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentState {
    pub(super) session_id: String,
    pub(super) agent_name: String,
    pub(super) agent_version: String,
    /// Where the agent keeps the session; absent in states of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<String>,
}

/// How much the agent itself knows of earlier runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Continuity {
    /// There was nothing to know.
    New,
    /// Its process stayed.
    Warm,
    Resumed,
    Loaded,
    /// It knows nothing any more, the context is in the prompt.
    Broken,
}

impl Continuity {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Warm => "warm",
            Self::Resumed => "resumed",
            Self::Loaded => "loaded",
            Self::Broken => "broken",
        }
    }
}

/// Why a step did not succeed.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(Failure),
    /// The agent's output ended before it answered this request.
    Closed(&'static str),
}

impl From<Missing> for Stop {
    fn from(missing: Missing) -> Self {
        Self::Failed(Failure::new(missing.code, missing.text))
    }
}

/// A session that is ready for the prompt.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    pub(super) hello: Hello,
    pub(super) state: AgentState,
    pub(super) continuity: Continuity,
}

pub(super) struct Opening<'a> {
    pub(super) connection: &'a Connection,
    pub(super) turn: &'a Turn,
    pub(super) hello: &'a Hello,
    /// Where this agent keeps its sessions.
    pub(super) place: Option<&'a str>,
    /// The executor's own mode, for sessions that name none.
    pub(super) mode: Option<&'a str>,
    pub(super) replay_quiet: Duration,
    pub(super) redactor: &'a Redactor,
}

struct Answered {
    session_id: String,
    continuity: Continuity,
    answer: Value,
}

impl Opening<'_> {
    pub(super) async fn open(&self) -> Result<Opened, Stop> {
        let settings = &self.turn.settings;
        self.hello.check(settings).map_err(Stop::Failed)?;
        let answered = self.session().await?;
        let early = {
            let mut updates = self.connection.updates();
            updates.offered(&answered.answer);
            updates.live(&answered.session_id)
        };
        self.connection.emit(early).await;
        self.settle(&answered.session_id).await?;
        let offered = offer(&answered.answer, self.connection.updates().choices());
        if !offered.is_empty() {
            let options = json!({"options": offered});
            let event = AgentEvent::new("agent.options", options, self.redactor);
            self.connection.emit(vec![event]).await;
        }
        let state = AgentState {
            session_id: answered.session_id,
            agent_name: self.hello.name.clone(),
            agent_version: self.hello.version.clone(),
            place: self.place.map(str::to_owned),
        };
        Ok(Opened {
            hello: self.hello.clone(),
            state,
            continuity: answered.continuity,
        })
    }

    /// The session as the agent that rested has it open.
    pub(super) async fn again(&self, rested: Opened) -> Result<Opened, Stop> {
        let session_id = &rested.state.session_id;
        self.connection.updates().again(session_id);
        self.settle(session_id).await?;
        Ok(Opened {
            continuity: Continuity::Warm,
            ..rested
        })
    }

    /// The earlier session where the agent can take it up, else a new one.
    async fn session(&self) -> Result<Answered, Stop> {
        let takes_up = self.hello.resumes() || self.hello.loads();
        // An agent that never takes a session up has not lost one.
        let Some(state) = self.turn.agent_state.as_ref().filter(|_| takes_up) else {
            return self.new_session(Continuity::New).await;
        };
        let reason = match self.earlier(state) {
            Err(reason) => reason,
            Ok(earlier) => match self.take_up(&earlier.session_id).await? {
                Ok(answered) => return Ok(answered),
                Err(error) => describe(&error, self.redactor),
            },
        };
        let answered = self.new_session(Continuity::Broken).await?;
        let event = AgentEvent::continuity_broken(&reason, self.redactor);
        self.connection.emit(vec![event]).await;
        Ok(answered)
    }

    /// The earlier session, if it is this agent's, on this machine, and can be taken up.
    fn earlier(&self, state: &Value) -> Result<AgentState, String> {
        let earlier = AgentState::deserialize(state).ok();
        let Some(earlier) = earlier.filter(|earlier| earlier.agent_name == self.hello.name) else {
            return Err("the state is of another agent".to_owned());
        };
        if place::is_elsewhere(earlier.place.as_deref(), self.place) {
            return Err("the state lies with another executor".to_owned());
        }
        Ok(earlier)
    }

    /// Where the session works and with what, the same for each way to it.
    fn params(&self, session_id: Option<&str>) -> Value {
        let settings = &self.turn.settings;
        let servers: Vec<Value> = settings.mcp_servers.iter().map(McpServer::to_acp).collect();
        let mut params = json!({"cwd": self.turn.workspace, "mcpServers": servers});
        if !settings.directories.is_empty() {
            params["additionalDirectories"] = json!(settings.directories);
        }
        if let Some(session_id) = session_id {
            params["sessionId"] = json!(session_id);
        }
        params
    }

    async fn new_session(&self, continuity: Continuity) -> Result<Answered, Stop> {
        self.connection.updates().opening();
        let answer = self.call("session/new", self.params(None)).await?;
        let Some(session_id) = answer["sessionId"].as_str().map(str::to_owned) else {
            let text = "the answer to `session/new` has no `sessionId`";
            return Err(Stop::Failed(Failure::new(FailureCode::AgentProtocol, text)));
        };
        Ok(Answered {
            session_id,
            continuity,
            answer,
        })
    }

    /// Some agents replay even on resume, and some go on replaying after their answer.
    async fn take_up(&self, id: &str) -> Result<Result<Answered, RpcError>, Stop> {
        self.connection.updates().replaying();
        let (method, continuity) = if self.hello.resumes() {
            ("session/resume", Continuity::Resumed)
        } else {
            ("session/load", Continuity::Loaded)
        };
        let params = self.params(Some(id));
        match self.connection.peer.request(method, params).await {
            Ok(answer) => {
                // A replay without an end is treated like one that ended.
                drop(timeout(REPLAY_LIMIT, self.quiet()).await);
                Ok(Ok(Answered {
                    session_id: id.to_owned(),
                    continuity,
                    answer,
                }))
            }
            // A session is not lost because nobody is logged in.
            Err(CallError::Answered(error)) if needs_authentication(&error) => {
                let failure = self.hello.failure(method, &error, self.redactor);
                Err(Stop::Failed(failure))
            }
            Err(CallError::Answered(error)) => Ok(Err(error)),
            Err(CallError::Closed) => Err(Stop::Closed(method)),
        }
    }

    async fn quiet(&self) {
        let answered = Instant::now();
        loop {
            let last = self.connection.updates().last().max(answered);
            if last.elapsed() >= self.replay_quiet {
                return;
            }
            sleep_until(last + self.replay_quiet).await;
        }
    }

    /// Brings the agent's session to what ours wants. All of it has to hold in the end: one choice
    /// may change another.
    async fn settle(&self, session_id: &str) -> Result<(), Stop> {
        let wishes = wishes(&self.turn.settings, self.mode);
        for wish in &wishes {
            self.choose(*wish, session_id).await?;
        }
        for wish in &wishes {
            self.confirm(*wish).await?;
        }
        Ok(())
    }

    async fn choose(&self, wish: Wish<'_>, session_id: &str) -> Result<(), Stop> {
        let call = {
            let updates = self.connection.updates();
            let call = updates.choices().call(wish, session_id)?;
            if updates.choices().holds(wish) {
                return Ok(());
            }
            call
        };
        let answer = self.call(call.method, call.params.clone()).await?;
        let mut updates = self.connection.updates();
        updates.choices_mut().fulfilled(&call);
        updates.choices_mut().note(&answer);
        Ok(())
    }

    async fn confirm(&self, wish: Wish<'_>) -> Result<(), Stop> {
        let until = Instant::now() + CONFIRM_LIMIT;
        loop {
            if self.connection.updates().choices().holds(wish) {
                return Ok(());
            }
            if Instant::now() >= until {
                let text = format!("the agent took {wish}, but does not show it as chosen");
                let failure = Failure::new(FailureCode::AgentChoiceUnconfirmed, text);
                return Err(Stop::Failed(failure));
            }
            sleep(CONFIRM_LOOK).await;
        }
    }

    pub(super) async fn call(&self, method: &'static str, params: Value) -> Result<Value, Stop> {
        call(self.connection, method, params, self.hello, self.redactor).await
    }
}

pub(super) fn describe(error: &RpcError, redactor: &Redactor) -> String {
    let data = error
        .data
        .as_ref()
        .map(|data| format!("; {data}"))
        .unwrap_or_default();
    // Redaction comes before the cut, which might go through a secret.
    let data: String = redactor.redact(data).chars().take(DATA_LENGTH).collect();
    let message = redactor.redact(error.message.clone());
    format!("{message} (code {}){data}", error.code).replace('\0', "\u{fffd}")
}
