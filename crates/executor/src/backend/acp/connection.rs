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

use super::permission::Asking;
use super::rpc::{INVALID_PARAMS, METHOD_NOT_FOUND, Message, Peer, write};
use super::updates::Updates;
use crate::backend::{Activity, AgentEvent, Failure, Turn, TurnIo};
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
    stop_questions: CancellationToken,
    open_questions: watch::Receiver<usize>,
    end_input: CancellationToken,
    ended: watch::Receiver<Option<Result<(), Failure>>>,
    events: mpsc::Sender<AgentEvent>,
    _tasks: JoinSet<()>,
}

/// Lines on stdout that were no messages.
#[derive(Debug, Default, Clone)]
pub(super) struct Noise {
    lines: u64,
    samples: Vec<String>,
}

impl Noise {
    fn note(&mut self, line: &str, redactor: &Redactor) {
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
    pub(super) fn start(
        pipes: Pipes,
        turn: &Turn,
        io: &TurnIo,
        count: watch::Sender<usize>,
    ) -> Self {
        let (peer, messages) = Peer::new();
        let (stop_questions, end_input) = (CancellationToken::new(), CancellationToken::new());
        let open_questions = count.subscribe();
        let (ended_sender, ended) = watch::channel(None);
        let updates = Arc::new(Mutex::new(Updates::new(pipes.redactor.clone())));
        let noise = Arc::new(Mutex::new(Noise::default()));
        let asking = Asking::new(
            Arc::clone(&io.questions),
            turn.approval_policy,
            peer.clone(),
            stop_questions.clone(),
            count,
        );
        let reader = Reader {
            lines: LineReader::new(pipes.stdout, pipes.line_limit),
            peer: peer.clone(),
            updates: Arc::clone(&updates),
            noise: Arc::clone(&noise),
            asking,
            events: io.events.clone(),
            activity: io.activity.clone(),
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
            stop_questions,
            open_questions,
            end_input,
            ended,
            events: io.events.clone(),
            _tasks: tasks,
        }
    }

    /// The state of the session's reports. Not to be held across an await.
    pub(super) fn updates(&self) -> MutexGuard<'_, Updates> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn noise(&self) -> Noise {
        self.noise
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) async fn emit(&self, events: Vec<AgentEvent>) {
        emit(&self.events, events).await;
    }

    /// Answers all questions as cancelled, those that still come too.
    pub(super) fn cancel_questions(&self) {
        self.stop_questions.cancel();
    }

    /// Sends what is queued, open answers included, and closes the agent's stdin.
    pub(super) async fn finish_input(&self) {
        self.cancel_questions();
        let mut open = self.open_questions.clone();
        drop(tokio::time::timeout(ANSWER_LIMIT, open.wait_for(|open| *open == 0)).await);
        self.end_input.cancel();
    }

    /// How the agent's output ended, if it did: in good order or with a failure.
    pub(super) fn ended(&self) -> Option<Result<(), Failure>> {
        self.ended.borrow().clone()
    }
}

async fn emit(sender: &mpsc::Sender<AgentEvent>, events: Vec<AgentEvent>) {
    for event in events {
        // The vigil notices a receiver that is gone.
        if sender.send(event).await.is_err() {
            return;
        }
    }
}

struct Reader {
    lines: LineReader<ChildStdout>,
    peer: Peer,
    updates: Arc<Mutex<Updates>>,
    noise: Arc<Mutex<Noise>>,
    asking: Asking,
    events: mpsc::Sender<AgentEvent>,
    activity: Activity,
    redactor: Redactor,
}

impl Reader {
    async fn run(mut self) -> Result<(), Failure> {
        loop {
            match self.lines.next_line().await {
                Ok(Some(line)) => {
                    self.activity.touch();
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
            None => {
                let mut noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
                noise.note(line, &self.redactor);
            }
        }
    }

    async fn notified(&mut self, method: &str, params: Value) {
        match method {
            "session/update" => {
                let events = self.updates().notified(params);
                emit(&self.events, events).await;
            }
            "$/cancel_request" => self.asking.withdraw(&params["requestId"]),
            // The agent's own notifications mean nothing to us.
            _ => {}
        }
    }

    async fn requested(&mut self, id: Value, method: &str, mut params: Value) {
        if method != "session/request_permission" {
            let text = format!("`{method}` is not offered by this client");
            return self.peer.refuse(id, METHOD_NOT_FOUND, &text).await;
        }
        let asked = self.updates().asked_about(&params["toolCall"]);
        match asked {
            Some(mut asked) => {
                let events = std::mem::take(&mut asked.events);
                emit(&self.events, events).await;
                self.asking.ask(id, asked, &params["options"].take());
            }
            // Outside a turn nobody is there to answer it.
            None if params["toolCall"]["toolCallId"].is_string() => {
                self.peer
                    .answer(id, json!({"outcome": {"outcome": "cancelled"}}))
                    .await;
            }
            None => {
                let text = "`toolCall.toolCallId` is missing";
                self.peer.refuse(id, INVALID_PARAMS, text).await;
            }
        }
    }

    fn updates(&self) -> MutexGuard<'_, Updates> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
