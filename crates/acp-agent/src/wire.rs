//! An agent's side of its two pipes. It owns the one writer of stdout and counts what has gone out,
//! so that whoever sends can wait for the client to read; it must never let more than a bounded
//! number of updates pile up before a client that doesn't read.

use std::io::{self, BufRead};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{Sink, Stream};
use serde::de::IgnoredAny;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

const QUEUED_LINES: usize = 64;
const UNREAD_UPDATES: u64 = 256;
/// The longest line that a client may send.
const LINE_BYTES: usize = 32 * 1024 * 1024;
/// How much is quoted of a line that can't be parsed.
const QUOTED_BYTES: usize = 1024;

/// The lines of the client.
pub type Incoming = Pin<Box<dyn Stream<Item = io::Result<String>> + Send>>;
/// Where the connection puts its lines.
pub type Outgoing = Pin<Box<dyn Sink<String, Error = io::Error> + Send>>;

/// What senders know of the way out: how many updates were sent and how many were written.
#[derive(Clone, Debug)]
pub struct Wire {
    lines: mpsc::Sender<Vec<u8>>,
    sent: Arc<AtomicU64>,
    written: watch::Receiver<u64>,
}

/// The way out to `writer`: for senders, for the connection, and the future that writes.
pub fn open<W>(writer: W) -> (Wire, Outgoing, impl Future<Output = io::Result<()>>)
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
    /// Waits until the client has read enough for one more update, and counts that update. Whoever
    /// stops waiting has counted nothing.
    pub async fn admit(&self) {
        let sent = self.sent.load(Ordering::Relaxed);
        self.wait_for(sent.saturating_sub(UNREAD_UPDATES)).await;
        // Counted last: whoever stops waiting sends nothing.
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until every update so far has been written.
    pub async fn drained(&self) {
        self.wait_for(self.sent.load(Ordering::Relaxed)).await;
    }

    /// Writes bytes that are no message, after all updates so far.
    pub async fn noise(&self, bytes: &[u8]) {
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
pub fn stdin_lines() -> io::Result<Incoming> {
    let (lines, queue) = mpsc::channel(QUEUED_LINES);
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            let mut stdin = io::stdin().lock();
            while let Some(line) = next_line(&mut stdin).transpose() {
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

/// A line without its end. Bytes that are no text are replaced: such a line is no JSON anyway, and
/// is no reason to hang up. Of one that is too long, or long and no JSON, the beginning stands for all:
/// it is answered as what can't be parsed, and the answer quotes it.
fn next_line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(LINE_BYTES).unwrap_or(u64::MAX);
    io::Read::take(&mut *reader, limit + 1).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let is_too_long = bytes.len() > LINE_BYTES;
    if is_too_long {
        reader.skip_until(b'\n')?;
    }
    if bytes.ends_with(b"\n") {
        bytes.pop();
    }
    let is_quotable = bytes.len() <= QUOTED_BYTES;
    if is_too_long || !is_quotable && serde_json::from_slice::<IgnoredAny>(&bytes).is_err() {
        bytes.truncate(QUOTED_BYTES);
        // Whatever it began as, it is no JSON now.
        bytes.extend_from_slice("…".as_bytes());
        if is_too_long {
            let why = format!(" (a line may have {LINE_BYTES} bytes, and this one has more)");
            bytes.extend_from_slice(why.as_bytes());
        }
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_whole_and_odd_bytes_end_nothing() {
        let mut input = io::Cursor::new(b"{}\n\n\xff\nlast".to_vec());
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input).unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, ["{}", "", "\u{fffd}", "last"]);
    }

    #[test]
    fn a_line_that_is_too_long_is_no_end_and_is_not_kept() {
        let long = io::Read::take(io::repeat(b'1'), 3 * u64::try_from(LINE_BYTES).unwrap());
        let mut input = io::BufReader::new(io::Read::chain(long, &b"\n{}\n"[..]));
        let quoted = next_line(&mut input).unwrap().unwrap();
        assert!(quoted.len() < 2 * QUOTED_BYTES);
        assert!(quoted.contains("has more"), "{quoted}");
        assert!(serde_json::from_str::<IgnoredAny>(&quoted).is_err());
        assert_eq!(next_line(&mut input).unwrap().as_deref(), Some("{}"));
        assert_eq!(next_line(&mut input).unwrap(), None);
    }

    #[test]
    fn a_long_line_is_whole_if_it_is_json_and_quoted_in_short_if_not() {
        let json = format!("[{}1]", "1,".repeat(QUOTED_BYTES));
        let mut input = io::Cursor::new(format!("{json}\n{json}]\n").into_bytes());
        assert_eq!(next_line(&mut input).unwrap(), Some(json));
        assert!(next_line(&mut input).unwrap().unwrap().len() < 2 * QUOTED_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_stops_the_sender() {
        let (client, ours) = tokio::io::duplex(64);
        let (wire, mut outgoing, writing) = open(ours);
        let sending = async {
            for _ in 0..UNREAD_UPDATES + 100 {
                wire.admit().await;
                let line = r#"{"method":"session/update"}"#.to_owned();
                futures::SinkExt::send(&mut outgoing, line).await.unwrap();
            }
        };
        tokio::select! {
            () = sending => panic!("it sent more than may be unread"),
            written = writing => panic!("the writer ended: {written:?}"),
            () = tokio::time::sleep(std::time::Duration::from_millis(200)) => {}
        }
        drop(client);
    }
}
