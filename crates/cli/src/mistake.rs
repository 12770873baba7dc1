//! A command line that can't be read: what is wrong with it in one line, and where to read more.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Error};

use crate::args::Cli;

/// What a command line that can't be read is answered with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// What is wrong.
    pub(crate) text: String,
    /// What to do.
    pub(crate) hint: String,
}

impl Mistake {
    /// Of the parser's error about these arguments; none where that has a page to show: the help, or
    /// the version.
    pub(crate) fn of(error: &Error, arguments: &[OsString]) -> Option<Self> {
        let has_page = matches!(
            error.kind(),
            ErrorKind::DisplayHelp
                | ErrorKind::DisplayVersion
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        );
        (!has_page).then(|| Self {
            text: sentence(&error.render().to_string()),
            hint: format!("`{} --help` shows what it takes", command(arguments)),
        })
    }
}

/// What stands before the usage in one line, with the parser's tips in brackets.
fn sentence(rendered: &str) -> String {
    let paragraphs = rendered.split("\n\n").take_while(|paragraph| {
        let has_begun = |word| paragraph.trim_start().starts_with(word);
        !has_begun("Usage:") && !has_begun("For more information")
    });
    let paragraphs = paragraphs.map(|paragraph| {
        let words: Vec<_> = paragraph.split_whitespace().collect();
        let words = words.join(" ");
        match words.strip_prefix("tip: ") {
            Some(tip) => format!(" ({tip})"),
            None => words.strip_prefix("error: ").unwrap_or(&words).to_owned(),
        }
    });
    paragraphs.collect()
}

/// The command that was meant, as far as it is one.
fn command(arguments: &[OsString]) -> String {
    let mut command = Cli::command();
    let mut words = vec![command.get_name().to_owned()];
    for argument in arguments.iter().skip(1) {
        if let Some(found) = command.find_subcommand(argument) {
            words.push(found.get_name().to_owned());
            command = found.clone();
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn mistake(line: &str) -> Option<Mistake> {
        let arguments: Vec<_> = line.split(' ').map(OsString::from).collect();
        let error = Cli::try_parse_from(&arguments).unwrap_err();
        Mistake::of(&error, &arguments)
    }

    #[test]
    fn a_mistake_is_one_line_and_says_where_to_look() {
        for (line, says, command) in [
            ("tapedeck run --gaol x", "--goal", "tapedeck run"),
            ("tapedeck run --goal", "a value is required", "tapedeck run"),
            ("tapedeck runs show", "<RUN>", "tapedeck runs show"),
            (
                "tapedeck runs show x",
                "a UUID is expected",
                "tapedeck runs show",
            ),
            ("tapedeck sessionz", "sessions", "tapedeck"),
            (
                "tapedeck resume --last --session 01a2286d-0037-70a8-9342-a38b3f249b87",
                "cannot be used with",
                "tapedeck resume",
            ),
        ] {
            let Mistake { text, hint } = mistake(line).unwrap();
            assert!(text.contains(says), "{text}");
            assert!(!text.contains('\n') && !text.contains("Usage"), "{text}");
            assert!(!text.starts_with("error"), "{text}");
            assert_eq!(hint, format!("`{command} --help` shows what it takes"));
        }
    }

    #[test]
    fn a_page_is_shown_as_it_is() {
        for line in ["tapedeck --help", "tapedeck --version", "tapedeck runs"] {
            assert_eq!(mistake(line), None, "{line}");
        }
    }
}
