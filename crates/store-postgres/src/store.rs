//! The store: a gate in front of transactions, readers beside them, and hints to other instances.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tapedeck_domain::SessionId;
use tapedeck_store::{Failure, Heard, Hint, Lane, Reader, Store, StoreError, StoreHealth, Work};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::database::PostgresDatabase;
use crate::error::overloaded;
use crate::gate::{Gate, Ticket};
use crate::notify::{Announcer, Ear};
use crate::options::Hints;
use crate::read::PostgresReader;
use crate::transaction::Transactions;

/// A store in a PostgreSQL database, which other instances may use at the same time.
pub struct PostgresStore {
    /// The same database from beside, for reads of the whole.
    pub(crate) database: PostgresDatabase,
    pub(crate) gate: Arc<Gate>,
    pub(crate) transactions: Arc<Transactions>,
    /// Commands on their way.
    pub(crate) tasks: TaskTracker,
    pub(crate) reader: PostgresReader,
    pub(crate) hints: Hints,
    pub(crate) announcer: Arc<Announcer>,
    pub(crate) ear: Arc<Ear>,
    /// What sends and hears hints; it ends with the store.
    pub(crate) messengers: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) _stop_when_dropped: DropGuard,
    pub(crate) durability: &'static str,
    /// How long a command waits at the gate at most.
    pub(crate) patience: Duration,
}

impl PostgresStore {
    /// How many statements readers have run; for tests that count them.
    pub fn read_statements(&self) -> u64 {
        self.reader.statements()
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore")
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn transact(
        &self,
        lane: Lane,
        session: Option<SessionId>,
        mut work: Box<dyn Work>,
    ) -> Result<(), Failure> {
        let ticket = self.gate.enter(lane, session, work.weight())?;
        let (reply, answer) = oneshot::channel();
        let transactions = Arc::clone(&self.transactions);
        let patience = self.patience;
        // On its own from here on: that the caller goes away must not leave a transaction half done.
        self.tasks.spawn(async move {
            let outcome = run(&transactions, ticket, patience, &mut *work).await;
            let _gone = reply.send(outcome);
        });
        answer.await.unwrap_or_else(|_gone| {
            Err(Failure::Store(StoreError::OutcomeUnknown {
                reason: "the command's task ended before it answered".to_owned(),
            }))
        })
    }

    fn reader(&self) -> &dyn Reader {
        &self.reader
    }

    fn announce(&self, hints: Vec<Hint>) {
        match self.hints {
            Hints::Sent => self.announcer.announce(hints),
            Hints::Dropped => {}
        }
    }

    async fn hear(&self) -> Result<Heard, StoreError> {
        if self.stop.is_cancelled() {
            return pending().await;
        }
        Ok(self.ear.hear().await)
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            engine: "postgres",
            durability: self.durability,
            queued: self.gate.waiting(),
            writable: self.gate.is_open() && self.transactions.reached.load(Ordering::Relaxed),
        }
    }

    async fn close(&self) {
        self.gate.close("the store is closing");
        self.tasks.close();
        self.tasks.wait().await;
        self.stop.cancel();
        self.messengers.close();
        self.messengers.wait().await;
        self.transactions.pool.close().await;
    }
}

async fn run(
    transactions: &Transactions,
    ticket: Ticket,
    patience: Duration,
    work: &mut dyn Work,
) -> Result<(), Failure> {
    let pass = timeout(patience, ticket.pass()).await;
    let _pass =
        pass.map_err(|_elapsed| overloaded("the command's turn did not come in time"))??;
    transactions.run(work).await
}
