//! The real binary in a pseudo-terminal, seen as a person sees it: what stands on the screen, and
//! keys. Nothing here waits for time; it waits until something is to be seen.

use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pty_process::{OwnedWritePty, Size};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::wait::{eventually, within};

/// For something to be seen.
const LIMIT: Duration = Duration::from_secs(30);
/// So high that nothing scrolls away.
const ROWS: u16 = 400;
const COLUMNS: u16 = 140;

/// Keys that are no letters.
pub(crate) const CTRL_C: &str = "\u{3}";
pub(crate) const CTRL_D: &str = "\u{4}";

/// A command in a terminal.
pub(crate) struct Terminal {
    child: Child,
    pid: Pid,
    keys: Option<OwnedWritePty>,
    screen: Arc<Mutex<vt100::Parser>>,
    /// What stands before this place has been seen.
    seen: usize,
    reading: JoinSet<()>,
}

impl Terminal {
    pub(crate) fn start(command: Command) -> Self {
        Self::sized(command, COLUMNS)
    }

    /// A terminal of this width.
    pub(crate) fn sized(mut command: Command, columns: u16) -> Self {
        command.env("TERM", "xterm-256color");
        let (pty, pts) = pty_process::open().unwrap();
        pty.resize(Size::new(ROWS, columns)).unwrap();
        let child = pty_process::Command::from(command).spawn(pts).unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap());
        let (mut output, keys) = pty.into_split();
        let size = |cells: u16| std::num::NonZeroU16::new(cells).unwrap();
        let screen = vt100::Parser::new(size(ROWS), size(columns), 0);
        let screen = Arc::new(Mutex::new(screen));
        let mut reading = JoinSet::new();
        let written = Arc::clone(&screen);
        reading.spawn(async move {
            let mut bytes = [0; 4096];
            // The end is an error on Linux.
            while let Ok(count @ 1..) = output.read(&mut bytes).await {
                written.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self {
            child,
            pid,
            keys: Some(keys),
            screen,
            seen: 0,
            reading,
        }
    }

    /// All that stands on the screen.
    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until this stands behind what was seen last.
    pub(crate) async fn shows(&mut self, words: &str) {
        let from = self.seen;
        let look = async || {
            let at = self.text().get(from..)?.find(words)?;
            Some(from + at + words.len())
        };
        let what = format!("the terminal shows {words:?}");
        self.seen = eventually(&what, LIMIT, look).await;
    }

    /// The same for what won't stay there.
    pub(crate) async fn shows_for_now(&mut self, words: &str) {
        let seen = self.seen;
        self.shows(words).await;
        self.seen = seen;
    }

    /// Whether a line was longer than the terminal is wide.
    pub(crate) fn has_long_lines(&self) -> bool {
        let screen = self.screen.lock().unwrap();
        (0..ROWS).any(|row| screen.screen().row_wrapped(row))
    }

    /// Whether anything is coloured, bold or dim.
    pub(crate) fn is_coloured(&self) -> bool {
        let screen = self.screen.lock().unwrap();
        let screen = screen.screen();
        let (rows, columns) = screen.size();
        let cells = (0..rows.get()).flat_map(|row| (0..columns.get()).map(move |at| (row, at)));
        let mut cells = cells.filter_map(|(row, at)| screen.cell(row, at));
        cells.any(|cell| cell.fgcolor() != vt100::Color::Default || cell.bold() || cell.dim())
    }

    /// Whether the terminal still marks pasted text for an editor.
    pub(crate) fn pastes_are_marked(&self) -> bool {
        self.screen.lock().unwrap().screen().bracketed_paste()
    }

    pub(crate) async fn types(&mut self, keys: &str) {
        let terminal = self.keys.as_mut().unwrap();
        terminal.write_all(keys.as_bytes()).await.unwrap();
    }

    /// Types a line as a person does who sees it appear.
    pub(crate) async fn enters(&mut self, line: &str) {
        self.types(line).await;
        self.types("\r").await;
    }

    pub(crate) async fn ends(&mut self) -> ExitStatus {
        within("the end of a command", LIMIT, self.child.wait())
            .await
            .unwrap()
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) async fn kill(&mut self) {
        kill(self.pid, Signal::SIGKILL).unwrap();
        self.ends().await;
    }

    /// Closes the window, and waits until the process is gone.
    pub(crate) async fn close(&mut self) -> ExitStatus {
        self.keys = None;
        self.reading.shutdown().await;
        self.ends().await
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid, signal).unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the terminal\n{}", self.text().trim_end());
        }
    }
}
