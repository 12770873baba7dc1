//! Lines that a person types at the terminal while something goes on. Nothing is read before a line
//! is wanted, and what isn't wanted any more stays with the terminal for whoever reads next.

use std::io::{self, PipeReader, PipeWriter, stdin};
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{FlushArg, LocalFlags, SetArg, Termios, tcflush, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, read, tcgetpgrp};
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

/// What is typed is not shown, or not all of it, until this is dropped.
#[derive(Debug)]
pub(crate) struct Muted(Option<Termios>);

impl Muted {
    /// Keys such as Ctrl-C leave no trace: it would stand in the middle of what is being shown.
    pub(crate) fn keys() -> Self {
        Self::without(LocalFlags::ECHOCTL)
    }

    /// Nothing but the end of a line is shown.
    pub(crate) fn all() -> Self {
        Self::without(LocalFlags::ECHO)
    }

    /// On stdin, if it is a terminal.
    fn without(flags: LocalFlags) -> Self {
        let before = is_ours().then(|| tcgetattr(stdin()).ok()).flatten();
        if let Some(before) = &before {
            let mut changed = before.clone();
            changed.local_flags.remove(flags);
            changed.local_flags.insert(LocalFlags::ECHONL);
            let _no_terminal = tcsetattr(stdin(), SetArg::TCSADRAIN, &changed);
        }
        Self(before)
    }
}

impl Drop for Muted {
    fn drop(&mut self) {
        if let Some(before) = self.0.as_ref().filter(|_| is_ours()) {
            let _no_terminal = tcsetattr(stdin(), SetArg::TCSADRAIN, before);
        }
    }
}

/// Whether the terminal listens to this process: one in the background that changed its settings
/// would be stopped.
fn is_ours() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|foreground| foreground == getpgrp())
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
        if typed.pop_if(|last| *last == b'\n').is_some() {
            return Ok(Some(String::from_utf8_lossy(&typed).into_owned()));
        }
    }
}
