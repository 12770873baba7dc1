//! The run target on the wire: where a session's runs may execute. It reads the older names
//! (`external_worker`, `worker_pool`, `worker_id`) and never gives them back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tapedeck_domain::git::GitWorkspace;
use tapedeck_domain::limits;
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::session::{
    Constraints, DEFAULT_EXECUTOR_KIND, DEFAULT_POOL, ExecutorAttachment, ExecutorTarget,
    RunTarget, Workspace, WorkspaceKind,
};
use utoipa::ToSchema;

use crate::check::Faults;
use crate::schema;

/// The older word for `local_attached`.
const EXTERNAL_WORKER: &str = "external_worker";
/// A path, in characters.
const PATH_CHARS: usize = 4_096;
/// `isolation.kind`, in characters.
const ISOLATION_CHARS: usize = 100;

/// Where runs may execute, as a client asks for it. What is omitted is the default.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunTargetRequest {
    /// The workspace, `{kind, …}`.
    pub workspace: Option<WorkspaceBody>,
    /// Which executors qualify.
    pub executor: Option<ExecutorTargetRequest>,
    /// An isolation for the executor to read.
    pub isolation: Option<IsolationBody>,
    /// Bounds of a run.
    pub constraints: Option<ConstraintsBody>,
    /// The caller's own notes.
    #[schema(value_type = Option<Object>)]
    pub annotations: Option<Map<String, Value>>,
}

/// A workspace: its kind, and the kind's own fields: `path` of a `local_path`; `url` or `path`,
/// `ref` or `branch`, `depth` and `subdirectory` of a `git` repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceBody {
    /// Its kind.
    #[schema(value_type = schema::WorkspaceKind)]
    pub kind: WorkspaceKind,
    /// The kind's own fields.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, Value>)]
    pub fields: Map<String, Value>,
}

/// Which executors qualify, as a client asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutorTargetRequest {
    /// `local_attached` (default; older name `external_worker`) or `server_embedded`.
    pub kind: Option<String>,
    /// A free matching label; `local_cli` by default.
    pub executor_kind: Option<String>,
    /// The pool; `default` by default.
    pub pool: Option<String>,
    /// The older name of `pool`.
    pub worker_pool: Option<String>,
    /// Labels that an executor must carry with these values.
    pub labels: Option<BTreeMap<String, String>>,
    /// The one executor that may claim.
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
}

/// An isolation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IsolationBody {
    /// Free text for the executor to read, at most 100 characters.
    pub kind: Option<String>,
}

/// The least and the most of each constraint.
pub(crate) const CONSTRAINTS: [(&str, u32, u32); 4] = [
    ("max_attempts", 1, 100),
    ("max_run_seconds", 1, 7 * 86_400),
    ("idle_timeout_seconds", 1, 86_400),
    ("affinity_seconds", 0, 86_400),
];

/// Bounds of a run. What is null is the server's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConstraintsBody {
    /// Attempts before an expired claim interrupts the run, 1 to 100; 1 by default.
    pub max_attempts: Option<u32>,
    /// Longest run, in seconds, at most a week.
    pub max_run_seconds: Option<u32>,
    /// Longest silence of the agent, in seconds, at most a day.
    pub idle_timeout_seconds: Option<u32>,
    /// How long a run waits for the executor that served the session before, in seconds.
    pub affinity_seconds: Option<u32>,
}

impl RunTargetRequest {
    /// Checks every field; `path` is where the run target stands in the request.
    pub fn check(self, path: &str) -> Result<RunTarget, Vec<FieldError>> {
        let mut faults = Faults::default();
        let workspace = self.workspace.map(|body| {
            check_workspace(&mut faults, &format!("{path}.workspace"), &body);
            Workspace {
                kind: body.kind,
                fields: body.fields,
            }
        });
        let executor = self
            .executor
            .unwrap_or_default()
            .check(&mut faults, &format!("{path}.executor"));
        let isolation = self.isolation.unwrap_or_default().kind;
        if let Some(kind) = &isolation {
            faults.text(&format!("{path}.isolation.kind"), kind, ISOLATION_CHARS);
        }
        let constraints = self.constraints.unwrap_or_default();
        let values = [
            constraints.max_attempts,
            constraints.max_run_seconds,
            constraints.idle_timeout_seconds,
            constraints.affinity_seconds,
        ];
        for ((field, least, most), value) in CONSTRAINTS.into_iter().zip(values) {
            faults.range(&format!("{path}.constraints.{field}"), value, least..=most);
        }
        let annotations = self.annotations.unwrap_or_default();
        faults.object(&format!("{path}.annotations"), &annotations);
        faults.finish(RunTarget {
            workspace,
            executor,
            isolation,
            constraints: Constraints {
                max_attempts: constraints.max_attempts,
                max_run_seconds: constraints.max_run_seconds,
                idle_timeout_seconds: constraints.idle_timeout_seconds,
                affinity_seconds: constraints.affinity_seconds,
            },
            annotations,
        })
    }
}

