//! One claimed run from its first heartbeat to its end. It owns the order: acknowledge, set up,
//! drive the agent, deliver its events, report the end; nothing may be reported before the events
//! that lead to it, nor anything after the claim is lost.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tapedeck_client::Client;
use tapedeck_domain::DeploymentId;
use tapedeck_domain::event::uploaded;
use tapedeck_domain::session::ApprovalPolicy as SessionPolicy;
use tapedeck_domain::settle::Ending;
use tapedeck_protocol::executor::ClaimResponse;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::backend::{
    Activity, AgentEvent, AgentSettings, ApprovalPolicy, Backend, Outcome, OutcomeStatus, Turn,
    TurnIo, TurnLimits,
};
use crate::changes::{self, RunChanges};
use crate::config::Options;
use crate::heartbeat::Heartbeat;
use crate::held::{Held, Stop};
use crate::kept::KeptClaim;
use crate::memory::RunMemory;
use crate::questions::RunQuestions;
use crate::settle::{End, Settler};
use crate::spool::Spool;
use crate::upload::{FLUSH_QUEUE, Flush, Uploader};
use crate::verdict::within;
use crate::workspace::{Prepared, WorkspaceTarget, Workspaces};

/// Events between the agent and the uploader; while they wait the agent's output is not read.
const EVENT_QUEUE: usize = 256;

/// A call that a run's beginning waits for.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// What all runs of an executor share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) client: Client,
    pub(crate) heartbeat_client: Client,
    pub(crate) workspaces: Workspaces,
    pub(crate) spool_folder: PathBuf,
    /// Where heartbeats run.
    pub(crate) heartbeats: Handle,
    /// Runs are to be handed back now.
    pub(crate) hand_back: CancellationToken,
    /// Which deployment the server is of, once it is known.
    pub(crate) deployment: OnceCell<DeploymentId>,
}

impl Shared {
    /// Remembers which deployment a session is of, so that what lies here of it ends when that
    /// deployment has it no more.
    async fn note_deployment(&self, session_id: &str) {
        let ask = async || {
            let told = within(CALL_LIMIT, self.client.capabilities()).await?;
            Ok::<_, tapedeck_client::Error>(told.deployment_id)
        };
        // The next look at what lies here tries again.
        let Ok(deployment) = self.deployment.get_or_try_init(ask).await else {
            return;
        };
        let noted = self
            .workspaces
            .note_deployment(session_id, &deployment.to_string());
        if let Err(error) = noted {
            tracing::warn!(%error, "the session's deployment can't be noted");
        }
    }
}

/// How a run ended for this executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its end is recorded.
    Settled,
    /// It is the server's again, or interrupted.
    HandedBack,
    /// It was no longer ours.
    Lost,
}

/// Executes a claimed run.
#[tracing::instrument(
    name = "run",
    skip_all,
    fields(run.id = %claim.run_id, session.id = %claim.session_id, run.attempt = claim.attempt)
)]
pub(crate) async fn execute(shared: Arc<Shared>, claim: ClaimResponse) -> Ended {
    let held = Arc::new(Held::new(&claim));
    let done = CancellationToken::new();
    let _ends_heartbeats = done.clone().drop_guard();
    let heartbeat = Heartbeat {
        held: Arc::clone(&held),
        client: shared.heartbeat_client.clone(),
        instance_id: shared.options.instance_id.clone(),
        process_id: std::process::id().into(),
        lease_seconds: shared.options.lease_seconds,
        short_lease: millis(claim.lease_ttl_ms),
    };
    shared.heartbeats.spawn(heartbeat.run(done));
    if !held.acknowledged().await {
        return Ended::Lost;
    }
    tracing::info!("run started");
    let kept = KeptClaim::keep(&shared.spool_folder, &shared.client, &held);
    let settler = Settler::new(Arc::clone(&held), shared.client.clone());
    let run = Run {
        shared: &shared,
        held: &held,
        claim: &claim,
        kept: &kept,
    };
    let ended = match run.set_up_unless_stopped().await {
        Ok(set_up) => run.drive(set_up, &settler).await,
        Err(unstarted) => run.end_unstarted(unstarted, &settler).await,
    };
    kept.remove();
    tracing::info!(?ended, "run ended");
    ended
}

/// What an agent needs to start.
struct SetUp {
    backend: Arc<dyn Backend>,
    workspace: Prepared,
    settings: AgentSettings,
    changes: Option<RunChanges>,
}

/// Why no agent was started.
enum Unstarted {
    Failed(String),
    Cancelled,
    Stopped,
}

struct Run<'a> {
    shared: &'a Shared,
    held: &'a Arc<Held>,
    claim: &'a ClaimResponse,
    kept: &'a KeptClaim,
}

