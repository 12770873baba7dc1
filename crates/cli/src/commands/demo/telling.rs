//! How the demo speaks: numbered steps with what happened and the commands that do it by hand; with
//! `--json` one object a step.

use std::io;
use std::path::Path;

use serde_json::json;

use crate::commands::rendering::Rendering;
use crate::output::{Printer, Tone};

/// Speaks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Telling {
    printer: Printer,
}

/// A step of the story.
#[derive(Debug, Clone)]
pub(super) struct Step<'a> {
    /// Its number.
    pub(super) number: u32,
    /// What happens.
    pub(super) title: &'a str,
    /// What it means.
    pub(super) text: String,
    /// The command that does it by hand.
    pub(super) cli: String,
    /// The same with curl, if there is a request to make.
    pub(super) curl: Option<String>,
}

impl Telling {
    /// On this printer.
    pub(super) const fn new(printer: Printer) -> Self {
        Self { printer }
    }

    /// Prints the events of a run; with `--json` nobody looks.
    pub(super) fn rendering(self) -> Option<Rendering> {
        (!self.printer.is_json()).then(|| Rendering::new(self.printer))
    }

    /// The first lines.
    pub(super) fn begin(self) -> io::Result<()> {
        if self.printer.is_json() {
            return Ok(());
        }
        let title = self.printer.paint(Tone::Strong, "Tapedeck");
        self.printer.line(format!(
            "\n{title}: a run loses its executor and is resumed.\n"
        ))
    }

    /// A step's heading, before anything of it happens.
    pub(super) fn heading(self, number: u32, title: &str) -> io::Result<()> {
        if self.printer.is_json() {
            return Ok(());
        }
        let number = self.printer.paint(Tone::Good, number);
        self.printer.line(format!(
            "{number}  {}",
            self.printer.paint(Tone::Strong, title)
        ))
    }

    /// What a step was, and how to do it by hand.
    pub(super) fn told(self, step: &Step<'_>) -> io::Result<()> {
        if self.printer.is_json() {
            return self.printer.object(&json!({
                "step": step.number,
                "title": step.title,
                "text": step.text,
                "cli": step.cli,
                "curl": step.curl,
            }));
        }
        for line in step.text.lines() {
            self.printer.line(format!("   {line}"))?;
        }
        let curl = step.curl.as_deref();
        for command in [Some(step.cli.as_str()), curl].into_iter().flatten() {
            let command = self.printer.paint(Tone::Quiet, format!("$ {command}"));
            self.printer.line(format!("   {command}"))?;
        }
        self.printer.line("")
    }

    /// A line that the next one replaces, on a terminal.
    pub(super) fn passing(self, text: &str) -> io::Result<()> {
        if self.printer.is_json() || !self.printer.is_terminal() {
            return Ok(());
        }
        let text = self.printer.paint(Tone::Quiet, text);
        self.printer.text(format!("\r\u{1b}[2K   {text}"))
    }

    /// Takes the passing line away.
    pub(super) fn passed(self) -> io::Result<()> {
        if self.printer.is_json() || !self.printer.is_terminal() {
            return Ok(());
        }
        self.printer.text("\r\u{1b}[2K")
    }

    /// The last lines.
    pub(super) fn end(self, kept: Option<&Path>) -> io::Result<()> {
        if self.printer.is_json() {
            return self
                .printer
                .object(&json!({"result": "ok", "data_dir": kept}));
        }
        let good = self.printer.paint(Tone::Good, "✓");
        self.printer
            .line(format!("{good}  Nothing was lost, nothing ran twice."))?;
        match kept {
            Some(dir) => {
                let dir = dir.display();
                self.printer
                    .line("   The session is kept. Look at it, or serve it again:")?;
                self.printer
                    .line(format!("   $ tapedeck --data-dir {dir} sessions list"))?;
                self.printer
                    .line(format!("   $ tapedeck --data-dir {dir} serve"))
            }
            None => self
                .printer
                .line("   Every process is gone. `tapedeck demo --keep` keeps the data."),
        }
    }
}
