//! The formats in which programs write what they do, one module each. It owns the list of formats
//! and what all of them share: a line that is not understood is kept whole, and is never an error.

mod claude;
mod codex;
mod gemini;
mod opencode;
mod text;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::transcript::Transcript;
use crate::backend::lenient;
use crate::lines::Line;

/// The format of a program's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Every line is a piece of the answer.
    #[default]
    Text,
    /// One JSON object a line: `system`, `stream_event`, `assistant`, `user`, `result`.
    ClaudeStreamJson,
    /// One JSON object a line: `thread.started`, `item.started`, `item.completed`,
    /// `turn.completed`.
    CodexJson,
    /// One JSON object a line: `init`, `message`, `tool_use`, `tool_result`, `result`.
    GeminiJson,
    /// One JSON object a line: `step_start`, `text`, `tool_use`, `step_finish`.
    OpencodeJson,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 5] = [
        Self::Text,
        Self::ClaudeStreamJson,
        Self::CodexJson,
        Self::GeminiJson,
        Self::OpencodeJson,
    ];

    /// Its name in settings and profiles.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::ClaudeStreamJson => "claude-stream-json",
            Self::CodexJson => "codex-json",
            Self::GeminiJson => "gemini-json",
            Self::OpencodeJson => "opencode-json",
        }
    }

    pub(super) fn dialect(self) -> Box<dyn Dialect> {
        match self {
            Self::Text => Box::new(text::Text),
            Self::ClaudeStreamJson => Box::new(claude::Claude::default()),
            Self::CodexJson => Box::new(codex::Codex),
            Self::GeminiJson => Box::new(gemini::Gemini),
            Self::OpencodeJson => Box::new(opencode::Opencode),
        }
    }

    /// Whether the program itself says how its turn ended.
    pub(super) const fn tells_its_end(self) -> bool {
        match self {
            Self::Text => false,
            Self::ClaudeStreamJson | Self::CodexJson | Self::GeminiJson | Self::OpencodeJson => {
                true
            }
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|format| format.as_str() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("there is no format `{text}`; there are {names}")
        })
    }
}

/// Reads the lines of one format.
pub(super) trait Dialect: fmt::Debug + Send {
    /// Enters into the transcript what a line says.
    fn read(&mut self, line: &Line, transcript: &mut Transcript);
}

/// A line as the object that it should be. One that is none is entered as it is.
fn object(line: &Line, transcript: &mut Transcript) -> Option<Value> {
    let text = line.text.trim();
    if text.is_empty() {
        return None;
    }
    let value = lenient::parse(text).filter(Value::is_object);
    if value.is_none() {
        transcript.raw(&Value::from(line.text.as_str()));
    }
    value
}

/// A text field, empty where there is none.
fn text_of<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// What a turn has used, with what it has cost where the program says that.
fn usage_with_cost(usage: &Value, dollars: &Value) -> Value {
    let mut usage = usage.clone();
    if let (Value::Object(fields), Value::Number(_)) = (&mut usage, dollars) {
        let cost = json!({"amount": dollars, "currency": "USD"});
        fields.insert("cost".to_owned(), cost);
    }
    usage
}

/// What a tool returned, as a person reads it: text as it is, lists of content blocks by their
/// texts, all else as JSON.
fn display_of(content: &Value) -> String {
    match content {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts = blocks.iter().map(|block| match block["text"].as_str() {
                Some(text) => text.to_owned(),
                None => match block["type"].as_str() {
                    Some(kind) => format!("[{kind}]"),
                    None => block.to_string(),
                },
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => content.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_has_one_name_everywhere() {
        for format in Format::ALL {
            assert_eq!(format.as_str().parse(), Ok(format));
            assert_eq!(serde_json::to_value(format).unwrap(), format.as_str());
        }
        let error = "xml".parse::<Format>().unwrap_err();
        assert!(error.contains("text, claude-stream-json"), "{error}");
    }

    #[test]
    fn what_tools_return_is_shown_as_text() {
        let blocks = serde_json::json!([
            {"type": "text", "text": "a"}, {"type": "image", "data": "x"}, {"odd": 1}
        ]);
        assert_eq!(display_of(&blocks), "a\n[image]\n{\"odd\":1}");
        assert_eq!(display_of(&Value::Null), "");
        assert_eq!(display_of(&serde_json::json!({"a": 1})), "{\"a\":1}");
    }
}
