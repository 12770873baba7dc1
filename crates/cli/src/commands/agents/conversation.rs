//! Turns of an agent outside of any session, for a check: nobody else sees them, and what the agent
//! asks is answered here. It must never leave a process of the agent behind.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_executor::backend::{
    Activity, AgentEvent, AgentSettings, Answer, ApprovalPolicy, Backend, Memory, Outcome,
    Question, Questions, Scope, Turn, TurnIo, TurnLimits,
};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A turn that takes longer has failed.
pub(super) const TURN_LIMIT: Duration = Duration::from_mins(3);
/// The guard ends an agent that outlives this; it is far beyond the limit of a turn.
const LEASE: Duration = Duration::from_mins(10);
/// By then an agent works on its answer.
const BEGINNING: Duration = Duration::from_secs(15);
/// Events that may wait to be looked at.
const QUEUE: usize = 256;

/// Has an agent do turns.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) workspace: PathBuf,
    /// Different for each check, so that its processes are told from others.
    pub(super) name: String,
    pub(super) turns: u32,
}

/// What came of a turn.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) outcome: Outcome,
    /// What the agent said.
    pub(super) text: String,
    /// The tools that it used.
    pub(super) tools: Vec<String>,
    /// What it asked about.
    pub(super) asked: Vec<String>,
    /// Why it did not go on with its earlier conversation, if it says so.
    pub(super) broken: Option<String>,
    /// From the start to the first piece of an answer.
    pub(super) first_piece: Option<Duration>,
    /// From the cancel to the end.
    pub(super) after_cancel: Option<Duration>,
    pub(super) took: Duration,
}

/// When a turn is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cancel {
    Never,
    /// As soon as the agent does anything that is seen, or has had time to begin: some answer in
    /// one piece.
    Soon,
}

impl Conversation {
    /// One turn, with what an earlier one left.
    pub(super) async fn play(
        &mut self,
        prompt: &str,
        agent_state: Option<Value>,
        cancel: Cancel,
    ) -> Played {
        self.turns += 1;
        let turn = Turn {
            run_id: format!("{}-{}", self.name, self.turns),
            session_id: self.name.clone(),
            attempt: 1,
            prompt_with_context: prompt.to_owned(),
            raw_prompt: prompt.to_owned(),
            workspace: self.workspace.clone(),
            agent_state,
            settings: AgentSettings::default(),
            approval_policy: ApprovalPolicy::Interactive,
            limits: TurnLimits {
                idle: None,
                total: Some(TURN_LIMIT),
            },
        };
        let (events, queue) = mpsc::channel(QUEUE);
        let (asked, questions) = mpsc::channel(QUEUE);
        let (_lease, deadline) = watch::channel(Instant::now() + LEASE);
        let (cancelled, kill) = (CancellationToken::new(), CancellationToken::new());
        // A check that is broken off takes its agent along.
        let _ends_the_agent = kill.clone().drop_guard();
        let io = TurnIo {
            events,
            questions: Arc::new(Approving(asked)),
            memory: Arc::new(NoMemory),
            cancel: cancelled.clone(),
            kill,
            lease: deadline,
            activity: Activity::default(),
        };
        let begun = Instant::now();
        let (outcome, heard) = tokio::join!(
            self.backend.run(turn, io),
            listen(queue, questions, begun, cancel, &cancelled)
        );
        Played {
            outcome,
            text: heard.text,
            tools: heard.tools,
            asked: heard.asked,
            broken: heard.broken,
            first_piece: heard.first_piece,
            after_cancel: heard.cancelled.map(|at| at.elapsed()),
            took: begun.elapsed(),
        }
    }
}

/// Approves everything, in a directory that is made for it.
#[derive(Debug)]
struct Approving(mpsc::Sender<String>);

#[async_trait]
impl Questions for Approving {
    async fn ask(&self, question: Question) -> Answer {
        // It is only told; the answer doesn't depend on who hears it.
        let _told = self.0.send(question.tool_name).await;
        Answer::Approved { scope: Scope::Once }
    }
}

/// A check goes on with what a turn's end has told.
#[derive(Debug)]
struct NoMemory;

#[async_trait]
impl Memory for NoMemory {
    async fn keep(&self, _agent_state: Value) {}
}

#[derive(Debug, Default)]
struct Heard {
    text: String,
    tools: Vec<String>,
    asked: Vec<String>,
    broken: Option<String>,
    first_piece: Option<Duration>,
    cancelled: Option<Instant>,
}

/// Hears a turn to its end.
async fn listen(
    mut events: mpsc::Receiver<AgentEvent>,
    mut questions: mpsc::Receiver<String>,
    begun: Instant,
    cancel: Cancel,
    cancelled: &CancellationToken,
) -> Heard {
    let mut heard = Heard::default();
    let mut has_begun = cancel == Cancel::Never;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(begun + BEGINNING), if !has_begun => has_begun = true,
            event = events.recv() => match event {
                Some(event) => heard.event(&event, begun),
                None => break,
            },
            Some(tool) = questions.recv() => heard.asked.push(tool),
        }
        has_begun |= heard.first_piece.is_some() || !heard.tools.is_empty();
        if cancel == Cancel::Soon && heard.cancelled.is_none() && has_begun {
            heard.cancelled = Some(Instant::now());
            cancelled.cancel();
        }
    }
    while let Ok(tool) = questions.try_recv() {
        heard.asked.push(tool);
    }
    heard
}

impl Heard {
    fn event(&mut self, event: &AgentEvent, begun: Instant) {
        let text = |field: &str| event.payload[field].as_str().unwrap_or_default();
        match event.kind.as_str() {
            "StreamDelta" => {
                self.first_piece.get_or_insert_with(|| begun.elapsed());
                self.text.push_str(text("content"));
            }
            "ThinkingDelta" => {
                self.first_piece.get_or_insert_with(|| begun.elapsed());
            }
            "ToolCallBegin" => self.tools.push(text("tool_name").to_owned()),
            "TurnStatusDelta" if text("status") == "continuity_broken" => {
                self.broken = Some(text("reason").to_owned());
            }
            _ => {}
        }
    }
}
