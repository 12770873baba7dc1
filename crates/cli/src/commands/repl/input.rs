//! Where lines come from: an editor at a terminal, with a history, or plain lines from a file or a
//! pipe. It must never say what a line means.

use std::borrow::Cow;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use anyhow::Context as _;
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use rustyline::completion::Completer;
use rustyline::config::Configurer as _;
use rustyline::error::{ReadlineError, Signal};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, Helper, KeyCode, KeyEvent, Modifiers};
use tokio::io::{AsyncBufReadExt as _, BufReader, Stdin};
use tokio::sync::oneshot;

use super::slash;
use crate::config;
use crate::output::{Printer, Tone};

/// Lines that are remembered.
const HISTORY: usize = 2_000;
const PROMPT: &str = "tapedeck> ";
/// Ends the terminal's mode in which pasted text is marked.
const PASTE_AS_TYPED: &str = "\u{1b}[?2004l";

/// What came of waiting for a line.
#[derive(Debug)]
pub(super) enum Typed {
    /// A line, or several that belong together.
    Text(String),
    /// What is no UTF-8 text, and is dropped.
    Unreadable,
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the end of the file.
    Ended,
}

/// Where lines come from.
pub(super) enum Input {
    /// A person at a terminal.
    Editor(Editor),
    /// A script.
    Script(Script),
}

/// Lines of a file or a pipe.
pub(super) struct Script {
    lines: tokio::io::Split<BufReader<Stdin>>,
    /// What goes on in the next line.
    unfinished: String,
}

impl Input {
    /// An editor if a person can be asked.
    pub(super) fn open(printer: Printer, history: &Path) -> anyhow::Result<Self> {
        if printer.can_ask() {
            return Editor::start(printer, history).map(Self::Editor);
        }
        Ok(Self::Script(Script {
            lines: BufReader::new(tokio::io::stdin()).split(b'\n'),
            unfinished: String::new(),
        }))
    }

    /// The next line. If this is dropped before it came, the next call goes on waiting for it.
    pub(super) async fn next(&mut self) -> anyhow::Result<Typed> {
        match self {
            Self::Editor(editor) => editor.next().await,
            Self::Script(script) => script.next().await,
        }
    }

    /// Whether a person types.
    pub(super) const fn is_editor(&self) -> bool {
        matches!(self, Self::Editor(_))
    }
}

impl Script {
    async fn next(&mut self) -> anyhow::Result<Typed> {
        let text = &mut self.unfinished;
        while let Some(line) = self
            .lines
            .next_segment()
            .await
            .context("stdin can't be read")?
        {
            let Ok(line) = str::from_utf8(&line) else {
                text.clear();
                return Ok(Typed::Unreadable);
            };
            text.push_str(line.strip_suffix('\r').unwrap_or(line));
            if !slash::is_unfinished(text) {
                return Ok(Typed::Text(slash::joined(&std::mem::take(text))));
            }
            text.push('\n');
        }
        if text.is_empty() {
            return Ok(Typed::Ended);
        }
        Ok(Typed::Text(slash::joined(&std::mem::take(text))))
    }
}

/// An editor in a thread of its own: nothing can interrupt its read.
pub(super) struct Editor {
    wanted: mpsc::SyncSender<oneshot::Sender<Read>>,
    /// A line that is being typed.
    waiting: Option<oneshot::Receiver<Read>>,
    printer: Printer,
    /// How the terminal was before.
    before: Termios,
}

type Read = rustyline::Result<String>;

impl Editor {
    fn start(printer: Printer, history: &Path) -> anyhow::Result<Self> {
        let before = tcgetattr(io::stdin()).context("the terminal can't be read")?;
        let editor = editor(printer, history)?;
        let (wanted, requests) = mpsc::sync_channel(1);
        let history = history.to_path_buf();
        std::thread::Builder::new()
            .name("editor".to_owned())
            .spawn(move || edit(editor, &history, &requests))?;
        Ok(Self {
            wanted,
            waiting: None,
            printer,
            before,
        })
    }

