//! A connection that can't be written to for too long is closed: whoever stops reading costs a
//! bounded buffer for a bounded time (stores §6, faults 23). A follower resumes by its cursor.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A connection with a bound on how long a write may wait.
#[derive(Debug)]
pub(crate) struct StallGuard<T> {
    inner: T,
    bound: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> StallGuard<T> {
    pub(crate) const fn new(inner: T, bound: Duration) -> Self {
        Self {
            inner,
            bound,
            stalled: None,
        }
    }

    fn judge<V>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<V>>) -> Poll<io::Result<V>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let bound = self.bound;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(bound)));
        ready!(stalled.as_mut().poll(cx));
        stalled.as_mut().reset(Instant::now() + bound);
        let message = "the peer has stopped reading";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for StallGuard<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for StallGuard<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.judge(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write_vectored(cx, buffers);
        self.judge(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_stops_reading_is_let_go_and_a_slow_one_is_not() {
        let (mut peer, ours) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(ours, Duration::from_mins(1));
        guarded.write_all(b"12345678").await.unwrap();
        let slow = async {
            sleep(Duration::from_secs(59)).await;
            peer.read_exact(&mut [0; 8]).await
        };
        let (written, read) = tokio::join!(guarded.write_all(b"12345678"), slow);
        written.unwrap();
        read.unwrap();
        let error = guarded.write_all(b"9").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
