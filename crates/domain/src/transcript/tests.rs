use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::fixture::{RUN, SESSION, after, cases};
use crate::id::TapeEntryId;
use crate::limits::DISPLAY_OUTPUT_BYTES;
use crate::tape::{EntryKind, EntrySource, RESUME_BOUNDARY};

fn entry(position: u64, kind: EntryKind, payload: Value) -> TapeEntry {
    TapeEntry {
        position,
        entry_id: TapeEntryId::new(Uuid::from_u128(u128::from(position))),
        kind,
        payload,
        anchor_type: (kind == EntryKind::Anchor).then(|| RESUME_BOUNDARY.to_owned()),
        run_id: Some(RUN),
        first_seq: position,
        created_at: after(0).wall,
        source: EntrySource::Projection,
        meta: None,
        superseded_by_checkpoint_id: None,
    }
}

fn written(format: TranscriptFormat, entries: &[TapeEntry]) -> String {
    let mut transcript = Transcript::new(format);
    let mut text = transcript.begin(SESSION, Some("A *title*\nof two lines"));
    for entry in entries {
        text.push_str(&transcript.entry(entry));
    }
    text + transcript.end()
}

fn markdown(entries: &[TapeEntry]) -> String {
    let text = written(TranscriptFormat::Markdown, entries);
    text.strip_prefix("# A *title* of two lines\n\n")
        .unwrap()
        .to_owned()
}

fn call(result: &str) -> TapeEntry {
    let payload = json!({
        "call_id": "c1", "tool_name": "bash", "arguments": {"command": "ls"}, "result": result,
        "is_error": false,
    });
    entry(3, EntryKind::ToolCall, payload)
}

fn conversation() -> Vec<TapeEntry> {
    let say = |position, kind, text: &str| entry(position, kind, json!({"text": text}));
    let plan = json!({"entries": [
        {"content": "look", "status": "completed"},
        {"content": "fix\nit", "status": "in_progress"},
        {"content": "test", "status": "pending"},
    ]});
    vec![
        say(1, EntryKind::UserMessage, "Build it\n\nwell"),
        say(2, EntryKind::Thinking, "hm"),
        call("a.txt\n"),
        entry(4, EntryKind::Plan, plan),
        say(5, EntryKind::AssistantMessage, "Done."),
        entry(
            6,
            EntryKind::RunEnd,
            json!({"status": "interrupted", "error": "lost"}),
        ),
        entry(7, EntryKind::Anchor, json!({})),
        say(8, EntryKind::UserMessage, "Go on"),
        entry(
            9,
            EntryKind::RunEnd,
            json!({"status": "completed", "error": null}),
        ),
    ]
}

#[test]
fn a_conversation_reads_as_markdown_turn_by_turn() {
    let expected = "\
## Turn 1

**User**

> Build it
>
> well

**Thinking**

> hm

**Tool** `bash`

```json
{
  \"command\": \"ls\"
}
```

```
a.txt
```

**Plan**

- [x] look
- [ ] fix it (in progress)
- [ ] test

**Assistant**

Done.

*Run interrupted.*

```
lost
```

*Resumed here.*

## Turn 2

**User**

> Go on

*Run completed.*

";
    assert_eq!(markdown(&conversation()), expected);
}

#[test]
fn a_fence_is_longer_than_any_run_of_backticks_inside() {
    let text = markdown(&[call("```\nnested ````` run\n```")]);
    assert!(
        text.contains("\n``````\n```\nnested ````` run\n```\n``````\n"),
        "{text}"
    );
}

#[test]
fn names_of_tools_stay_in_their_code_span() {
    let mut odd = call("");
    odd.payload["tool_name"] = json!("`a`` b\n## c");
    odd.payload["is_error"] = json!(true);
    let text = markdown(&[odd]);
    assert!(
        text.contains("**Tool** ``` `a`` b ## c ``` (failed)\n"),
        "{text}"
    );
}

#[test]
fn a_fence_that_an_answer_leaves_open_is_closed() {
    let answer = |text: &str| {
        let text = markdown(&[entry(1, EntryKind::AssistantMessage, json!({"text": text}))]);
        let text = text.strip_prefix("## Turn 1\n\n**Assistant**\n\n").unwrap();
        text.to_owned()
    };
    for (said, expected) in [
        ("```rust\nfn", "```rust\nfn\n```\n\n"),
        ("````\n```\nx", "````\n```\nx\n````\n\n"),
        ("- a\n  ~~~\n  b\n", "- a\n  ~~~\n  b\n  ~~~\n\n"),
        ("```\na\n```\nb", "```\na\n```\nb\n\n"),
        ("```\na\n`````", "```\na\n`````\n\n"),
        ("``` not `a` fence", "``` not `a` fence\n\n"),
        ("    ```\nindented", "    ```\nindented\n\n"),
    ] {
        assert_eq!(answer(said), expected, "{said}");
    }
}

