//! An editor: the client's side of the official library on the pipes of a real process. It records
//! what it is told, in order, and every line as it came.

use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    CancelNotification, ClientCapabilities, ContentBlock, CreateElicitationRequest,
    CreateElicitationResponse, ElicitationAction, ElicitationCapabilities,
    ElicitationFormCapabilities, InitializeRequest, InitializeResponse, LoadSessionRequest,
    LoadSessionResponse, NewSessionRequest, PromptRequest, RequestPermissionOutcome,
    RequestPermissionRequest, RequestPermissionResponse, SelectedPermissionOutcome, SessionId,
    SessionNotification, StopReason,
};
use agent_client_protocol::v1::{ConnectionTo, Responder};
use agent_client_protocol::{Agent, Client, Error, JsonRpcRequest, Lines};
use futures::{Sink, Stream};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::LIMIT;
use crate::server::Place;
use crate::wait::{eventually, within};

/// The longest line that the agent may write.
const LINE: usize = 1 << 20;

/// A question that stands at the editor.
pub(super) struct Asked {
    pub(super) request: RequestPermissionRequest,
    responder: Responder<RequestPermissionResponse>,
}

impl Asked {
    pub(super) fn choose(self, option: &'static str) {
        let chosen = SelectedPermissionOutcome::new(option);
        self.answer(RequestPermissionOutcome::Selected(chosen));
    }

    pub(super) fn answer(self, outcome: RequestPermissionOutcome) {
        let response = RequestPermissionResponse::new(outcome);
        self.responder.respond(response).unwrap();
    }

    /// Waits until the agent takes the question back.
    pub(super) async fn withdrawn(self) {
        let cancellation = self.responder.cancellation();
        within("the question is withdrawn", LIMIT, cancellation.cancelled()).await;
        self.responder
            .respond_with_error(Error::request_cancelled())
            .unwrap();
    }
}

#[derive(Default)]
struct Seen {
    /// Updates with their sessions, as JSON.
    updates: Vec<(String, Value)>,
    questions: Vec<Asked>,
    forms: Vec<(
        CreateElicitationRequest,
        Responder<CreateElicitationResponse>,
    )>,
    lines: Vec<String>,
}

pub(super) struct Editor {
    connection: ConnectionTo<Agent>,
    pub(super) hello: InitializeResponse,
    seen: Arc<Mutex<Seen>>,
    child: Child,
    /// Ends the connection, and with it closes the pipes.
    leave: Option<oneshot::Sender<()>>,
    work: JoinSet<()>,
}

impl Editor {
    /// Starts `tapedeck acp` and says hello.
    pub(super) async fn start(place: &Place, arguments: &[&str]) -> Self {
        let mut command = place.command(&["acp"]);
        command.args(arguments);
        Self::of_command(command).await
    }

    pub(super) async fn of_command(mut command: tokio::process::Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let transport = Lines::new(outgoing(stdin), incoming(stdout, Arc::clone(&seen)));
        let (leave, left) = oneshot::channel();
        let (connected, connection) = oneshot::channel();
        let mut work = JoinSet::new();
        work.spawn(connect(transport, Arc::clone(&seen), connected, left));
        let connection: ConnectionTo<Agent> = connection.await.unwrap();
        let forms = ElicitationCapabilities::new().form(ElicitationFormCapabilities::new());
        let request = InitializeRequest::new(ProtocolVersion::V1)
            .client_capabilities(ClientCapabilities::new().elicitation(forms));
        let hello = connection.send_request(request).block_task();
        let hello = within("hello", LIMIT, hello).await.unwrap();
        Self {
            connection,
            hello,
            seen,
            child,
            leave: Some(leave),
            work,
        }
    }

    pub(super) async fn ask<R: JsonRpcRequest>(&self, request: R) -> Result<R::Response, Error> {
        let answer = self.connection.send_request(request).block_task();
        within("an answer", LIMIT, answer).await
    }

    /// A new session in a directory.
    pub(super) async fn session(&self, place: &Place) -> SessionId {
        let made = self.ask(NewSessionRequest::new(place.work())).await;
        made.unwrap().session_id
    }

    pub(super) async fn load(
        &self,
        place: &Place,
        session: &SessionId,
    ) -> Result<LoadSessionResponse, Error> {
        let request = LoadSessionRequest::new(session.clone(), place.work());
        self.ask(request).await
    }

    /// Prompts, and waits for the end of the turn.
    pub(super) async fn prompt(
        &self,
        session: &SessionId,
        text: &str,
    ) -> Result<StopReason, Error> {
        let prompt = vec![ContentBlock::from(text)];
        let answer = self
            .ask(PromptRequest::new(session.clone(), prompt))
            .await?;
        Ok(answer.stop_reason)
    }

    pub(super) fn cancel(&self, session: &SessionId) {
        let cancel = CancelNotification::new(session.clone());
        self.connection.send_notification(cancel).unwrap();
    }