impl Run<'_> {
    /// Fetching a repository may take long, and a cancel or a shutdown does not wait for it.
    async fn set_up_unless_stopped(&self) -> Result<SetUp, Unstarted> {
        tokio::select! {
            biased;
            () = self.held.kill.cancelled() => Err(Unstarted::Stopped),
            () = self.shared.hand_back.cancelled() => Err(Unstarted::Stopped),
            made = self.set_up() => made.map_err(Unstarted::Failed),
            () = self.held.cancel.cancelled() => Err(Unstarted::Cancelled),
        }
    }

    async fn set_up(&self) -> Result<SetUp, String> {
        let target = workspace_target(self.claim)?;
        let mut settings = AgentSettings::of(&self.claim.agent)?;
        let session_id = self.claim.session_id.to_string();
        let workspaces = &self.shared.workspaces;
        let prepared = workspaces.prepare(&target, &session_id).await;
        let workspace = prepared.map_err(|error| error.to_string())?;
        for directory in &mut settings.directories {
            // A further directory is like a workspace of its own: it lies in a root or is refused.
            let path = std::mem::take(directory);
            let more = WorkspaceTarget::LocalPath { path };
            let prepared = workspaces.prepare(&more, &session_id).await;
            *directory = prepared.map_err(|error| error.to_string())?.directory;
        }
        let backend = self.shared.options.backends.backend(self.claim)?;
        let place = (workspace.directory.as_path(), session_id.as_str());
        let client = self.shared.client.clone();
        let held = Arc::clone(self.held);
        let changes = match target {
            WorkspaceTarget::Scratch => None,
            WorkspaceTarget::LocalPath { .. } | WorkspaceTarget::Git(_) => {
                let (changes, ()) = tokio::join!(
                    RunChanges::begin(workspaces, place, held, client),
                    self.shared.note_deployment(&session_id)
                );
                Some(changes)
            }
        };
        Ok(SetUp {
            backend,
            workspace,
            settings,
            changes,
        })
    }

    async fn end_unstarted(&self, unstarted: Unstarted, settler: &Settler) -> Ended {
        // What the agent remembers is still there for the next run.
        let agent_state = self.agent_state();
        let end = match unstarted {
            Unstarted::Failed(error) => End::failed(error),
            Unstarted::Cancelled => End {
                ending: Ending::Cancelled,
                result: None,
                error: None,
                agent_state: None,
            },
            Unstarted::Stopped if self.held.is_lost() => return Ended::Lost,
            Unstarted::Stopped => return settler.hand_back(0, agent_state).await,
        };
        let end = End { agent_state, ..end };
        settler.complete(end, Some(0)).await
    }

    /// The agent and its events, until it has ended and all is delivered, or all is lost.
    async fn drive(&self, set_up: SetUp, settler: &Settler) -> Ended {
        let SetUp {
            backend,
            workspace,
            settings,
            changes,
        } = set_up;
        let spool_bytes = self.shared.options.spool_bytes;
        let spool = match Spool::create(self.kept.events(), spool_bytes) {
            Ok(spool) => spool,
            Err(error) => {
                let text = format!("the executor can't spool events: {error}");
                return settler.complete(End::failed(text), Some(0)).await;
            }
        };
        let client = self.shared.client.clone();
        let mut uploader = Uploader::new(Arc::clone(self.held), client, spool);
        uploader.push(AgentEvent {
            kind: uploaded::TURN_BEGIN.to_owned(),
            payload: self.beginning(&workspace),
        });
        let (events, queue) = mpsc::channel(EVENT_QUEUE);
        let (flushes, flush_queue) = mpsc::channel(FLUSH_QUEUE);
        let turn = self.turn(workspace.directory, settings);
        let io = self.connections(events, flushes);
        let (end, count) = tokio::join!(
            self.agent(backend, turn, io),
            uploader.run(queue, flush_queue)
        );
        match (self.held.stopped(), end) {
            (Some(Stop::Lost(_)), _) => Ended::Lost,
            (Some(Stop::Unrecorded(text)), AgentEnd::Stopped(_) | AgentEnd::Own(_)) => {
                settler.complete(End::failed(text), Some(count)).await
            }
            (stop, AgentEnd::Stopped(agent_state)) => {
                // A lease that is about to end leaves no time.
                if stop == Some(Stop::Drained) && self.held.has_output() {
                    self.tell(changes, true).await;
                    if self.held.is_lost() {
                        return Ended::Lost;
                    }
                }
                settler.hand_back(count, agent_state).await
            }
            (_, AgentEnd::Own(end)) => {
                let brief = end.ending == Ending::Cancelled;
                let named = self.tell(changes, brief).await;
                if self.held.is_lost() {
                    return Ended::Lost;
                }
                let result = match named {
                    Some(named) => Some(changes::with(end.result, "changes", named)),
                    None => end.result,
                };
                settler.complete(End { result, ..end }, Some(count)).await
            }
        }
    }

    /// What the workspace's changes are, told to the server and for the run's result.
    async fn tell(&self, changes: Option<RunChanges>, brief: bool) -> Option<Value> {
        changes?.tell(brief, &self.shared.hand_back).await
    }

    /// What is told of a run's beginning.
    fn beginning(&self, workspace: &Prepared) -> Value {
        let mut beginning = json!({"turn_id": self.held.run_id, "attempt": self.held.attempt});
        if let Some(told) = &workspace.told {
            beginning["workspace"] = json!(told);
        }
        beginning
    }

    /// Runs the agent. What stops the run after the agent's own end changes nothing about it.
    async fn agent(&self, backend: Arc<dyn Backend>, turn: Turn, io: TurnIo) -> AgentEnd {
        let agent_state = turn.agent_state.clone();
        let mut task = JoinSet::new();
        // In a task of its own, so that a fault in a backend ends this run and nothing else.
        task.spawn(async move { backend.run(turn, io).await });
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = task.join_next() => break outcome,
                () = self.shared.hand_back.cancelled(), if !self.held.kill.is_cancelled() => {
                    self.held.stop(Stop::Drained);
                }
            }
        };
        let outcome = match outcome {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => {
                let end = End::failed(format!("the agent's backend failed: {error}"));
                return AgentEnd::Own(End { agent_state, ..end });
            }
            None => return AgentEnd::Own(End::failed("the agent's backend did not run")),
        };
        // The guard kills an agent whose machine slept through the lease before we can know of it.
        let slept = outcome.status == OutcomeStatus::Failed && self.held.slept_through();
        if slept {
            self.held.stop(Stop::Lapsed);
        }
        if self.held.stopped().is_some() {
            return AgentEnd::Stopped(outcome.agent_state);
        }
        AgentEnd::Own(end_of(outcome))
    }

    fn connections(
        &self,
        events: mpsc::Sender<AgentEvent>,
        flushes: mpsc::Sender<Flush>,
    ) -> TurnIo {
        let questions = RunQuestions {
            held: Arc::clone(self.held),
            client: self.shared.client.clone(),
            timeout_seconds: self.shared.options.question_seconds,
            flushes,
        };
        let memory = RunMemory {
            held: Arc::clone(self.held),
            client: self.shared.client.clone(),
        };
        TurnIo {
            events,
            questions: Arc::new(questions),
            memory: Arc::new(memory),
            cancel: self.held.cancel.clone(),
            kill: self.held.kill.clone(),
            lease: self.held.deadline(),
            activity: Activity::default(),
        }
    }

    /// What an earlier run of the session left for this one. A state that has diverged only names a
    /// conversation of the agent's that goes on past what the session was put back to; it is neither
    /// used nor handed on, so that no later run takes it for a state of its own time.
    fn agent_state(&self) -> Option<Value> {
        let context = self.claim.resume_context.as_ref()?;
        if context.get("agent_state_diverged") == Some(&Value::Bool(true)) {
            return None;
        }
        let state = context.get("agent_state")?;
        (!state.is_null()).then(|| state.clone())
    }

    fn turn(&self, workspace: PathBuf, settings: AgentSettings) -> Turn {
        let claim = self.claim;
        let context = claim.resume_context.as_ref();
        let raw_prompt = context.and_then(|context| context.get("raw_prompt")?.as_str());
        let bounds = claim.run_target.constraints;
        let bound = |seconds: Option<u32>, default: Option<Duration>| {
            seconds.map_or(default, |seconds| Some(Duration::from_secs(seconds.into())))
        };
        Turn {
            run_id: claim.run_id.to_string(),
            session_id: claim.session_id.to_string(),
            attempt: claim.attempt,
            prompt_with_context: claim.prompt.clone(),
            raw_prompt: raw_prompt.unwrap_or(&claim.prompt).to_owned(),
            workspace,
            agent_state: self.agent_state(),
            settings,
            approval_policy: match claim.approval_policy {
                SessionPolicy::Yolo => ApprovalPolicy::Yolo,
                SessionPolicy::Auto => ApprovalPolicy::Auto,
                SessionPolicy::Interactive => ApprovalPolicy::Interactive,
            },
            limits: TurnLimits {
                idle: bound(
                    bounds.idle_timeout_seconds,
                    self.shared.options.idle_timeout,
                ),
                total: bound(bounds.max_run_seconds, self.shared.options.run_timeout),
            },
        }
    }
}

/// How an agent ended.
enum AgentEnd {
    /// By itself, by a cancel or by a fault.
    Own(End),
    /// By the executor, before its turn was over; with what a later turn should be given.
    Stopped(Option<Value>),
}

fn end_of(outcome: Outcome) -> End {
    let (ending, error) = match outcome.status {
        OutcomeStatus::Completed => (Ending::Completed, None),
        OutcomeStatus::Cancelled => (Ending::Cancelled, outcome.error()),
        OutcomeStatus::Failed => {
            let error = outcome.error().filter(|text| !text.trim().is_empty());
            let unsaid = || "the agent failed without saying why".to_owned();
            (Ending::Failed, Some(error.unwrap_or_else(unsaid)))
        }
    };
    End {
        ending,
        result: Some(outcome.result),
        error,
        agent_state: outcome.agent_state,
    }
}

fn workspace_target(claim: &ClaimResponse) -> Result<WorkspaceTarget, String> {
    let Some(workspace) = &claim.workspace else {
        return Ok(WorkspaceTarget::Scratch);
    };
    WorkspaceTarget::read(workspace.kind.as_str(), &workspace.fields)
        .map_err(|error| error.to_string())
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
