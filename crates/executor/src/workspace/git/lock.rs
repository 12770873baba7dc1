//! Locks on files below the state directory, shared with other executors on it. A lock ends with
//! its process at the latest.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

const RETRY: Duration = Duration::from_millis(50);

/// A held lock.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Takes the lock if it is free.
    fn try_take(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Waits for the lock, at most `limit`.
    pub(crate) async fn take(path: &Path, limit: Duration) -> io::Result<Self> {
        let until = Instant::now() + limit;
        loop {
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                let text = format!("`{}` stays locked by another run", path.display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            sleep(RETRY).await;
        }
    }
}