    /// What was told of a session so far.
    pub(super) fn updates(&self, session: &SessionId) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        let of_session = seen.updates.iter().filter(|(id, _)| *id == *session.0);
        of_session.map(|(_, update)| update.clone()).collect()
    }

    /// Forgets what was told so far.
    pub(super) fn forget(&self) {
        self.seen.lock().unwrap().updates.clear();
    }

    /// The agent's words so far.
    pub(super) fn said(&self, session: &SessionId) -> String {
        texts(&self.updates(session), "agent_message_chunk")
    }

    pub(super) async fn hears(&self, session: &SessionId, words: &str) {
        let look = async || self.said(session).contains(words).then_some(());
        eventually(&format!("the agent says {words:?}"), LIMIT, look).await;
    }

    /// The next question about a tool.
    pub(super) async fn asked(&self) -> Asked {
        let look = async || {
            let mut seen = self.seen.lock().unwrap();
            (!seen.questions.is_empty()).then(|| seen.questions.remove(0))
        };
        eventually("the agent asks", LIMIT, look).await
    }

    /// Answers the next form.
    pub(super) async fn fills_in(&self, action: ElicitationAction) -> CreateElicitationRequest {
        let look = async || self.seen.lock().unwrap().forms.pop();
        let (request, responder) = eventually("the agent has a form", LIMIT, look).await;
        let response = CreateElicitationResponse::new(action);
        responder.respond(response).unwrap();
        request
    }

    /// How many questions wait here.
    pub(super) fn open_questions(&self) -> usize {
        self.seen.lock().unwrap().questions.len()
    }

    /// SIGKILL, as an editor that crashes gives it to nobody but its agent.
    pub(super) async fn kill(mut self) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        self.child.wait().await.unwrap();
        self.check_lines();
    }

    /// Closes the pipes as an editor does; the agent must be gone within a second or so.
    pub(super) async fn leaves(mut self) -> ExitStatus {
        let _gone = self.leave.take().map(|leave| leave.send(()));
        while self.work.join_next().await.is_some() {}
        let limit = Duration::from_secs(5);
        let status = within("the agent ends", limit, self.child.wait()).await;
        self.check_lines();
        status.unwrap()
    }

    /// Nothing but the protocol, in lines that any client can read.
    fn check_lines(&self) {
        let seen = self.seen.lock().unwrap();
        assert!(!seen.lines.is_empty());
        for line in &seen.lines {
            let message: Value = serde_json::from_str(line).unwrap();
            assert_eq!(message["jsonrpc"], "2.0", "{line}");
            assert!(line.len() < LINE, "{} bytes in one line", line.len());
        }
    }
}

/// The texts of all updates of a kind.
pub(super) fn texts(updates: &[Value], kind: &str) -> String {
    let of_kind = updates
        .iter()
        .filter(|update| update["sessionUpdate"] == kind);
    of_kind
        .filter_map(|update| update["content"]["text"].as_str())
        .collect()
}

type Incoming = Pin<Box<dyn Stream<Item = std::io::Result<String>> + Send>>;
type Outgoing = Pin<Box<dyn Sink<String, Error = std::io::Error> + Send>>;

fn outgoing(stdin: ChildStdin) -> Outgoing {
    Box::pin(futures::sink::unfold(
        stdin,
        async |mut stdin, line: String| {
            stdin.write_all(format!("{line}\n").as_bytes()).await?;
            stdin.flush().await?;
            Ok(stdin)
        },
    ))
}

fn incoming(stdout: ChildStdout, seen: Arc<Mutex<Seen>>) -> Incoming {
    let lines = BufReader::new(stdout).lines();
    Box::pin(futures::stream::unfold(
        (lines, seen),
        async |(mut lines, seen)| {
            let line = lines.next_line().await.transpose()?;
            if let Ok(line) = &line {
                seen.lock().unwrap().lines.push(line.clone());
            }
            Some((line, (lines, seen)))
        },
    ))
}

async fn connect(
    transport: Lines<Outgoing, Incoming>,
    seen: Arc<Mutex<Seen>>,
    connected: oneshot::Sender<ConnectionTo<Agent>>,
    left: oneshot::Receiver<()>,
) {
    let (told, asked, forms) = (Arc::clone(&seen), Arc::clone(&seen), seen);
    let ended = Client
        .v1()
        .on_receive_notification(
            async move |told_now: SessionNotification, _agent| {
                let update = serde_json::to_value(&told_now.update).unwrap();
                let id = told_now.session_id.0.to_string();
                told.lock().unwrap().updates.push((id, update));
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: RequestPermissionRequest, responder, _agent| {
                let question = Asked { request, responder };
                asked.lock().unwrap().questions.push(question);
                Ok(())
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: CreateElicitationRequest, responder, _agent| {
                forms.lock().unwrap().forms.push((request, responder));
                Ok(())
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(transport, async move |connection| {
            let _unwanted = connected.send(connection);
            let _left = left.await;
            Ok(())
        })
        .await;
    // An agent that was killed ends the connection as well.
    drop(ended);
}
