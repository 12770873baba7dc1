//! The running connection to one agent: a writer, a reader that sorts messages, and what they
//! share. It owns the order of events, which is the order of the agent's lines; it must never let a
//! full event queue hold up an answer or a cancel, those go through the writer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::asking::Asking;
use super::rpc::{INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Message, Peer, write};
use super::services::Services;
use super::updates::Updates;
use super::{elicitation, permission};
use crate::backend::{Activity, AgentEvent, Failure, FormAnswer, Turn, TurnIo};
use crate::lines::LineReader;
use crate::process::Redactor;

const NOISE_SAMPLES: usize = 5;
const NOISE_LENGTH: usize = 200;

/// For answers on their way when the turn ends.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// One agent's connection. Dropping it ends its tasks.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: Peer,
    updates: Arc<Mutex<Updates>>,
    noise: Arc<Mutex<Noise>>,
    link: Arc<Mutex<Option<Arc<Link>>>>,
    end_input: CancellationToken,
    ended: watch::Receiver<Option<Result<(), Failure>>>,
    redactor: Redactor,
    _tasks: JoinSet<()>,
}

/// The turn that the agent works for. Between turns there is none.
#[derive(Debug)]
struct Link {
    events: mpsc::Sender<AgentEvent>,
    activity: Activity,
    asking: Mutex<Asking>,
    takes_forms: bool,
    services: Arc<Services>,
    stop_questions: CancellationToken,
    open_questions: watch::Receiver<usize>,
}

/// Lines on stdout that were no messages.
#[derive(Debug, Default)]
pub(super) struct Noise {
    lines: u64,
    samples: Vec<String>,
}

impl Noise {
    fn note(&mut self, line: &str, redactor: &Redactor) {
        if self.lines == 0 {
            tracing::warn!("the agent writes what is no message; the run's result counts it");
        }
        self.lines += 1;
        if self.samples.len() < NOISE_SAMPLES {
            let line = redactor.redact(line.to_owned()).replace('\0', "\u{fffd}");
            self.samples.push(line.chars().take(NOISE_LENGTH).collect());
        }
    }

    pub(super) fn as_json(&self) -> Option<Value> {
        (self.lines > 0).then(|| json!({"lines": self.lines, "first": self.samples}))
    }
}

/// The pipes to the agent and how to read them.
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) line_limit: usize,
    pub(super) redactor: Redactor,
}

impl Connection {
    pub(super) fn start(pipes: Pipes) -> Self {
        let (peer, messages) = Peer::new();
        let end_input = CancellationToken::new();
        let (ended_sender, ended) = watch::channel(None);
        let updates = Arc::new(Mutex::new(Updates::new(pipes.redactor.clone())));
        let noise = Arc::new(Mutex::new(Noise::default()));
        let link = Arc::new(Mutex::new(None));
        let redactor = pipes.redactor.clone();
        let reader = Reader {
            lines: LineReader::new(pipes.stdout, pipes.line_limit),
            peer: peer.clone(),
            updates: Arc::clone(&updates),
            noise: Arc::clone(&noise),
            link: Arc::clone(&link),
            redactor: pipes.redactor,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(write(pipes.stdin, messages, end_input.clone()));
        let closing = peer.clone();
        tasks.spawn(async move {
            let end = reader.run().await;
            ended_sender.send_replace(Some(end));
            closing.close();
        });
        Self {
            peer,
            updates,
            noise,
            link,
            end_input,
            ended,
            redactor,
            _tasks: tasks,
        }
    }

    /// From now on the agent works for this turn; `count` is kept at the number of its open
    /// questions.
    pub(super) fn attach(
        &self,
        turn: &Turn,
        io: &TurnIo,
        services: Arc<Services>,
        count: watch::Sender<usize>,
    ) {
        let stop_questions = CancellationToken::new();
        let open_questions = count.subscribe();
        let asking = Asking::new(
            (Arc::clone(&io.questions), turn.approval_policy),
            self.peer.clone(),
            (io.events.clone(), self.redactor.clone()),
            stop_questions.clone(),
            count,
        );
        let link = Link {
            events: io.events.clone(),
            activity: io.activity.clone(),
            asking: Mutex::new(asking),
            takes_forms: io.questions.takes_forms(),
            services,
            stop_questions,
            open_questions,
        };
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(link));
    }

    /// The turn is over and the agent works for none.
    pub(super) fn detach(&self) {
        let link = self
            .link
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(link) = link {
            link.stop_questions.cancel();
        }
    }

    fn link(&self) -> Option<Arc<Link>> {
        link_of(&self.link)
    }

    /// The state of the session's reports. Not to be held across an await.
    pub(super) fn updates(&self) -> MutexGuard<'_, Updates> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came since this was last asked for.
    pub(super) fn take_noise(&self) -> Noise {
        let mut noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *noise)
    }

    pub(super) async fn emit(&self, events: Vec<AgentEvent>) {
        if let Some(link) = self.link() {
            link.emit(events).await;
        }
    }

    /// Answers all questions as cancelled, those that still come too.
    pub(super) fn cancel_questions(&self) {
        if let Some(link) = self.link() {
            link.stop_questions.cancel();
        }
    }

    /// Sends what is queued, open answers included, and closes the agent's stdin.
    pub(super) async fn finish_input(&self) {
        if let Some(link) = self.link() {
            link.stop_questions.cancel();
            let mut open_questions = link.open_questions.clone();
            let closed = open_questions.wait_for(|open| *open == 0);
            drop(tokio::time::timeout(ANSWER_LIMIT, closed).await);
        }
        self.end_input.cancel();
    }

    /// How the agent's output ended, if it did: in good order or with a failure.
    pub(super) fn ended(&self) -> Option<Result<(), Failure>> {
        self.ended.borrow().clone()
    }
}

