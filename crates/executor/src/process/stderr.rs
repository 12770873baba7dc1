//! The end of what an agent wrote to stderr. It owns a ring of bounded size that is filled while
//! the agent lives; it must never block the agent or pass on more than its capacity.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tapedeck_domain::text::tail;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

use super::environment::Redactor;

const CAPACITY: usize = 64 * 1024;

/// How much of the tail an error message carries.
const QUOTED: usize = 4 * 1024;

/// After the agent's end the pipe is drained by then.
const DRAIN: Duration = Duration::from_millis(500);

/// The last 64 KiB of an agent's stderr.
#[derive(Debug)]
pub struct StderrTail {
    bytes: Mutex<VecDeque<u8>>,
    closed: watch::Sender<bool>,
    redactor: Redactor,
}

impl StderrTail {
    pub(super) fn new(redactor: Redactor) -> Self {
        Self {
            bytes: Mutex::default(),
            closed: watch::Sender::new(false),
            redactor,
        }
    }

    /// Reads until the pipe ends.
    pub(super) async fn fill(&self, mut source: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; 8 * 1024];
        while let Ok(count @ 1..) = source.read(&mut buffer).await {
            let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
            bytes.extend(&buffer[..count]);
            let excess = bytes.len().saturating_sub(CAPACITY);
            bytes.drain(..excess);
        }
        self.closed.send_replace(true);
    }

    /// The last lines, redacted, for an error message; empty if there were none. Call it after the
    /// agent's end: it waits a moment for what is still in the pipe.
    pub async fn quoted(&self) -> String {
        let mut closed = self.closed.subscribe();
        // A pipe that stays open only means a shorter quotation.
        let _ = tokio::time::timeout(DRAIN, closed.wait_for(|closed| *closed)).await;
        let bytes: Vec<u8> = self
            .bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .copied()
            .collect();
        // Redaction comes before the cut, which might go through a secret.
        let text = self
            .redactor
            .redact(String::from_utf8_lossy(&bytes).into_owned());
        tail(text.trim(), QUOTED).replace('\0', "\u{fffd}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::environment::Environment;

    #[tokio::test]
    async fn the_tail_is_bounded_and_redacted() {
        let pairs = [("API_KEY".to_owned(), "sk-secret".to_owned())];
        let tail = StderrTail::new(Environment::select([], &[], &pairs).redactor());
        let mut input = vec![b'.'; 200_000];
        input.extend_from_slice(b"\nkey sk-secret refused\n");
        tail.fill(input.as_slice()).await;
        assert_eq!(tail.bytes.lock().unwrap().len(), CAPACITY);
        let quoted = tail.quoted().await;
        assert!(quoted.ends_with("\nkey [redacted] refused"));
        assert!(quoted.len() <= QUOTED);
    }
}
