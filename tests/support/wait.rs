//! Waiting for a condition, always with a bound. It must never be used to let time pass.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks again and again until there is something to see; fails once `limit` is over.
#[track_caller]
pub(crate) fn eventually<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let end = Instant::now() + limit;
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            assert!(
                Instant::now() < end,
                "{caller}: not within {limit:?}: {what}"
            );
            sleep(PAUSE).await;
        }
    }
}

/// Bounds one wait.
#[track_caller]
pub(crate) fn within<T>(
    what: &str,
    limit: Duration,
    work: impl Future<Output = T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let outcome = tokio::time::timeout(limit, work).await;
        outcome.unwrap_or_else(|_| panic!("{caller}: not within {limit:?}: {what}"))
    }
}
