//! What drives an agent through one turn. It owns the shapes between a run and its backend; a
//! backend must never know the server, claims or uploads, only the turn, its events and questions.

pub mod acp;
pub mod command;
mod event;
mod failure;
mod lenient;
mod naming;
mod settings;
mod vigil;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use tapedeck_domain::event::uploaded;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use event::{AgentEvent, EVENT_LIMIT};
pub use failure::{Failure, FailureCode};
pub use settings::{AgentSettings, McpServer, Transport};

/// Drives an agent through one turn.
#[async_trait]
pub trait Backend: std::fmt::Debug + Send + Sync {
    /// Runs the turn to its end. When it returns, no process of the agent is left but one that the
    /// backend keeps for the session's next turn, until [`Self::close`]. It ends soon after `io.cancel`, at once after `io.kill`, and always with an outcome.
    async fn run(&self, turn: Turn, io: TurnIo) -> Outcome;

    /// Ends what stays between turns. From now on nothing stays.
    async fn close(&self) {}
}

/// One turn of an agent.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The run.
    pub run_id: String,
    /// Its session.
    pub session_id: String,
    /// The claim's attempt.
    pub attempt: u32,
    /// What the person asked, with the context of earlier runs before it.
    pub prompt_with_context: String,
    /// What the person asked, for an agent that remembers the context itself.
    pub raw_prompt: String,
    /// Where the agent works; prepared, absolute and canonical.
    pub workspace: PathBuf,
    /// What an earlier run of the session returned as [`Outcome::agent_state`].
    pub agent_state: Option<Value>,
    /// What the session asks of its agent; its directories are absolute and canonical.
    pub settings: AgentSettings,
    /// Which questions have to be asked.
    pub approval_policy: ApprovalPolicy,
    /// Bounds of this turn.
    pub limits: TurnLimits,
}

/// How much is asked before an agent acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApprovalPolicy {
    /// Everything is approved. The questions still go to the server, which answers and records.
    Yolo,
    /// What only reads passes unasked.
    Auto,
    /// Everything is asked.
    #[default]
    Interactive,
}

/// Bounds of a turn; `None` is unbounded.
#[derive(Debug, Clone, Copy, Default)]
pub struct TurnLimits {
    /// How long the agent may write nothing, open questions not counted.
    pub idle: Option<std::time::Duration>,
    /// How long the turn may take in all.
    pub total: Option<std::time::Duration>,
}

/// A turn's connections to the rest of the executor.
#[derive(Debug)]
pub struct TurnIo {
    /// Where events go, in order. While it is full the agent's output is not read. If its receiver
    /// is dropped the turn ends as killed.
    pub events: mpsc::Sender<AgentEvent>,
    /// Who answers the agent's questions.
    pub questions: Arc<dyn Questions>,
    /// Where to leave what a later turn should be given, for an end that leaves no time for it.
    pub memory: Arc<dyn Memory>,
    /// The run was cancelled: end the turn in good order.
    pub cancel: CancellationToken,
    /// The claim is lost: kill at once and send nothing more.
    pub kill: CancellationToken,
    /// When the guard has to begin to kill the agent, see [`crate::process::Launcher::launch`].
    pub lease: watch::Receiver<Instant>,
    /// When the agent last wrote anything.
    pub activity: Activity,
}

impl TurnIo {
    /// Tells whoever follows that the agent can't start yet.
    pub(crate) fn waits_for_workspace(&self) {
        tracing::info!("another agent works in the workspace; waiting");
        let reason = "another run works in the workspace";
        let event = AgentEvent {
            kind: uploaded::TURN_STATUS_DELTA.to_owned(),
            payload: json!({"status": "waiting", "reason": reason}),
        };
        // Nothing else was said yet, so there is room.
        drop(self.events.try_send(event));
    }
}

/// When an agent was last heard of, for "no agent activity for N s".
#[derive(Debug, Clone)]
pub struct Activity(Arc<watch::Sender<Instant>>);

impl Default for Activity {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Instant::now())))
    }
}

