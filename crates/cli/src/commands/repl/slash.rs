//! What a line at the prompt says: words for the agent, or a command that begins with `/`. It only
//! reads; nothing is done here.

use tapedeck_domain::interaction::Scope;
use tapedeck_domain::session::ApprovalPolicy;

/// A line at the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing.
    Nothing,
    /// Words for the agent.
    Prompt(String),
    /// A command.
    Command(Slash),
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Slash {
    Approve(Scope),
    Attach,
    Cancel,
    Checkpoint(Option<String>),
    Checkpoints,
    Deny(Option<String>),
    Diff { is_patch: bool },
    Fork(Option<String>),
    Help,
    Model(Option<String>),
    New,
    Open(String),
    Policy(Option<ApprovalPolicy>),
    Quit,
    Restore(Option<String>),
    Resume(Option<String>),
    Sessions,
    Show,
}

/// The commands as `/help` shows them: with what comes after, and what they do.
pub(super) const COMMANDS: &[(&str, &str, &str)] = &[
    (
        "approve",
        "[once|session|always]",
        "say yes to the oldest open question",
    ),
    (
        "attach",
        "",
        "follow the session's newest run; Ctrl-C leaves it",
    ),
    ("cancel", "", "cancel the active run; the session stays"),
    ("checkpoint", "[LABEL]", "mark this place"),
    ("checkpoints", "", "list the marked places"),
    ("deny", "[WHY]", "say no to the oldest open question"),
    (
        "diff",
        "[patch]",
        "show what the newest run changed, as a table or a patch",
    ),
    (
        "fork",
        "[TITLE]",
        "go on in a new session that starts from here",
    ),
    ("help", "", "show this"),
    ("model", "[NAME]", "show or set the model; `-` unsets it"),
    (
        "new",
        "",
        "leave the session; the next prompt begins another",
    ),
    (
        "open",
        "WHICH",
        "go to a session, by its id or its number in `/sessions`",
    ),
    (
        "policy",
        "[yolo|auto|interactive]",
        "show or set who answers the agent's questions",
    ),
    ("quit", "", "end; Ctrl-D does, too"),
    (
        "restore",
        "[WHICH]",
        "put the session back to a checkpoint, by id or label; else the newest",
    ),
    (
        "resume",
        "[WHICH]",
        "go on where the session's last run ended; first open WHICH",
    ),
    ("sessions", "", "list the newest sessions"),
    ("show", "", "show the session"),
];

/// Reads what was typed. A mistake is told in a sentence.
pub(super) fn read(typed: &str) -> Result<Said, String> {
    let text = typed.trim();
    if text.is_empty() {
        return Ok(Said::Nothing);
    }
    let Some(command) = text.strip_prefix('/') else {
        return Ok(Said::Prompt(text.to_owned()));
    };
    if command.starts_with('/') {
        // A prompt that begins with a slash.
        return Ok(Said::Prompt(command.to_owned()));
    }
    let (name, rest) = match command.split_once(char::is_whitespace) {
        Some((name, rest)) => (name, Some(rest.trim()).filter(|rest| !rest.is_empty())),
        None => (command, None),
    };
    slash(name, rest).map(Said::Command)
}

fn slash(name: &str, rest: Option<&str>) -> Result<Slash, String> {
    let words = rest.map(str::to_owned);
    let plain = |command: Slash| match rest {
        None => Ok(command),
        Some(_) => Err(format!("`/{name}` takes nothing after it")),
    };
    match name {
        "approve" => {
            let scope = word(rest, Scope::ALL, Scope::as_str)?;
            Ok(Slash::Approve(scope.unwrap_or(Scope::Once)))
        }
        "attach" => plain(Slash::Attach),
        "cancel" => plain(Slash::Cancel),
        "checkpoint" => Ok(Slash::Checkpoint(words)),
        "checkpoints" => plain(Slash::Checkpoints),
        "deny" => Ok(Slash::Deny(words)),
        "diff" => match rest {
            None => Ok(Slash::Diff { is_patch: false }),
            Some("patch" | "--patch") => Ok(Slash::Diff { is_patch: true }),
            Some(other) => Err(format!("`{other}` is not `patch`")),
        },
        "fork" => Ok(Slash::Fork(words)),
        "help" | "?" => plain(Slash::Help),
        "model" => Ok(Slash::Model(words)),
        "new" => plain(Slash::New),
        "open" => match words {
            Some(which) => Ok(Slash::Open(which)),
            None => Err("`/open` wants a session: its id, or its number in `/sessions`".to_owned()),
        },
        "policy" => {
            let policy = word(rest, ApprovalPolicy::ALL, ApprovalPolicy::as_str)?;
            Ok(Slash::Policy(policy))
        }
        "quit" | "exit" | "q" => plain(Slash::Quit),
        "restore" => Ok(Slash::Restore(words)),
        "resume" => Ok(Slash::Resume(words)),
        "sessions" => plain(Slash::Sessions),
        "show" => plain(Slash::Show),
        other => Err(format!(
            "there is no command `/{}`; `/help` lists them, and `//` begins a prompt with a slash",
            other.escape_debug()
        )),
    }
}

