//! Executors: what is known of them, and the status derived from last contact and live runs, never
//! from counters (design §6).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::id::{RunId, SessionId};
use crate::rejection::Rejection;
use crate::session::{ExecutorTarget, text_enum};
use crate::time::{LeaseInstant, Now, Timestamp};
use crate::timing::Timing;

text_enum! {
    /// The status of an executor.
    ExecutorStatus {
        /// Holds at least one live claim.
        Running = "running",
        /// In touch, nothing to do.
        Idle = "idle",
        /// Not heard of for a while.
        Stale = "stale",
        /// Not heard of for long.
        Offline = "offline",
        /// Takes no new work.
        Draining = "draining",
    }
}

/// What an executor says of itself with a claim or a heartbeat.
#[derive(Debug, Clone, PartialEq)]
pub struct Contact {
    /// Its stable name.
    pub executor_id: String,
    /// Its process.
    pub instance_id: Option<String>,
    /// The matching label.
    pub executor_kind: String,
    /// The pool.
    pub pool: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The process id on its machine.
    pub process_id: Option<i64>,
    /// Its version.
    pub version: Option<String>,
    /// What its backend can do, as it says.
    pub capabilities: Option<Value>,
    /// Where its workspaces are, as it says.
    pub workspace: Option<Value>,
    /// How many runs it takes at once.
    pub max_runs: Option<u32>,
}

/// What an executor says of itself with a heartbeat; what it leaves out keeps its value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Its process; ownership of the run stays with the claim's own instance.
    pub instance_id: Option<String>,
    /// The process id on its machine.
    pub process_id: Option<i64>,
    /// What its backend can do, as it says.
    pub capabilities: Option<Value>,
    /// Where its workspaces are, as it says.
    pub workspace: Option<Value>,
}

/// An executor as operators see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Executor {
    /// What it said last.
    pub contact: Contact,
    /// Whether it was told to take no new work.
    pub draining: bool,
    /// When it was last heard of.
    pub last_seen_at: Timestamp,
    /// The same on the lease clock.
    pub last_seen: LeaseInstant,
    /// Live runs, newest first.
    pub live_runs: Vec<LiveClaim>,
    /// The newest run it ever claimed.
    pub last_run: Option<LastRun>,
}

/// A run that an executor claimed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRun {
    /// The run.
    pub run_id: RunId,
    /// Its session.
    pub session_id: SessionId,
    /// Who may know of it.
    pub namespace: String,
}

/// A live claim as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveClaim {
    /// The run.
    pub run_id: RunId,
    /// Its session.
    pub session_id: SessionId,
    /// Who may know which run it is.
    pub namespace: String,
    /// When its lease ends.
    pub expires_at: LeaseInstant,
}

impl Executor {
    /// The status, derived.
    pub fn status(&self, now: Now, timing: &Timing) -> ExecutorStatus {
        let silent = now.lease.since(self.last_seen);
        let working = self
            .live_runs
            .iter()
            .any(|claim| claim.expires_at > now.lease);
        if silent >= timing.executor_offline_ms && !working {
            ExecutorStatus::Offline
        } else if silent >= timing.executor_stale_ms && !working {
            ExecutorStatus::Stale
        } else if self.draining {
            ExecutorStatus::Draining
        } else if working {
            ExecutorStatus::Running
        } else {
            ExecutorStatus::Idle
        }
    }
}

/// What decides whether an executor may take one more run, whatever is waiting for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// Whether it was told to take no new work.
    pub draining: bool,
    /// How many runs it takes at once, as it said last.
    pub max_runs: Option<u32>,
    /// Live claims of the process that asks: those of an earlier process of the same name are not
    /// in its way.
    pub live_runs: u32,
}

/// Decides whether an executor may take one more run. What it says with the claim counts before what
/// it said earlier.
pub fn may_claim(contact: &Contact, standing: Standing) -> Result<(), Rejection> {
    if standing.draining {
        return Err(Rejection::ExecutorDraining {
            executor_id: contact.executor_id.clone(),
        });
    }
    match contact.max_runs.or(standing.max_runs) {
        Some(max_runs) if standing.live_runs >= max_runs => Err(Rejection::ExecutorFull {
            executor_id: contact.executor_id.clone(),
            live_runs: standing.live_runs,
            max_runs,
        }),
        Some(_) | None => Ok(()),
    }
}

/// Decides whether an executor may be forgotten: only one that is gone and holds nothing.
pub fn may_forget(executor: &Executor, now: Now, timing: &Timing) -> Result<(), Rejection> {
    match executor.status(now, timing) {
        ExecutorStatus::Offline => Ok(()),
        status @ (ExecutorStatus::Running
        | ExecutorStatus::Idle
        | ExecutorStatus::Stale
        | ExecutorStatus::Draining) => Err(Rejection::ExecutorNotOffline {
            executor_id: executor.contact.executor_id.clone(),
            status,
        }),
    }
}

/// What counts as the last contact of an executor whose process says that it ends: so long ago that
/// nobody waits for it. `None` where another process of its name was heard of since, which stays.
pub fn leave(
    executor: &Executor,
    instance_id: Option<&str>,
    now: Now,
    timing: &Timing,
) -> Option<Now> {
    let is_its_own = executor.contact.instance_id.as_deref() == instance_id;
    is_its_own.then(|| Now {
        lease: now.lease.plus_ms(-timing.executor_offline_ms),
        ..now
    })
}

/// Which executors a list shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecutorFilter {
    /// Only of this pool.
    pub pool: Option<String>,
    /// Only those with this status.
    pub status: Option<ExecutorStatus>,
}

impl ExecutorFilter {
    /// Whether the list shows an executor.
    pub fn shows(&self, executor: &Executor, now: Now, timing: &Timing) -> bool {
        self.pool
            .as_ref()
            .is_none_or(|pool| *pool == executor.contact.pool)
            && self
                .status
                .is_none_or(|status| status == executor.status(now, timing))
    }
}

/// Whether an executor qualifies for a run target: kind, pool, pin and every required label.
pub fn qualifies(contact: &Contact, target: &ExecutorTarget) -> bool {
    contact.executor_kind == target.executor_kind
        && contact.pool == target.pool
        && target
            .executor_id
            .as_ref()
            .is_none_or(|pinned| *pinned == contact.executor_id)
        && target
            .labels
            .iter()
            .all(|(name, value)| contact.labels.get(name) == Some(value))
}

#[cfg(test)]
mod tests;
