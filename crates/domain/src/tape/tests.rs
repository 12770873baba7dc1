use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::event::{EventRecord, uploaded};
use crate::fixture::{RUN, cases, event, run_id};

/// Numbers the events of one log.
fn log(events: &[(RunId, &str, Value)]) -> Vec<EventRecord> {
    let numbered = (1..).zip(events);
    numbered
        .map(|(seq, (run, kind, payload))| event(seq, *run, kind, payload.clone()))
        .collect()
}

fn projected(events: &[(RunId, &str, Value)]) -> Vec<(u64, EntryKind, Value)> {
    let entries = project(&mut TapeState::default(), &log(events));
    entries
        .into_iter()
        .map(|entry| (entry.first_seq, entry.kind, entry.payload))
        .collect()
}

fn requested() -> (RunId, &'static str, Value) {
    (
        RUN,
        "RunRequested",
        json!({"status": "requested", "prompt": "Build it"}),
    )
}

fn ended(run: RunId, status: &str) -> (RunId, &'static str, Value) {
    (run, "TurnEnd", json!({"run_status": status, "error": null}))
}

fn say(message: &str, text: &str) -> (RunId, &'static str, Value) {
    let payload = json!({"content": text, "role": "assistant", "message_id": message});
    (RUN, uploaded::STREAM_DELTA, payload)
}

fn begin(call_id: &str) -> (RunId, &'static str, Value) {
    (
        RUN,
        uploaded::TOOL_CALL_BEGIN,
        json!({"call_id": call_id, "tool_name": "bash"}),
    )
}

fn result_of(call_id: &str, text: &str) -> (RunId, &'static str, Value) {
    let payload = json!({"call_id": call_id, "display_result": text, "is_error": false});
    (RUN, uploaded::TOOL_RESULT_DELTA, payload)
}

fn end_of(call_id: &str, status: Option<&str>) -> (RunId, &'static str, Value) {
    (
        RUN,
        uploaded::TOOL_CALL_END,
        json!({"call_id": call_id, "status": status}),
    )
}

fn called(call_id: &str, arguments: &Value, result: &str, is_error: bool) -> Value {
    json!({
        "call_id": call_id,
        "tool_name": "bash",
        "arguments": arguments,
        "result": result,
        "is_error": is_error,
    })
}

#[test]
fn deltas_of_one_message_become_one_entry_and_another_id_begins_the_next() {
    let thought = |text: &str| (RUN, uploaded::THINKING_DELTA, json!({"text": text}));
    let entries = projected(&[
        requested(),
        thought("h"),
        thought("m"),
        say("m1", "Hel"),
        (RUN, "Usage", json!({"tokens": 3})),
        say("m1", "lo"),
        say("m2", "Bye"),
        ended(RUN, "completed"),
    ]);
    let expected = [
        (1, EntryKind::UserMessage, json!({"text": "Build it"})),
        (2, EntryKind::Thinking, json!({"text": "hm"})),
        (4, EntryKind::AssistantMessage, json!({"text": "Hello"})),
        (7, EntryKind::AssistantMessage, json!({"text": "Bye"})),
        (
            8,
            EntryKind::RunEnd,
            json!({"status": "completed", "error": null}),
        ),
    ];
    assert_eq!(entries, expected);
}

#[test]
fn a_message_is_closed_before_the_tool_call_that_follows_it() {
    let arguments = json!({"command": "ls"});
    let call = json!({"call_id": "c1", "tool_name": "bash", "arguments": arguments.clone()});
    let entries = projected(&[
        requested(),
        say("m1", "I look"),
        begin("c1"),
        (RUN, uploaded::TOOL_CALL_DELTA, call),
        result_of("c1", "a."),
        result_of("c1", "txt"),
        end_of("c1", Some("completed")),
        say("m1", "Done"),
        ended(RUN, "completed"),
    ]);
    let expected = [
        (2, EntryKind::AssistantMessage, json!({"text": "I look"})),
        (
            3,
            EntryKind::ToolCall,
            called("c1", &arguments, "a.txt", false),
        ),
        (8, EntryKind::AssistantMessage, json!({"text": "Done"})),
    ];
    assert_eq!(entries[1..4], expected);
}

