//! The only place that prints. Results go to stdout, as text or as JSON; all else goes to stderr.
//! Colour carries no meaning, and what agents wrote is shown without control characters.

mod working;

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use anstyle::{AnsiColor, Style};
use comfy_table::{Attribute, Cell, ColumnConstraint, ContentArrangement, Table, presets};
use serde::Serialize;
use tapedeck_domain::Timestamp;

use crate::config;
pub(crate) use working::Working;

/// Narrower terminals get tables that are not fitted to them.
const LEAST_WIDTH: u16 = 80;

/// How a piece of text is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it is.
    Plain,
    /// Beside the point.
    Quiet,
    /// A heading or a name.
    Strong,
    /// It went well.
    Good,
    /// It did not.
    Bad,
    /// It wants attention.
    Alert,
}

/// Prints.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    /// How a command begins that goes where this process goes.
    called: &'static str,
    json: bool,
    is_terminal: bool,
    hears_terminal: bool,
    color: Color,
}

/// Which streams take colours.
#[derive(Debug, Clone, Copy)]
struct Color {
    out: bool,
    err: bool,
}

impl Printer {
    /// Prints as the process's streams allow.
    pub(crate) fn new(json: bool) -> Self {
        Self::of("tapedeck", json)
    }

    /// The same where commands that are told to a person begin with these words.
    pub(crate) fn of(called: &'static str, json: bool) -> Self {
        let plain = config::no_color();
        let is_terminal = io::stdout().is_terminal();
        Self {
            called,
            json,
            is_terminal,
            hears_terminal: io::stdin().is_terminal(),
            color: Color {
                out: is_terminal && !plain,
                err: io::stderr().is_terminal() && !plain,
            },
        }
    }

    /// Whether results are JSON.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Whether a person sees stdout.
    pub(crate) const fn is_terminal(self) -> bool {
        self.is_terminal
    }

    /// Whether a person can be asked.
    pub(crate) fn can_ask(self) -> bool {
        !self.json && self.is_terminal && self.hears_terminal
    }

    /// Whether a terminal that was there at the start has been closed. Whoever reads or writes there
    /// may be told so before the signal arrives.
    pub(crate) fn has_lost_its_terminal(self) -> bool {
        (self.is_terminal && !io::stdout().is_terminal())
            || (self.hears_terminal && !io::stdin().is_terminal())
    }

    /// Text in a tone, for stdout.
    pub(crate) fn paint(self, tone: Tone, text: impl Display) -> String {
        painted(self.color.out, tone, text)
    }

    /// Writes a piece of text at once.
    #[expect(clippy::unused_self, reason = "who prints has been given the printer")]
    pub(crate) fn text(self, text: impl Display) -> io::Result<()> {
        let mut out = io::stdout().lock();
        write!(out, "{text}")?;
        out.flush()
    }

    /// Writes a piece of a document as it is.
    #[expect(clippy::unused_self, reason = "who prints has been given the printer")]
    pub(crate) fn bytes(self, piece: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(piece)?;
        out.flush()
    }

    /// Writes a line.
    #[expect(clippy::unused_self, reason = "who prints has been given the printer")]
    pub(crate) fn line(self, text: impl Display) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Writes one JSON object as one line.
    pub(crate) fn object(self, value: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_string(value)?)
    }

    /// A command that a person can type to the same end: it goes where this process goes.
    pub(crate) fn command(self, command: impl Display) -> String {
        format!("`{} {command}`", self.called)
    }

    /// Writes a table; `nothing` stands for one without rows. A terminal that is too narrow for it
    /// gets each row as a paragraph.
    pub(crate) fn table(
        self,
        head: &[&str],
        rows: &[Vec<String>],
        nothing: &str,
    ) -> io::Result<()> {
        if rows.is_empty() {
            return self.note(nothing);
        }
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| one_line(cell)).collect())
            .collect();
        if self.is_terminal {
            let mut table = Table::new();
            table
                .load_style(presets::NOTHING)
                .set_content_arrangement(ContentArrangement::Dynamic);
            if table.width().is_some_and(|width| width < LEAST_WIDTH) {
                self.paragraphs(&mut table, head, rows);
            } else {
                table.set_header(head.iter().map(|name| self.quiet(name)));
                for row in rows {
                    table.add_row(row);
                }
            }
            if let Some(first) = table.column_mut(0) {
                first.set_constraint(ColumnConstraint::ContentWidth);
            }
            return self.line(table.trim_fmt());
        }
        self.text(columns(head, &rows))
    }

    fn paragraphs(self, table: &mut Table, head: &[&str], rows: Vec<Vec<String>>) {
        for (place, row) in rows.into_iter().enumerate() {
            if place > 0 {
                table.add_row([""]);
            }
            let named = head.iter().zip(row).filter(|(_, value)| !value.is_empty());
            for (name, value) in named {
                table.add_row([self.quiet(&name.to_lowercase()), Cell::new(value)]);
            }
        }
    }

    fn quiet(self, name: &str) -> Cell {
        let cell = Cell::new(name);
        if self.color.out {
            cell.add_attribute(Attribute::Dim)
        } else {
            cell
        }
    }

    /// Writes names with their values; empty values are left out. Further lines of a value stand
    /// below its first, so that none of them can pass for another name.
    pub(crate) fn fields(self, fields: &[(&str, String)]) -> io::Result<()> {
        let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
            let name = self.paint(Tone::Quiet, format!("{name:width$}"));
            self.line(format!("{name}  {}", hanging(value, width + 2)))?;
        }
        Ok(())
    }

    /// Tells something beside the results, on stderr.
    pub(crate) fn note(self, text: impl Display) -> io::Result<()> {
        let text = painted(self.color.err, Tone::Quiet, text);
        writeln!(io::stderr().lock(), "{text}")
    }

    /// Asks for something in the same line, on stderr.
    #[expect(clippy::unused_self, reason = "who prints has been given the printer")]
    pub(crate) fn prompt(self, text: impl Display) -> io::Result<()> {
        let mut err = io::stderr().lock();
        write!(err, "{text}")?;
        err.flush()
    }

    /// Tells of work that begins, until what is given here is dropped.
    pub(crate) fn working(self, what: impl Into<Cow<'static, str>>) -> Working {
        Working::begin(self, what.into())
    }

    /// The same for a pause that only a person at a terminal wonders about.
    pub(crate) fn silent(self, what: &'static str) -> Working {
        Working::in_silence(self, what)
    }

    /// Tells why it did not work, on stderr.
    pub(crate) fn error(self, text: impl Display, hint: Option<&str>) {
        let mut err = io::stderr().lock();
        let label = painted(self.color.err, Tone::Bad, "error:");
        // There may be nobody to read it.
        let _unread = writeln!(err, "{label} {}", printable(&text.to_string()));
        if let Some(hint) = hint {
            let label = painted(self.color.err, Tone::Quiet, "hint:");
            let _unread = writeln!(err, "{label} {hint}");
        }
    }

    /// The same for programs: one JSON object on stderr.
    #[expect(clippy::unused_self, reason = "who prints has been given the printer")]
    pub(crate) fn error_object(self, value: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(value) {
            let _unread = writeln!(io::stderr().lock(), "{text}");
        }
    }
}

