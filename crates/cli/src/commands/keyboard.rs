//! Lines that a person types at the terminal while something goes on. Nothing is read before a line
//! is wanted, and what isn't wanted any more stays with the terminal for whoever reads next.

use std::io::{self, PipeReader, PipeWriter, stdin};
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{FlushArg, tcflush};
use nix::unistd::read;
use tokio::sync::oneshot;

/// A terminal gives no longer line at a time.
const MOST_BYTES: usize = 4096;

/// A line that is waited for.
#[derive(Debug)]
pub(crate) struct Keyboard {
    line: oneshot::Receiver<io::Result<Option<String>>>,
    /// Goes with the value, and the thread that waits with it.
    _stop: PipeWriter,
}

impl Keyboard {
    /// Waits for a line on stdin, which must be a terminal.
    pub(crate) fn wait() -> anyhow::Result<Self> {
        let (gone, stop) = io::pipe()?;
        let (sender, line) = oneshot::channel();
        std::thread::Builder::new()
            .name("keyboard".to_owned())
            .spawn(move || {
                let _unwanted = sender.send(next_line(&gone));
            })?;
        Ok(Self { line, _stop: stop })
    }

    /// The line, or none where the person closed the input. May be dropped at any time.
    pub(crate) async fn line(&mut self) -> anyhow::Result<Option<String>> {
        let line = (&mut self.line).await.unwrap_or(Ok(None));
        line.context("the terminal can't be read")
    }
}

/// Drops what was typed before now: it can't be meant for a question that wasn't there yet.
pub(crate) fn forget_typed() {
    let _no_terminal = tcflush(stdin(), FlushArg::TCIFLUSH);
}

/// The next line; none at the input's end, or once nobody wants it any more.
fn next_line(gone: &PipeReader) -> io::Result<Option<String>> {
    let mut typed = Vec::new();
    loop {
        let input = stdin();
        let mut asked = [
            PollFd::new(input.as_fd(), PollFlags::POLLIN),
            PollFd::new(gone.as_fd(), PollFlags::POLLIN),
        ];
        poll(&mut asked, PollTimeout::NONE)?;
        if asked[1].any() == Some(true) {
            return Ok(None);
        }
        let mut bytes = [0; MOST_BYTES];
        match read(input.as_fd(), &mut bytes)? {
            0 => return Ok(None),
            count => typed.extend_from_slice(&bytes[..count]),
        }
        if typed.ends_with(b"\n") {
            return Ok(Some(String::from_utf8_lossy(&typed).into_owned()));
        }
    }
}