#[test]
fn results_are_bounded_in_markdown_and_whole_in_json() {
    let long = "é".repeat(DISPLAY_OUTPUT_BYTES);
    let text = markdown(&[call(&long)]);
    assert!(text.len() < DISPLAY_OUTPUT_BYTES + 500);
    assert!(text.contains(&format!("*Cut; it has {} bytes.*", long.len())));
    let json = written(TranscriptFormat::JsonLines, &[call(&long)]);
    assert!(json.contains(&long));
}

#[test]
fn nothing_that_a_terminal_would_obey_is_written() {
    let text = markdown(&[call("\u{1b}[2Jred\r\nnext\rlast\u{7}")]);
    assert!(text.contains("```\n[2Jred\nnext\nlast\n```"), "{text}");
}

#[test]
fn a_json_document_holds_all_entries() {
    for entries in [Vec::new(), conversation()] {
        let document: Value =
            serde_json::from_str(&written(TranscriptFormat::Json, &entries)).unwrap();
        assert_eq!(document["session_id"], json!(SESSION));
        assert_eq!(document["title"], "A *title*\nof two lines");
        let values: Vec<Value> = entries.iter().map(value).collect();
        assert_eq!(document["entries"], json!(values));
    }
    let shown = value(&conversation()[6]);
    let expected = json!({
        "position": 7, "entry_id": Uuid::from_u128(7), "kind": "anchor", "payload": {}, "meta": null,
        "anchor_type": "resume_boundary", "run_id": RUN, "created_at": after(0).wall,
        "superseded_by_checkpoint_id": null,
    });
    assert_eq!(shown, expected);
}

#[test]
fn json_lines_hold_an_entry_each() {
    let entries = conversation();
    let text = written(TranscriptFormat::JsonLines, &entries);
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines, entries.iter().map(value).collect::<Vec<_>>());
    assert!(text.ends_with('\n'));
}

#[test]
fn secrets_are_hidden_in_every_format() {
    let secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let mut noted = call(&format!("see {secret}"));
    noted.meta = Some(json!({"note": secret}));
    noted.payload["arguments"] = json!({"env": {"TOKEN": "mine"}});
    for format in TranscriptFormat::ALL {
        let text = written(*format, std::slice::from_ref(&noted));
        assert!(!text.contains(secret) && !text.contains("mine"), "{text}");
        assert!(text.contains(redact::MARK), "{text}");
    }
}

#[test]
fn an_executors_own_entry_keeps_its_words_whatever_it_calls_them() {
    let text = markdown(&[
        entry(1, EntryKind::AssistantMessage, json!({"content": "Hello"})),
        entry(2, EntryKind::AssistantMessage, json!({"parts": [1]})),
        entry(3, EntryKind::Plan, json!({"steps": ["a"]})),
    ]);
    assert!(text.contains("**Assistant**\n\nHello\n"), "{text}");
    assert!(text.contains("\"parts\""), "{text}");
    assert!(text.contains("\"steps\""), "{text}");
}

proptest! {
    #![proptest_config(cases(500))]

    /// Read as Markdown does it, only our own headings stand outside of fences and quotes.
    #[test]
    fn no_output_of_a_tool_escapes_its_fence(result in "([`~]{1,5}|[a-z# ]|\n|\r|> )*") {
        let text = markdown(&[call(&result), entry(4, EntryKind::Anchor, json!({}))]);
        let mut fence: Option<usize> = None;
        let mut outside = Vec::new();
        for line in text.lines() {
            let run = line.len() - line.trim_start_matches('`').len();
            match fence {
                None if run >= 3 => fence = Some(run),
                Some(opened) if run >= opened && line[run..].trim().is_empty() => fence = None,
                None => outside.push(line),
                Some(_) => {}
            }
        }
        outside.retain(|line| !line.is_empty());
        prop_assert_eq!(fence, None);
        prop_assert_eq!(outside, ["## Turn 1", "**Tool** `bash`", "*Resumed here.*"]);
    }
}
