//! `claude-stream-json`: messages in the shape of a provider's interface, whole and, where the
//! program is asked for them, in pieces before that, and at the end once more. What was told must
//! not be told twice.

use serde_json::Value;

use super::{Dialect, display_of, object, text_of, usage_with_cost};
use crate::backend::command::transcript::Transcript;
use crate::lines::Line;

#[derive(Debug, Default)]
pub(super) struct Claude {
    /// The message whose pieces are coming.
    streamed: Option<String>,
}

impl Dialect for Claude {
    fn read(&mut self, line: &Line, transcript: &mut Transcript) {
        let Some(line) = object(line, transcript) else {
            return;
        };
        // What agents say to each other is no answer to the person.
        let is_inner = line["parent_tool_use_id"].is_string();
        match text_of(&line, "type") {
            "system" if line["subtype"] == "init" => {
                transcript.in_session(text_of(&line, "session_id"));
            }
            // How busy it is, for each request and each thought.
            "system" if matches!(text_of(&line, "subtype"), "status" | "thinking_tokens") => {}
            "stream_event" if !is_inner => self.piece(&line["event"], transcript),
            // Their whole messages follow.
            "stream_event" => {}
            "assistant" => self.message(&line, is_inner, transcript),
            "user" => results(&line, transcript),
            "result" => end(&line, transcript),
            _ => transcript.raw(&line),
        }
    }
}

impl Claude {
    fn piece(&mut self, event: &Value, transcript: &mut Transcript) {
        match text_of(event, "type") {
            "message_start" => {
                self.streamed = event["message"]["id"].as_str().map(str::to_owned);
            }
            "content_block_start" if event["content_block"]["type"] == "tool_use" => {
                let block = &event["content_block"];
                transcript.call(text_of(block, "id"), text_of(block, "name"), &Value::Null);
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                match text_of(delta, "type") {
                    "text_delta" => {
                        transcript.say(text_of(delta, "text"), self.streamed.as_deref());
                    }
                    "thinking_delta" => transcript.think(text_of(delta, "thinking")),
                    // Arguments come whole with their message.
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn message(&self, line: &Value, is_inner: bool, transcript: &mut Transcript) {
        let message = &line["message"];
        let id = message["id"].as_str();
        let is_told = id.is_some() && id == self.streamed.as_deref();
        for block in message["content"].as_array().into_iter().flatten() {
            match text_of(block, "type") {
                "tool_use" => {
                    let (id, name) = (text_of(block, "id"), text_of(block, "name"));
                    transcript.call(id, name, &block["input"]);
                }
                "text" | "thinking" if is_inner => transcript.raw(line),
                "text" | "thinking" if is_told => {}
                "text" => transcript.say(text_of(block, "text"), id),
                "thinking" => transcript.think(text_of(block, "thinking")),
                _ => transcript.raw(block),
            }
        }
    }
}

/// A message of the user's side holds what tools returned; its text is the prompt.
fn results(line: &Value, transcript: &mut Transcript) {
    let blocks = line["message"]["content"].as_array().into_iter().flatten();
    for block in blocks.filter(|block| block["type"] == "tool_result") {
        let display = display_of(&block["content"]);
        let is_error = block["is_error"] == true;
        transcript.result(text_of(block, "tool_use_id"), &display, is_error);
    }
}

/// A turn that failed may call itself a success, and says so in `is_error`. Its conversation's id
/// proves nothing: one that isn't there is named, too.
fn end(line: &Value, transcript: &mut Transcript) {
    let subtype = text_of(line, "subtype");
    let is_well = line["is_error"] != true && subtype == "success";
    if is_well {
        // What needs no model, as the program's own commands do, stands nowhere else.
        transcript.conclude(text_of(line, "result"));
    }
    transcript.usage(&usage_with_cost(&line["usage"], &line["total_cost_usd"]));
    if is_well {
        return transcript.finished();
    }
    let errors: Vec<&str> = line["errors"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    match (text_of(line, "result"), errors.is_empty()) {
        ("", true) => transcript.failed(subtype),
        ("", false) => transcript.failed(&errors.join("; ")),
        (result, _) => transcript.failed(result),
    }
}
