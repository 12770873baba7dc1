//! Sealed batches of one run on their way to the server, in a file: memory stays small however long
//! the server is away. It owns the order and the bound. It is not synced: after a crash of this
//! process the claim isn't ours any more and no other process may send in its name, so the file is
//! a queue and not a record.

use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

/// Batches of one run, oldest first. The file goes with it.
#[derive(Debug)]
pub(crate) struct Spool {
    file: Arc<File>,
    path: PathBuf,
    batches: VecDeque<Entry>,
    end: u64,
    limit: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    offset: u64,
    length: usize,
    events: u64,
}

impl Spool {
    /// An empty spool in `folder`, for its owner's eyes only.
    pub(crate) fn create(folder: &Path, name: &str, limit: u64) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let path = folder.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Self {
            file: Arc::new(file),
            path,
            batches: VecDeque::new(),
            end: 0,
            limit,
        })
    }

    /// Adds a sealed batch.
    pub(crate) async fn push(&mut self, sealed: Bytes, events: u64) -> io::Result<()> {
        let (file, offset, length) = (Arc::clone(&self.file), self.end, sealed.len());
        blocking(move || file.write_all_at(&sealed, offset)).await?;
        self.batches.push_back(Entry {
            offset,
            length,
            events,
        });
        self.end += length as u64;
        Ok(())
    }

    /// The oldest batch and its number of events.
    pub(crate) async fn oldest(&self) -> io::Result<Option<(Bytes, u64)>> {
        let Some(entry) = self.batches.front().copied() else {
            return Ok(None);
        };
        let file = Arc::clone(&self.file);
        let sealed = blocking(move || {
            let mut bytes = vec![0; entry.length];
            file.read_exact_at(&mut bytes, entry.offset)?;
            Ok(bytes)
        })
        .await?;
        Ok(Some((sealed.into(), entry.events)))
    }

    /// Drops the oldest batch, which is acknowledged. The file shrinks once all are.
    pub(crate) async fn acknowledge(&mut self) -> io::Result<()> {
        self.batches.pop_front();
        if self.batches.is_empty() && self.end > 0 {
            let file = Arc::clone(&self.file);
            blocking(move || file.set_len(0)).await?;
            self.end = 0;
        }
        Ok(())
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Whether nothing more may be added for now.
    pub(crate) fn is_full(&self) -> bool {
        self.end >= self.limit
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // What stays is removed when the next executor starts in this state directory.
        drop(std::fs::remove_file(&self.path));
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn batches_come_back_unchanged_and_in_order_and_the_file_goes() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(dir.path(), "run-1", 10).unwrap();
        for (text, events) in [("first", 1), ("second", 2)] {
            assert!(!spool.is_full());
            spool.push(Bytes::from(text), events).await.unwrap();
        }
        assert!(spool.is_full());
        let first = spool.oldest().await.unwrap().unwrap();
        assert_eq!(first, (Bytes::from("first"), 1));
        assert_eq!(spool.oldest().await.unwrap().unwrap(), first);
        spool.acknowledge().await.unwrap();
        let second = spool.oldest().await.unwrap().unwrap();
        assert_eq!(second, (Bytes::from("second"), 2));
        assert!(spool.is_full(), "space is free again once all is sent");
        spool.acknowledge().await.unwrap();
        assert!(spool.is_empty() && !spool.is_full());
        assert_eq!(spool.oldest().await.unwrap(), None);
        spool.push(Bytes::from("third"), 3).await.unwrap();
        let third = spool.oldest().await.unwrap().unwrap();
        assert_eq!(third, (Bytes::from("third"), 3));
        let path = dir.path().join("run-1");
        assert_eq!(std::fs::read(&path).unwrap(), b"third");
        drop(spool);
        assert!(!path.exists());
    }
}