#[test]
fn an_open_call_is_answered_when_its_run_ends_or_its_claim_is_lost() {
    let lost = (RUN, "RunLeaseExpired", json!({"attempt": 1}));
    for last in [ended(RUN, "interrupted"), lost] {
        let entries = projected(&[
            requested(),
            begin("c1"),
            begin("c2"),
            result_of("c2", "part"),
            last,
        ]);
        assert_eq!(entries[1].2, called("c1", &Value::Null, NO_RESULT, true));
        assert_eq!(entries[2].2, called("c2", &Value::Null, "part", false));
    }
}

#[test]
fn an_agent_that_ends_the_call_before_its_result_gets_one_entry_too() {
    let entries = projected(&[
        requested(),
        begin("c1"),
        end_of("c1", None),
        begin("c2"),
        end_of("c2", None),
        result_of("c1", "a"),
        result_of("c2", "x"),
        result_of("c1", "b"),
        say("m1", "Done"),
        ended(RUN, "completed"),
    ]);
    let expected = [
        (
            2,
            EntryKind::ToolCall,
            called("c1", &Value::Null, "ab", false),
        ),
        (
            4,
            EntryKind::ToolCall,
            called("c2", &Value::Null, "x", false),
        ),
        (9, EntryKind::AssistantMessage, json!({"text": "Done"})),
    ];
    assert_eq!(entries[1..4], expected);
}

#[test]
fn what_comes_late_of_an_answered_call_makes_no_second_entry() {
    let entries = projected(&[
        requested(),
        begin("c1"),
        result_of("c1", "whole"),
        end_of("c1", None),
        say("m1", "so"),
        result_of("c1", "late"),
        (
            RUN,
            uploaded::TOOL_CALL_DELTA,
            json!({"call_id": "c1", "arguments": {"late": 1}}),
        ),
        end_of("c1", Some("completed")),
        ended(RUN, "completed"),
    ]);
    let calls: Vec<_> = entries
        .iter()
        .filter(|(_, kind, _)| *kind == EntryKind::ToolCall)
        .map(|(_, _, payload)| payload["result"].clone())
        .collect();
    assert_eq!(calls, ["whole"]);
}