fn painted(color: bool, tone: Tone, text: impl Display) -> String {
    let style = match tone {
        Tone::Plain => return text.to_string(),
        Tone::Quiet => Style::new().dimmed(),
        Tone::Strong => Style::new().bold(),
        Tone::Good => AnsiColor::Green.on_default(),
        Tone::Bad => AnsiColor::Red.on_default().bold(),
        Tone::Alert => AnsiColor::Yellow.on_default(),
    };
    if color {
        format!("{style}{text}{style:#}")
    } else {
        text.to_string()
    }
}

/// Text without characters that a terminal would obey, and without those that turn the direction of
/// what follows: they make a text look like another one.
pub(crate) fn printable(text: &str) -> String {
    let turns = |letter: char| {
        matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}')
            || ('\u{202a}'..='\u{202e}').contains(&letter)
            || ('\u{2066}'..='\u{2069}').contains(&letter)
    };
    let kept =
        |letter: &char| matches!(letter, '\n' | '\t') || !(letter.is_control() || turns(*letter));
    text.chars().filter(kept).collect()
}

/// Text whose further lines are indented.
fn hanging(text: &str, indent: usize) -> String {
    let lines: Vec<_> = text.lines().map(printable).collect();
    lines.join(&format!("\n{:indent$}", ""))
}

/// The same in one line.
pub(crate) fn one_line(text: &str) -> String {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    printable(&joined)
}

/// One line of at most so many characters.
pub(crate) fn short(text: &str, most: usize) -> String {
    let text = one_line(text);
    if text.chars().count() <= most {
        return text;
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// A time to the second, or nothing.
pub(crate) fn time(at: Option<Timestamp>) -> String {
    let Some(at) = at else { return String::new() };
    let text = at.to_string();
    match text.split_once('.') {
        Some((seconds, _)) => format!("{}Z", seconds.replace('T', " ")),
        None => text,
    }
}

/// A value, or nothing.
pub(crate) fn or_nothing(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    let width = |column: usize| {
        let cells = std::iter::once(&head).chain(rows);
        let widths = cells.filter_map(|row| row.get(column).map(|cell| cell.chars().count()));
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_never_cut() {
        let rows = [
            vec!["a".to_owned(), "longer".to_owned()],
            vec!["bcd".to_owned(), "x".to_owned()],
        ];
        assert_eq!(
            columns(&["ID", "TEXT"], &rows),
            "ID   TEXT\na    longer\nbcd  x\n"
        );
    }

    #[test]
    fn what_an_agent_wrote_commands_no_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\r\nc\u{7}\td"), "a[2Jb\nc\td");
        assert_eq!(one_line("a\n  b\u{1b}"), "a b");
        assert_eq!(printable("rm \u{202e}txt.exe\u{2066}"), "rm txt.exe");
        assert_eq!(
            hanging("shell\nwith  ls\r\nx", 4),
            "shell\n    with  ls\n    x"
        );
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(short("abcd", 4), "abcd");
    }

    #[test]
    fn times_are_shown_to_the_second() {
        assert_eq!(
            time(Some(Timestamp(1_700_000_000_007))),
            "2023-11-14 22:13:20Z"
        );
        assert_eq!(time(None), "");
    }
}
