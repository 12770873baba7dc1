//! The writer: the one task that owns the write connection (stores §4). It takes everything that
//! waits, commits it as one group, answers, and looks after the write-ahead log. It never waits for
//! more commands before a commit: the sync is the batching window.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Executor as _;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::error::is_io;
use crate::group::{Untrustworthy, WriteConnection};
use crate::lock::DirLock;
use crate::queue::{Next, Queue};
use crate::tx::Shared;

/// A quiet time after which the log is copied into the database.
const IDLE: Duration = Duration::from_secs(1);
/// A log this long is reset even under load.
const LOG_RESET_BYTES: u64 = 32 * 1024 * 1024;
/// A log this long means that some reader never ends.
const LOG_ALARM_BYTES: u64 = 128 * 1024 * 1024;
/// Between two tries to reset the log, and between two alarms.
const RESET_PAUSE: Duration = Duration::from_secs(1);
const ALARM_PAUSE: Duration = Duration::from_mins(1);

/// The writer.
pub(crate) struct Writer {
    pub(crate) conn: WriteConnection,
    pub(crate) queue: Arc<Queue>,
    pub(crate) clock: Clock,
    pub(crate) lock: Arc<DirLock>,
    pub(crate) log_path: PathBuf,
    pub(crate) fatal: CancellationToken,
    pub(crate) busy_timeout: Duration,
}

/// Whatever ends the writer, nobody is left waiting for it.
struct LastWord(Arc<Queue>, CancellationToken);

impl Drop for LastWord {
    fn drop(&mut self) {
        if self.0.is_open() {
            self.1.cancel();
        }
        self.0.abandon("the store is closed");
    }
}

/// What the writer remembers of the write-ahead log.
struct Log {
    /// Whether anything has been written since it was last copied.
    dirty: bool,
    reset_after: Instant,
    alarm_after: Instant,
}

impl Writer {
    /// Works until the queue is closed and empty, or the disk has failed.
    pub(crate) async fn run(mut self) {
        let last_word = LastWord(Arc::clone(&self.queue), self.fatal.clone());
        let ended = self.work().await;
        if let Err(Untrustworthy(reason)) = ended {
            tracing::error!(reason, "the database failed; the process must end");
            self.fatal.cancel();
            self.queue.abandon("the store has failed");
            return;
        }
        drop(last_word);
        // Closing the last connection copies the log into the database and removes it.
        if let Err(error) = sqlx::Connection::close(self.conn.into_raw()).await {
            tracing::warn!(error = %error, "the write connection did not close well");
        }
    }

    async fn work(&mut self) -> Result<(), Untrustworthy> {
        let lock = Arc::clone(&self.lock);
        let clock = self.clock.clone();
        let shared = Shared {
            clock: &clock,
            lock: &lock,
        };
        let mut log = Log {
            dirty: true,
            reset_after: Instant::now(),
            alarm_after: Instant::now(),
        };
        loop {
            let next = if log.dirty {
                timeout(IDLE, self.queue.next()).await.ok()
            } else {
                Some(self.queue.next().await)
            };
            match next {
                None => {
                    log.dirty = false;
                    self.checkpoint("PRAGMA wal_checkpoint(PASSIVE)").await?;
                }
                Some(Next::Group(group)) => {
                    log.dirty = true;
                    self.conn.run(group, &shared).await?;
                    self.bound_log(&mut log).await?;
                }
                Some(Next::Closed) => {
                    return self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)").await;
                }
            }
        }
    }

    /// Resets a log that has grown long, which waits for readers for a moment only.
    async fn bound_log(&mut self, log: &mut Log) -> Result<(), Untrustworthy> {
        let bytes = std::fs::metadata(&self.log_path).map_or(0, |found| found.len());
        let now = Instant::now();
        if bytes <= LOG_RESET_BYTES || now < log.reset_after {
            return Ok(());
        }
        log.reset_after = now + RESET_PAUSE;
        self.wait_for_others(Duration::from_millis(100)).await;
        let done = self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)").await;
        self.wait_for_others(self.busy_timeout).await;
        if bytes > LOG_ALARM_BYTES && now >= log.alarm_after {
            log.alarm_after = now + ALARM_PAUSE;
            tracing::warn!(bytes, "the write-ahead log is long: a reader may be stuck");
        }
        done
    }

    /// Copies the log. That it can't be done now is no failure: it is tried again.
    async fn checkpoint(&mut self, statement: &'static str) -> Result<(), Untrustworthy> {
        match self.conn.raw().execute(statement).await {
            Ok(_) => Ok(()),
            Err(error) if is_io(&error) => {
                Err(Untrustworthy(format!("a checkpoint failed: {error}")))
            }
            Err(error) => {
                tracing::debug!(error = %error, "a checkpoint did not run");
                Ok(())
            }
        }
    }

    async fn wait_for_others(&mut self, at_most: Duration) {
        let statement = format!("PRAGMA busy_timeout = {}", at_most.as_millis());
        let statement = sqlx::AssertSqlSafe(statement);
        if let Err(error) = self.conn.raw().execute(statement).await {
            tracing::debug!(error = %error, "the busy timeout was not changed");
        }
    }
}
