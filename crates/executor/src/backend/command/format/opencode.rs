//! `opencode-json`: steps with their parts. Texts come whole, and so do tool calls, which are
//! reported once, after they have ended.

use serde_json::Value;

use super::{Dialect, display_of, object, text_of, usage_with_cost};
use crate::backend::command::transcript::Transcript;
use crate::lines::Line;

#[derive(Debug)]
pub(super) struct Opencode;

impl Dialect for Opencode {
    fn read(&mut self, line: &Line, transcript: &mut Transcript) {
        let Some(line) = object(line, transcript) else {
            return;
        };
        transcript.in_session(text_of(&line, "sessionID"));
        let part = &line["part"];
        match text_of(&line, "type") {
            "step_start" => transcript.goes_on(),
            "text" => transcript.say(text_of(part, "text"), part["messageID"].as_str()),
            "reasoning" => transcript.think(text_of(part, "text")),
            "tool_use" => tool(part, transcript),
            "step_finish" => {
                transcript.usage(&usage_with_cost(&part["tokens"], &part["cost"]));
                // After tool calls another step follows, unless one was refused: that is the end.
                transcript.finished();
            }
            "error" => {
                let reason = reason(&line["error"]);
                transcript.error(&reason);
                transcript.failed(&reason);
            }
            _ => transcript.raw(&line),
        }
    }
}

fn tool(part: &Value, transcript: &mut Transcript) {
    let (id, name) = (text_of(part, "callID"), text_of(part, "tool"));
    let state = &part["state"];
    transcript.call(id, name, &state["input"]);
    match text_of(state, "status") {
        "completed" => transcript.result(id, &display_of(&state["output"]), false),
        "error" => transcript.result(id, &display_of(&state["error"]), true),
        _ => {}
    }
}

fn reason(error: &Value) -> String {
    let message = text_of(&error["data"], "message");
    match (text_of(error, "name"), message) {
        ("", "") => display_of(error),
        (name, "") => name.to_owned(),
        ("", message) => message.to_owned(),
        (name, message) => format!("{name}: {message}"),
    }
}