    async fn next(&mut self) -> anyhow::Result<Typed> {
        let waiting = match &mut self.waiting {
            Some(waiting) => waiting,
            none => {
                let (reply, waiting) = oneshot::channel();
                self.wanted.send(reply)?;
                none.insert(waiting)
            }
        };
        let read = waiting.await.context("the editor has ended")?;
        self.waiting = None;
        match read {
            Ok(text) => Ok(Typed::Text(slash::joined(&text))),
            Err(ReadlineError::Interrupted | ReadlineError::Signal(Signal::Interrupt)) => {
                Ok(Typed::Interrupted)
            }
            Err(ReadlineError::Eof) => Ok(Typed::Ended),
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Ok(Typed::Unreadable)
            }
            Err(error) => Err(error).context("the terminal can't be read"),
        }
    }
}

impl Drop for Editor {
    /// An editor that still waits for a line has the terminal in a mode of its own.
    fn drop(&mut self) {
        if self.waiting.is_some() {
            let _gone = self.printer.text(format!("{PASTE_AS_TYPED}\n"));
            let _gone = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.before);
        }
    }
}

type LineEditor = rustyline::Editor<Manners, FileHistory>;

fn editor(printer: Printer, history: &Path) -> anyhow::Result<LineEditor> {
    let mut editor = LineEditor::new()?;
    editor.set_max_history_size(HISTORY)?;
    editor.set_history_ignore_space(true);
    editor.set_helper(Some(Manners { printer }));
    let newline = KeyEvent(KeyCode::Enter, Modifiers::ALT);
    editor.bind_sequence(newline, Cmd::Newline);
    if let Err(error) = recall(&mut editor, history) {
        let file = history.display();
        printer.note(format!("the history `{file}` can't be used: {error:#}"))?;
    }
    Ok(editor)
}

fn recall(editor: &mut LineEditor, history: &Path) -> anyhow::Result<()> {
    if let Some(folder) = history.parent() {
        config::make_private_dir(folder)?;
    }
    if history.exists() {
        editor.load_history(history)?;
    }
    Ok(())
}

fn edit(
    mut editor: LineEditor,
    history: &PathBuf,
    requests: &mpsc::Receiver<oneshot::Sender<Read>>,
) {
    while let Ok(reply) = requests.recv() {
        let read = editor.readline(PROMPT);
        if let Ok(text) = &read
            && !text.trim().is_empty()
        {
            // A history that can't be kept is no reason to refuse a prompt.
            let kept = editor.add_history_entry(text.as_str());
            let kept = kept.and_then(|_| editor.append_history(history));
            if let Err(error) = kept.and_then(|()| Ok(make_private(history)?)) {
                tracing::warn!(%error, file = %history.display(), "the history was not kept");
            }
        }
        let _unwanted = reply.send(read);
    }
}

fn make_private(file: &Path) -> io::Result<()> {
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o600))
}

/// How the editor completes, shows and ends a line.
struct Manners {
    printer: Printer,
}

impl Completer for Manners {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _context: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line.get(..pos).unwrap_or_default();
        let names = slash::COMMANDS.iter().map(|(name, ..)| format!("/{name}"));
        let is_command = typed.starts_with('/');
        let fits = |name: &String| is_command && name.starts_with(typed);
        Ok((0, names.filter(fits).collect()))
    }
}

impl Hinter for Manners {
    type Hint = String;
}

impl Highlighter for Manners {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(
        &'s self,
        prompt: &'p str,
        _default: bool,
    ) -> Cow<'b, str> {
        Cow::Owned(self.printer.paint(Tone::Strong, prompt))
    }
}

impl Validator for Manners {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        if slash::is_unfinished(context.input()) {
            return Ok(ValidationResult::Incomplete);
        }
        Ok(ValidationResult::Valid(None))
    }
}

impl Helper for Manners {}
