//! Which sessions have an executor in the background already: each of those executors holds a lock
//! that is named after its session. Locks end with their process. The file goes with the lock, so
//! that sessions leave nothing behind.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tapedeck_domain::SessionId;

use crate::config;

const FOLDER: &str = "executors";

/// The right to execute a session's runs in the background.
#[derive(Debug)]
pub(crate) struct ExecutorLock {
    path: PathBuf,
    _file: File,
}

impl ExecutorLock {
    /// Takes it, unless another process has it.
    pub(crate) fn take(dir: &Path, session: SessionId) -> anyhow::Result<Option<Self>> {
        let folder = config::make_private_dir(&dir.join(FOLDER))?;
        let path = folder.join(format!("{session}.lock"));
        let taken = Self::at(&path).with_context(|| format!("`{}`", path.display()))?;
        Ok(taken.map(|file| Self { path, _file: file }))
    }

    fn at(path: &Path) -> io::Result<Option<File>> {
        loop {
            let mut options = File::options();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(path)?;
            match file.try_lock() {
                // Who had it has removed the file since it was opened: it is nobody's any more.
                Ok(()) if file.metadata()?.nlink() == 0 => {}
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

impl Drop for ExecutorLock {
    fn drop(&mut self) {
        // While it is locked, the name is ours. What can't be removed does no harm.
        let _stays = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_one_executor_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let one = "01a2286d-000c-7366-97ea-fe5c24609bba".parse().unwrap();
        let other = "01a2286d-000c-7366-97ea-fe5c24609bbb".parse().unwrap();
        let taken = ExecutorLock::take(dir.path(), one).unwrap();
        assert!(taken.is_some());
        assert!(ExecutorLock::take(dir.path(), one).unwrap().is_none());
        assert!(ExecutorLock::take(dir.path(), other).unwrap().is_some());
        drop(taken);
        let mut left = std::fs::read_dir(dir.path().join(FOLDER)).unwrap();
        assert!(left.next().is_none());
        assert!(ExecutorLock::take(dir.path(), one).unwrap().is_some());
    }
}
