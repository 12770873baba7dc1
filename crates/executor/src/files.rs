//! Files below the state directory, for their owner's eyes only, and those that may be missing.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

const LOCK_RETRY: Duration = Duration::from_millis(50);

/// Makes a directory, and those above it, if they are not there.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// An empty file, to be written and read.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    options.mode(0o600).open(path)
}

/// Gives a file this content, all of it or none: it has its name only when it is written.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let unnamed = path.with_added_extension("new");
    private_file(&unnamed)?.write_all(content)?;
    std::fs::rename(unnamed, path)
}

/// A file to lock. It is never emptied: its holder may keep something in it.
pub(crate) fn lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}

/// Waits for the lock on a file, at most `limit`, and gives whether it is ours. `waiting` is called
/// once if it is not free at once. A lock ends with its process at the latest.
pub(crate) async fn lock_within(
    file: &File,
    limit: Duration,
    waiting: impl FnOnce(),
) -> io::Result<bool> {
    let mut waiting = Some(waiting);
    let until = Instant::now() + limit;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if let Some(waiting) = waiting.take() {
            waiting();
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        sleep(LOCK_RETRY).await;
    }
}

/// What was found, or nothing where nothing is there.
pub(crate) fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_made_is_private_and_what_is_missing_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        for _ in 0..2 {
            private_dir(&folder).unwrap();
        }
        let path = folder.join("file");
        assert!(if_there(std::fs::read(&path)).unwrap().is_none());
        drop(private_file(&path).unwrap());
        assert_eq!(if_there(std::fs::read(&path)).unwrap(), Some(Vec::new()));
        write_whole(&path, b"whole").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        assert!(if_there(std::fs::read(&folder)).is_err());
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&folder)), (0o600, 0o700));
    }
}
