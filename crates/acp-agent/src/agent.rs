//! The agent's side of the protocol: which requests there are and who answers them. No handler waits
//! for the control plane: the editor must be heard meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    AgentCapabilities, CancelNotification, CloseSessionRequest, CloseSessionResponse,
    Implementation, InitializeRequest, InitializeResponse, ListSessionsRequest, LoadSessionRequest,
    LoadSessionResponse, McpCapabilities, NewSessionRequest, NewSessionResponse,
    PromptCapabilities, PromptRequest, PromptResponse, ResumeSessionRequest, ResumeSessionResponse,
    SessionAdditionalDirectoriesCapabilities, SessionCapabilities, SessionCloseCapabilities,
    SessionId, SessionListCapabilities, SessionResumeCapabilities, SetSessionConfigOptionRequest,
    SetSessionModeRequest,
};
use agent_client_protocol::v1::{ConnectionTo, Responder};
use agent_client_protocol::{Agent, Client as Editor, Error, Lines};
use futures::StreamExt as _;
use tapedeck_domain::session::ApprovalPolicy;
use tokio::io::AsyncWrite;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::desk::{Desk, session_id};
use crate::failure::{invalid, of_call, of_host};
use crate::host::Host;
use crate::listing;
use crate::opening::Opening;
use crate::prompt;
use crate::session::{Attaching, Command, Start, attach};
use crate::wire::{self, Incoming};

/// For what the editor wrote last to reach its place.
const LAST_READ: Duration = Duration::from_millis(200);
/// For what it told to be done, such as a cancel.
const LAST_ERRANDS: Duration = Duration::from_secs(5);
/// For the last answers to go out once the editor has closed its end.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Serves one editor on its pipes until it has gone. The runs that it started go on.
pub async fn serve<W>(
    host: Arc<dyn Host>,
    policy: ApprovalPolicy,
    incoming: Incoming,
    writer: W,
) -> Result<(), Error>
where
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (wire, outgoing, writing) = wire::open(writer);
    let gone = CancellationToken::new();
    let desk = Arc::new(Desk::new(host, wire, gone.clone()));
    let ending = see_through(desk.errands.clone(), gone.clone());
    let transport = Lines::new(outgoing, until_the_end(incoming, ending));
    let facade = Facade { desk, policy };
    let serving = Box::pin(connect(facade, transport));
    let writing = async {
        let written = writing.await;
        // A client that reads no more has gone, which is its right.
        gone.cancel();
        written
    };
    let left = async {
        gone.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        (served, written) = async { tokio::join!(serving, writing) } => match written {
            Ok(()) => served,
            // Nothing can be said to an editor that reads no more.
            Err(_gone) => Ok(()),
        },
        () = left => Ok(()),
    }
}

/// The editor writes no more: what it has told is still done. "Stop", and then closing the editor, has
/// to stop the run.
async fn see_through(errands: TaskTracker, gone: CancellationToken) {
    tokio::time::sleep(LAST_READ).await;
    errands.close();
    if tokio::time::timeout(LAST_ERRANDS, errands.wait())
        .await
        .is_err()
    {
        tracing::warn!("the editor has gone before all was done that it told");
    }
    gone.cancel();
}

/// The same lines; they end once that is done which their end brings about.
fn until_the_end(
    incoming: Incoming,
    ending: impl Future<Output = ()> + Send + 'static,
) -> Incoming {
    let end = futures::stream::once(async move {
        ending.await;
        None
    });
    Box::pin(incoming.map(Some).chain(end).filter_map(std::future::ready))
}

/// What handlers work with.
#[derive(Debug, Clone)]
struct Facade {
    desk: Arc<Desk>,
    /// Who answers questions in new sessions.
    policy: ApprovalPolicy,
}

