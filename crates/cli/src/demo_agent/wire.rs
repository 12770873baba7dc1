//! The agent's side of its two pipes. It owns the one writer of stdout, counts what has gone out,
//! so that a step can wait for it, and lets noise in between whole lines; it must never let more
//! than a bounded number of updates pile up before a client that doesn't read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{Sink, Stream};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

const QUEUED_LINES: usize = 64;
const UNREAD_UPDATES: u64 = 256;

/// The lines of the client.
pub(super) type Incoming = Pin<Box<dyn Stream<Item = io::Result<String>> + Send>>;
/// Where the connection puts its lines.
pub(super) type Outgoing = Pin<Box<dyn Sink<String, Error = io::Error> + Send>>;

/// What steps know of the way out: how many updates were sent and how many were written.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    lines: mpsc::Sender<Vec<u8>>,
    sent: Arc<AtomicU64>,
    written: watch::Receiver<u64>,
}

/// The way out to `writer`: for steps, for the connection, and the future that writes.
pub(super) fn open<W>(writer: W) -> (Wire, Outgoing, impl Future<Output = io::Result<()>>)
where
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (lines, queue) = mpsc::channel(QUEUED_LINES);
    let (count, written) = watch::channel(0);
    let sink = futures::sink::unfold(lines.clone(), async |lines, line: String| {
        let mut bytes = line.into_bytes();
        bytes.push(b'\n');
        lines
            .send(bytes)
            .await
            .map_err(|_closed| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(lines)
    });
    let wire = Wire {
        lines,
        sent: Arc::new(AtomicU64::new(0)),
        written,
    };
    (wire, Box::pin(sink), write(writer, queue, count))
}

async fn write<W>(
    mut writer: W,
    mut queue: mpsc::Receiver<Vec<u8>>,
    count: watch::Sender<u64>,
) -> io::Result<()>
where
    W: AsyncWrite + Send + Unpin,
{
    const UPDATE: &[u8] = br#""method":"session/update""#;
    while let Some(bytes) = queue.recv().await {
        writer.write_all(&bytes).await?;
        writer.flush().await?;
        if bytes
            .windows(UPDATE.len())
            .take(200)
            .any(|window| window == UPDATE)
        {
            count.send_modify(|count| *count += 1);
        }
    }
    Ok(())
}

impl Wire {
    /// Waits until the client has read enough for one more update, and counts that update.
    pub(super) async fn admit(&self) {
        let sent = self.sent.load(Ordering::Relaxed);
        self.wait_for(sent.saturating_sub(UNREAD_UPDATES)).await;
        // Counted last: whoever stops waiting sends nothing.
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until every update so far has been written.
    pub(super) async fn drained(&self) {
        self.wait_for(self.sent.load(Ordering::Relaxed)).await;
    }

    /// Writes bytes that are no message, after all updates so far.
    pub(super) async fn noise(&self, bytes: &[u8]) {
        self.drained().await;
        // A closed pipe ends the connection by itself.
        let _ = self.lines.send(bytes.to_vec()).await;
    }

    async fn wait_for(&self, count: u64) {
        // The writer ends only with the connection; nobody needs the rest then.
        let _ = self
            .written
            .clone()
            .wait_for(|written| *written >= count)
            .await;
    }
}

/// The lines of stdin. They are read on a thread of their own that nothing waits for, so that the
/// process can end while the client keeps its end open.
pub(super) fn stdin_lines() -> io::Result<Incoming> {
    let (lines, queue) = mpsc::channel(QUEUED_LINES);
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            for line in io::stdin().lines() {
                if lines.blocking_send(line).is_err() {
                    return;
                }
            }
        })?;
    Ok(Box::pin(futures::stream::unfold(
        queue,
        async |mut queue| queue.recv().await.map(|line| (line, queue)),
    )))
}