/// One word of a list, or none.
fn word<T: Copy>(
    given: Option<&str>,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<Option<T>, String> {
    let Some(given) = given else { return Ok(None) };
    let found = all.iter().copied().find(|value| name(*value) == given);
    found.map(Some).ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|value| name(*value)).collect();
        format!("`{}` is none of {}", given.escape_debug(), known.join(", "))
    })
}

/// Whether more lines belong to what was typed: a line that ends in `\`, or a block between fences
/// that is still open.
pub(super) fn is_unfinished(typed: &str) -> bool {
    let slashes = typed.chars().rev().take_while(|letter| *letter == '\\');
    if slashes.count() % 2 == 1 {
        return true;
    }
    let fences = typed.lines().filter(|line| line.starts_with("```"));
    !typed.starts_with('/') && fences.count() % 2 == 1
}

/// What was typed, without the backslashes that only said that it goes on.
pub(super) fn joined(typed: &str) -> String {
    typed.replace("\\\n", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_prompt_or_a_command() {
        let prompt = |text: &str| Ok(Said::Prompt(text.to_owned()));
        let command = |command| Ok(Said::Command(command));
        let text = |text: &str| Some(text.to_owned());
        for (typed, said) in [
            ("", Ok(Said::Nothing)),
            ("  \n ", Ok(Said::Nothing)),
            ("fix it ", prompt("fix it")),
            ("//etc is full", prompt("/etc is full")),
            ("/quit", command(Slash::Quit)),
            ("/approve", command(Slash::Approve(Scope::Once))),
            ("/approve always", command(Slash::Approve(Scope::Always))),
            ("/deny not there", command(Slash::Deny(text("not there")))),
            ("/checkpoint a  b", command(Slash::Checkpoint(text("a  b")))),
            ("/diff patch", command(Slash::Diff { is_patch: true })),
            ("/open 3", command(Slash::Open("3".to_owned()))),
            (
                "/policy yolo",
                command(Slash::Policy(Some(ApprovalPolicy::Yolo))),
            ),
            ("/resume", command(Slash::Resume(None))),
        ] {
            assert_eq!(read(typed), said, "{typed:?}");
        }
        for typed in [
            "/nonsense",
            "/",
            "/quit now",
            "/approve perhaps",
            "/open",
            "/policy x",
        ] {
            assert!(read(typed).is_err(), "{typed:?}");
        }
    }

    #[test]
    fn every_command_that_is_shown_is_known() {
        for (name, arguments, _) in COMMANDS {
            let argument = arguments.trim_matches(['[', ']']);
            let argument = argument.split('|').next().unwrap_or_default();
            assert!(read(&format!("/{name} {argument}")).is_ok(), "{name}");
        }
        assert!(COMMANDS.is_sorted());
    }

    #[test]
    fn more_lines_belong_to_what_is_not_finished() {
        for typed in ["a\\", "```\nx", "see\n```rust\nfn a() {}", "/deny a\\"] {
            assert!(is_unfinished(typed), "{typed:?}");
        }
        for typed in ["a", "a\\\\", "```\nx\n```", "/fork ```", "a ``` b"] {
            assert!(!is_unfinished(typed), "{typed:?}");
        }
        assert_eq!(joined("a\\\nb\nc"), "a\nb\nc");
    }
}
