//! The demo agent over in-process pipes, driven by the protocol crate's own client side.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    CancelNotification, ContentBlock, InitializeRequest, LoadSessionRequest, NewSessionRequest,
    PlanEntryStatus, PromptRequest, PromptResponse, RequestPermissionOutcome,
    RequestPermissionRequest, RequestPermissionResponse, SelectedPermissionOutcome, SessionId,
    SessionNotification, SessionUpdate, SetSessionModeRequest, StopReason, ToolCallContent,
    ToolCallStatus, ToolKind,
};
use agent_client_protocol::{Agent, ByteStreams, Client, Error};
use rstest::rstest;
use serde_json::json;
use tapedeck_acp_agent::wire::Incoming;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, split};
use tokio::sync::{Barrier, Notify};
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use super::agent::serve;
use super::memory::Memories;

mod sessions;
mod steps;

const PIPE: usize = 64 << 10;
const BOUND: Duration = Duration::from_secs(20);

/// How the client answers permission questions.
#[derive(Clone)]
enum Answer {
    Choose(&'static str),
    Cancelled,
    /// Chooses as soon as this many questions are open.
    Together(Arc<Barrier>),
    Never(Arc<Notify>),
}

#[derive(Clone)]
struct Driver {
    connection: ConnectionTo<Agent>,
    updates: Arc<Mutex<Vec<SessionUpdate>>>,
    arrived: Arc<Notify>,
}

impl Driver {
    async fn new_session(&self, cwd: &Path) -> SessionId {
        let request = NewSessionRequest::new(cwd);
        self.connection
            .send_request(request)
            .block_task()
            .await
            .unwrap()
            .session_id
    }

    async fn prompt(&self, session: &SessionId, text: &str) -> Result<StopReason, Error> {
        let prompt = PromptRequest::new(session.clone(), vec![ContentBlock::from(text)]);
        let answered: Result<PromptResponse, _> =
            self.connection.send_request(prompt).block_task().await;
        Ok(answered?.stop_reason)
    }

    fn cancel(&self, session: &SessionId) {
        self.connection
            .send_notification(CancelNotification::new(session.clone()))
            .unwrap();
    }

    /// Waits until an update satisfies `wanted`.
    async fn seen(&self, wanted: impl Fn(&SessionUpdate) -> bool) {
        loop {
            let arrived = self.arrived.notified();
            if self.updates.lock().unwrap().iter().any(&wanted) {
                return;
            }
            arrived.await;
        }
    }

    fn taken(&self) -> Vec<SessionUpdate> {
        std::mem::take(&mut self.updates.lock().unwrap())
    }
}

fn text_of(updates: &[SessionUpdate]) -> String {
    let text = |update: &SessionUpdate| match update {
        SessionUpdate::AgentMessageChunk(chunk) => match &chunk.content {
            ContentBlock::Text(text) => Some(text.text.clone()),
            _ => None,
        },
        _ => None,
    };
    updates.iter().filter_map(text).collect()
}

fn statuses_of(updates: &[SessionUpdate]) -> Vec<(String, ToolCallStatus)> {
    let status = |update: &SessionUpdate| match update {
        SessionUpdate::ToolCall(call) => Some((call.tool_call_id.0.to_string(), call.status)),
        SessionUpdate::ToolCallUpdate(update) => {
            Some((update.tool_call_id.0.to_string(), update.fields.status?))
        }
        _ => None,
    };
    updates.iter().filter_map(status).collect()
}

fn pipes() -> (DuplexStream, DuplexStream) {
    tokio::io::duplex(PIPE)
}

async fn serve_on(state: &Path, end: DuplexStream) -> Result<(), Error> {
    let (reader, writer) = split(end);
    let lines = BufReader::new(reader).lines();
    let incoming: Incoming = Box::pin(futures::stream::unfold(lines, async |mut lines| {
        lines
            .next_line()
            .await
            .transpose()
            .map(|line| (line, lines))
    }));
    serve(Memories::new(state.to_owned()), incoming, writer).await
}

/// One process of the agent, and what the client does with it.
async fn with_agent<T>(state: &Path, answer: Answer, main: impl AsyncFnOnce(Driver) -> T) -> T {
    let (ours, theirs) = pipes();
    let (reader, writer) = split(ours);
    let transport = ByteStreams::new(writer.compat_write(), reader.compat());
    let updates = Arc::new(Mutex::new(Vec::new()));
    let arrived = Arc::new(Notify::new());
    let (told, heard) = (Arc::clone(&updates), Arc::clone(&arrived));
    let client = Client
        .v1()
        .on_receive_notification(
            async move |notification: SessionNotification, _connection| {
                told.lock().unwrap().push(notification.update);
                heard.notify_waiters();
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |_question: RequestPermissionRequest, responder, connection| {
                let answer = answer.clone();
                connection.spawn(async move {
                    let outcome = match answer {
                        Answer::Choose(option) => selected(option),
                        Answer::Cancelled => RequestPermissionOutcome::Cancelled,
                        Answer::Together(barrier) => {
                            barrier.wait().await;
                            selected("allow-once")
                        }
                        Answer::Never(asked) => {
                            asked.notify_one();
                            responder.cancellation().cancelled().await;
                            RequestPermissionOutcome::Cancelled
                        }
                    };
                    responder.respond(RequestPermissionResponse::new(outcome))
                })
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(transport, async |connection| {
            let request = InitializeRequest::new(ProtocolVersion::V1);
            let hello = connection.send_request(request).block_task().await?;
            assert!(hello.agent_capabilities.load_session);
            Ok(main(Driver {
                connection,
                updates,
                arrived,
            })
            .await)
        });
    let both = async { tokio::join!(client, serve_on(state, theirs)) };
    let (told, served) = tokio::time::timeout(BOUND, both).await.expect("in time");
    served.expect("the agent ends well when its client leaves");
    told.unwrap()
}

fn selected(option: &'static str) -> RequestPermissionOutcome {
    RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option))
}

fn directories() -> (tempfile::TempDir, tempfile::TempDir) {
    (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
}

/// Runs one prompt in a new session.
async fn run(
    answer: Answer,
    cwd: &Path,
    text: &str,
) -> (Result<StopReason, Error>, Vec<SessionUpdate>) {
    let state = tempfile::tempdir().unwrap();
    with_agent(state.path(), answer, async |driver| {
        let session = driver.new_session(cwd).await;
        let stopped = driver.prompt(&session, text).await;
        (stopped, driver.taken())
    })
    .await
}
