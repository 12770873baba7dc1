//! Executors: what is known of them, and the status derived from last contact and live runs, never
//! from counters (design §6).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::id::{RunId, SessionId};
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
    pub last_run: Option<(RunId, SessionId)>,
}

/// A live claim as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveClaim {
    /// The run.
    pub run_id: RunId,
    /// Its session.
    pub session_id: SessionId,
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
