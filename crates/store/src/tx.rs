//! Transactions. A command's work runs in one, alone on its session, and may be run again after a
//! failure of the store, so it must have no effect outside the transaction.

use std::fmt::Debug;

use async_trait::async_trait;
use tapedeck_domain::Now;

use crate::error::{Failure, StoreError};
use crate::read::Reader;
use crate::rows::{
    DeploymentRows, EventRows, ExecutorRows, HeadRows, IdempotencyRows, InteractionRows, QueueRows,
    RunRows, SessionRows, TapeRows,
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
    + ExecutorRows
    + IdempotencyRows
    + DeploymentRows
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

/// A store.
#[async_trait]
pub trait Store: Send + Sync + Debug {
    /// Runs `work` in a transaction and answers after its commit. Dropping the future never
    /// cancels the work. `session` keeps the order of one session's commands.
    async fn transact(
        &self,
        lane: Lane,
        session: Option<tapedeck_domain::SessionId>,
        work: Box<dyn Work>,
    ) -> Result<(), Failure>;

    /// Reads that need no transaction.
    fn reader(&self) -> &dyn Reader;

    /// A number that moves when another process has written; always the same where none can.
    async fn change_counter(&self) -> Result<i64, StoreError>;

    /// How it is.
    fn health(&self) -> StoreHealth;

    /// Finishes what was accepted, checkpoints, and lets go of the database.
    async fn close(&self);
}
