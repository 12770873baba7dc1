//! What a server says of itself: capabilities, limits, health and readiness.

use serde::{Deserialize, Serialize};
use tapedeck_domain::DeploymentId;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::limits;
use tapedeck_domain::session::{ApprovalPolicy, ExecutorAttachment, WorkspaceKind};
use utoipa::ToSchema;

/// The version of the HTTP interface.
pub const API_VERSION: &str = "v1";

/// Answer of `GET /capabilities`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapabilitiesResponse {
    /// `tapedeck`.
    pub name: String,
    /// Which database it serves; all servers of one database are one deployment.
    #[schema(value_type = Uuid)]
    pub deployment_id: DeploymentId,
    /// The server's version.
    pub version: String,
    /// The version of the HTTP interface.
    pub api_version: String,
    /// The store: `sqlite` or `postgres`.
    pub storage: String,
    /// Who may answer questions.
    pub approval_policies: Vec<String>,
    /// What a prompt may do while a run is active.
    pub on_active: Vec<String>,
    /// Kinds of workspace that our executors prepare.
    pub workspace_kinds: Vec<String>,
    /// How executors may be attached.
    pub executor_kinds: Vec<String>,
    /// Whether a bearer token is asked for.
    pub token_required: bool,
    /// Sizes and counts.
    pub limits: LimitsResponse,
}

/// Sizes and counts that bound requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitsResponse {
    /// A body of an ordinary request, in bytes.
    pub body_bytes: usize,
    /// A body of events, snapshot, tape and complete, in bytes.
    pub upload_bytes: usize,
    /// One event's payload, in bytes.
    pub event_bytes: usize,
    /// Events in one upload.
    pub upload_events: usize,
    /// Tape entries in one upload.
    pub tape_entries: usize,
    /// A prompt, in bytes.
    pub prompt_bytes: usize,
    /// Nesting of JSON.
    pub json_depth: usize,
    /// A page of a list, at most.
    pub page_max: u32,
    /// A page of events, at most.
    pub event_page_max: u32,
    /// The shortest lease, in seconds.
    pub lease_seconds_min: u32,
    /// The longest lease, in seconds.
    pub lease_seconds_max: u32,
    /// How long a poll may be held, in seconds.
    pub wait_seconds_max: u32,
    /// How long a question may stay open, in seconds.
    pub question_seconds_max: u32,
    /// Queued runs of one session.
    pub queued_runs: u32,
}

impl LimitsResponse {
    /// The limits of this build.
    pub const THIS: Self = Self {
        body_bytes: limits::BODY_BYTES,
        upload_bytes: limits::UPLOAD_BYTES,
        event_bytes: limits::EVENT_BYTES,
        upload_events: limits::UPLOAD_EVENTS,
        tape_entries: limits::TAPE_ENTRIES,
        prompt_bytes: limits::PROMPT_BYTES,
        json_depth: limits::JSON_DEPTH,
        page_max: limits::PAGE_MAX,
        event_page_max: limits::EVENT_PAGE_MAX,
        lease_seconds_min: limits::LEASE_SECONDS.0,
        lease_seconds_max: limits::LEASE_SECONDS.1,
        wait_seconds_max: limits::WAIT_SECONDS_MAX,
        question_seconds_max: limits::QUESTION_SECONDS.0,
        queued_runs: limits::QUEUED_RUNS,
    };
}

impl CapabilitiesResponse {
    /// The capabilities of this build on the named store.
    pub fn new(
        deployment_id: DeploymentId,
        version: &str,
        storage: &str,
        token_required: bool,
    ) -> Self {
        Self {
            name: "tapedeck".to_owned(),
            deployment_id,
            version: version.to_owned(),
            api_version: API_VERSION.to_owned(),
            storage: storage.to_owned(),
            approval_policies: words(ApprovalPolicy::ALL, ApprovalPolicy::as_str),
            on_active: words(OnActive::ALL, OnActive::as_str),
            workspace_kinds: words(SERVED_WORKSPACES, WorkspaceKind::as_str),
            executor_kinds: words(
                &[ExecutorAttachment::LocalAttached],
                ExecutorAttachment::as_str,
            ),
            token_required,
            limits: LimitsResponse::THIS,
        }
    }
}

/// Kinds of workspace that our executor prepares; others are stored for executors that know them.
const SERVED_WORKSPACES: &[WorkspaceKind] = &[
    WorkspaceKind::LocalPath,
    WorkspaceKind::Git,
    WorkspaceKind::Scratch,
];

fn words<T: Copy>(all: &[T], word: impl Fn(T) -> &'static str) -> Vec<String> {
    all.iter().map(|value| word(*value).to_owned()).collect()
}

/// Answer of `GET /healthz`: the process runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthResponse {
    /// `ok`.
    pub status: String,
    /// The server's version.
    pub version: String,
    /// The store: `sqlite` or `postgres`.
    pub storage: String,
    /// `full`, or `relaxed` where the operator chose that commits don't wait for the disk.
    pub durability: String,
}

/// Answer of `GET /readyz` with 200: the store answers and the server isn't draining.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadyResponse {
    /// `ready`.
    pub status: String,
    /// The store: `sqlite` or `postgres`.
    pub storage: String,
}
