//! Transactions. A command's work runs in one, alone on its session, and may be run again after a
//! failure of the store, so it must have no effect outside the transaction.

use std::fmt::Debug;

use async_trait::async_trait;
use tapedeck_domain::{Now, RunId, SessionId};

use crate::error::{Failure, StoreError};
use crate::read::Reader;
use crate::rows::{
    ArtifactRows, CheckpointRows, DeploymentRows, EventRows, ExecutorRows, FoldRows, HeadRows,
    IdempotencyRows, InteractionRows, QueueRows, RuleRows, RunRows, SessionRows, SnapshotRows,
    TapeRows, TokenRows,
};

/// All rows, within one transaction.
pub trait Tx:
    SessionRows
    + HeadRows
    + RunRows
    + QueueRows
    + EventRows
    + TapeRows
    + InteractionRows
    + RuleRows
    + ExecutorRows
    + IdempotencyRows
    + DeploymentRows
    + CheckpointRows
    + SnapshotRows
    + ArtifactRows
    + FoldRows
    + TokenRows
    + Send
{
    /// The store's clocks, read once for the transaction (rules R7).
    fn now(&self) -> Now;

    /// Whether a local owner's process is proved dead, so that its lease counts as lapsed (R8).
    fn owner_is_dead(&self, owner_id: &str) -> bool;
}

/// What runs inside a transaction.
#[async_trait]
pub trait Work: Send {
    /// Runs once for each attempt. An error rolls back everything it wrote.
    async fn run(&mut self, tx: &mut dyn Tx) -> Result<(), Failure>;

    /// Rough size of what it writes, in bytes, for the writer's batches.
    fn weight(&self) -> usize {
        256
    }

    /// What it is called, for those who look on.
    fn name(&self) -> &'static str {
        "work"
    }
}

/// Which queue a command waits in (stores §4). Commands of one session keep their arrival order
/// whatever their lane (rules R3), so a work names its session where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Heartbeat, complete, approval, cancel.
    Urgent,
    /// Claim and admit.
    Admission,
    /// Uploads of events.
    Append,
    /// Retention, projection, house-keeping.
    Background,
}

/// How the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreHealth {
    /// `sqlite` or `postgres`.
    pub engine: &'static str,
    /// `full`, or `relaxed` where the operator chose it.
    pub durability: &'static str,
    /// Commands waiting.
    pub queued: usize,
    /// Whether writes are taken now.
    pub writable: bool,
}

/// What a commit changed, for other processes. A hint says "read again" and proves nothing; any of
/// them may be lost (stores §5).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A session's log has grown at least to this number.
    Head {
        /// The session.
        session_id: SessionId,
        /// Its newest event as of the commit.
        head_seq: u64,
    },
    /// A session is gone.
    Deleted(SessionId),
    /// A run, its cancel or one of its questions changed.
    Run(RunId),
    /// An executor was told something, or may take more runs again.
    Executor(String),
    /// Work for a queue may have come.
    Queue {
        /// The matching label.
        executor_kind: String,
        /// The pool.
        pool: String,
    },
}

/// What was heard of other processes' writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// These were announced, by this process or another.
    Hints(Vec<Hint>),
    /// Anything may have changed: hints were or may have been lost.
    ReadAgain,
}

/// A store.
#[async_trait]
pub trait Store: Send + Sync + Debug {
    /// Runs `work` in a transaction and answers after its commit. Dropping the future never
    /// cancels the work. `session` keeps the order of one session's commands.
    async fn transact(
        &self,
        lane: Lane,
        session: Option<SessionId>,
        work: Box<dyn Work>,
    ) -> Result<(), Failure>;

    /// Reads that need no transaction.
    fn reader(&self) -> &dyn Reader;

    /// Tells other processes what a commit changed, without waiting and without a promise. Called
    /// after COMMIT has returned, never inside a transaction.
    fn announce(&self, hints: Vec<Hint>);

    /// Waits for the next sign that another process has written; for ever where none can. Only one
    /// caller at a time listens.
    async fn hear(&self) -> Result<Heard, StoreError>;

    /// How it is.
    fn health(&self) -> StoreHealth;

    /// Finishes what was accepted, checkpoints, and lets go of the database.
    async fn close(&self);
}
