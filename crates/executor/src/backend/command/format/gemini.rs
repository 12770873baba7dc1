//! `gemini-json`: messages in pieces, tool calls with their results, one result at the end.

use serde_json::Value;

use super::{Dialect, display_of, object, text_of};
use crate::backend::command::transcript::Transcript;
use crate::lines::Line;

#[derive(Debug)]
pub(super) struct Gemini;

impl Dialect for Gemini {
    fn read(&mut self, line: &Line, transcript: &mut Transcript) {
        let Some(line) = object(line, transcript) else {
            return;
        };
        match text_of(&line, "type") {
            "init" => transcript.in_session(text_of(&line, "session_id")),
            "message" if line["role"] == "assistant" => {
                transcript.say(text_of(&line, "content"), None);
            }
            // The prompt is known already.
            "message" if line["role"] == "user" => {}
            "tool_use" => {
                let (id, name) = (text_of(&line, "tool_id"), text_of(&line, "tool_name"));
                transcript.call(id, name, &line["parameters"]);
            }
            "tool_result" => {
                let failed = line["status"] != "success";
                let display = match &line["output"] {
                    Value::Null => text_of(&line["error"], "message").to_owned(),
                    output => display_of(output),
                };
                transcript.result(text_of(&line, "tool_id"), &display, failed);
            }
            "error" if line["severity"] == "error" => transcript.error(text_of(&line, "message")),
            "result" => {
                transcript.usage(&line["stats"]);
                if line["status"] == "success" {
                    transcript.finished();
                } else {
                    transcript.failed(text_of(&line["error"], "message"));
                }
            }
            _ => transcript.raw(&line),
        }
    }
}
