//! `codex-json`: a thread of turns, each a list of items that begin, change and end. Answers come
//! whole.

use serde_json::{Value, json};

use super::{Dialect, display_of, object, text_of};
use crate::backend::command::transcript::Transcript;
use crate::lines::Line;

#[derive(Debug)]
pub(super) struct Codex;

impl Dialect for Codex {
    fn read(&mut self, line: &Line, transcript: &mut Transcript) {
        let Some(line) = object(line, transcript) else {
            return;
        };
        match text_of(&line, "type") {
            "thread.started" => transcript.in_session(text_of(&line, "thread_id")),
            "turn.started" => transcript.goes_on(),
            "item.started" | "item.updated" => item(&line, false, transcript),
            "item.completed" => item(&line, true, transcript),
            "turn.completed" => {
                transcript.usage(&line["usage"]);
                transcript.finished();
            }
            "turn.failed" => transcript.failed(text_of(&line["error"], "message")),
            "error" => transcript.error(text_of(&line, "message")),
            _ => transcript.raw(&line),
        }
    }
}

fn item(line: &Value, is_over: bool, transcript: &mut Transcript) {
    let item = &line["item"];
    let id = text_of(item, "id");
    match text_of(item, "type") {
        "agent_message" if is_over => transcript.say(text_of(item, "text"), Some(id)),
        "reasoning" if is_over => transcript.think(text_of(item, "text")),
        "agent_message" | "reasoning" => {}
        "todo_list" => plan(item, transcript),
        "error" => transcript.error(text_of(item, "message")),
        "command_execution" => {
            let arguments = json!({"command": item["command"]});
            transcript.call(id, "command_execution", &arguments);
            if is_over {
                let failed = item["status"] != "completed"
                    || item["exit_code"].as_i64().is_some_and(|code| code != 0);
                transcript.result(id, text_of(item, "aggregated_output"), failed);
            }
        }
        "file_change" => {
            transcript.call(id, "file_change", &json!({"changes": item["changes"]}));
            if is_over {
                let failed = item["status"] != "completed";
                transcript.result(id, &changed(&item["changes"]), failed);
            }
        }
        "mcp_tool_call" => {
            let name = format!("{}.{}", text_of(item, "server"), text_of(item, "tool"));
            transcript.call(id, &name, &item["arguments"]);
            if is_over {
                let error = text_of(&item["error"], "message");
                let content = &item["result"]["content"];
                let display = match error {
                    "" => display_of(content),
                    error => error.to_owned(),
                };
                transcript.result(id, &display, item["status"] != "completed");
            }
        }
        "web_search" => {
            transcript.call(id, "web_search", &json!({"query": item["query"]}));
            if is_over {
                transcript.result(id, "", false);
            }
        }
        _ => transcript.raw(line),
    }
}

fn plan(item: &Value, transcript: &mut Transcript) {
    let entry = |todo: &Value| {
        let status = if todo["completed"] == true {
            "completed"
        } else {
            "pending"
        };
        json!({"content": todo["text"], "priority": "medium", "status": status})
    };
    let todos = item["items"].as_array().into_iter().flatten();
    transcript.plan(&todos.map(entry).collect());
}

fn changed(changes: &Value) -> String {
    let line = |change: &Value| format!("{} {}", text_of(change, "kind"), text_of(change, "path"));
    let changes = changes.as_array().into_iter().flatten();
    changes.map(line).collect::<Vec<_>>().join("\n")
}
