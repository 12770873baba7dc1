use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fixture::{RUN, after, cases, event};
use crate::limits::DISPLAY_OUTPUT_BYTES;

fn shown(kind: &str, payload: Value) -> Option<(DisplayKind, Value)> {
    let event = DisplayEvent::of(&event(7, RUN, kind, payload))?;
    Some((event.kind, event.payload))
}

#[track_caller]
fn is(kind: &str, payload: Value, expected: DisplayKind, as_payload: Value) {
    assert_eq!(shown(kind, payload), Some((expected, as_payload)), "{kind}");
}

fn call(phase: &str, status: Option<&str>, arguments: &Value) -> Value {
    json!({
        "call_id": "c1", "tool_name": "bash", "tool_kind": null, "title": null, "phase": phase,
        "status": status, "arguments": arguments, "truncated": false, "original_bytes": null,
    })
}

#[test]
fn a_display_event_stands_under_the_number_and_id_of_its_event() {
    let stored = event(
        7,
        RUN,
        "StreamDelta",
        json!({"content": "Hi", "role": "assistant"}),
    );
    let event = DisplayEvent::of(&stored).unwrap();
    let expected = DisplayEvent {
        event_id: "e7".to_owned(),
        session_id: stored.session_id,
        session_seq: 7,
        run_id: Some(RUN),
        kind: DisplayKind::AssistantMessage,
        payload: json!({"text": "Hi", "message_id": null}),
        created_at: after(0).wall,
        recorded_at: after(0).wall,
    };
    assert_eq!(event, expected);
}

#[test]
fn messages_and_thoughts_are_shown_piece_by_piece() {
    is(
        "RunRequested",
        json!({"status": "requested", "prompt": "Build it"}),
        DisplayKind::UserMessage,
        json!({"text": "Build it", "previous_run_id": null}),
    );
    is(
        "RunRequested",
        json!({"prompt": "Go on", "previous_run_id": RUN, "resume_from_run_id": RUN}),
        DisplayKind::UserMessage,
        json!({"text": "Go on", "previous_run_id": RUN}),
    );
    is(
        "StreamDelta",
        json!({"content": "lo", "role": "assistant", "message_id": "m1"}),
        DisplayKind::AssistantMessage,
        json!({"text": "lo", "message_id": "m1"}),
    );
    is(
        "ThinkingDelta",
        json!({"text": "hm"}),
        DisplayKind::Thinking,
        json!({"text": "hm", "message_id": null}),
    );
    let whole = "x".repeat(1024 * 1024);
    let folded = shown("StreamDelta", json!({"content": whole, "message_id": "m1"}));
    let (_, payload) = folded.unwrap();
    assert_eq!(payload["text"], json!(whole), "a folded message is whole");
}

#[test]
fn tool_calls_and_results_are_shown_by_their_call() {
    let arguments = json!({"command": "ls"});
    is(
        "ToolCallBegin",
        json!({"call_id": "c1", "tool_name": "bash", "arguments": {}, "status": "pending"}),
        DisplayKind::ToolCall,
        call("begin", Some("pending"), &json!({})),
    );
    is(
        "ToolCallDelta",
        json!({"call_id": "c1", "tool_name": "bash", "arguments": arguments}),
        DisplayKind::ToolCall,
        call("update", None, &arguments),
    );
    is(
        "ToolCallEnd",
        json!({"call_id": "c1", "tool_name": "bash", "status": "completed"}),
        DisplayKind::ToolCall,
        call("end", Some("completed"), &Value::Null),
    );
    let result = |output: &str, is_error: bool| {
        json!({
            "call_id": "c1", "tool_name": null, "output": output, "is_error": is_error,
            "truncated": false, "original_bytes": null,
        })
    };
    for (display_result, output) in [
        (json!("a.txt"), "a.txt"),
        (json!({"files": 1}), "{\"files\":1}"),
        (Value::Null, ""),
    ] {
        is(
            "ToolResultDelta",
            json!({"call_id": "c1", "display_result": display_result, "is_error": true}),
            DisplayKind::ToolResult,
            result(output, true),
        );
    }
}

