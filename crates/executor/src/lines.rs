//! Lines of an agent's output, read with a limit. It owns the split into lines and the repair of
//! invalid UTF-8; it must never hold more than one line and one read buffer in memory.

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};

/// The longest line an agent may write, in bytes.
pub const DEFAULT_LINE_LIMIT: usize = 32 * 1024 * 1024;

/// Why no further line can be read.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The agent wrote a line above the limit.
    #[error("the agent wrote a line of more than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The pipe failed.
    #[error("cannot read the agent's output")]
    Read(#[from] std::io::Error),
}

/// Reads lines from a pipe.
#[derive(Debug)]
pub struct LineReader<R> {
    source: BufReader<R>,
    line: Vec<u8>,
    limit: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Reads from `source`; a line of more than `limit` bytes is an error.
    pub fn new(source: R, limit: usize) -> Self {
        Self {
            source: BufReader::with_capacity(64 * 1024, source),
            line: Vec::new(),
            limit,
        }
    }

    /// The next line without its end (`\n` or `\r\n`), and whether that end was there: the last
    /// line of a stream may lack it. `None` at the end of the stream. Cancel-safe: a line read in
    /// part stays in the reader.
    pub async fn next_line(&mut self) -> Result<Option<Line>, LineError> {
        loop {
            let available = fill(&mut self.source).await?;
            if available.is_empty() {
                let rest = std::mem::take(&mut self.line);
                return Ok((!rest.is_empty()).then(|| Line::new(rest, false)));
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(available.len());
            if self.line.len() + taken > self.limit {
                return Err(LineError::TooLong { limit: self.limit });
            }
            self.line.extend_from_slice(&available[..taken]);
            self.source.consume(end.map_or(taken, |at| at + 1));
            if end.is_some() {
                return Ok(Some(Line::new(std::mem::take(&mut self.line), true)));
            }
        }
    }
}

async fn fill<R: AsyncBufRead + Unpin>(source: &mut R) -> std::io::Result<&[u8]> {
    source.fill_buf().await
}

/// One line of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The text; bytes that are no UTF-8 are replaced.
    pub text: String,
    /// Whether a line end followed.
    pub ended: bool,
}

impl Line {
    fn new(mut bytes: Vec<u8>, ended: bool) -> Self {
        if ended && bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        Self { text, ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(input: &[u8], limit: usize) -> (Vec<Line>, Option<LineError>) {
        let mut reader = LineReader::new(input, limit);
        let mut lines = Vec::new();
        loop {
            match reader.next_line().await {
                Ok(Some(line)) => lines.push(line),
                Ok(None) => return (lines, None),
                Err(error) => return (lines, Some(error)),
            }
        }
    }

    fn line(text: &str, ended: bool) -> Line {
        Line {
            text: text.to_owned(),
            ended,
        }
    }

    #[tokio::test]
    async fn lines_end_with_either_line_end_and_the_last_may_have_none() {
        let (lines, error) = all(b"one\r\n\ntwo\nthree", 100).await;
        assert!(error.is_none());
        assert_eq!(
            lines,
            [
                line("one", true),
                line("", true),
                line("two", true),
                line("three", false)
            ]
        );
    }

    #[tokio::test]
    async fn invalid_utf8_is_replaced_and_does_not_end_the_stream() {
        let (lines, error) = all(b"a\xffb\nok\n", 100).await;
        assert!(error.is_none());
        assert_eq!(lines, [line("a\u{fffd}b", true), line("ok", true)]);
    }

    #[tokio::test]
    async fn a_line_at_the_limit_passes_and_one_byte_more_fails() {
        let (lines, error) = all(b"12345\n123456\n", 5).await;
        assert_eq!(lines, [line("12345", true)]);
        assert_eq!(
            error.unwrap().to_string(),
            "the agent wrote a line of more than 5 bytes"
        );
    }

    #[tokio::test]
    async fn a_line_of_33_mib_is_refused_without_being_held() {
        let source = tokio::io::AsyncReadExt::take(tokio::io::repeat(b'x'), 33 << 20);
        let mut reader = LineReader::new(source, DEFAULT_LINE_LIMIT);
        assert!(matches!(
            reader.next_line().await,
            Err(LineError::TooLong { .. })
        ));
        assert!(reader.line.len() <= DEFAULT_LINE_LIMIT);
    }
}
