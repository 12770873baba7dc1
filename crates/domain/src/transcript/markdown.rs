//! Tape entries as Markdown. What agents and tools wrote can hold any Markdown itself, so each piece
//! is fenced, quoted or closed in a way that it can't run into what follows it.

use std::borrow::Cow;
use std::fmt::Write;

use serde_json::Value;

use crate::display::{cut, redact};
use crate::tape::{EntryKind, RESUME_BOUNDARY, TapeEntry};

/// The heading of the whole.
pub(super) fn title(text: &str) -> String {
    format!("# {}\n\n", line(text))
}

/// One entry, with the heading of the turn that it begins.
pub(super) fn entry(entry: &TapeEntry, turn: &mut u64) -> String {
    let mut payload = entry.payload.clone();
    redact::json(&mut payload);
    let mut text = String::new();
    if entry.kind == EntryKind::UserMessage || *turn == 0 {
        *turn += 1;
        text = format!("## Turn {turn}\n\n");
    }
    let block = match entry.kind {
        EntryKind::UserMessage => format!("**User**\n\n{}", quote(&said(&payload))),
        EntryKind::AssistantMessage => format!("**Assistant**\n\n{}", closed(&said(&payload))),
        EntryKind::Thinking => format!("**Thinking**\n\n{}", quote(&said(&payload))),
        EntryKind::ToolCall => tool_call(&payload),
        EntryKind::Plan => plan(&payload),
        EntryKind::Anchor => match entry.anchor_type.as_deref() {
            Some(RESUME_BOUNDARY) => "*Resumed here.*".to_owned(),
            other => format!("*Mark {}*", code(other.unwrap_or("anchor"))),
        },
        EntryKind::RunEnd => run_end(&payload),
    };
    // Writing to a string doesn't fail.
    let _ = write!(text, "{}\n\n", block.trim_end_matches('\n'));
    text
}

/// The words of a message; an executor's own entry may keep them under another name.
fn said(payload: &Value) -> String {
    let words = [&payload["text"], &payload["content"]];
    let words = words.into_iter().find(|words| !words.is_null());
    printable(&plain(words.unwrap_or(payload)))
}

fn plain(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => text.into(),
        Value::Null => "".into(),
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            format!("{other:#}").into()
        }
    }
}

fn tool_call(payload: &Value) -> String {
    let failed = if payload["is_error"] == true {
        " (failed)"
    } else {
        ""
    };
    let name = payload["tool_name"].as_str().unwrap_or_default();
    let name = if name.is_empty() { "tool" } else { name };
    let mut text = format!("**Tool** {}{failed}", code(name));
    let arguments = &payload["arguments"];
    if !arguments.is_null() {
        let info = if arguments.is_string() { "" } else { "json" };
        text.push_str("\n\n");
        text.push_str(&fenced(&plain(arguments), info));
    }
    let result = plain(&payload["result"]);
    if !result.is_empty() {
        text.push_str("\n\n");
        text.push_str(&fenced(&result, ""));
    }
    text
}

fn plan(payload: &Value) -> String {
    let Some(entries) = payload["entries"].as_array() else {
        return format!("**Plan**\n\n{}", fenced(&plain(payload), "json"));
    };
    let mut text = "**Plan**\n\n".to_owned();
    for item in entries {
        let (sign, note) = match item["status"].as_str() {
            Some("completed") => ('x', ""),
            Some("in_progress") => (' ', " (in progress)"),
            Some(_) | None => (' ', ""),
        };
        let content = item["content"]
            .as_str()
            .map_or_else(|| item.to_string(), line);
        let _ = writeln!(text, "- [{sign}] {content}{note}");
    }
    text
}

fn run_end(payload: &Value) -> String {
    let status = payload["status"].as_str().unwrap_or("ended");
    let ended = format!("*Run {}.*", line(status));
    let error = plain(&payload["error"]);
    if error.is_empty() {
        ended
    } else {
        format!("{ended}\n\n{}", fenced(&error, ""))
    }
}

/// A block of code of bounded length, in a fence that nothing inside can close.
fn fenced(text: &str, info: &str) -> String {
    let (shown, original) = cut(text);
    let shown = printable(shown);
    let fence = "`".repeat(longest_run(&shown).max(2) + 1);
    let shown = shown.strip_suffix('\n').unwrap_or(&shown);
    let mut block = format!("{fence}{info}\n{shown}\n{fence}");
    if let Some(original) = original {
        let _ = write!(block, "\n\n*Cut; it has {original} bytes.*");
    }
    block
}

/// A code span on one line.
fn code(text: &str) -> String {
    let text = line(text);
    let fence = "`".repeat(longest_run(&text) + 1);
    if text.starts_with('`') || text.ends_with('`') {
        format!("{fence} {text} {fence}")
    } else {
        format!("{fence}{text}{fence}")
    }
}

fn longest_run(text: &str) -> usize {
    let runs = text.split(|c| c != '`').map(str::len);
    runs.max().unwrap_or(0)
}

fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 16);
    for line in text.split('\n') {
        quoted.push_str(if line.is_empty() { ">" } else { "> " });
        quoted.push_str(line);
        quoted.push('\n');
    }
    quoted
}

/// The text with a fence that it leaves open closed, so that what follows is no code.
fn closed(text: &str) -> String {
    let mut open: Option<&str> = None;
    for line in text.split('\n') {
        let fence = fence_of(line);
        open = match (open, fence) {
            (None, Some((fence, rest))) if !(fence.ends_with('`') && rest.contains('`')) => {
                Some(fence)
            }
            (Some(opened), Some((fence, rest)))
                if rest.trim().is_empty()
                    && fence.trim_start().starts_with(opened.trim_start()) =>
            {
                None
            }
            (open, _) => open,
        };
    }
    match open {
        Some(fence) => format!("{}\n{fence}", text.trim_end_matches('\n')),
        None => text.to_owned(),
    }
}

/// A line's fence with its indentation, and what follows it.
fn fence_of(line: &str) -> Option<(&str, &str)> {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let mark = line[indent..]
        .chars()
        .next()
        .filter(|c| matches!(c, '`' | '~'))?;
    let marked = line[indent..].trim_start_matches(mark);
    let fence = line.len() - marked.len();
    (indent <= 3 && fence - indent >= 3).then(|| line.split_at(fence))
}

/// On one line.
fn line(text: &str) -> String {
    let text = printable(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// With one kind of line end, and without what a terminal would obey.
fn printable(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}
