//! Events of the log against what an editor is told of them.

use serde_json::{Map, json};
use tapedeck_domain::Timestamp;

use super::*;

const RUN: &str = "01890000-0000-7000-8000-000000000001";
const OTHER: &str = "01890000-0000-7000-8000-000000000002";

fn event_of(run: &str, seq: u64, kind: &str, payload: Value) -> StreamEvent {
    let mut data: Map<String, Value> = serde_json::from_value(payload).unwrap();
    data.insert("session_seq".to_owned(), json!(seq));
    StreamEvent {
        session_seq: seq,
        kind: kind.to_owned(),
        event_id: format!("e{seq}"),
        session_id: OTHER.parse().unwrap(),
        run_id: Some(run.parse().unwrap()),
        timestamp: Timestamp(0),
        data,
    }
}

fn told_by(mapping: &mut Mapping, seq: u64, kind: &str, payload: Value) -> Vec<Value> {
    let updates = mapping.event(&event_of(RUN, seq, kind, payload), false);
    let json = |update: &SessionUpdate| serde_json::to_value(update).unwrap();
    updates.iter().map(json).collect()
}

/// What one event after the other tells, shortened: without the run's id, which is in every id.
fn told(mapping: &mut Mapping, events: &[(&str, Value)]) -> Vec<Value> {
    let mut all = Vec::new();
    for (at, (kind, payload)) in events.iter().enumerate() {
        all.extend(told_by(mapping, at as u64 + 1, kind, payload.clone()));
    }
    let text = json!(all).to_string().replace(&format!("{RUN}/"), "");
    serde_json::from_str(&text).unwrap()
}

fn text(word: &str, id: &str, text: &str) -> Value {
    json!({"sessionUpdate": word, "content": {"type": "text", "text": text}, "messageId": id})
}

#[test]
fn what_is_said_is_told_in_the_protocols_words() {
    let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
    let table = [
        (
            "RunRequested",
            json!({"prompt": "do it", "status": "requested"}),
            json!([text("user_message_chunk", "prompt", "do it")]),
        ),
        (
            "StreamDelta",
            json!({"content": "hi", "role": "assistant", "message_id": "m"}),
            json!([text("agent_message_chunk", "m", "hi")]),
        ),
        (
            "StreamDelta",
            json!({"content": "hi", "role": "assistant"}),
            json!([text("agent_message_chunk", "1", "hi")]),
        ),
        (
            "ThinkingDelta",
            json!({"text": "hm", "message_id": "m"}),
            json!([text("agent_thought_chunk", "thought/m", "hm")]),
        ),
        (
            "agent.content",
            json!({"role": "assistant", "content": image}),
            json!([{"sessionUpdate": "agent_message_chunk", "content": image, "messageId": "1"}]),
        ),
        (
            "agent.content",
            json!({"content": {"type": "image", "data": null}, "truncated": true}),
            json!([text(
                "agent_message_chunk",
                "1",
                "[image, too large to be kept]"
            )]),
        ),
    ];
    check(&table);
}

fn check(table: &[(&str, Value, Value)]) {
    for (kind, payload, expected) in table {
        let mut mapping = Mapping::default();
        let told = told(&mut mapping, &[(*kind, payload.clone())]);
        assert_eq!(json!(told), *expected, "{kind}");
    }
}