impl Activity {
    /// The agent wrote something.
    pub fn touch(&self) {
        self.0.send_replace(Instant::now());
    }

    /// When it last did.
    pub fn last(&self) -> Instant {
        *self.0.borrow()
    }
}

/// How a turn ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its status.
    pub status: OutcomeStatus,
    /// What the backend knows about the end, an object.
    pub result: Value,
    /// Present exactly if the status is failed, and never empty.
    pub failure: Option<Failure>,
    /// What a later turn of the session should be given.
    pub agent_state: Option<Value>,
}

impl Outcome {
    /// The failure as text for the run's `error`.
    pub fn error(&self) -> Option<String> {
        self.failure.as_ref().map(ToString::to_string)
    }

    pub(crate) fn failed(failure: Failure, result: Value, agent_state: Option<Value>) -> Self {
        Self {
            status: OutcomeStatus::Failed,
            result,
            failure: Some(failure),
            agent_state,
        }
    }
}

/// The status of an ended turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeStatus {
    /// The agent finished, which is not to say that it succeeded.
    Completed,
    /// It did not finish.
    Failed,
    /// It was cancelled, or killed because the claim was lost.
    Cancelled,
}

/// Keeps what a later turn should be given.
#[async_trait]
pub trait Memory: std::fmt::Debug + Send + Sync {
    /// Keeps the state beyond the death of this process. It takes a moment at most, whether that
    /// succeeded or not: the turn goes on, and its end reports the state again.
    async fn keep(&self, agent_state: Value);
}

/// Who answers an agent's questions.
#[async_trait]
pub trait Questions: std::fmt::Debug + Send + Sync {
    /// Asks and waits for the answer. The future is dropped if the agent withdraws the question or
    /// the turn ends; several may wait at once.
    async fn ask(&self, question: Question) -> Answer;

    /// Whether [`Self::ask_form`] reaches anybody.
    fn takes_forms(&self) -> bool {
        false
    }

    /// The same for a form that a person is to fill in.
    async fn ask_form(&self, _form: Form) -> FormAnswer {
        FormAnswer::Cancelled
    }
}

/// A question to a person that is no request for approval.
#[derive(Debug, Clone, PartialEq)]
pub struct Form {
    /// Unique within the attempt.
    pub request_id: String,
    /// The tool call that it belongs to, as in its events.
    pub call_id: Option<String>,
    /// What is asked.
    pub message: String,
    /// What an answer looks like, a JSON schema of an object.
    pub schema: Value,
}

/// The answer to a form.
#[derive(Debug, Clone, PartialEq)]
pub enum FormAnswer {
    /// Filled in: an object that fits the schema.
    Accepted(Value),
    /// The person does not want to answer.
    Declined,
    /// Nobody will answer.
    Cancelled,
    /// It reached nobody, for this reason.
    Unasked(String),
}

/// A question for approval.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Unique within the attempt.
    pub request_id: String,
    /// What the agent wants to use.
    pub tool_name: String,
    /// What kind of tool that is, in the agent's words.
    pub tool_kind: Option<String>,
    /// The tool call, as in its events.
    pub call_id: Option<String>,
    /// What it wants to use it with.
    pub arguments: Value,
    /// What the agent offers as answers.
    pub options: Vec<QuestionOption>,
}

/// An answer that the agent offers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct QuestionOption {
    /// The agent's id of it.
    pub option_id: String,
    /// Its text.
    pub name: String,
    /// `allow_once`, `allow_always`, `reject_once`, `reject_always`, or the agent's own word.
    pub kind: String,
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Go on.
    Approved {
        /// For how long.
        scope: Scope,
    },
    /// Do not.
    Denied {
        /// For how long.
        scope: Scope,
        /// Why, for the agent.
        feedback: Option<String>,
    },
    /// Nobody will answer.
    Cancelled,
    /// It reached nobody, for this reason: the agent is told no.
    Unasked(String),
}

/// How far an answer reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// This question.
    Once,
    /// The session.
    Session,
    /// Everything like it.
    Always,
}
