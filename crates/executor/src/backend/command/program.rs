//! A program's command line with places to fill: the prompt, and what takes a conversation up
//! again. It owns how both are handed over; what it fills in stays one argument each and never
//! passes a shell.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::process::Environment;

/// The prompt.
const PROMPT: &str = "{prompt}";
/// Where the arguments go that take a conversation up again.
const RESUME: &str = "{resume}";
/// The program's id of its conversation, in those arguments.
const SESSION: &str = "{session}";

/// The variable of [`PromptVia::Environment`].
pub const PROMPT_VARIABLE: &str = "TAPEDECK_PROMPT";

/// Linux takes 128 KiB for one argument or variable, its name included.
const ARGUMENT_LIMIT: usize = 128 * 1024 - 256;

/// Longer ids are none.
const SESSION_LIMIT: usize = 200;

/// How a program gets its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptVia {
    /// In place of `{prompt}` in its arguments, or as one more argument.
    Argument,
    /// On its standard input, which is then closed.
    Stdin,
    /// In the variable `TAPEDECK_PROMPT`.
    Environment,
}

impl PromptVia {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Argument, Self::Stdin, Self::Environment];

    /// Its name in settings and profiles.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Argument => "argument",
            Self::Stdin => "stdin",
            Self::Environment => "environment",
        }
    }
}

impl fmt::Display for PromptVia {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for PromptVia {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|via| via.as_str() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("a prompt can't go by `{text}`; it can by {names}")
        })
    }
}

/// A program with its arguments.
#[derive(Debug, Clone)]
pub(super) struct Program {
    words: Vec<String>,
    resume: Vec<String>,
    via: PromptVia,
}

/// A program as one turn starts it.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) command: Vec<OsString>,
    pub(super) environment: Environment,
    pub(super) input: Option<String>,
}

impl Program {
    /// Without `via` the prompt replaces `{prompt}` if that stands in an argument, else it goes to
    /// stdin.
    pub(super) fn new(words: Vec<String>, resume: Vec<String>, via: Option<PromptVia>) -> Self {
        let found = if has(&words, PROMPT) {
            PromptVia::Argument
        } else {
            PromptVia::Stdin
        };
        let via = via.unwrap_or(found);
        Self { words, resume, via }
    }

    /// Whether a conversation can be taken up again.
    pub(super) fn resumes(&self) -> bool {
        !self.resume.is_empty()
    }

    /// What to start for this prompt, and the program's conversation to go on with.
    pub(super) fn start(
        &self,
        prompt: &str,
        session: Option<&str>,
        environment: &Environment,
    ) -> Result<Started, String> {
        if self.via != PromptVia::Stdin && prompt.len() > ARGUMENT_LIMIT {
            let length = prompt.len();
            return Err(format!(
                "a prompt of {length} bytes can only be handed over by stdin"
            ));
        }
        let mut environment = environment.clone();
        if self.via == PromptVia::Environment {
            environment.set(PROMPT_VARIABLE, prompt);
        }
        Ok(Started {
            command: self.command(prompt, session),
            environment,
            input: (self.via == PromptVia::Stdin).then(|| prompt.to_owned()),
        })
    }

    fn command(&self, prompt: &str, session: Option<&str>) -> Vec<OsString> {
        let resume = session.map_or_else(Vec::new, |session| {
            let filled = self
                .resume
                .iter()
                .map(|word| word.replace(SESSION, session));
            filled.collect()
        });
        let is_placed = |word: &String| self.via == PromptVia::Argument && word.contains(PROMPT);
        let mut command: Vec<OsString> = Vec::new();
        for (position, word) in self.words.iter().enumerate() {
            if position > 0 && word == RESUME {
                command.extend(resume.iter().map(Into::into));
            } else if position > 0 && is_placed(word) {
                command.push(word.replace(PROMPT, prompt).into());
            } else {
                command.push(word.into());
            }
        }
        if !has(&self.words, RESUME) {
            command.extend(resume.iter().map(Into::into));
        }
        if self.via == PromptVia::Argument && !has(&self.words, PROMPT) {
            command.push(prompt.into());
        }
        command
    }
}

/// Whether an argument has a place.
fn has(words: &[String], place: &str) -> bool {
    words.iter().skip(1).any(|word| word.contains(place))
}

/// Ids come from the program and have been elsewhere since: one that could be read as anything but
/// an id is none.
pub(super) fn is_session_id(text: &str) -> bool {
    let part = |letter: char| letter.is_ascii_alphanumeric() || "-_.:".contains(letter);
    text.len() <= SESSION_LIMIT
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(words: &str, resume: &str, via: Option<PromptVia>) -> Program {
        let split = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        Program::new(split(words), split(resume), via)
    }

    fn command(program: &Program, session: Option<&str>) -> String {
        let environment = Environment::default();
        let started = program.start("do it", session, &environment).unwrap();
        let words: Vec<_> = started
            .command
            .iter()
            .map(|word| format!("<{}>", word.display()))
            .collect();
        words.concat()
    }

    #[test]
    fn a_prompt_and_a_conversation_go_to_their_places() {
        let placed = program("x {resume} -- {prompt}", "-r {session}", None);
        assert_eq!(command(&placed, None), "<x><--><do it>");
        assert_eq!(command(&placed, Some("s1")), "<x><-r><s1><--><do it>");
        let inside = program("x --say={prompt}", "--session={session}", None);
        assert_eq!(
            command(&inside, Some("s1")),
            "<x><--say=do it><--session=s1>"
        );
    }

    #[test]
    fn without_places_the_conversation_comes_last_but_for_the_prompt() {
        let via = Some(PromptVia::Argument);
        assert_eq!(
            command(&program("x", "-r {session}", via), Some("s")),
            "<x><-r><s><do it>"
        );
        assert_eq!(
            command(&program("x", "-r {session}", None), Some("s")),
            "<x><-r><s>"
        );
        assert_eq!(command(&program("x -v", "", None), Some("s")), "<x><-v>");
    }

    #[test]
    fn the_program_itself_is_never_replaced() {
        let odd = program("{prompt} {prompt}", "", None);
        assert_eq!(command(&odd, None), "<{prompt}><do it>");
    }

    #[test]
    fn what_could_be_an_option_or_a_path_is_no_id() {
        for id in ["ses_4f", "0198c0de-0000-7000-8000-000000000000", "a.b:c"] {
            assert!(is_session_id(id), "{id}");
        }
        let long = "x".repeat(SESSION_LIMIT + 1);
        for id in [
            "",
            "-rf",
            "--yolo",
            "../x",
            "a b",
            "a/b",
            "é",
            long.as_str(),
        ] {
            assert!(!is_session_id(id), "{id}");
        }
    }

    #[test]
    fn names_of_ways_are_read_as_they_are_written() {
        for via in PromptVia::ALL {
            assert_eq!(via.as_str().parse(), Ok(via));
            assert_eq!(serde_json::to_value(via).unwrap(), via.as_str());
        }
        let error = "post".parse::<PromptVia>().unwrap_err();
        assert!(error.contains("argument, stdin, environment"), "{error}");
    }
}
