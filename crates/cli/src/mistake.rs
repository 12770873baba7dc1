//! A command line that can't be read: what is wrong with it in one line, and where to read more.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
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
            text: sentence(&error.render().to_string(), dashed(error, arguments)),
            hint: format!("`{} --help` shows what it takes", command(arguments)),
        })
    }
}

/// The flag and its value, where the parser took a value with a dash for a flag of its own.
fn dashed<'a>(error: &Error, arguments: &'a [OsString]) -> Option<(&'a str, &'a str)> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_flag = |text: &str| text.starts_with("--") && text.len() > 2 && !text.contains('=');
    arguments.windows(2).find_map(|pair| {
        let (flag, value) = (pair[0].to_str()?, pair[1].to_str()?);
        let fits = error.kind() == ErrorKind::UnknownArgument
            && is_flag(flag)
            && !value.starts_with("--")
            && value.starts_with(unknown.as_str());
        fits.then_some((flag, value))
    })
}

/// What stands before the usage in one line, with the parser's tips in brackets.
fn sentence(rendered: &str, dashed: Option<(&str, &str)>) -> String {
    let paragraphs = rendered.split("\n\n").take_while(|paragraph| {
        let has_begun = |word| paragraph.trim_start().starts_with(word);
        !has_begun("Usage:") && !has_begun("For more information")
    });
    let paragraphs = paragraphs.map(|paragraph| {
        let words: Vec<_> = paragraph.split_whitespace().collect();
        let words = words.join(" ");
        match words.strip_prefix("tip: ") {
            // Of no help where the value belongs to a flag.
            Some(_) if dashed.is_some() => String::new(),
            Some(tip) => format!(" ({tip})"),
            None => words.strip_prefix("error: ").unwrap_or(&words).to_owned(),
        }
    });
    let mut text: String = paragraphs.collect();
    if let Some((flag, value)) = dashed {
        text.extend([" (the value of a flag is written `", flag, "=", value, "`)"]);
    }
    text
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
    fn a_value_with_a_dash_is_told_how_to_be_written() {
        for (line, says) in [
            ("tapedeck run --goal -x", "`--goal=-x`"),
            (
                "tapedeck token create ci --role client --expires-in -3d",
                "`--expires-in=-3d`",
            ),
        ] {
            let Mistake { text, .. } = mistake(line).unwrap();
            assert!(text.contains(says) && !text.contains("-- "), "{text}");
        }
        let Mistake { text, .. } = mistake("tapedeck runs list -3").unwrap();
        assert!(!text.contains("flag is written"), "{text}");
    }

    #[test]
    fn a_page_is_shown_as_it_is() {
        for line in ["tapedeck --help", "tapedeck --version", "tapedeck runs"] {
            assert_eq!(mistake(line), None, "{line}");
        }
    }
}
