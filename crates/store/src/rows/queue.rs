//! The queue of claimable runs: at most one of a session.

use async_trait::async_trait;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::queue::{Preference, Turns};
use tapedeck_domain::session::ExecutorTarget;
use tapedeck_domain::time::LeaseInstant;

use super::Rows;

/// A claimable run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    /// The run.
    pub run_key: RunKey,
    /// Its session.
    pub session_key: SessionKey,
    /// Who may claim it.
    pub target: ExecutorTarget,
    /// Whom it waits for before everybody else.
    pub preference: Option<Preference>,
    /// Whose turns are counted together.
    pub flow: String,
    /// Its turn: lower ones are claimed first.
    pub turn: i64,
    /// From when.
    pub ready_at: LeaseInstant,
}

impl QueueEntry {
    /// The one executor that may claim it at first; empty where everybody who qualifies may.
    pub fn audience(&self) -> &str {
        let preferred = self.preference.as_ref().map(|wait| &wait.executor_id);
        let only = self.target.executor_id.as_ref().or(preferred);
        only.map_or("", String::as_str)
    }
}

/// A run that has been claimable for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingRun {
    /// The run.
    pub run_key: RunKey,
    /// Who may claim it.
    pub target: ExecutorTarget,
    /// Why nobody does, as its record says.
    pub unservable: Option<String>,
}

/// Who asks for work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimFilter {
    /// The matching label.
    pub executor_kind: String,
    /// The pool.
    pub pool: String,
    /// The executor, for pinned runs.
    pub executor_id: String,
    /// Its labels: a run qualifies if all it requires are among them.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Only this session.
    pub session_id: Option<SessionId>,
    /// The owner that this control plane writes as: sessions of other live owners are left out (R8).
    pub owner_id: String,
}

/// A run that may be claimed, to be re-checked under its head's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The run.
    pub run_key: RunKey,
    /// The run.
    pub run_id: RunId,
}

/// What a claim request id led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimOfRequest {
    /// The run.
    pub run_id: RunId,
    /// The attempt.
    pub attempt: u32,
}

/// Rows of `run_queue`.
#[async_trait]
pub trait QueueRows {
    /// Puts a run into the queue.
    async fn enqueue(&mut self, entry: &QueueEntry) -> Rows<()>;
    /// What a new turn in a flow is counted from, read without locks: of two runs that come at the same
    /// moment both may get the same.
    async fn turns(&mut self, target: &ExecutorTarget, flow: &str) -> Rows<Turns>;
    /// Takes a run out and gives the turn that it had; `None` where it wasn't in, which is the re-check
    /// of a claim (rules R2).
    async fn dequeue(&mut self, run: RunKey) -> Rows<Option<i64>>;
    /// Records that a turn was served; earlier ones change nothing, and who would have to wait for
    /// another claim's record leaves it.
    async fn serve_turn(&mut self, executor_kind: &str, pool: &str, turn: i64) -> Rows<()>;
    /// Runs that have been claimable since `ready_before`, by key after `after`, read without locks;
    /// only of sessions that are this owner's or nobody's.
    async fn waiting_runs(
        &mut self,
        owner_id: &str,
        ready_before: LeaseInstant,
        after: RunKey,
        limit: u32,
    ) -> Rows<Vec<WaitingRun>>;
    /// Says of runs that still wait why nobody serves them; `None` clears it. Leaves out rows that
    /// somebody holds. Gives how many.
    async fn flag_runs(&mut self, runs: &[RunKey], unservable: Option<&str>) -> Rows<u64>;
    /// The first runs in turn that qualify, read without locks.
    async fn candidates(
        &mut self,
        filter: &ClaimFilter,
        at: LeaseInstant,
        limit: u32,
    ) -> Rows<Vec<Candidate>>;
    /// The claim that a claim request id made, dead or alive (rules R9).
    async fn claim_of_request(&mut self, request_hash: &Digest) -> Rows<Option<ClaimOfRequest>>;
}