#[test]
fn reports_and_ends_are_told_where_the_protocol_has_words_for_them() {
    let entries = json!([{"content": "a", "priority": "low", "status": "pending"}]);
    let commands = json!([{"name": "init", "description": "d"}]);
    let table = [
        (
            "Plan",
            json!({"entries": entries}),
            json!([{"sessionUpdate": "plan", "entries": entries}]),
        ),
        (
            "Usage",
            json!({"used": 5, "size": 10}),
            json!([{"sessionUpdate": "usage_update", "used": 5, "size": 10}]),
        ),
        // Of a program that counts otherwise.
        ("Usage", json!({"input_tokens": 5}), json!([])),
        (
            "agent.commands",
            json!({"commands": commands}),
            json!([{"sessionUpdate": "available_commands_update", "availableCommands": commands}]),
        ),
        (
            "agent.session",
            json!({"title": "T", "updated_at": "now"}),
            json!([{"sessionUpdate": "session_info_update", "title": "T", "updatedAt": "now"}]),
        ),
        // Only for editors that want them.
        (
            "agent.notice",
            json!({"severity": "warning", "title": "low"}),
            json!([]),
        ),
        (
            "agent.compaction",
            json!({"compaction_id": "c", "status": "completed"}),
            json!([]),
        ),
        ("TurnEnd", json!({"run_status": "completed"}), json!([])),
        (
            "TurnEnd",
            json!({"run_status": "cancelled", "error": "c"}),
            json!([]),
        ),
        (
            "TurnEnd",
            json!({"run_status": "failed", "error": "no luck"}),
            json!([text(
                "agent_message_chunk",
                "end",
                "The run failed: no luck"
            )]),
        ),
        (
            "TurnEnd",
            json!({"run_status": "interrupted", "error": "gone"}),
            json!([text(
                "agent_message_chunk",
                "end",
                "The run was interrupted: gone"
            )]),
        ),
        ("RunClaimed", json!({"executor_id": "e"}), json!([])),
        ("agent.raw", json!({"update": {}}), json!([])),
        ("CheckpointCaptured", json!({}), json!([])),
    ];
    check(&table);
}

#[test]
fn an_editor_that_wants_notices_gets_them() {
    let wants = Wants {
        notices: true,
        compaction: true,
        ..Wants::default()
    };
    let mut mapping = Mapping::new(wants);
    let events = [
        (
            "agent.notice",
            json!({"severity": "warning", "title": "low"}),
        ),
        (
            "agent.compaction",
            json!({"compaction_id": "c", "status": "completed"}),
        ),
        (
            "agent.compaction",
            json!({"compaction_id": "c", "content": {"type": "text", "text": "s"}}),
        ),
        (
            "TurnEnd",
            json!({"run_status": "failed", "error": "no luck"}),
        ),
    ];
    let expected = [
        json!({"sessionUpdate": "notice", "severity": "warning", "title": "low"}),
        json!({"sessionUpdate": "compaction_update", "compactionId": "c", "status": "completed"}),
        json!({"sessionUpdate": "compaction_summary_chunk", "compactionId": "c",
            "content": {"type": "text", "text": "s"}}),
        json!({"sessionUpdate": "notice", "severity": "warning", "title": "The run failed: no luck"}),
    ];
    assert_eq!(told(&mut mapping, &events), expected);
}

#[test]
fn the_editors_own_prompt_and_failure_are_its_own_to_show() {
    let mut mapping = Mapping::default();
    for (kind, payload) in [
        ("RunRequested", json!({"prompt": "p"})),
        ("TurnEnd", json!({"run_status": "failed", "error": "x"})),
    ] {
        assert_eq!(mapping.event(&event_of(RUN, 1, kind, payload), true), []);
    }
}

#[test]
fn pieces_of_one_message_share_an_id_until_something_else_comes() {
    let mut mapping = Mapping::default();
    let piece = |text: &str| ("StreamDelta", json!({"content": text}));
    let events = [
        piece("a"),
        piece("b"),
        ("ThinkingDelta", json!({"text": "t"})),
        piece("c"),
        ("Usage", json!({"input_tokens": 1})),
        piece("d"),
        ("Plan", json!({"entries": []})),
        piece("e"),
        ("StreamDelta", json!({"content": "f", "message_id": "m"})),
        piece("g"),
    ];
    let ids: Vec<String> = told(&mut mapping, &events)
        .iter()
        .filter_map(|update| update["messageId"].as_str().map(str::to_owned))
        .collect();
    // What tells nothing interrupts nothing.
    assert_eq!(ids, ["1", "1", "3", "4", "4", "8", "m", "10"]);
}