fn link_of(link: &Mutex<Option<Arc<Link>>>) -> Option<Arc<Link>> {
    link.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A tool call that shows a terminal shows what that has put out so far.
fn show_terminals(content: &mut Value, services: &Services) {
    for block in content.as_array_mut().into_iter().flatten() {
        if block["type"] == "terminal"
            && let Some(output) = block["terminalId"]
                .as_str()
                .and_then(|id| services.shown(id))
        {
            block["output"] = output.into();
        }
    }
}

struct Reader {
    lines: LineReader<ChildStdout>,
    peer: Peer,
    updates: Arc<Mutex<Updates>>,
    noise: Arc<Mutex<Noise>>,
    link: Arc<Mutex<Option<Arc<Link>>>>,
    redactor: Redactor,
}

impl Link {
    fn asking(&self) -> MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn emit(&self, events: Vec<AgentEvent>) {
        for event in events {
            // The vigil notices a receiver that is gone.
            if self.events.send(event).await.is_err() {
                return;
            }
        }
    }
}

impl Reader {
    async fn run(mut self) -> Result<(), Failure> {
        loop {
            match self.lines.next_line().await {
                Ok(Some(line)) => {
                    if let Some(link) = link_of(&self.link) {
                        link.activity.touch();
                    }
                    self.sort(&line.text).await;
                }
                Ok(None) => return Ok(()),
                Err(error) => return Err(Failure::of_line(&error)),
            }
        }
    }

    async fn sort(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        match Message::parse(line) {
            Some(Message::Response { id, result }) => {
                if self.peer.method_of(id) == Some("session/prompt") {
                    self.updates().answered();
                }
                self.peer.resolve(id, result);
            }
            Some(Message::Notification { method, params }) => self.notified(&method, params).await,
            Some(Message::Request { id, method, params }) => {
                self.requested(id, &method, params).await;
            }
            Some(Message::Unread { id }) => self.unread(id, line).await,
            None => {
                let mut noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
                noise.note(line, &self.redactor);
            }
        }
    }

    async fn notified(&mut self, method: &str, mut params: Value) {
        match method {
            "session/update" => {
                if let Some(link) = link_of(&self.link)
                    && let Some(content) = params.pointer_mut("/update/content")
                {
                    show_terminals(content, &link.services);
                }
                let events = self.updates().notified(params);
                self.emit(events).await;
            }
            "$/cancel_request" => {
                if let Some(link) = link_of(&self.link) {
                    link.asking().withdraw(&params["requestId"]);
                }
            }
            // The agent's own notifications mean nothing to us.
            _ => {}
        }
    }

    async fn emit(&self, events: Vec<AgentEvent>) {
        if let Some(link) = link_of(&self.link) {
            link.emit(events).await;
        }
    }

    /// Nobody waits for an answer that will never come.
    async fn unread(&self, id: Option<Value>, line: &str) {
        tracing::warn!(
            is_request = id.is_some(),
            bytes = line.len(),
            "a message of the agent's can't be read"
        );
        if let Some(id) = id {
            let text = "the request can't be read";
            self.peer.refuse(id, INVALID_REQUEST, text).await;
        }
        let trace = self.updates().unread(line);
        self.emit(trace).await;
    }

    /// Answers a question that can't be put to anybody.
    async fn refuse(&self, id: Value, (method, params): (&str, &Value), text: &str) {
        tracing::warn!(method, reason = text, "a request of the agent's is refused");
        self.peer.refuse(id, INVALID_PARAMS, text).await;
        let trace = self.updates().refused(method, params, text);
        self.emit(trace).await;
    }

    async fn requested(&mut self, id: Value, method: &str, params: Value) {
        let link = link_of(&self.link);
        match (method, link) {
            ("session/request_permission", link) => self.permission(id, params, link).await,
            ("elicitation/create", Some(link)) if link.takes_forms => {
                self.form(id, &params, &link).await;
            }
            (_, Some(link)) => {
                let (peer, method) = (self.peer.clone(), method.to_owned());
                link.services.request(peer, id, method, params).await;
            }
            (_, None) => {
                let text = format!("`{method}` is not offered between turns");
                self.peer.refuse(id, METHOD_NOT_FOUND, &text).await;
            }
        }
    }

    async fn permission(&self, id: Value, mut params: Value, link: Option<Arc<Link>>) {
        let asked = self.updates().asked_about(&params["toolCall"]);
        match (asked, link) {
            (Some(mut asked), Some(link)) => {
                let events = std::mem::take(&mut asked.events);
                link.emit(events).await;
                link.asking()
                    .permission(id, asked, &params["options"].take());
            }
            // Outside a turn nobody is there to answer it.
            _ if params["toolCall"]["toolCallId"].is_string() => {
                self.peer.answer(id, permission::cancelled()).await;
            }
            _ => {
                let text = "`toolCall.toolCallId` is missing";
                let request = ("session/request_permission", &params);
                self.refuse(id, request, text).await;
            }
        }
    }

    async fn form(&self, id: Value, params: &Value, link: &Link) {
        if !self.updates().is_live() {
            let cancelled = elicitation::outcome(FormAnswer::Cancelled);
            return self.peer.answer(id, cancelled).await;
        }
        match elicitation::Asked::of(params, &self.redactor) {
            Ok(asked) => link.asking().form(id, asked),
            Err(text) => self.refuse(id, ("elicitation/create", params), text).await,
        }
    }

    fn updates(&self) -> MutexGuard<'_, Updates> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