#[test]
fn a_tool_that_has_finished_may_still_show_what_it_gave_until_the_agent_speaks() {
    let calls = |events: &[(RunId, &'static str, Value)]| -> Vec<Value> {
        let mut whole = vec![requested(), begin("c1"), end_of("c1", Some("completed"))];
        whole.extend(events.iter().cloned());
        whole.push(ended(RUN, "completed"));
        let entries = projected(&whole);
        let calls = entries
            .iter()
            .filter(|(_, kind, _)| *kind == EntryKind::ToolCall);
        calls
            .map(|(_, _, payload)| payload["result"].clone())
            .collect()
    };
    assert_eq!(
        calls(&[result_of("c1", "after"), say("m1", "so")]),
        ["after"]
    );
    assert_eq!(
        calls(&[say("m1", "so"), result_of("c1", "late")]),
        [NO_RESULT]
    );
    // An agent that uses an id again begins with it.
    let again = [say("m1", "so"), begin("c1"), result_of("c1", "second")];
    assert_eq!(calls(&again), [NO_RESULT, "second"]);
}

#[test]
fn a_result_of_a_call_that_was_never_announced_is_kept_as_a_whole_entry() {
    let payload =
        json!({"call_id": "c9", "tool_name": "bash", "display_result": {"a": 1}, "is_error": true});
    let entries = projected(&[
        requested(),
        (RUN, uploaded::TOOL_RESULT_DELTA, payload),
        ended(RUN, "failed"),
    ]);
    assert_eq!(entries[1].2, called("c9", &Value::Null, "{\"a\":1}", true));
}

#[test]
fn a_queued_run_that_ends_cuts_nothing_of_the_active_one() {
    let entries = projected(&[
        requested(),
        begin("c1"),
        say("m1", "Hel"),
        ended(run_id(2), "cancelled"),
        say("m1", "lo"),
        result_of("c1", "a.txt"),
        end_of("c1", Some("completed")),
        ended(RUN, "completed"),
    ]);
    let kinds = entries.iter().map(|(_, kind, _)| *kind).collect::<Vec<_>>();
    let expected = [
        EntryKind::UserMessage,
        EntryKind::RunEnd,
        EntryKind::AssistantMessage,
        EntryKind::ToolCall,
        EntryKind::RunEnd,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(entries[2].2, json!({"text": "Hello"}));
    assert_eq!(entries[3].2, called("c1", &Value::Null, "a.txt", false));
}

#[test]
fn a_message_without_text_is_no_entry() {
    let entries = projected(&[
        requested(),
        say("m1", ""),
        say("m2", ""),
        ended(RUN, "completed"),
    ]);
    let kinds = entries.iter().map(|(_, kind, _)| *kind).collect::<Vec<_>>();
    assert_eq!(kinds, [EntryKind::UserMessage, EntryKind::RunEnd]);
}

#[test]
fn a_message_and_a_result_are_bounded_however_much_comes() {
    let piece = "x".repeat(limits::EVENT_BYTES / 2);
    let mut events = vec![requested(), begin("c1")];
    events.extend((0..5).map(|_| say("m1", &piece)));
    events.extend((0..5).map(|_| result_of("c1", &piece)));
    events.push(ended(RUN, "completed"));
    let mut said = 0;
    for (_, kind, payload) in projected(&events) {
        let text = payload["text"]
            .as_str()
            .or(payload["result"].as_str())
            .unwrap_or_default();
        assert!(text.len() <= limits::EVENT_BYTES, "{kind}");
        said += if kind == EntryKind::AssistantMessage {
            text.len()
        } else {
            0
        };
    }
    assert_eq!(said, piece.len() * 5, "no piece of an answer is lost");
}

#[test]
fn payloads_of_any_shape_are_taken_without_harm() {
    for payload in [
        json!({}),
        json!({"call_id": 5, "content": 5}),
        json!({"text": [], "status": 1}),
    ] {
        for kind in [
            uploaded::STREAM_DELTA,
            uploaded::THINKING_DELTA,
            uploaded::TOOL_CALL_BEGIN,
            uploaded::TOOL_CALL_DELTA,
            uploaded::TOOL_RESULT_DELTA,
            uploaded::TOOL_CALL_END,
            "RunRequested",
        ] {
            let entries = projected(&[(RUN, kind, payload.clone()), ended(RUN, "completed")]);
            assert_eq!(
                entries.last().unwrap().1,
                EntryKind::RunEnd,
                "{kind} {payload}"
            );
        }
    }
}

/// The ways agents report one tool call.
fn call_events(call_id: &str, shape: u8) -> Vec<(RunId, &'static str, Value)> {
    let arguments = json!({"call_id": call_id, "arguments": {"n": 1}});
    let delta = (RUN, uploaded::TOOL_CALL_DELTA, arguments);
    let done = || end_of(call_id, Some("completed"));
    let piece = |text| result_of(call_id, text);
    match shape {
        0 => vec![begin(call_id), delta, piece("a"), piece("b"), done()],
        1 => vec![begin(call_id), delta, piece("a")],
        2 => vec![begin(call_id), end_of(call_id, None), piece("ab")],
        3 => vec![begin(call_id), done()],
        4 => vec![delta, piece("a"), end_of(call_id, None)],
        5 => vec![piece("a"), piece("b"), done()],
        _ => vec![begin(call_id)],
    }
}

fn chatter(choice: u8, number: usize) -> (RunId, &'static str, Value) {
    match choice % 6 {
        0 | 1 => say("m1", &format!("<{number}>")),
        2 => say("m2", &format!("<{number}>")),
        3 => (RUN, uploaded::THINKING_DELTA, json!({"text": "hm"})),
        4 => (RUN, uploaded::PLAN, json!({"entries": []})),
        _ => ended(run_id(1_000 + number as u128), "cancelled"),
    }
}

/// One run cut anywhere: calls of all shapes and other events mixed by `picks`, then its end.
fn cut_run(shapes: &[u8], picks: &[u8], lost_first: bool) -> Vec<(RunId, &'static str, Value)> {
    let mut calls = (0..)
        .zip(shapes)
        .map(|(number, shape): (usize, _)| call_events(&format!("c{number}"), *shape).into_iter())
        .collect::<Vec<_>>();
    let mut events = vec![requested()];
    for (number, pick) in picks.iter().enumerate() {
        let chosen = calls
            .get_mut(usize::from(*pick % 8))
            .and_then(Iterator::next);
        events.push(chosen.unwrap_or_else(|| chatter(*pick, number)));
    }
    if lost_first {
        events.push((RUN, "RunLeaseExpired", json!({"attempt": 1})));
    }
    events.push(ended(RUN, "interrupted"));
    events
}

fn text_of(entries: &[NewEntry], kind: EntryKind) -> String {
    let texts = entries.iter().filter(|entry| entry.kind == kind);
    texts
        .map(|entry| entry.payload["text"].as_str().unwrap())
        .collect()
}

#[test]
fn a_run_whose_executor_sends_its_own_entries_is_not_projected_beyond_prompt_and_end() {
    let events = log(&[
        requested(),
        (RUN, "StreamDelta", json!({"content": "Hel"})),
        (
            RUN,
            "ToolCallBegin",
            json!({"call_id": "c1", "tool_name": "read"}),
        ),
        (RUN, "StreamDelta", json!({"content": "lo"})),
        (
            RUN,
            "TurnEnd",
            json!({"run_status": "completed", "error": null}),
        ),
        (run_id(2), "StreamDelta", json!({"content": "Next"})),
        (
            run_id(2),
            "TurnEnd",
            json!({"run_status": "completed", "error": null}),
        ),
    ]);
    let mut state = TapeState::default();
    let mut entries = project(&mut state, &events[..3]);
    state.leave_to_executor(RUN);
    entries.extend(project(&mut state, &events[3..]));
    let kinds: Vec<_> = entries
        .iter()
        .map(|entry| (entry.run_id, entry.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            (Some(RUN), EntryKind::UserMessage),
            // What the first step had projected is replaced in the store.
            (Some(RUN), EntryKind::AssistantMessage),
            (Some(RUN), EntryKind::RunEnd),
            (Some(run_id(2)), EntryKind::AssistantMessage),
            (Some(run_id(2)), EntryKind::RunEnd),
        ]
    );
    assert!(state.own_tape.is_empty(), "a settled run is forgotten");
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn wherever_a_run_is_cut_each_call_is_answered_once_and_no_text_is_lost(
        shapes in prop::collection::vec(0..7_u8, 0..5),
        picks in prop::collection::vec(any::<u8>(), 0..40),
        lost_first in any::<bool>(),
    ) {
        let events = cut_run(&shapes, &picks, lost_first);
        let mut state = TapeState::default();
        let entries = project(&mut state, &log(&events));
        prop_assert_eq!(state.tape_seq, events.len() as u64);
        prop_assert!(state.open_calls.is_empty() && state.open_text.is_none());

        let called = events.iter().filter_map(|(_, _, payload)| payload["call_id"].as_str());
        let called = called.map(str::to_owned).collect::<BTreeSet<_>>();
        let calls = entries.iter().filter(|entry| entry.kind == EntryKind::ToolCall);
        let answered = calls.map(|entry| {
            assert!(entry.payload["result"].is_string());
            entry.payload["call_id"].as_str().unwrap().to_owned()
        });
        let mut answered = answered.collect::<Vec<_>>();
        answered.sort();
        prop_assert_eq!(answered, called.into_iter().collect::<Vec<_>>());

        let said = events.iter().filter(|(_, kind, _)| *kind == uploaded::STREAM_DELTA);
        let said = said.map(|(_, _, payload)| payload["content"].as_str().unwrap());
        prop_assert_eq!(text_of(&entries, EntryKind::AssistantMessage), said.collect::<String>());
        let keys = entries.iter().map(|entry| entry.first_seq).collect::<BTreeSet<_>>();
        prop_assert_eq!(keys.len(), entries.len(), "the key of an entry is its own");
    }

    #[test]
    fn steps_of_any_size_with_the_state_stored_between_give_the_same_tape(
        shapes in prop::collection::vec(0..7_u8, 0..5),
        picks in prop::collection::vec(any::<u8>(), 0..40),
        sizes in prop::collection::vec(1..7_usize, 1..60),
        lost_first in any::<bool>(),
    ) {
        let events = log(&cut_run(&shapes, &picks, lost_first));
        let mut whole_state = TapeState::default();
        let whole = project(&mut whole_state, &events);

        let mut state = TapeState::default();
        let mut stepped = Vec::new();
        let mut rest = events.as_slice();
        for size in sizes.into_iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (step, later) = rest.split_at(size.min(rest.len()));
            stepped.extend(project(&mut state, step));
            let stored = serde_json::to_string(&state).unwrap();
            state = serde_json::from_str(&stored).unwrap();
            rest = later;
        }
        prop_assert_eq!(stepped, whole);
        prop_assert_eq!(state, whole_state);
    }
}
