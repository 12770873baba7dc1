//! Work that takes its time, as a person sees that it goes on: a spinner on a terminal, plain lines
//! elsewhere, nothing where a program reads. All of it goes to stderr, and a spinner is gone before
//! the next thing is printed.

use std::borrow::Cow;
use std::io::{IsTerminal as _, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Printer;

/// Between two steps of a spinner.
const STEP: Duration = Duration::from_millis(100);
/// Counted things between two changes of a spinner, and between two lines.
const SHOWN_EVERY: u64 = 1_000;
const LINE_EVERY: u64 = 100_000;

/// Work that goes on until this is dropped.
#[derive(Debug)]
pub(crate) struct Working {
    what: Cow<'static, str>,
    shown: Shown,
}

#[derive(Debug)]
enum Shown {
    Spinner(ProgressBar),
    Lines(Printer),
    Nothing,
}

impl Working {
    /// Tells of work that begins.
    pub(super) fn begin(printer: Printer, what: Cow<'static, str>) -> Self {
        let shown = if printer.is_json() {
            Shown::Nothing
        } else if stderr().is_terminal() {
            Shown::Spinner(spinner(&what))
        } else {
            // There may be nobody to read it.
            let _unread = printer.note(&what);
            Shown::Lines(printer)
        };
        Self { what, shown }
    }

    /// A spinner where there is a terminal, and nothing elsewhere.
    pub(super) fn in_silence(printer: Printer, what: &'static str) -> Self {
        let shown = if printer.is_json() || !printer.is_terminal() || !stderr().is_terminal() {
            Shown::Nothing
        } else {
            Shown::Spinner(spinner(what))
        };
        Self {
            what: Cow::Borrowed(what),
            shown,
        }
    }

    /// Tells how far it is.
    pub(crate) fn counted(&self, count: u64, things: &str) {
        match &self.shown {
            Shown::Spinner(spinner) if count.is_multiple_of(SHOWN_EVERY) => {
                spinner.set_message(format!("{}: {count} {things}", self.what));
            }
            Shown::Lines(printer) if count.is_multiple_of(LINE_EVERY) => {
                let _unread = printer.note(format!("{}: {count} {things}", self.what));
            }
            Shown::Spinner(_) | Shown::Lines(_) | Shown::Nothing => {}
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Shown::Spinner(spinner) = &self.shown {
            spinner.finish_and_clear();
        }
    }
}

fn spinner(what: &str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        spinner.set_style(style);
    }
    spinner.set_message(what.to_owned());
    spinner.enable_steady_tick(STEP);
    spinner
}
