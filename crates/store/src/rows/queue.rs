//! The queue of claimable runs: at most one of a session.

use async_trait::async_trait;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::session::ExecutorTarget;
use tapedeck_domain::time::LeaseInstant;

use super::Rows;

/// A claimable run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    /// The run. Its key is also its place: a requeued run comes back where it was.
    pub run_key: RunKey,
    /// Its session.
    pub session_key: SessionKey,
    /// Who may claim it.
    pub target: ExecutorTarget,
    /// From when.
    pub ready_at: LeaseInstant,
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
    /// Takes a run out; `false` where it wasn't in, which is the re-check of a claim (rules R2).
    async fn dequeue(&mut self, run: RunKey) -> Rows<bool>;
    /// The oldest runs that qualify, read without locks.
    async fn candidates(
        &mut self,
        filter: &ClaimFilter,
        at: LeaseInstant,
        limit: u32,
    ) -> Rows<Vec<Candidate>>;
    /// The claim that a claim request id made, dead or alive (rules R9).
    async fn claim_of_request(&mut self, request_hash: &Digest) -> Rows<Option<ClaimOfRequest>>;
}
