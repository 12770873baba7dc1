//! A session: its settings, its run target and its derived status.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checkpoint::ForkOrigin;
use crate::id::{CheckpointId, RunId, SessionId, SessionKey, TapeId};
use crate::run::RunStatus;
use crate::time::Timestamp;

macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            /// Every value, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word used on the wire and in the store.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::rejection::UnknownWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL
                    .iter()
                    .copied()
                    .find(|value| value.as_str() == text)
                    .ok_or_else(|| crate::rejection::UnknownWord::new(&[$($text,)*], text))
            }
        }
    };
}
pub(crate) use text_enum;

text_enum! {
    /// Who answers an agent's questions (design §4.7).
    ApprovalPolicy {
        /// Every question is answered approved.
        Yolo = "yolo",
        /// Read-only tools pass, the rest is asked.
        Auto = "auto",
        /// Every question is asked.
        Interactive = "interactive",
    }
}

text_enum! {
    /// What a session is doing, derived from its latest run and open questions (design §4.2).
    SessionStatus {
        /// No run yet.
        Created = "created",
        /// A run is requested, claimed, running, queued or cancelling.
        Running = "running",
        /// The active run waits for an answer.
        WaitingApproval = "waiting_approval",
        /// The latest run completed.
        Completed = "completed",
        /// The latest run failed.
        Failed = "failed",
        /// The latest run was interrupted.
        Interrupted = "interrupted",
        /// The latest run was cancelled.
        Cancelled = "cancelled",
        /// No more runs.
        Closed = "closed",
    }
}

text_enum! {
    /// What the current turn is doing (api.md).
    TurnStatus {
        /// Nothing is active.
        Idle = "idle",
        /// A run waits for an executor.
        Queued = "queued",
        /// A run is being executed.
        Running = "running",
        /// A run waits for an answer.
        WaitingApproval = "waiting_approval",
        /// A cancel is under way.
        Cancelling = "cancelling",
    }
}

/// Where a session's runs may execute (design §4.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct RunTarget {
    /// The workspace, `{kind, …}`; `None` is a scratch directory.
    pub workspace: Option<Workspace>,
    /// Which executors qualify.
    pub executor: ExecutorTarget,
    /// Free text that names an isolation, for the executor to read.
    pub isolation: Option<String>,
    /// Bounds of a run.
    pub constraints: Constraints,
    /// The caller's own notes.
    pub annotations: Map<String, Value>,
}

text_enum! {
    /// The kinds of workspace.
    WorkspaceKind {
        /// A directory on the executor's machine.
        LocalPath = "local_path",
        /// A worktree of a repository.
        Git = "git",
        /// A fresh directory.
        Scratch = "scratch",
        /// A reference that only the executor understands.
        ExternalWorkerRef = "external_worker_ref",
    }
}

/// A workspace as the client described it: its kind, and the kind's own fields kept as given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// Its kind.
    pub kind: WorkspaceKind,
    /// `path` of a local path; other fields of other kinds.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Workspace {
    /// A directory on the executor's machine.
    pub fn local_path(path: &str) -> Self {
        let mut fields = Map::new();
        fields.insert("path".to_owned(), Value::String(path.to_owned()));
        Self {
            kind: WorkspaceKind::LocalPath,
            fields,
        }
    }
}

text_enum! {
    /// How an executor is attached.
    ExecutorAttachment {
        /// A separate process that claims over HTTP.
        LocalAttached = "local_attached",
        /// An executor inside the process that holds the control plane.
        ServerEmbedded = "server_embedded",
    }
}

/// Which executors qualify for a session's runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecutorTarget {
    /// How it is attached.
    pub kind: ExecutorAttachment,
    /// A free matching label, e.g. `local_cli`.
    pub executor_kind: String,
    /// The pool.
    pub pool: String,
    /// Labels that an executor must carry with these values.
    pub labels: BTreeMap<String, String>,
    /// The one executor that may claim.
    pub executor_id: Option<String>,
}

/// The executor kind on both sides where nothing else is said (design §8).
pub const DEFAULT_EXECUTOR_KIND: &str = "local_cli";
/// The pool on both sides where nothing else is said.
pub const DEFAULT_POOL: &str = "default";
/// The namespace of callers whose token names no other (api.md).
pub const DEFAULT_NAMESPACE: &str = "default";

impl Default for ExecutorTarget {
    fn default() -> Self {
        Self {
            kind: ExecutorAttachment::LocalAttached,
            executor_kind: DEFAULT_EXECUTOR_KIND.to_owned(),
            pool: DEFAULT_POOL.to_owned(),
            labels: BTreeMap::new(),
            executor_id: None,
        }
    }
}

/// Bounds of a session's runs. `None` is the server's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Constraints {
    /// Acknowledged attempts before an expired claim interrupts the run; 1 by default.
    pub max_attempts: Option<u32>,
    /// Longest run, in seconds.
    pub max_run_seconds: Option<u32>,
    /// Longest silence of the agent, in seconds.
    pub idle_timeout_seconds: Option<u32>,
    /// How long a run waits for the executor that served the session before, in seconds.
    pub affinity_seconds: Option<u32>,
}

