//! Runs: the wide record, the small live row, and the claims a run has had.

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::admit::QueuePlaces;
use tapedeck_domain::claim::Claim;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::id::{CheckpointId, RunId, RunKey, SessionKey};
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::run::{LiveRun, NewRun, Recovery, Run, RunStatus, SettledClaim};
use tapedeck_domain::time::{LeaseInstant, Timestamp};

use super::Rows;

/// A run whose session's head is locked for the rest of the transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockedRun {
    /// The session's head.
    pub head: SessionHead,
    /// The run's row number.
    pub key: RunKey,
    /// The run.
    pub run_id: RunId,
    /// Its status as recorded.
    pub status: RunStatus,
    /// Its live part; `None` once settled.
    pub live: Option<LiveRun>,
    /// Under which claim it was settled; `None` while live.
    pub settled: Option<SettledClaim>,
}

/// The columns of a run's record that change while it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunProgress {
    /// The status.
    pub status: RunStatus,
    /// Claims so far.
    pub attempt: u32,
    /// Who holds it; `None` keeps what is there.
    pub executor_id: Option<String>,
    /// When it was claimed; `None` keeps what is there.
    pub claimed_at: Option<Timestamp>,
    /// When its executor was first heard of; `None` keeps what is there.
    pub started_at: Option<Timestamp>,
    /// Why nobody can serve it; `None` clears it.
    pub unservable: Option<String>,
}

/// The columns that settling writes.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledRun {
    /// The final status.
    pub status: RunStatus,
    /// The result.
    pub result: Option<Value>,
    /// The error.
    pub error: Option<String>,
    /// Facts about an interruption.
    pub recovery: Option<Recovery>,
    /// Under which claim.
    pub claim: SettledClaim,
    /// The agent's own state for a later resume.
    pub agent_state: Option<Value>,
    /// Executor events recorded.
    pub event_count: u64,
    /// When.
    pub settled_at: Timestamp,
    /// The number of the terminal event.
    pub settled_seq: u64,
}

/// Rows of `runs`, `run_heads` and `claims`.
#[async_trait]
pub trait RunRows {
    /// Inserts a run's record.
    async fn insert_run(&mut self, session: SessionKey, run: &NewRun) -> Rows<RunKey>;
    /// Inserts a live row.
    async fn insert_live_run(&mut self, run: &LiveRun) -> Rows<()>;
    /// Writes a live row back.
    async fn save_live_run(&mut self, run: &LiveRun) -> Rows<()>;
    /// Deletes a live row.
    async fn delete_live_run(&mut self, key: RunKey) -> Rows<()>;
    /// Locks the session's head first, then reads what the run's writes need (rules R1, R2).
    async fn lock_run(&mut self, id: RunId) -> Rows<Option<LockedRun>>;
    /// The same, where nobody else holds the head now; `None` where somebody does (rules R2). A claim
    /// goes on to its next candidate then.
    async fn lock_run_if_free(&mut self, id: RunId) -> Rows<Option<LockedRun>>;
    /// A live row of a locked session.
    async fn live_run(&mut self, key: RunKey) -> Rows<Option<LiveRun>>;
    /// A run's whole record.
    async fn run(&mut self, key: RunKey) -> Rows<Run>;
    /// The places that queued runs of a session hold.
    async fn queue_places(&mut self, session: SessionKey) -> Rows<QueuePlaces>;
    /// The first queued run of a session, with its prompt.
    async fn first_queued_run(&mut self, session: SessionKey) -> Rows<Option<(LiveRun, String)>>;
    /// All queued runs of a session, in order.
    async fn queued_runs(&mut self, session: SessionKey) -> Rows<Vec<LiveRun>>;
    /// All live runs of a session, the active one and the queued ones, in order of their places.
    async fn live_runs(&mut self, session: SessionKey) -> Rows<Vec<LiveRun>>;
    /// Writes progress to the record.
    async fn save_progress(&mut self, key: RunKey, progress: &RunProgress) -> Rows<()>;
    /// Writes the end to the record.
    async fn settle_run(&mut self, key: RunKey, settled: &SettledRun) -> Rows<()>;
    /// The newest settled run that is not superseded and was not cancelled while queued.
    async fn latest_settled_run(&mut self, session: SessionKey) -> Rows<Option<Run>>;
    /// The newest interrupted run that is not superseded.
    async fn latest_interrupted_run(&mut self, session: SessionKey) -> Rows<Option<RunId>>;
    /// Marks runs that have settled after `session_seq` as put aside by a restore, also those that
    /// waited in a held queue before it. Gives how many.
    async fn supersede_runs(
        &mut self,
        session: SessionKey,
        session_seq: u64,
        by: CheckpointId,
        at: Timestamp,
    ) -> Rows<u64>;
    /// The structured context of a resumed run.
    async fn resume_context(&mut self, key: RunKey) -> Rows<Option<Value>>;
    /// Replaces the agent state that a run leaves.
    async fn save_agent_state(&mut self, key: RunKey, state: &Value) -> Rows<()>;
    /// The agent state that a run left.
    async fn agent_state(&mut self, key: RunKey) -> Rows<Option<Value>>;
    /// Records a claim, for proofs by earlier tokens and for replays.
    async fn insert_claim(&mut self, key: RunKey, claim: &Claim, now: LeaseInstant) -> Rows<()>;
    /// The token hash of one attempt.
    async fn claim_token_hash(&mut self, key: RunKey, attempt: u32) -> Rows<Option<Digest>>;
    /// Whether the instances behind the newest `count` claims have all been in touch since they
    /// claimed (rules R10).
    async fn claimants_seen(&mut self, key: RunKey, count: u32) -> Rows<bool>;
    /// Runs whose lease ended at `at` or before, by key after `after`: candidates, read without locks.
    async fn expired_claims(
        &mut self,
        at: LeaseInstant,
        after: RunKey,
        limit: u32,
    ) -> Rows<Vec<(RunKey, RunId)>>;
    /// Active runs of sessions whose owner is another one and gone at `at`, by key after `after`:
    /// candidates, read without locks. Where nobody has claimed such a run, nothing else would bring
    /// it to the sweep's notice.
    async fn orphaned_runs(
        &mut self,
        owner_id: &str,
        at: LeaseInstant,
        after: RunKey,
        limit: u32,
    ) -> Rows<Vec<(RunKey, RunId)>>;
}
