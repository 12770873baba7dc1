//! What the tests of agents share: a state directory, a workspace, a launcher with a real guard,
//! and a look at the machine's processes.

#![expect(dead_code, reason = "each test binary uses its part")]
#![expect(
    clippy::unwrap_used,
    reason = "this is test code outside of a test function"
)]

pub(crate) mod stage;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_executor::backend::{
    Activity, AgentEvent, AgentSettings, Answer, ApprovalPolicy, Form, FormAnswer, Memory,
    Question, Questions, Turn, TurnIo, TurnLimits,
};
use tapedeck_executor::process::{AgentSpec, Environment, GuardCommand, Launcher};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) const GUARD: &str = env!("CARGO_BIN_EXE_tapedeck-test-guard");

pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) launcher: Launcher,
    pub(crate) workspace: PathBuf,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let workspace = dir.path().canonicalize().unwrap().join("workspace");
        std::fs::create_dir(&workspace).unwrap();
        let launcher = Launcher {
            guard: GuardCommand {
                program: GUARD.into(),
                arguments: Vec::new(),
            },
            state_dir: dir.path().join("state"),
            executor_instance: unique("executor"),
            lock_wait: Duration::from_secs(10),
        };
        Self {
            dir,
            launcher,
            workspace,
        }
    }

    /// Names the place where agents keep what they remember.
    pub(crate) fn name_place(&self, name: &str) {
        std::fs::create_dir_all(&self.launcher.state_dir).unwrap();
        std::fs::write(self.launcher.state_dir.join("place"), name).unwrap();
    }

    pub(crate) fn environment() -> Environment {
        Environment::select(std::env::vars_os(), &[], &[])
    }

    pub(crate) fn spec(&self, run_id: &str, script: &str) -> AgentSpec {
        AgentSpec {
            run_id: run_id.to_owned(),
            command: ["sh", "-c", script].map(Into::into).to_vec(),
            workspace: self.workspace.clone(),
            environment: Self::environment(),
        }
    }

    pub(crate) fn turn(&self, run_id: &str, prompt: &str) -> Turn {
        Turn {
            run_id: run_id.to_owned(),
            session_id: "session-1".to_owned(),
            attempt: 1,
            prompt_with_context: format!("context: {prompt}"),
            raw_prompt: prompt.to_owned(),
            workspace: self.workspace.clone(),
            agent_state: None,
            settings: AgentSettings::default(),
            approval_policy: ApprovalPolicy::Interactive,
            limits: TurnLimits::default(),
        }
    }
}

/// Different in every test and every test process.
pub(crate) fn unique(name: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!(
        "{name}-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, Ordering::Relaxed)
    )
}

/// A duration for `sleep` by which its process can be found.
pub(crate) fn unique_seconds() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!(
        "{}.{:03}1",
        100_000 + std::process::id(),
        NUMBER.fetch_add(1, Ordering::Relaxed)
    )
}

pub(crate) fn lease(of: Duration) -> (watch::Sender<Instant>, watch::Receiver<Instant>) {
    watch::channel(Instant::now() + of)
}

pub(crate) fn long_lease() -> watch::Receiver<Instant> {
    lease(Duration::from_mins(10)).1
}

/// Living processes with this text in their command line.
pub(crate) fn processes_with(text: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        *pid != std::process::id().cast_signed() && String::from_utf8_lossy(&line).contains(text)
    })
    .collect()
}

/// Looks again until the condition holds; what other processes do sends no signal here.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let mut look = tokio::time::interval(Duration::from_millis(10));
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < until, "{what} did not come about");
        look.tick().await;
    }
}

/// The other ends of a turn's connections.
pub(crate) struct Ends {
    pub(crate) events: mpsc::Receiver<AgentEvent>,
    pub(crate) asked: mpsc::Receiver<(Question, oneshot::Sender<Answer>)>,
    pub(crate) forms: mpsc::Receiver<(Form, oneshot::Sender<FormAnswer>)>,
    /// What was kept for later turns, before the turn's end.
    pub(crate) kept: mpsc::Receiver<Value>,
    pub(crate) cancel: CancellationToken,
    pub(crate) kill: CancellationToken,
    pub(crate) lease: watch::Sender<Instant>,
}

#[derive(Debug)]
struct Asking {
    questions: mpsc::Sender<(Question, oneshot::Sender<Answer>)>,
    forms: mpsc::Sender<(Form, oneshot::Sender<FormAnswer>)>,
}

#[async_trait]
impl Questions for Asking {
    async fn ask(&self, question: Question) -> Answer {
        let (sender, answer) = oneshot::channel();
        self.questions.send((question, sender)).await.unwrap();
        answer.await.unwrap_or(Answer::Cancelled)
    }

    fn takes_forms(&self) -> bool {
        true
    }

    async fn ask_form(&self, form: Form) -> FormAnswer {
        let (sender, answer) = oneshot::channel();
        self.forms.send((form, sender)).await.unwrap();
        answer.await.unwrap_or(FormAnswer::Cancelled)
    }
}

#[derive(Debug)]
struct Keeping(mpsc::Sender<Value>);

#[async_trait]
impl Memory for Keeping {
    async fn keep(&self, agent_state: Value) {
        self.0.send(agent_state).await.unwrap();
    }
}

pub(crate) fn connections(capacity: usize) -> (TurnIo, Ends) {
    let (events, event_end) = mpsc::channel(capacity);
    let (questions, asked) = mpsc::channel(16);
    let (form_sender, forms) = mpsc::channel(16);
    let asking = Asking {
        questions,
        forms: form_sender,
    };
    let (memory, kept) = mpsc::channel(16);
    let (cancel, kill) = (CancellationToken::new(), CancellationToken::new());
    let (lease, deadline) = lease(Duration::from_mins(10));
    let io = TurnIo {
        events,
        questions: Arc::new(asking),
        memory: Arc::new(Keeping(memory)),
        cancel: cancel.clone(),
        kill: kill.clone(),
        lease: deadline,
        activity: Activity::default(),
    };
    (
        io,
        Ends {
            events: event_end,
            asked,
            forms,
            kept,
            cancel,
            kill,
            lease,
        },
    )
}