#[test]
fn a_message_that_was_folded_meanwhile_is_told_from_where_it_was_known() {
    let mut mapping = Mapping::default();
    let first = told_by(&mut mapping, 3, "StreamDelta", json!({"content": "one "}));
    assert_eq!(first.len(), 1);
    let whole = json!({"content": "one two", "folded_from": 3});
    let rest = told_by(&mut mapping, 9, "StreamDelta", whole);
    assert_eq!(
        rest,
        [text("agent_message_chunk", &format!("{RUN}/3"), "two")]
    );
    let fresh = json!({"content": "one two", "folded_from": 3});
    let fresh = told_by(&mut Mapping::default(), 9, "StreamDelta", fresh);
    assert_eq!(
        fresh,
        [text("agent_message_chunk", &format!("{RUN}/3"), "one two")]
    );
}

#[test]
fn a_tool_call_is_told_from_its_beginning_to_its_end() {
    let mut mapping = Mapping::default();
    let described = json!({"call_id": "c", "tool_name": "bash", "arguments": {"c": "ls"},
        "title": "List", "kind": "execute", "status": "pending",
        "locations": [{"path": "/w/a", "line": 3}]});
    let mut running = described.clone();
    running["status"] = json!("in_progress");
    let events = [
        ("ToolCallBegin", described.clone()),
        // The same once more tells nothing.
        ("ToolCallDelta", described),
        ("ToolCallDelta", running),
        (
            "ToolResultDelta",
            json!({"call_id": "c", "display_result": "a b", "is_error": false}),
        ),
        (
            "ToolCallEnd",
            json!({"call_id": "c", "tool_name": "bash", "status": "completed"}),
        ),
        (
            "ToolCallEnd",
            json!({"call_id": "c", "tool_name": "bash", "status": "failed"}),
        ),
        ("TurnEnd", json!({"run_status": "completed"})),
    ];
    let shared = json!({"toolCallId": "c", "title": "List", "kind": "execute",
        "rawInput": {"c": "ls"}, "locations": [{"path": "/w/a", "line": 3}]});
    let with = |word: &str, status: &str| {
        let mut update = shared.clone();
        update["sessionUpdate"] = json!(word);
        update["status"] = json!(status);
        update
    };
    let mut begun = with("tool_call", "pending");
    // The protocol's types leave out what is the default.
    begun.as_object_mut().unwrap().remove("status");
    let mut updates = told(&mut mapping, &events);
    updates[0].as_object_mut().unwrap().remove("status");
    let expected = [
        begun,
        with("tool_call_update", "in_progress"),
        json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "content": [
            {"type": "content", "content": {"type": "text", "text": "a b"}}]}),
        json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed"}),
    ];
    assert_eq!(updates, expected);
}

#[test]
fn a_call_that_is_left_open_ends_with_its_run_and_no_other() {
    let mut mapping = Mapping::default();
    let begin = |id: &str| json!({"call_id": id, "tool_name": "t", "arguments": {}});
    told_by(&mut mapping, 1, "ToolCallBegin", begin("a"));
    told_by(&mut mapping, 2, "ToolCallBegin", begin("b"));
    let shown = json!({"call_id": "b", "display_result": "x", "is_error": false});
    told_by(&mut mapping, 3, "ToolResultDelta", shown);
    let end = event_of(OTHER, 4, "TurnEnd", json!({"run_status": "completed"}));
    assert_eq!(mapping.event(&end, false), []);
    let closed = told_by(
        &mut mapping,
        5,
        "TurnEnd",
        json!({"run_status": "cancelled"}),
    );
    let statuses: Vec<_> = closed
        .iter()
        .map(|update| {
            (
                update["toolCallId"].as_str().unwrap(),
                update["status"].clone(),
            )
        })
        .collect();
    let (a, b) = (format!("{RUN}/a"), format!("{RUN}/b"));
    assert_eq!(
        statuses,
        [
            (a.as_str(), json!("failed")),
            (b.as_str(), json!("completed"))
        ]
    );
    // The next run may have a call of the same id.
    let again = event_of(OTHER, 6, "ToolCallBegin", begin("a"));
    assert!(matches!(
        mapping.event(&again, false)[..],
        [SessionUpdate::ToolCall(_)]
    ));
}