#[test]
fn plans_questions_and_answers_are_flat() {
    let entries = json!([{"content": "a", "status": "pending"}]);
    is(
        "Plan",
        json!({"entries": entries}),
        DisplayKind::Plan,
        json!({"entries": entries}),
    );
    is(
        "Plan",
        json!({"entries": null}),
        DisplayKind::Plan,
        json!({"entries": []}),
    );
    let arguments = json!({"command": "ls"});
    let options = json!([{"id": "once"}]);
    is(
        "ApprovalRequest",
        json!({
            "request_id": "q1", "interaction_id": "i1", "status": "pending", "options": options,
            "timeout_seconds": 60,
            "tool_call": {"call_id": "c1", "tool_name": "bash", "arguments": arguments},
        }),
        DisplayKind::Approval,
        json!({
            "request_id": "q1", "interaction_id": "i1", "kind": "approval", "status": "pending",
            "call_id": "c1", "tool_name": "bash", "arguments": arguments, "options": options,
            "message": null, "form": null, "timeout_seconds": 60, "approved": null, "scope": null,
            "feedback": null, "response": null, "resolved_by": null,
        }),
    );
    let form = json!({"type": "object", "properties": {"branch": {"type": "string"}}});
    is(
        "ApprovalRequest",
        json!({
            "request_id": "q2", "interaction_id": "i2", "kind": "question", "status": "pending",
            "message": "Which?", "form": form, "options": null, "timeout_seconds": 60,
            "tool_call": {"call_id": null, "tool_name": "question", "arguments": null},
        }),
        DisplayKind::Approval,
        json!({
            "request_id": "q2", "interaction_id": "i2", "kind": "question", "status": "pending",
            "call_id": null, "tool_name": "question", "arguments": null, "options": null,
            "message": "Which?", "form": form, "timeout_seconds": 60, "approved": null,
            "scope": null, "feedback": null, "response": null, "resolved_by": null,
        }),
    );
    is(
        "ApprovalResponse",
        json!({
            "request_id": "q1", "interaction_id": "i1", "status": "denied", "approved": false,
            "scope": "once", "feedback": "no", "resolved_by": "local",
        }),
        DisplayKind::Approval,
        json!({
            "request_id": "q1", "interaction_id": "i1", "kind": "approval", "status": "denied",
            "call_id": null, "tool_name": null, "arguments": null, "options": null,
            "message": null, "form": null, "timeout_seconds": null, "approved": false,
            "scope": "once", "feedback": "no", "response": null, "resolved_by": "local",
        }),
    );
}

#[test]
fn states_and_ends_are_words_with_a_sentence() {
    for (kind, payload, status, text) in [
        (
            "RunQueued",
            json!({"prompt": "p"}),
            "queued",
            json!("waits behind another run"),
        ),
        (
            "RunClaimed",
            json!({"executor_id": "x1"}),
            "claimed",
            json!("claimed by x1"),
        ),
        ("RunStarted", json!({}), "running", Value::Null),
        (
            "RunLeaseExpired",
            json!({"requeued": false}),
            "lease_expired",
            json!("the executor's lease ran out"),
        ),
        (
            "TurnCancelling",
            json!({"turn_id": "t"}),
            "cancelling",
            Value::Null,
        ),
        (
            "SessionConfigChanged",
            json!({"changed": ["model", "agent"]}),
            "settings_changed",
            json!("model, agent"),
        ),
        (
            "CheckpointCaptured",
            json!({"label": "before"}),
            "checkpoint",
            json!("before"),
        ),
        (
            "SessionRestored",
            json!({"label": null}),
            "restored",
            Value::Null,
        ),
        (
            "TurnStatusDelta",
            json!({"status": "continuity_broken", "reason": "old"}),
            "continuity_broken",
            json!("old"),
        ),
        ("TurnStatusDelta", json!({}), "status", Value::Null),
        (
            "Error",
            json!({"error": "no disk"}),
            "error",
            json!("no disk"),
        ),
    ] {
        is(
            kind,
            payload,
            DisplayKind::Status,
            json!({"status": status, "text": text}),
        );
    }
    is(
        "TurnEnd",
        json!({"turn_id": "t", "completion_status": "error", "run_status": "failed", "error": "e", "recovery_reason": null}),
        DisplayKind::Result,
        json!({"status": "failed", "completion_status": "error", "error": "e", "recovery_reason": null}),
    );
}

#[test]
fn every_kind_of_the_server_has_a_display_form() {
    for kind in EventKind::ALL {
        assert!(shown(kind.as_str(), json!({})).is_some(), "{kind}");
    }
}

#[test]
fn kinds_without_a_meaning_for_people_have_none() {
    for kind in [
        "Usage",
        "TurnBegin",
        "agent.raw",
        "streamdelta",
        "my.own",
        "",
    ] {
        assert_eq!(shown(kind, json!({"text": "x"})), None, "{kind}");
    }
}

#[test]
fn display_kinds_name_the_stored_kinds_that_they_show() {
    let mut all: Vec<&str> = DisplayKind::ALL
        .iter()
        .flat_map(|kind| kind.stored_kinds())
        .collect();
    let mut listed: Vec<&str> = stored_kinds().collect();
    for kind in &listed {
        let (display, _) = shown(kind, json!({})).unwrap();
        assert!(
            display.stored_kinds().any(|stored| stored == *kind),
            "{kind}"
        );
    }
    all.sort_unstable();
    listed.sort_unstable();
    assert_eq!(all, listed);
    listed.dedup();
    assert_eq!(all, listed, "each stored kind is shown as one kind");
}