/// What a client may set on a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSettings {
    /// Shown in lists.
    pub title: Option<String>,
    /// Who answers questions.
    pub approval_policy: ApprovalPolicy,
    /// Backend-specific settings: provider, model, `base_url`, `max_steps`, command and more.
    pub agent: Map<String, Value>,
    /// Where runs may execute.
    pub run_target: RunTarget,
    /// Where the session came from, e.g. `cli`.
    pub origin: Option<String>,
    /// The client's own notes.
    pub metadata: Map<String, Value>,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            title: None,
            approval_policy: ApprovalPolicy::Interactive,
            agent: Map::new(),
            run_target: RunTarget::default(),
            origin: None,
            metadata: Map::new(),
        }
    }
}

/// A session with the summary columns that lists show (design §4.2). The head's own numbers
/// (`head_seq`, owner) are in [`crate::owner::SessionHead`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The store's row number.
    pub key: SessionKey,
    /// The identifier.
    pub session_id: SessionId,
    /// The namespace it belongs to.
    pub namespace: String,
    /// What the client set.
    pub settings: SessionSettings,
    /// The tape.
    pub tape_id: TapeId,
    /// The derived columns.
    pub summary: SessionSummary,
    /// Where a fork comes from.
    pub forked_from: Option<ForkOrigin>,
    /// The number of the newest restore that put runs aside: what agents remember of later times
    /// is no longer the session's past.
    pub restored_seq: Option<u64>,
    /// The highest number that lies inside a fold (rules R20).
    pub folded_seq: Option<u64>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When anything of it last changed.
    pub updated_at: Timestamp,
    /// When a run, an event or an answer last came.
    pub last_activity_at: Timestamp,
    /// When it was closed.
    pub closed_at: Option<Timestamp>,
}

/// The columns that are kept up to date in each write's transaction, so that lists never scan runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSummary {
    /// The status.
    pub status: SessionStatus,
    /// The turn's status.
    pub turn_status: TurnStatus,
    /// The active run.
    pub active_run_id: Option<RunId>,
    /// The newest run that has been admitted.
    pub last_run_id: Option<RunId>,
    /// Its status.
    pub last_run_status: Option<RunStatus>,
    /// The newest run that ended interrupted.
    pub last_interrupted_run_id: Option<RunId>,
    /// The last event of the newest settled run, from which a resume goes on.
    pub resume_from_event_id: Option<String>,
    /// Runs that wait behind the active one.
    pub queued_runs: u32,
    /// Whether the queue waits for a person after an interrupted run (rules R16).
    pub queue_held: bool,
    /// Open questions.
    pub pending_interactions: u32,
    /// Active checkpoints.
    pub checkpoint_count: u32,
    /// The newest active checkpoint.
    pub latest_checkpoint_id: Option<CheckpointId>,
    /// Its label.
    pub latest_checkpoint_label: Option<String>,
}

impl SessionSummary {
    /// The summary of a session without runs.
    pub const fn empty() -> Self {
        Self {
            status: SessionStatus::Created,
            turn_status: TurnStatus::Idle,
            active_run_id: None,
            last_run_id: None,
            last_run_status: None,
            last_interrupted_run_id: None,
            resume_from_event_id: None,
            queued_runs: 0,
            queue_held: false,
            pending_interactions: 0,
            checkpoint_count: 0,
            latest_checkpoint_id: None,
            latest_checkpoint_label: None,
        }
    }

    /// Whether `resume` would be accepted now: a settled run exists and none is active.
    pub const fn resumable(&self) -> bool {
        self.active_run_id.is_none()
            && self.last_run_id.is_some()
            && !matches!(self.status, SessionStatus::Closed)
    }

    /// Recomputes `status` and `turn_status` from the active run's status (if any), the newest
    /// settled run's status and the open questions.
    pub fn derive(&mut self, active: Option<RunStatus>, closed: bool) {
        let (status, turn) = match active {
            Some(RunStatus::Cancelling) => (SessionStatus::Running, TurnStatus::Cancelling),
            Some(_) if self.pending_interactions > 0 => {
                (SessionStatus::WaitingApproval, TurnStatus::WaitingApproval)
            }
            Some(RunStatus::Requested | RunStatus::Queued) => {
                (SessionStatus::Running, TurnStatus::Queued)
            }
            Some(_) => (SessionStatus::Running, TurnStatus::Running),
            None if closed => (SessionStatus::Closed, TurnStatus::Idle),
            None => {
                let status = match self.last_run_status {
                    None => SessionStatus::Created,
                    Some(RunStatus::Completed) => SessionStatus::Completed,
                    Some(RunStatus::Failed) => SessionStatus::Failed,
                    Some(RunStatus::Cancelled) => SessionStatus::Cancelled,
                    Some(RunStatus::Interrupted) => SessionStatus::Interrupted,
                    Some(
                        RunStatus::Requested
                        | RunStatus::Queued
                        | RunStatus::Claimed
                        | RunStatus::Running
                        | RunStatus::Cancelling,
                    ) => SessionStatus::Running,
                };
                let turn = if self.queued_runs > 0 {
                    TurnStatus::Queued
                } else {
                    TurnStatus::Idle
                };
                (status, turn)
            }
        };
        self.status = status;
        self.turn_status = turn;
    }
}

#[cfg(test)]
mod tests;
