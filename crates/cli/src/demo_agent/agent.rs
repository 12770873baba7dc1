//! The agent's side of the protocol: which requests there are and in what state a session must be
//! for them. It owns the sessions of this process, one turn at a time each, and must never write
//! anything but through the wire, nor hold its lock across an await.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    AgentCapabilities, CancelNotification, ContentBlock, Implementation, InitializeRequest,
    InitializeResponse, LoadSessionRequest, LoadSessionResponse, MessageId, NewSessionRequest,
    NewSessionResponse, PromptRequest, PromptResponse, SessionId, SessionMode, SessionModeState,
    SessionNotification, SessionUpdate, SetSessionModeRequest, SetSessionModeResponse,
};
use agent_client_protocol::v1::{ConnectionTo, Responder};
use agent_client_protocol::{Agent, Client, Error, ErrorCode, Lines};
use anyhow::Context;
use etcetera::BaseStrategy;
use serde_json::json;
use tapedeck_acp_agent::wire::{self, Incoming, Wire};
use tokio::io::AsyncWrite;
use tokio_util::sync::CancellationToken;

use super::memory::{self, Memories, Memory};
use super::script;
use super::turn::{Death, Ending, Turn};
use super::updates;

const MODE: &str = "default";
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What the demo agent is started with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Where sessions are kept; without it below the user's state directory.
    pub(crate) state_dir: Option<PathBuf>,
}

/// Serves one client on stdin and stdout until it closes its end.
pub(crate) async fn serve_stdio(options: Options) -> anyhow::Result<()> {
    let directory = match options.state_dir {
        Some(directory) => directory,
        None => default_state_dir()?,
    };
    let incoming = wire::stdin_lines().context("cannot read stdin")?;
    serve(Memories::new(directory), incoming, tokio::io::stdout()).await?;
    Ok(())
}

fn default_state_dir() -> anyhow::Result<PathBuf> {
    let base = etcetera::choose_base_strategy()
        .context("there is no home directory to keep sessions in")?;
    let state = base.state_dir().unwrap_or_else(|| base.data_dir());
    Ok(state.join("tapedeck").join("demo-agent"))
}

/// Serves one client on the given pipes.
pub(super) async fn serve<W>(memories: Memories, incoming: Incoming, writer: W) -> Result<(), Error>
where
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (wire, outgoing, writing) = wire::open(writer);
    let demo = Arc::new(DemoAgent {
        sessions: Mutex::default(),
        memories,
        wire,
    });
    let serving = connect(demo, Lines::new(outgoing, incoming));
    let (served, written) = tokio::join!(serving, writing);
    match written {
        // The client has gone without a word, which is its right.
        Err(_) => Ok(()),
        Ok(()) => served,
    }
}

