//! Locks on files below the state directory, shared with other executors on it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::files::{lock_file, lock_within};

/// A held lock.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Waits for the lock, at most `limit`.
    pub(crate) async fn take(path: &Path, limit: Duration) -> io::Result<Self> {
        let file = lock_file(path)?;
        if lock_within(&file, limit, || {}).await? {
            return Ok(Self { _file: file });
        }
        let text = format!("`{}` stays locked by another run", path.display());
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }
}
