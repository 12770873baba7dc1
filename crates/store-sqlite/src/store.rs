//! The store: a queue in front of the writer, readers beside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tapedeck_domain::SessionId;
use tapedeck_store::{Failure, Heard, Hint, Lane, Reader, Store, StoreError, StoreHealth, Work};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::file::SqliteFile;
use crate::lock::DirLock;
use crate::options::Durability;
use crate::queue::{Command, Queue};
use crate::read::SqliteReader;
use crate::watch::Watch;

/// A store in one SQLite file.
pub struct SqliteStore {
    /// The same file from beside, for reads of the whole.
    pub(crate) file: SqliteFile,
    pub(crate) queue: Arc<Queue>,
    pub(crate) tasks: TaskTracker,
    pub(crate) reader: SqliteReader,
    pub(crate) clock: Clock,
    pub(crate) durability: Durability,
    pub(crate) fatal: CancellationToken,
    pub(crate) watch: Watch,
    pub(crate) lock: Mutex<Option<Arc<DirLock>>>,
    pub(crate) closed: AtomicBool,
}

impl SqliteStore {
    /// Resolves when the disk has failed in a way that leaves this process's view of the database
    /// untrustworthy. The process must end; opening again replays the log.
    pub async fn fatal(&self) {
        self.fatal.cancelled().await;
    }

    /// How many statements readers have run; for tests that count them.
    pub fn read_statements(&self) -> u64 {
        self.reader.statements()
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore")
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // The writer finishes what was accepted and ends by itself.
        self.queue.close("the store is closed");
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn transact(
        &self,
        lane: Lane,
        session: Option<SessionId>,
        work: Box<dyn Work>,
    ) -> Result<(), Failure> {
        let (reply, answer) = oneshot::channel();
        let command = Command {
            weight: work.weight(),
            work,
            session,
            arrived: self.clock.lease(),
            reply,
        };
        self.queue.push(lane, command)?;
        answer.await.unwrap_or_else(|_gone| {
            Err(Failure::Store(StoreError::OutcomeUnknown {
                reason: "the writer ended before it answered".to_owned(),
            }))
        })
    }

    fn reader(&self) -> &dyn Reader {
        &self.reader
    }

    /// There is nothing to say: the database itself tells other processes that it has changed.
    fn announce(&self, _hints: Vec<Hint>) {}

    async fn hear(&self) -> Result<Heard, StoreError> {
        self.watch.hear().await
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            engine: "sqlite",
            durability: self.durability.as_str(),
            queued: self.queue.len(),
            writable: self.queue.is_open(),
        }
    }

    async fn close(&self) {
        self.queue.close("the store is closing");
        self.watch.close().await;
        self.tasks.close();
        self.tasks.wait().await;
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.reader.close().await;
        self.lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}