async fn connect(
    demo: Arc<DemoAgent>,
    transport: Lines<wire::Outgoing, Incoming>,
) -> Result<(), Error> {
    let (new, load, mode, prompt, cancel) = (
        Arc::clone(&demo),
        Arc::clone(&demo),
        Arc::clone(&demo),
        Arc::clone(&demo),
        demo,
    );
    Agent
        .v1()
        .name("tapedeck-demo-agent")
        .on_receive_request(
            async |_request: InitializeRequest, responder, _connection| {
                responder.respond(initialize())
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: NewSessionRequest, responder, _connection| {
                responder.respond_with_result(new.new_session(request).await)
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: LoadSessionRequest, responder, connection| {
                responder.respond_with_result(load.load_session(request, &connection).await)
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: SetSessionModeRequest, responder, _connection| {
                responder.respond_with_result(mode.set_mode(&request))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, connection| {
                prompt.prompt(request, responder, connection)
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_notification(
            async move |request: CancelNotification, _connection| {
                cancel.cancel(&request.session_id);
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .connect_to(transport)
        .await
}

fn initialize() -> InitializeResponse {
    InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(AgentCapabilities::new().load_session(true))
        .agent_info(
            Implementation::new("tapedeck-demo-agent", env!("CARGO_PKG_VERSION"))
                .title("Tapedeck demo agent".to_owned()),
        )
}

fn modes() -> SessionModeState {
    SessionModeState::new(MODE, vec![SessionMode::new(MODE, "Default")])
}

#[derive(Debug)]
struct DemoAgent {
    sessions: Mutex<HashMap<SessionId, Session>>,
    memories: Memories,
    wire: Wire,
}

#[derive(Debug)]
struct Session {
    cwd: PathBuf,
    /// Cancels the turn in progress, if there is one.
    running: Option<CancellationToken>,
}

impl DemoAgent {
    async fn new_session(&self, request: NewSessionRequest) -> Result<NewSessionResponse, Error> {
        require_absolute(&request.cwd)?;
        let id = format!("demo-{:016x}", rand::random::<u64>());
        self.keep(&id, &Memory::default()).await?;
        let session = Session {
            cwd: request.cwd,
            running: None,
        };
        self.sessions().insert(SessionId::new(id.clone()), session);
        Ok(NewSessionResponse::new(id).modes(modes()))
    }

    /// Tells the conversation again, then answers.
    async fn load_session(
        &self,
        request: LoadSessionRequest,
        connection: &ConnectionTo<Client>,
    ) -> Result<LoadSessionResponse, Error> {
        require_absolute(&request.cwd)?;
        let id = request.session_id;
        let memory = self.recall(&id).await?;
        self.idle_session(&id, request.cwd)?;
        for (at, turn) in memory.turns.iter().enumerate() {
            self.replay(&id, updates::prompt(&turn.prompt), connection)
                .await?;
            if !turn.answer.is_empty() {
                let message = MessageId::from(format!("message-{}-1", at + 1));
                let update = updates::message(&message, &turn.answer);
                self.replay(&id, update, connection).await?;
            }
        }
        Ok(LoadSessionResponse::new().modes(modes()))
    }

    fn idle_session(&self, id: &SessionId, cwd: PathBuf) -> Result<(), Error> {
        let mut sessions = self.sessions();
        if sessions
            .get(id)
            .is_some_and(|session| session.running.is_some())
        {
            return Err(busy(id));
        }
        sessions.insert(id.clone(), Session { cwd, running: None });
        Ok(())
    }

    async fn replay(
        &self,
        id: &SessionId,
        update: SessionUpdate,
        connection: &ConnectionTo<Client>,
    ) -> Result<(), Error> {
        self.wire.admit().await;
        connection.send_notification(SessionNotification::new(id.clone(), update))
    }

    fn set_mode(&self, request: &SetSessionModeRequest) -> Result<SetSessionModeResponse, Error> {
        if !self.sessions().contains_key(&request.session_id) {
            return Err(unknown(&request.session_id));
        }
        if request.mode_id.0.as_ref() != MODE {
            return Err(invalid(format!("there is no mode `{}`", request.mode_id)));
        }
        Ok(SetSessionModeResponse::new())
    }

    fn cancel(&self, id: &SessionId) {
        if let Some(running) = self
            .sessions()
            .get(id)
            .and_then(|session| session.running.as_ref())
        {
            running.cancel();
        }
    }

    /// Starts the turn and leaves: the connection has to hear a cancel meanwhile.
    fn prompt(
        self: &Arc<Self>,
        request: PromptRequest,
        responder: Responder<PromptResponse>,
        connection: ConnectionTo<Client>,
    ) -> Result<(), Error> {
        let (cwd, cancel) = match self.begin_turn(&request.session_id) {
            Ok(begun) => begun,
            Err(error) => return responder.respond_with_error(error),
        };
        let demo = Arc::clone(self);
        connection.clone().spawn(async move {
            let id = request.session_id.clone();
            let result = demo.turn(request, cwd, cancel, connection).await;
            demo.end_turn(&id);
            responder.respond_with_result(result)
        })
    }

    fn begin_turn(&self, id: &SessionId) -> Result<(PathBuf, CancellationToken), Error> {
        let mut sessions = self.sessions();
        let session = sessions.get_mut(id).ok_or_else(|| unknown(id))?;
        if session.running.is_some() {
            return Err(busy(id));
        }
        let cancel = CancellationToken::new();
        session.running = Some(cancel.clone());
        Ok((session.cwd.clone(), cancel))
    }

    fn end_turn(&self, id: &SessionId) {
        if let Some(session) = self.sessions().get_mut(id) {
            session.running = None;
        }
    }

    async fn turn(
        &self,
        request: PromptRequest,
        cwd: PathBuf,
        cancel: CancellationToken,
        connection: ConnectionTo<Client>,
    ) -> Result<PromptResponse, Error> {
        let text = last_text(&request.prompt)?;
        let script = script::parse(text).map_err(|error| invalid(error.to_string()))?;
        let mut memory = self.recall(&request.session_id).await?;
        let earlier = memory
            .turns
            .iter()
            .map(|turn| turn.prompt.clone())
            .collect();
        let prompt = script::last_paragraph(text);
        memory.turns.push(memory::Turn {
            prompt,
            answer: String::new(),
        });
        self.keep(&request.session_id.0, &memory).await?;

        let mut turn = Turn {
            connection,
            wire: self.wire.clone(),
            session: request.session_id,
            cwd,
            cancel,
            earlier,
            said: String::new(),
            open_calls: Vec::new(),
            named: 0,
        };
        let answer = match turn.perform(script).await {
            Ending::Stopped(reason) => Ok(PromptResponse::new(reason)),
            Ending::Failed(error) => Err(error),
            Ending::Died(death) => {
                // What was said before the end is on its way and should be seen.
                let _ = tokio::time::timeout(LAST_WORDS, self.wire.drained()).await;
                die(death)
            }
        };
        if let Some(last) = memory.turns.last_mut() {
            last.answer = turn.said;
        }
        self.keep(&turn.session.0, &memory).await?;
        answer
    }

    async fn recall(&self, id: &SessionId) -> Result<Memory, Error> {
        let recalled = self.memories.recall(&id.0).await;
        recalled
            .map_err(Error::into_internal_error)?
            .ok_or_else(|| unknown(id))
    }

    async fn keep(&self, id: &str, memory: &Memory) -> Result<(), Error> {
        self.memories
            .keep(id, memory)
            .await
            .map_err(Error::into_internal_error)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The user's part of the prompt: what comes before the last text is context.
fn last_text(prompt: &[ContentBlock]) -> Result<&str, Error> {
    let text = prompt.iter().rev().find_map(|block| match block {
        ContentBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    text.ok_or_else(|| invalid("the prompt has no text".to_owned()))
}

fn require_absolute(cwd: &Path) -> Result<(), Error> {
    if cwd.is_absolute() {
        Ok(())
    } else {
        Err(invalid("`cwd` must be absolute".to_owned()))
    }
}

fn unknown(id: &SessionId) -> Error {
    Error::new(
        ErrorCode::RESOURCE_NOT_FOUND,
        format!("there is no session `{id}`"),
    )
    .data(json!({"sessionId": id}))
}

fn busy(id: &SessionId) -> Error {
    Error::new(
        ErrorCode::INVALID_REQUEST,
        format!("session `{id}` has a turn in progress"),
    )
}

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::INVALID_PARAMS, message)
}

#[expect(
    clippy::exit,
    clippy::disallowed_methods,
    reason = "dying in mid-turn is the step"
)]
fn die(death: Death) -> ! {
    match death {
        Death::Abort => std::process::abort(),
        Death::Exit(code) => std::process::exit(i32::from(code)),
    }
}