#[test]
fn long_outputs_are_cut_at_a_character_and_say_so() {
    let result = |text: &str| {
        let payload = json!({"call_id": "c1", "display_result": text, "is_error": false});
        shown("ToolResultDelta", payload).unwrap().1
    };
    let fits = "x".repeat(DISPLAY_OUTPUT_BYTES);
    assert_eq!(result(&fits)["output"], json!(fits));
    assert_eq!(result(&fits)["truncated"], false);
    let long = format!("x{}", "é".repeat(DISPLAY_OUTPUT_BYTES));
    let cut = result(&long);
    let output = cut["output"].as_str().unwrap();
    assert_eq!(output.len(), DISPLAY_OUTPUT_BYTES - 1);
    assert!(long.starts_with(output));
    assert_eq!(cut["truncated"], true);
    assert_eq!(cut["original_bytes"], json!(long.len()));
}

#[test]
fn what_the_executor_has_cut_stays_marked_with_its_size() {
    let payload = json!({"display_result": "short", "truncated": true, "original_bytes": 900_000});
    let (_, payload) = shown("ToolResultDelta", payload).unwrap();
    assert_eq!(payload["truncated"], true);
    assert_eq!(payload["original_bytes"], 900_000);
}

#[test]
fn long_arguments_keep_their_form_where_texts_fill_them() {
    let arguments = json!({"path": "a.rs", "content": "x".repeat(200_000)});
    let (_, payload) = shown("ToolCallDelta", json!({"arguments": arguments})).unwrap();
    assert_eq!(payload["arguments"]["path"], "a.rs");
    assert!(payload["arguments"].to_string().len() <= DISPLAY_OUTPUT_BYTES);
    assert_eq!(payload["truncated"], true);
    assert_eq!(
        payload["original_bytes"],
        json!(arguments.to_string().len())
    );
    let (_, payload) = shown("ToolCallDelta", json!({"arguments": vec![1; 100_000]})).unwrap();
    let beginning = payload["arguments"].as_str().unwrap();
    assert!(beginning.starts_with("[1,1") && beginning.len() <= DISPLAY_OUTPUT_BYTES);
}

#[test]
fn secrets_are_hidden_in_every_kind() {
    let secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let field = |name: &str| json!({name: format!("see {secret}")});
    for (kind, payload) in [
        ("RunRequested", field("prompt")),
        ("StreamDelta", field("content")),
        ("ThinkingDelta", field("text")),
        (
            "ToolCallDelta",
            json!({"arguments": {"env": {"PASSWORD": secret}}}),
        ),
        ("ToolResultDelta", field("display_result")),
        ("Plan", json!({"entries": [field("content")]})),
        (
            "ApprovalRequest",
            json!({"tool_call": {"arguments": field("command")}}),
        ),
        ("ApprovalResponse", field("feedback")),
        ("TurnStatusDelta", field("status")),
        ("Error", field("error")),
        ("TurnEnd", field("error")),
    ] {
        let (_, payload) = shown(kind, payload).unwrap();
        let text = payload.to_string();
        assert!(!text.contains(secret), "{kind}: {text}");
        assert!(text.contains(redact::MARK), "{kind}: {text}");
    }
}

/// A secret at the cut would be left in part if the cut came first.
#[test]
fn secrets_are_hidden_before_an_output_is_cut() {
    let secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let text = format!(
        "{} {secret} {}",
        "x".repeat(DISPLAY_OUTPUT_BYTES - 30),
        "y".repeat(100)
    );
    let payload = json!({"display_result": text});
    let (_, payload) = shown("ToolResultDelta", payload).unwrap();
    assert!(!payload["output"].as_str().unwrap().contains("ghp_"));
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn whatever_an_executor_sends_is_shown_with_the_same_fields(
        kind in prop::sample::select(stored_kinds().collect::<Vec<_>>()),
        payload in any_json(),
    ) {
        let names = |payload: &Value| -> Vec<String> {
            payload.as_object().unwrap().keys().cloned().collect()
        };
        let (display, usual) = shown(kind, json!({})).unwrap();
        let (same, payload) = shown(kind, payload).unwrap();
        prop_assert_eq!(same, display);
        prop_assert_eq!(names(&payload), names(&usual));
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec![
        "content",
        "text",
        "prompt",
        "arguments",
        "call_id",
        "display_result",
        "is_error",
        "truncated",
        "original_bytes",
        "entries",
        "tool_call",
        "options",
        "status",
        "error",
        "changed",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..6).prop_map(|fields| {
                let fields = fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                Value::Object(fields.collect())
            }),
        ]
    })
}
