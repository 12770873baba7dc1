//! The way to a session in which the prompt can be sent. It owns the handshake, taking an earlier
//! session up again, and the mode; it must never go on with an agent that speaks another protocol or
//! lacks the wanted mode, and a lost session must never fail the turn.

use std::path::Path;
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    Implementation, InitializeRequest, LoadSessionRequest, NewSessionRequest, ResumeSessionRequest,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::Connection;
use super::rpc::{CallError, RpcError};
use crate::backend::{AgentEvent, Failure, FailureCode, Turn};
use crate::process::Redactor;

/// A replay that never gets quiet is cut off here.
const REPLAY_LIMIT: Duration = Duration::from_secs(10);

/// Error data can be whole requests.
const DATA_LENGTH: usize = 1000;

/// What is kept of an agent between runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentState {
    pub(super) session_id: String,
    pub(super) agent_name: String,
    pub(super) agent_version: String,
}

/// How much the agent itself knows of earlier runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Continuity {
    /// There was nothing to know.
    New,
    Resumed,
    Loaded,
    /// It knows nothing any more, the context is in the prompt.
    Broken,
}

impl Continuity {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
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

/// A session that is ready for the prompt.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    pub(super) state: AgentState,
    pub(super) continuity: Continuity,
}

pub(super) struct Opening<'a> {
    pub(super) connection: &'a Connection,
    pub(super) turn: &'a Turn,
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
        let hello = self.initialize().await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let agent_name = text(&hello["agentInfo"]["name"]);
        let agent_version = text(&hello["agentInfo"]["version"]);
        let answered = self.session(&hello, &agent_name).await?;
        let early = self.connection.updates().live(&answered.session_id);
        self.connection.emit(early).await;
        if let Some(mode) = self.mode {
            self.set_mode(mode, &answered).await?;
        }
        let state = AgentState {
            session_id: answered.session_id,
            agent_name,
            agent_version,
        };
        Ok(Opened {
            state,
            continuity: answered.continuity,
        })
    }

    async fn initialize(&self) -> Result<Value, Stop> {
        let client = Implementation::new("tapedeck", env!("CARGO_PKG_VERSION"));
        let request = InitializeRequest::new(ProtocolVersion::V1).client_info(client);
        let hello = self.call("initialize", request).await?;
        if hello["protocolVersion"].as_u64() == Some(1) {
            return Ok(hello);
        }
        let text = format!(
            "the agent speaks protocol version {}, not 1",
            hello["protocolVersion"]
        );
        Err(Stop::Failed(Failure::new(FailureCode::AgentProtocol, text)))
    }

    /// The earlier session where the agent can take it up, else a new one.
    async fn session(&self, hello: &Value, agent_name: &str) -> Result<Answered, Stop> {
        let Some(state) = &self.turn.agent_state else {
            return self.new_session(Continuity::New).await;
        };
        let capabilities = &hello["agentCapabilities"];
        let resumes = capabilities["sessionCapabilities"]["resume"].is_object();
        let loads = capabilities["loadSession"] == true;
        let earlier = AgentState::deserialize(state)
            .ok()
            .filter(|earlier| earlier.agent_name == agent_name);
        let reason = match earlier {
            Some(earlier) if resumes || loads => {
                match self.take_up(&earlier.session_id, resumes).await? {
                    Ok(answered) => return Ok(answered),
                    Err(error) => describe(&error, self.redactor),
                }
            }
            Some(_) => "the agent cannot take up earlier sessions".to_owned(),
            None => "the state is of another agent".to_owned(),
        };
        let answered = self.new_session(Continuity::Broken).await?;
        let payload = json!({"status": "continuity_broken", "reason": reason});
        let event = AgentEvent::new("TurnStatusDelta", payload, self.redactor);
        self.connection.emit(vec![event]).await;
        Ok(answered)
    }

    async fn new_session(&self, continuity: Continuity) -> Result<Answered, Stop> {
        self.connection.updates().opening();
        let request = NewSessionRequest::new(self.workspace());
        let answer = self.call("session/new", request).await?;
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
    async fn take_up(&self, id: &str, resumes: bool) -> Result<Result<Answered, RpcError>, Stop> {
        self.connection.updates().replaying();
        let peer = &self.connection.peer;
        let (method, continuity, called) = if resumes {
            let request = ResumeSessionRequest::new(id.to_owned(), self.workspace());
            let called = peer.request("session/resume", request).await;
            ("session/resume", Continuity::Resumed, called)
        } else {
            let request = LoadSessionRequest::new(id.to_owned(), self.workspace());
            let called = peer.request("session/load", request).await;
            ("session/load", Continuity::Loaded, called)
        };
        match called {
            Ok(answer) => {
                // A replay without an end is treated like one that ended.
                drop(timeout(REPLAY_LIMIT, self.quiet()).await);
                Ok(Ok(Answered {
                    session_id: id.to_owned(),
                    continuity,
                    answer,
                }))
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

    async fn set_mode(&self, mode: &str, answered: &Answered) -> Result<(), Stop> {
        let Answered {
            session_id, answer, ..
        } = answered;
        let modes = names(&answer["modes"]["availableModes"], "id");
        if modes.iter().any(|name| name == mode) {
            let params = json!({"sessionId": session_id, "modeId": mode});
            return self.call("session/set_mode", params).await.map(drop);
        }
        let options = answer["configOptions"].as_array().into_iter().flatten();
        let option = options
            .filter(|option| option["category"] == "mode" || option["id"] == "mode")
            .find(|option| values(option).iter().any(|value| value == mode));
        if let Some(option) = option {
            let params = json!({"sessionId": session_id, "configId": option["id"], "value": mode});
            return self
                .call("session/set_config_option", params)
                .await
                .map(drop);
        }
        let known = if modes.is_empty() {
            "none".to_owned()
        } else {
            modes.join(", ")
        };
        let text = format!("the agent has no mode `{mode}` (it offers {known})");
        Err(Stop::Failed(Failure::new(
            FailureCode::AgentModeMissing,
            text,
        )))
    }

    async fn call(&self, method: &'static str, params: impl Serialize) -> Result<Value, Stop> {
        call(self.connection, method, params, self.redactor).await
    }

    fn workspace(&self) -> &Path {
        &self.turn.workspace
    }
}

/// A request whose error fails the turn.
pub(super) async fn call(
    connection: &Connection,
    method: &'static str,
    params: impl Serialize,
    redactor: &Redactor,
) -> Result<Value, Stop> {
    connection
        .peer
        .request(method, params)
        .await
        .map_err(|error| match error {
            CallError::Closed => Stop::Closed(method),
            CallError::Answered(error) => {
                let text = format!("`{method}` failed: {}", describe(&error, redactor));
                Stop::Failed(Failure::new(FailureCode::AgentError, text))
            }
        })
}

fn describe(error: &RpcError, redactor: &Redactor) -> String {
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

fn names(list: &Value, field: &str) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items
        .filter_map(|item| item[field].as_str().map(str::to_owned))
        .collect()
}

/// The values of a choice; they may stand in groups.
fn values(option: &Value) -> Vec<String> {
    let mut found = names(&option["options"], "value");
    for group in option["options"].as_array().into_iter().flatten() {
        found.extend(names(&group["options"], "value"));
    }
    found
}