#[expect(
    clippy::too_many_lines,
    reason = "it is one table, and each builder is a type of its own"
)]
async fn connect(facade: Facade, transport: Lines<wire::Outgoing, Incoming>) -> Result<(), Error> {
    let on = || facade.clone();
    let (hello, new, load, resume, list, close) = (on(), on(), on(), on(), on(), on());
    let (told, mode, option, cancel) = (on(), on(), on(), on());
    Agent
        .v1()
        .name("tapedeck")
        .on_receive_request(
            async move |request: InitializeRequest, responder, _editor| {
                hello.desk.introduced(&request.client_capabilities);
                responder.respond(introduction())
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: NewSessionRequest, responder, editor: ConnectionTo<Editor>| {
                let errand = new.desk.errand();
                let facade = new.clone();
                let task = facade.new_session(request, responder, editor.clone(), errand);
                editor.spawn(task)
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: LoadSessionRequest, responder, editor: ConnectionTo<Editor>| {
                let task = load.clone().load(request, responder, editor.clone());
                editor.spawn(task)
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: ResumeSessionRequest, responder, editor: ConnectionTo<Editor>| {
                let task = resume.clone().resume(request, responder, editor.clone());
                editor.spawn(task)
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: ListSessionsRequest, responder, editor: ConnectionTo<Editor>| {
                let desk = Arc::clone(&list.desk);
                let errand = desk.errand();
                editor.spawn(async move {
                    let _errand = errand;
                    let listed = async { listing::list(&desk.client().await?, &request).await };
                    responder.respond_with_result(listed.await)
                })
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: CloseSessionRequest, responder, editor: ConnectionTo<Editor>| {
                let errand = close.desk.errand();
                editor.spawn(close.clone().close(request, responder, errand))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, _editor| {
                told.prompt(&request, responder)
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: SetSessionModeRequest, responder, _editor| {
                let command = Command::SetMode {
                    mode: request.mode_id.0.to_string(),
                    responder,
                };
                mode.desk.tell(&request.session_id, command)
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: SetSessionConfigOptionRequest, responder, _editor| {
                let command = Command::SetOption {
                    id: request.config_id.0.to_string(),
                    value: request.value,
                    responder,
                };
                option.desk.tell(&request.session_id, command)
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_notification(
            async move |request: CancelNotification, _editor| {
                cancel.desk.tell(&request.session_id, Command::Cancel)
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .connect_to(transport)
        .await
}

fn introduction() -> InitializeResponse {
    let sessions = SessionCapabilities::new()
        .list(SessionListCapabilities::new())
        .resume(SessionResumeCapabilities::new())
        .close(SessionCloseCapabilities::new())
        .additional_directories(SessionAdditionalDirectoriesCapabilities::new());
    let capabilities = AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(PromptCapabilities::new().embedded_context(true))
        .mcp_capabilities(McpCapabilities::new().http(true).sse(true))
        .session_capabilities(sessions);
    let us = Implementation::new("tapedeck", env!("CARGO_PKG_VERSION"));
    InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .agent_info(us.title("Tapedeck".to_owned()))
}

impl Facade {
    async fn new_session(
        self,
        request: NewSessionRequest,
        responder: Responder<NewSessionResponse>,
        editor: ConnectionTo<Editor>,
        errand: TaskTrackerToken,
    ) -> Result<(), Error> {
        let made = self.create(request).await;
        let attaching = match made {
            Ok(attaching) => attaching,
            Err(error) => return responder.respond_with_error(error),
        };
        let choices = attaching.choices(&self.desk);
        let id = attaching.session.session_id;
        let place = self.desk.open(id);
        let answer = NewSessionResponse::new(id.to_string())
            .modes(choices.modes())
            .config_options(choices.options());
        // Only now does the editor know the session that the first update is about.
        responder.respond(answer)?;
        drop(errand);
        attach(self.desk, place, attaching, Start::New, editor).await;
        Ok(())
    }

    async fn create(&self, request: NewSessionRequest) -> Result<Attaching, Error> {
        let opening = Opening::new(
            request.cwd,
            request.additional_directories,
            request.mcp_servers,
        )?;
        self.admits("cwd", opening.cwd())?;
        self.admits_all(&opening)?;
        let creation = opening.creation(self.policy)?;
        let client = self.desk.client().await?;
        let session = client.create_session(&creation).await;
        let session = session.map_err(|error| of_call(&error, ""))?;
        let created = self.desk.host.created(&session).await;
        created.map_err(|error| of_host(&error))?;
        Ok(Attaching { client, session })
    }

    fn admits(&self, field: &str, directory: &Path) -> Result<(), Error> {
        let admitted = self.desk.host.admits(directory);
        admitted.map_err(|reason| invalid(format!("`{field}`: {reason}")))
    }

    /// Whether the agent can be given what the editor gives it besides.
    fn admits_all(&self, opening: &Opening) -> Result<(), Error> {
        let mut directories = opening.directories().iter();
        directories.try_for_each(|directory| self.admits("additionalDirectories", directory))
    }

    async fn load(
        self,
        request: LoadSessionRequest,
        responder: Responder<LoadSessionResponse>,
        editor: ConnectionTo<Editor>,
    ) -> Result<(), Error> {
        let opening = Opening::new(
            request.cwd,
            request.additional_directories,
            request.mcp_servers,
        );
        let start = Start::Load(responder);
        self.open_again(&request.session_id, opening, start, editor)
            .await
    }

    async fn resume(
        self,
        request: ResumeSessionRequest,
        responder: Responder<ResumeSessionResponse>,
        editor: ConnectionTo<Editor>,
    ) -> Result<(), Error> {
        let opening = Opening::new(
            request.cwd,
            request.additional_directories,
            request.mcp_servers,
        );
        let start = Start::Resume(responder);
        self.open_again(&request.session_id, opening, start, editor)
            .await
    }

    async fn open_again(
        self,
        id: &SessionId,
        opening: Result<Opening, Error>,
        start: Start,
        editor: ConnectionTo<Editor>,
    ) -> Result<(), Error> {
        match self.reopen(id, opening).await {
            Ok(attaching) => {
                let place = self.desk.open(attaching.session.session_id);
                attach(self.desk, place, attaching, start, editor).await;
                Ok(())
            }
            Err(error) => start.refuse(error),
        }
    }

    async fn reopen(
        &self,
        id: &SessionId,
        opening: Result<Opening, Error>,
    ) -> Result<Attaching, Error> {
        let opening = opening?;
        self.admits_all(&opening)?;
        let session_id = session_id(id)?;
        let client = self.desk.client().await?;
        let session = client.session(session_id).await;
        let mut session = session.map_err(|error| of_call(&error, &id.0))?;
        if let Some(change) = opening.change(&session)? {
            match client.update_session(session_id, &change).await {
                Ok(changed) => session = changed,
                // It holds from the next time on: a run is in progress, or there are none any more.
                Err(error) if error.problem().is_some_and(|problem| problem.status == 409) => {
                    tracing::info!(session.id = %session_id, %error, "settings stay as they are");
                }
                Err(error) => return Err(of_call(&error, &id.0)),
            }
        }
        Ok(Attaching { client, session })
    }

    /// Ends the work on a session and lets go of it. It stays on the tape and can be loaded again.
    async fn close(
        self,
        request: CloseSessionRequest,
        responder: Responder<CloseSessionResponse>,
        _errand: TaskTrackerToken,
    ) -> Result<(), Error> {
        let closed = async {
            let id = session_id(&request.session_id)?;
            let client = self.desk.client().await?;
            let cancelled = client.cancel_session(id).await;
            cancelled.map_err(|error| of_call(&error, &request.session_id.0))?;
            self.desk.close(id);
            Ok(CloseSessionResponse::new())
        };
        responder.respond_with_result(closed.await)
    }

    fn prompt(
        &self,
        request: &PromptRequest,
        responder: Responder<PromptResponse>,
    ) -> Result<(), Error> {
        let text = match prompt::text_of(&request.prompt) {
            Ok(text) => text,
            Err(error) => return responder.respond_with_error(error),
        };
        self.desk
            .tell(&request.session_id, Command::Prompt { text, responder })
    }
}
