//! What a session shows of itself: settings, summary and owner in one flat object whose every key
//! is always there.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tapedeck_domain::checkpoint::ForkOrigin;
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::{ApprovalPolicy, Session, SessionStatus, TurnStatus};
use tapedeck_domain::{CheckpointId, LogId, Now, RunId, SessionId, TapeId, Timestamp};
use utoipa::ToSchema;

use crate::run_target::{RunTargetResponse, WorkspaceBody};
use crate::schema;

/// The owner of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerResponse {
    /// Its name.
    pub owner_id: String,
    /// Its epoch.
    pub epoch: i64,
    /// When its lease ends; null once released.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub expires_at: Option<Timestamp>,
}

/// Where a fork comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkedFrom {
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// The checkpoint, where one was named.
    #[schema(value_type = Option<Uuid>, required)]
    pub checkpoint_id: Option<CheckpointId>,
    /// The last event whose settled conversation the fork began with.
    pub session_seq: u64,
}

impl From<ForkOrigin> for ForkedFrom {
    fn from(origin: ForkOrigin) -> Self {
        Self {
            session_id: origin.session_id,
            checkpoint_id: origin.checkpoint_id,
            session_seq: origin.session_seq,
        }
    }
}

/// A session with its summary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionResponse {
    /// The identifier.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// The namespace it belongs to.
    pub namespace: String,
    /// Shown in lists.
    #[schema(required)]
    pub title: Option<String>,
    /// What the session is doing.
    #[schema(value_type = schema::SessionStatus)]
    pub status: SessionStatus,
    /// What the current turn is doing.
    #[schema(value_type = schema::TurnStatus)]
    pub turn_status: TurnStatus,
    /// Who answers questions.
    #[schema(value_type = schema::ApprovalPolicy)]
    pub approval_policy: ApprovalPolicy,
    /// Backend-specific settings.
    #[schema(value_type = Object)]
    pub agent: Map<String, Value>,
    /// `agent.provider`.
    #[schema(required)]
    pub provider: Option<String>,
    /// `agent.model`.
    #[schema(required)]
    pub model: Option<String>,
    /// `agent.base_url`.
    #[schema(required)]
    pub base_url: Option<String>,
    /// `agent.max_steps`.
    #[schema(required)]
    pub max_steps: Option<u32>,
    /// `run_target.workspace`.
    #[schema(required)]
    pub workspace: Option<WorkspaceBody>,
    /// Where runs may execute.
    pub run_target: RunTargetResponse,
    /// Where the session came from.
    #[schema(required)]
    pub origin: Option<String>,
    /// The client's own notes.
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// The tape.
    #[schema(value_type = Uuid)]
    pub tape_id: TapeId,
    /// The number of the newest event; 0 in an empty log.
    pub head_seq: u64,
    /// The identity of the log; another one after a backup was restored.
    #[schema(value_type = Option<Uuid>, required)]
    pub log_id: Option<LogId>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When anything of it last changed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// When a run, an event or an answer last came.
    #[schema(value_type = String, format = DateTime)]
    pub last_activity_at: Timestamp,
    /// When it was closed.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub closed_at: Option<Timestamp>,
    /// What it was forked from.
    #[schema(required)]
    pub forked_from: Option<ForkedFrom>,
    /// Whether a resume would be accepted now.
    pub resumable: bool,
    /// The active run.
    #[schema(value_type = Option<Uuid>, required)]
    pub active_run_id: Option<RunId>,
    /// The newest run.
    #[schema(value_type = Option<Uuid>, required)]
    pub last_run_id: Option<RunId>,
    /// Its status.
    #[schema(value_type = Option<schema::RunStatus>, required)]
    pub last_run_status: Option<RunStatus>,
    /// The newest run that ended interrupted.
    #[schema(value_type = Option<Uuid>, required)]
    pub last_interrupted_run_id: Option<RunId>,
    /// The event from which a resume goes on.
    #[schema(required)]
    pub resume_from_event_id: Option<String>,
    /// Runs that wait behind the active one.
    pub queued_runs: u32,
    /// Whether the queue waits for a person.
    pub queue_held: bool,
    /// Active checkpoints.
    pub checkpoint_count: u32,
    /// The newest active checkpoint.
    #[schema(value_type = Option<Uuid>, required)]
    pub latest_checkpoint_id: Option<CheckpointId>,
    /// Its label.
    #[schema(required)]
    pub latest_checkpoint_label: Option<String>,
    /// Open questions.
    pub pending_interactions: u32,
    /// The owner.
    #[schema(required)]
    pub owner: Option<OwnerResponse>,
}

impl SessionResponse {
    /// Shows a session with the numbers of its head. `now` turns the owner's lease into wall time.
    pub fn new(session: &Session, head: &SessionHead, log_id: Option<LogId>, now: Now) -> Self {
        let settings = &session.settings;
        let summary = &session.summary;
        let agent = AgentSettings::of(&settings.agent);
        let run_target = RunTargetResponse::from(&settings.run_target);
        Self {
            session_id: session.session_id,
            namespace: session.namespace.clone(),
            title: settings.title.clone(),
            status: summary.status,
            turn_status: summary.turn_status,
            approval_policy: settings.approval_policy,
            agent: settings.agent.clone(),
            provider: agent.provider,
            model: agent.model,
            base_url: agent.base_url,
            max_steps: agent.max_steps,
            workspace: run_target.workspace.clone(),
            run_target,
            origin: settings.origin.clone(),
            metadata: settings.metadata.clone(),
            tape_id: session.tape_id,
            head_seq: head.head_seq,
            log_id,
            created_at: session.created_at,
            updated_at: session.updated_at,
            last_activity_at: session.last_activity_at.max(head.last_activity_at),
            closed_at: session.closed_at,
            forked_from: session.forked_from.map(ForkedFrom::from),
            resumable: summary.resumable(),
            active_run_id: summary.active_run_id,
            last_run_id: summary.last_run_id,
            last_run_status: summary.last_run_status,
            last_interrupted_run_id: summary.last_interrupted_run_id,
            resume_from_event_id: summary.resume_from_event_id.clone(),
            queued_runs: summary.queued_runs,
            queue_held: summary.queue_held,
            checkpoint_count: summary.checkpoint_count,
            latest_checkpoint_id: summary.latest_checkpoint_id,
            latest_checkpoint_label: summary.latest_checkpoint_label.clone(),
            pending_interactions: summary.pending_interactions,
            owner: head.owner.as_ref().map(|owner| OwnerResponse {
                owner_id: owner.owner_id.clone(),
                epoch: owner.epoch.0,
                expires_at: owner.expires_at.map(|at| now.wall_of(at)),
            }),
        }
    }
}

/// The agent settings that answers also show at their top level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentSettings {
    pub(crate) provider: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) base_url: Option<String>,
    pub(crate) max_steps: Option<u32>,
}

impl AgentSettings {
    pub(crate) fn of(agent: &Map<String, Value>) -> Self {
        let text = |name: &str| agent.get(name).and_then(Value::as_str).map(str::to_owned);
        let max_steps = agent.get("max_steps").and_then(Value::as_u64);
        Self {
            provider: text("provider"),
            model: text("model"),
            base_url: text("base_url"),
            max_steps: max_steps.and_then(|steps| u32::try_from(steps).ok()),
        }
    }
}

/// Answer of `GET /sessions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// Newest first.
    pub sessions: Vec<SessionResponse>,
    /// The next page; null at the end.
    #[schema(required)]
    pub next_cursor: Option<String>,
}