impl ExecutorTargetRequest {
    fn check(self, faults: &mut Faults, path: &str) -> ExecutorTarget {
        let at = |field: &str| format!("{path}.{field}");
        let kind = match self.kind.as_deref() {
            None | Some(EXTERNAL_WORKER) => ExecutorAttachment::LocalAttached,
            Some(word) => word.parse().unwrap_or_else(|_| {
                faults.add(at("kind"), "must be `local_attached` or `server_embedded`");
                ExecutorAttachment::LocalAttached
            }),
        };
        let (pool_path, older_path) = (at("pool"), at("worker_pool"));
        let pool = faults.either((&pool_path, self.pool), (&older_path, self.worker_pool));
        let (id_path, older_path) = (at("executor_id"), at("worker_id"));
        let id = faults.either((&id_path, self.executor_id), (&older_path, self.worker_id));
        for (field, text) in [
            ("executor_kind", &self.executor_kind),
            ("pool", &pool),
            ("executor_id", &id),
        ] {
            if let Some(text) = text {
                faults.name(&at(field), text, limits::NAME_CHARS);
            }
        }
        let labels = self.labels.unwrap_or_default();
        faults.labels(&at("labels"), labels.iter());
        ExecutorTarget {
            kind,
            executor_kind: self
                .executor_kind
                .unwrap_or_else(|| DEFAULT_EXECUTOR_KIND.to_owned()),
            pool: pool.unwrap_or_else(|| DEFAULT_POOL.to_owned()),
            labels,
            executor_id: id,
        }
    }
}

fn check_workspace(faults: &mut Faults, path: &str, body: &WorkspaceBody) {
    match body.kind {
        WorkspaceKind::LocalPath => match body.fields.get("path") {
            Some(Value::String(text)) => check_path(faults, &format!("{path}.path"), text),
            Some(_) => faults.add(format!("{path}.path"), "must be a text"),
            None => faults.add(format!("{path}.path"), "must be given for a `local_path`"),
        },
        WorkspaceKind::Git => {
            for error in GitWorkspace::read(&body.fields).err().unwrap_or_default() {
                let field = error.path.chars().take(64).collect::<String>();
                faults.add(format!("{path}.{field}"), error.message);
            }
        }
        WorkspaceKind::Scratch | WorkspaceKind::ExternalWorkerRef => {}
    }
    faults.object(path, &body.fields);
}

/// Checks the path of a local workspace; whether it exists only its executor can tell.
pub(crate) fn check_path(faults: &mut Faults, path: &str, text: &str) {
    faults.name(path, text, PATH_CHARS);
}

/// Where runs may execute, as a session shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunTargetResponse {
    /// The workspace; null is a scratch directory.
    #[schema(required)]
    pub workspace: Option<WorkspaceBody>,
    /// Which executors qualify.
    pub executor: ExecutorTargetResponse,
    /// An isolation for the executor to read.
    pub isolation: IsolationBody,
    /// Bounds of a run.
    pub constraints: ConstraintsBody,
    /// The caller's own notes.
    #[schema(value_type = Object)]
    pub annotations: Map<String, Value>,
}

/// Which executors qualify, as a session shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecutorTargetResponse {
    /// How it is attached.
    #[schema(value_type = schema::ExecutorAttachment)]
    pub kind: ExecutorAttachment,
    /// A free matching label.
    pub executor_kind: String,
    /// The pool.
    pub pool: String,
    /// Labels that an executor must carry with these values.
    pub labels: BTreeMap<String, String>,
    /// The one executor that may claim.
    #[schema(required)]
    pub executor_id: Option<String>,
}

impl From<&Workspace> for WorkspaceBody {
    fn from(workspace: &Workspace) -> Self {
        Self {
            kind: workspace.kind,
            fields: workspace.fields.clone(),
        }
    }
}

impl From<&RunTarget> for RunTargetResponse {
    fn from(target: &RunTarget) -> Self {
        Self {
            workspace: target.workspace.as_ref().map(WorkspaceBody::from),
            executor: ExecutorTargetResponse {
                kind: target.executor.kind,
                executor_kind: target.executor.executor_kind.clone(),
                pool: target.executor.pool.clone(),
                labels: target.executor.labels.clone(),
                executor_id: target.executor.executor_id.clone(),
            },
            isolation: IsolationBody {
                kind: target.isolation.clone(),
            },
            constraints: ConstraintsBody {
                max_attempts: target.constraints.max_attempts,
                max_run_seconds: target.constraints.max_run_seconds,
                idle_timeout_seconds: target.constraints.idle_timeout_seconds,
                affinity_seconds: target.constraints.affinity_seconds,
            },
            annotations: target.annotations.clone(),
        }
    }
}