#[test]
fn a_call_that_began_before_the_editor_came_is_told_first() {
    for (kind, payload, count) in [
        (
            "ToolCallDelta",
            json!({"call_id": "c", "tool_name": "t", "arguments": {}}),
            1,
        ),
        (
            "ToolResultDelta",
            json!({"call_id": "c", "tool_name": "t", "display_result": "x"}),
            2,
        ),
        (
            "ToolCallEnd",
            json!({"call_id": "c", "tool_name": "t", "status": "failed"}),
            2,
        ),
    ] {
        let updates = told(&mut Mapping::default(), &[(kind, payload)]);
        assert_eq!(updates.len(), count, "{kind}");
        assert_eq!(updates[0]["sessionUpdate"], "tool_call", "{kind}");
        assert_eq!(updates[0]["title"], "t", "{kind}");
    }
}

#[test]
fn what_a_tool_shows_is_bounded_and_terminals_become_text() {
    let blocks = json!([
        {"type": "diff", "path": "/w/a", "oldText": "x", "newText": "y"},
        {"type": "terminal", "terminalId": "terminal-1", "output": "half"},
        {"type": "content", "content": {"type": "text", "text": "é".repeat(100_000)}},
        {"type": "hologram"},
    ]);
    let result = json!({"call_id": "c", "tool_name": "t", "display_result": "", "content": blocks});
    let updates = told(&mut Mapping::default(), &[("ToolResultDelta", result)]);
    let content = updates[1]["content"].as_array().unwrap();
    assert_eq!(content.len(), 3);
    assert_eq!(content[0], blocks[0]);
    assert_eq!(content[1]["content"]["text"], "half");
    let long = content[2]["content"]["text"].as_str().unwrap();
    assert!(
        long.len() < 66_000 && long.ends_with("[134464 more bytes]"),
        "{}",
        long.len()
    );
}

#[test]
fn a_long_text_is_split_and_nothing_of_it_is_lost() {
    let long = "ä\u{1}".repeat(200_000);
    let payload = json!({"content": long});
    let updates = told(&mut Mapping::default(), &[("StreamDelta", payload)]);
    assert!(updates.len() > 1);
    assert!(
        updates
            .iter()
            .all(|update| update.to_string().len() < 1 << 20)
    );
    let whole: String = updates
        .iter()
        .map(|update| update["content"]["text"].as_str().unwrap())
        .collect();
    assert!(whole == long);
}

#[test]
fn a_question_names_its_tool_call_and_tells_it_first_if_need_be() {
    let mut mapping = Mapping::default();
    let run: RunId = RUN.parse().unwrap();
    let request = json!({"request_id": "permission-1", "tool_call": {"call_id": "c",
        "tool_name": "edit", "tool_kind": "edit", "arguments": {"path": "a"}}});
    let (call, told) = mapping.asked_about(run, &request);
    assert_eq!(call.tool_call_id.0.as_ref(), format!("{RUN}/c"));
    let told = serde_json::to_value(told.unwrap()).unwrap();
    assert_eq!(
        (&told["sessionUpdate"], &told["kind"]),
        (&json!("tool_call"), &json!("edit"))
    );
    let (call, told) = mapping.asked_about(run, &request);
    assert_eq!(told, None);
    assert_eq!(call.fields.title.as_deref(), Some("edit"));
    // A question about nothing stands for its own call.
    let request = json!({"request_id": "r", "tool_call": {"call_id": null, "tool_name": "x"}});
    let (call, _) = mapping.asked_about(run, &request);
    assert_eq!(call.tool_call_id.0.as_ref(), format!("{RUN}/r"));
}
