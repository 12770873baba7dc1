//! Sealed batches of one run on their way to the server, in a file: memory stays small however long
//! the server is away, and a later process can send them if this one dies. It owns the order and the
//! bound. It is not synced: after a crash of the machine the claims are over, so the file is a queue
//! and not a record.
//!
//! Each batch is one line. Batches that are acknowledged may still lie in the file, and the last line
//! may be cut off where its writer was killed: then it was never sent.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::files::private_file;

/// Batches of one run, oldest first. The file is its maker's to remove.
#[derive(Debug)]
pub(crate) struct Spool {
    file: Arc<File>,
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
    /// An empty spool in this file, for its owner's eyes only.
    pub(crate) fn create(path: &Path, limit: u64) -> io::Result<Self> {
        Ok(Self {
            file: Arc::new(private_file(path)?),
            batches: VecDeque::new(),
            end: 0,
            limit,
        })
    }

    /// Adds a sealed batch.
    pub(crate) async fn push(&mut self, sealed: Bytes, events: u64) -> io::Result<()> {
        let (file, offset, length) = (Arc::clone(&self.file), self.end, sealed.len());
        blocking(move || {
            let mut line = Vec::with_capacity(length + 1);
            line.extend_from_slice(&sealed);
            line.push(b'\n');
            file.write_all_at(&line, offset)
        })
        .await?;
        self.batches.push_back(Entry {
            offset,
            length,
            events,
        });
        self.end += length as u64 + 1;
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
    async fn batches_come_back_unchanged_and_in_order_a_line_each() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run-1");
        let mut spool = Spool::create(&path, 10).unwrap();
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
        assert_eq!(std::fs::read(&path).unwrap(), b"third\n");
    }
}
