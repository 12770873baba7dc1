//! What a tool's arguments must look like for a rule to cover them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Decision, fields, glob};
use crate::limits;
use crate::rejection::FieldError;

/// What a tool's arguments must look like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ArgumentPattern {
    /// Each of these top-level fields is there and its text matches. Other fields are not looked at.
    Fields(BTreeMap<String, String>),
    /// The arguments are these and no others.
    Equals(Value),
}

/// Where agents put the one thing that says what a tool will do, in the order of looking.
const TELLING: &[&str] = &[
    "command",
    "cmd",
    "file_path",
    "filePath",
    "path",
    "abs_path",
    "notebook_path",
    "url",
];

/// Shells whose `-c` takes the command itself.
const SHELLS: &[&str] = &["bash", "dash", "sh", "zsh"];

impl ArgumentPattern {
    pub(super) fn check(&self) -> Vec<FieldError> {
        let mut faults = Vec::new();
        match self {
            Self::Fields(patterns) => {
                if patterns.is_empty() || patterns.len() > limits::RULE_FIELDS {
                    let text = format!("must have 1 to {} fields", limits::RULE_FIELDS);
                    faults.push(FieldError::new("arguments.fields", text));
                }
                for (name, pattern) in patterns {
                    if name.is_empty() {
                        let text = "has a field without a name";
                        faults.push(FieldError::new("arguments.fields", text));
                    }
                    let most = limits::RULE_PATTERN_CHARS;
                    if pattern.chars().count() > most || name.chars().count() > limits::NAME_CHARS {
                        let name: String = name.chars().take(64).collect();
                        let text = format!("has over {most} characters, or too long a name");
                        faults.push(FieldError::new(format!("arguments.fields.{name}"), text));
                    }
                }
            }
            Self::Equals(arguments) => {
                let bytes = arguments.to_string().len();
                if bytes > limits::RULE_ARGUMENT_BYTES {
                    let most = limits::RULE_ARGUMENT_BYTES;
                    let text = format!("has {bytes} bytes; {most} are allowed");
                    faults.push(FieldError::new("arguments.equals", text));
                }
            }
        }
        faults
    }

    pub(super) fn covers(&self, arguments: &Value, decision: Decision) -> bool {
        let matches = match decision {
            Decision::Allow => glob::matches_plainly,
            Decision::Deny => glob::matches_anywhere,
        };
        match self {
            Self::Fields(patterns) => patterns.iter().all(|(name, pattern)| {
                match (Sight::of(arguments, name), decision) {
                    (Sight::Whole(text), _) => matches(pattern, &text),
                    // Length is no way around a rule that denies, nor one into a rule that allows.
                    (Sight::Partial, decision) => decision == Decision::Deny,
                    (Sight::Nothing, _) => false,
                }
            }),
            Self::Equals(wanted) => {
                let may_be_others = decision == Decision::Allow && is_cut(arguments);
                wanted == arguments && !may_be_others
            }
        }
    }

    /// Whether it looks at something that can't be seen whole.
    pub(super) fn looks_at_parts(&self, arguments: &Value) -> bool {
        match self {
            Self::Fields(patterns) => patterns
                .keys()
                .any(|name| matches!(Sight::of(arguments, name), Sight::Partial)),
            Self::Equals(_) => false,
        }
    }
}

/// What can be seen of a field.
enum Sight<'a> {
    /// All of it, as text.
    Whole(Cow<'a, str>),
    /// It is too long, or may have been cut or left out by the executor.
    Partial,
    /// There is none.
    Nothing,
}

impl<'a> Sight<'a> {
    fn of(arguments: &'a Value, name: &str) -> Self {
        let is_cut = is_cut(arguments);
        let Some(value) = arguments.get(name).filter(|value| !value.is_null()) else {
            // Beside the beginning of the whole, only short fields are left.
            let may_be_left_out = is_cut && arguments.get(PREVIEW).is_some();
            return if may_be_left_out {
                Self::Partial
            } else {
                Self::Nothing
            };
        };
        match text(value) {
            Some(text) if text.len() > glob::TEXT_BYTES => Self::Partial,
            Some(_) if is_cut && has_long_text(value) => Self::Partial,
            Some(text) => Self::Whole(text),
            None => Self::Nothing,
        }
    }
}

/// The beginning of arguments of which no more is left, where the executor has cut them.
const PREVIEW: &str = "preview";

/// Shorter texts are never cut by an executor.
const SHORTEST_CUT: usize = 253;

/// Whether the executor has cut arguments that were too large, which it says in them.
fn is_cut(arguments: &Value) -> bool {
    arguments["truncated"] == true && arguments["original_bytes"].is_u64()
}

fn has_long_text(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() >= SHORTEST_CUT,
        Value::Array(items) => items.iter().any(has_long_text),
        Value::Object(fields) => fields.values().any(has_long_text),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The narrowest pattern that makes sense of a call, or none where it has no arguments. What was not
/// seen whole makes no pattern, which is an error.
pub(super) fn narrowest(arguments: &Value) -> Result<Option<ArgumentPattern>, Unseen> {
    let Some(fields) = fields(arguments) else {
        let is_nothing = arguments.is_null() || arguments.is_object();
        return Ok((!is_nothing).then(|| ArgumentPattern::Equals(arguments.clone())));
    };
    let telling = TELLING.iter().find_map(|name| {
        let text = text(fields.get(*name)?)?;
        (!text.is_empty()).then(|| ((*name).to_owned(), glob::literal(&text)))
    });
    let pattern = match telling {
        Some(field) => ArgumentPattern::Fields(BTreeMap::from([field])),
        None if is_cut(arguments) => return Err(Unseen),
        None => ArgumentPattern::Equals(arguments.clone()),
    };
    if pattern.looks_at_parts(arguments) {
        return Err(Unseen);
    }
    Ok(Some(pattern))
}

/// Nobody has seen the arguments whole.
#[derive(Debug)]
pub(super) struct Unseen;

/// A field as the text that patterns are about. A list of texts is a command with its arguments,
/// quoted where needed; a shell that is only told to run a command stands for that command.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.into()),
        Value::Array(parts) => {
            let words: Option<Vec<&str>> = parts.iter().map(Value::as_str).collect();
            Some(match words {
                Some(words) => command(&words),
                None => value.to_string().into(),
            })
        }
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => Some(value.to_string().into()),
    }
}

fn command<'a>(words: &[&'a str]) -> Cow<'a, str> {
    if let [shell, "-c" | "-lc", script] = words
        && SHELLS.contains(&shell.rsplit('/').next().unwrap_or(shell))
    {
        return (*script).into();
    }
    let quoted: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    quoted.join(" ").into()
}

fn quoted(word: &str) -> Cow<'_, str> {
    let is_bare = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(is_bare) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''")).into()
    }
}
