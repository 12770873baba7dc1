//! Reads `text/event-stream` bytes into frames, however they are cut. Unlike the parsers at hand it
//! bounds what one frame may hold, and it never drops or reorders anything.

/// One frame with a blank line after it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RawFrame {
    /// `event:`; empty without one.
    pub(crate) event: String,
    /// `data:` lines, joined by newlines.
    pub(crate) data: String,
    /// `id:` of this frame; it is not inherited from frames before.
    pub(crate) id: Option<String>,
}

/// What the bytes say next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// A frame.
    Frame(RawFrame),
    /// `retry:`, in milliseconds.
    Retry(u64),
}

/// Why the bytes are no event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Not UTF-8.
    #[error("a line is not UTF-8")]
    Encoding,
    /// A line or a frame without end.
    #[error("a frame is larger than {MAX_FRAME} bytes")]
    TooLarge,
}

/// A frame, in bytes. Events hold 256 KiB at most, a whole frame with escapes a few times that.
const MAX_FRAME: usize = 16 * 1024 * 1024;

/// The state between two chunks of bytes.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    frame: RawFrame,
    has_data: bool,
    /// The last byte was a carriage return: a newline after it ends no further line.
    after_cr: bool,
    /// A line has ended: only the first may begin with a byte order mark.
    started: bool,
}

impl Parser {
    /// Takes the next bytes and gives what they complete.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<Vec<Item>, Malformed> {
        let mut items = Vec::new();
        if bytes.is_empty() {
            return Ok(items);
        }
        if std::mem::take(&mut self.after_cr) {
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.grow(&bytes[..end])?;
            let cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if cr {
                match bytes.strip_prefix(b"\n") {
                    Some(rest) => bytes = rest,
                    None => self.after_cr = bytes.is_empty(),
                }
            }
            let line = std::mem::take(&mut self.line);
            items.extend(self.end_line(&line)?);
        }
        self.grow(bytes)?;
        Ok(items)
    }

    fn grow(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        if self.line.len() + bytes.len() + self.frame.data.len() > MAX_FRAME {
            return Err(Malformed::TooLarge);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, line: &[u8]) -> Result<Option<Item>, Malformed> {
        let line = str::from_utf8(line).map_err(|_source| Malformed::Encoding)?;
        let first = !std::mem::replace(&mut self.started, true);
        let line = if first {
            line.strip_prefix('\u{feff}').unwrap_or(line)
        } else {
            line
        };
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            let complete = std::mem::take(&mut self.has_data);
            return Ok(complete.then_some(Item::Frame(frame)));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.frame.event),
            "data" => {
                if self.has_data {
                    self.frame.data.push('\n');
                }
                self.has_data = true;
                self.frame.data.push_str(value);
            }
            "id" if !value.contains('\0') => self.frame.id = Some(value.to_owned()),
            "retry" => return Ok(value.parse().ok().map(Item::Retry)),
            // Comments have an empty field name; other names are for readers to come.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\u{feff}retry: 1000\n\n: comment\r\nid: 1\revent: A\ndata: {\"é\":\"日本\"}\r\n\r\n\
        data\rdata:x\rdata: y\n\ndata: q\rid: 3\n\nevent: nothing\n\nid: 2\nid: a\0b\ndata:  z\nother: 1\n\ndata: cut off\n";

    fn expected() -> Vec<Item> {
        let frame = |event: &str, data: &str, id: Option<&str>| {
            Item::Frame(RawFrame {
                event: event.to_owned(),
                data: data.to_owned(),
                id: id.map(str::to_owned),
            })
        };
        vec![
            Item::Retry(1_000),
            frame("A", "{\"é\":\"日本\"}", Some("1")),
            frame("", "\nx\ny", None),
            frame("", "q", Some("3")),
            frame("", " z", Some("2")),
        ]
    }

    fn read(chunks: &[&[u8]]) -> Vec<Item> {
        let mut parser = Parser::default();
        chunks
            .iter()
            .flat_map(|chunk| parser.push(chunk).unwrap())
            .collect()
    }

    #[test]
    fn frames_are_read_whole_and_byte_by_byte() {
        assert_eq!(read(&[TEXT.as_bytes()]), expected());
        let bytes: Vec<&[u8]> = TEXT.as_bytes().chunks(1).collect();
        assert_eq!(read(&bytes), expected());
    }

    #[test]
    fn every_pair_of_cuts_gives_the_same_frames() {
        let bytes = TEXT.as_bytes();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let chunks = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(read(&chunks), expected(), "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn a_line_of_megabytes_is_read_and_one_without_end_is_refused() {
        let long = "x".repeat(3 * 1024 * 1024);
        let text = format!("data: {long}\n\n");
        let chunks: Vec<&[u8]> = text.as_bytes().chunks(7_919).collect();
        let items = read(&chunks);
        assert!(matches!(&items[..], [Item::Frame(frame)] if frame.data == long));

        let mut parser = Parser::default();
        let chunk = vec![b'x'; 1024 * 1024];
        let ends = (0..=16).map(|_| parser.push(&chunk)).find_map(Result::err);
        assert_eq!(ends, Some(Malformed::TooLarge));
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        assert_eq!(
            Parser::default().push(b"data: \xff\n"),
            Err(Malformed::Encoding)
        );
    }
}
