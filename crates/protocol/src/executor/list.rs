//! Executors as operators see them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tapedeck_domain::executor::{Executor, ExecutorFilter, ExecutorStatus};
use tapedeck_domain::{Now, RunId, SessionId, Timestamp, Timing};
use utoipa::{IntoParams, ToSchema};

use crate::page::{self, Page, PageQuery, QueryFault};
use crate::schema;

/// An executor with what it said last and what it does now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecutorResponse {
    /// Its stable name.
    pub executor_id: String,
    /// Its process.
    #[schema(required)]
    pub worker_instance_id: Option<String>,
    /// The matching label.
    pub executor_kind: String,
    /// The pool.
    pub pool: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The process id on its machine.
    #[schema(required)]
    pub process_id: Option<i64>,
    /// Its version.
    #[schema(required)]
    pub version: Option<String>,
    /// What its backend can do.
    #[schema(value_type = Option<Value>, required)]
    pub capabilities: Option<Value>,
    /// Where its workspaces are.
    #[schema(value_type = Option<Value>, required)]
    pub workspace: Option<Value>,
    /// The status, derived from last contact and live claims.
    #[schema(value_type = schema::ExecutorStatus)]
    pub status: ExecutorStatus,
    /// Whether it was told to take no new work.
    pub draining: bool,
    /// Runs it takes at once.
    #[schema(required)]
    pub max_runs: Option<u32>,
    /// Live claims it holds.
    pub current_runs: u32,
    /// The newest of them.
    #[schema(value_type = Option<Uuid>, required)]
    pub current_run_id: Option<RunId>,
    /// Its session.
    #[schema(value_type = Option<Uuid>, required)]
    pub current_session_id: Option<SessionId>,
    /// The newest run it ever claimed.
    #[schema(value_type = Option<Uuid>, required)]
    pub last_run_id: Option<RunId>,
    /// Its session.
    #[schema(value_type = Option<Uuid>, required)]
    pub last_session_id: Option<SessionId>,
    /// When it was last heard of.
    #[schema(value_type = String, format = DateTime)]
    pub last_seen_at: Timestamp,
    /// When the lease of its newest live claim ends.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub lease_expires_at: Option<Timestamp>,
}

impl ExecutorResponse {
    /// Shows an executor as it stands at `now`. It serves every namespace: how many runs it has is told
    /// to all, and which they are to their own namespace.
    pub fn new(executor: &Executor, namespace: &str, now: Now, timing: &Timing) -> Self {
        let contact = &executor.contact;
        let mut live_runs = executor.live_runs.iter();
        let current = live_runs.find(|claim| claim.namespace == namespace);
        let last = executor.last_run.as_ref();
        let last = last.filter(|run| run.namespace == namespace);
        Self {
            executor_id: contact.executor_id.clone(),
            worker_instance_id: contact.instance_id.clone(),
            executor_kind: contact.executor_kind.clone(),
            pool: contact.pool.clone(),
            labels: contact.labels.clone(),
            process_id: contact.process_id,
            version: contact.version.clone(),
            capabilities: contact.capabilities.clone(),
            workspace: contact.workspace.clone(),
            status: executor.status(now, timing),
            draining: executor.draining,
            max_runs: contact.max_runs,
            current_runs: u32::try_from(executor.live_runs.len()).unwrap_or(u32::MAX),
            current_run_id: current.map(|claim| claim.run_id),
            current_session_id: current.map(|claim| claim.session_id),
            last_run_id: last.map(|run| run.run_id),
            last_session_id: last.map(|run| run.session_id),
            last_seen_at: executor.last_seen_at,
            lease_expires_at: current.map(|claim| now.wall_of(claim.expires_at)),
        }
    }
}

/// Query of `GET /executors`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ExecutorsQuery {
    /// Items of one page, 1 to 200; 50 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    pub limit: Option<String>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only executors of this pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Only executors with this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::ExecutorStatus>)]
    pub status: Option<String>,
}

impl ExecutorsQuery {
    /// Checks limit, cursor and status.
    pub fn check(&self) -> Result<(Page<String>, ExecutorFilter), QueryFault> {
        let page = PageQuery::of(self.limit.as_ref(), self.cursor.as_ref()).check()?;
        let status = page::word("status", self.status.as_deref())?;
        let pool = self.pool.clone();
        Ok((page, ExecutorFilter { pool, status }))
    }
}

/// Answer of `GET /executors`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecutorList {
    /// By name.
    pub executors: Vec<ExecutorResponse>,
    /// The next page; null at the end.
    #[schema(required)]
    pub next_cursor: Option<String>,
}
