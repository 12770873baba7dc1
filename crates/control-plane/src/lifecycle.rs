//! How the process ends: a soft token (stop accepting, drain), a hard token (out of time), and a
//! tracker of every task, so that shutdown waits for what was accepted and never for ever.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Passed down from `main`; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    soft: CancellationToken,
    hard: CancellationToken,
    tracker: TaskTracker,
}

impl Lifecycle {
    /// A running process.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts the drain.
    pub fn drain(&self) {
        self.soft.cancel();
    }

    /// Ends the drain.
    pub fn abort(&self) {
        self.soft.cancel();
        self.hard.cancel();
    }

    /// Whether the drain has started.
    pub fn is_draining(&self) -> bool {
        self.soft.is_cancelled()
    }

    /// Fires when the drain starts.
    pub const fn soft(&self) -> &CancellationToken {
        &self.soft
    }

    /// Fires when the drain must end.
    pub const fn hard(&self) -> &CancellationToken {
        &self.hard
    }

    /// Runs a task that shutdown waits for.
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// Waits until every task has ended, at most `bound`; then ends the drain.
    pub async fn finish(&self, bound: Duration) {
        self.drain();
        self.tracker.close();
        if tokio::time::timeout(bound, self.tracker.wait())
            .await
            .is_err()
        {
            tracing::warn!(bound_ms = bound.as_millis(), "drain ran out of time");
        }
        self.hard.cancel();
    }
}
