use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::display::DisplayEvent;
use crate::fixture::{RUN, cases, event, run_id};
use crate::tape::NewEntry;

/// Numbers the events of one log.
fn log(events: &[(RunId, &str, Value)]) -> Vec<EventRecord> {
    (1..)
        .zip(events)
        .map(|(seq, (run, kind, payload))| event(seq, *run, kind, payload.clone()))
        .collect()
}

/// What a store does with folds.
fn applied(log: &[EventRecord], folds: &[Fold]) -> Vec<EventRecord> {
    let folds: HashMap<u64, &Fold> = folds.iter().map(|fold| (fold.last_seq, fold)).collect();
    let inside = |seq: u64| {
        folds
            .values()
            .any(|it| it.first_seq <= seq && seq < it.last_seq)
    };
    let mut folded = Vec::new();
    for event in log.iter().filter(|event| !inside(event.session_seq)) {
        let mut event = event.clone();
        if let Some(fold) = folds.get(&event.session_seq) {
            event.folded_from = Some(fold.first_seq);
            event.payload = fold.payload.clone();
        }
        folded.push(event);
    }
    let swallowed: u64 = folds.values().map(|fold| fold.swallowed).sum();
    assert_eq!(folded.len() as u64 + swallowed, log.len() as u64);
    folded
}

/// Folds a log in steps of this many rows, each of which is applied before the next one reads.
fn folded_in_steps(log: &[EventRecord], cuts: &[u64], step: usize) -> Vec<EventRecord> {
    let mut log = log.to_vec();
    let mut folding = Folding::new(RUN, 1);
    for _ in 0..10_000 {
        let rest = log
            .iter()
            .filter(|event| event.session_seq > folding.after());
        let events: Vec<_> = rest.take(step).cloned().collect();
        let last = events.last().map(|event| event.session_seq);
        let is_last = last == log.last().map(|event| event.session_seq);
        let folds = folding.take(&events, cuts, is_last).unwrap();
        log = applied(&log, &folds);
        if is_last {
            return log;
        }
    }
    panic!("the steps don't get on");
}

fn folded(log: &[EventRecord]) -> Vec<EventRecord> {
    folded_in_steps(log, &[], usize::MAX)
}

fn places(log: &[EventRecord]) -> Vec<(u64, u64)> {
    log.iter()
        .map(|event| (event.first_seq(), event.session_seq))
        .collect()
}

fn tape(log: &[EventRecord]) -> Vec<NewEntry> {
    project(&mut TapeState::default(), log)
}

fn say(message: &str, text: &str) -> (RunId, &'static str, Value) {
    let payload = json!({"content": text, "role": "assistant", "message_id": message});
    (RUN, uploaded::STREAM_DELTA, payload)
}

fn output(call_id: &str, text: &str) -> (RunId, &'static str, Value) {
    let payload = json!({"call_id": call_id, "display_result": text, "is_error": false});
    (RUN, uploaded::TOOL_RESULT_DELTA, payload)
}

fn describe(call_id: &str, arguments: &Value) -> (RunId, &'static str, Value) {
    let payload = json!({"call_id": call_id, "tool_name": "bash", "arguments": arguments});
    (RUN, uploaded::TOOL_CALL_DELTA, payload)
}

fn usage() -> (RunId, &'static str, Value) {
    (RUN, "Usage", json!({"tokens": 3}))
}

fn ended() -> (RunId, &'static str, Value) {
    (RUN, "TurnEnd", json!({"run_status": "completed"}))
}

#[test]
fn deltas_of_one_message_become_one_event_with_the_last_ones_id_and_number() {
    let thought = |text: &str| (RUN, uploaded::THINKING_DELTA, json!({"text": text}));
    let log = log(&[
        (RUN, "RunRequested", json!({"prompt": "Build it"})),
        thought("h"),
        thought("m"),
        say("m1", "Hel"),
        say("m1", "lo, "),
        say("m1", "world"),
        say("m2", "alone"),
        ended(),
    ]);
    let folded = folded(&log);
    assert_eq!(places(&folded), [(1, 1), (2, 3), (4, 6), (7, 7), (8, 8)]);
    let hello = &folded[2];
    assert_eq!(
        hello.payload.value(),
        json!({"content": "Hello, world", "role": "assistant", "message_id": "m1"})
    );
    assert_eq!(
        EventRecord {
            payload: log[5].payload.clone(),
            folded_from: None,
            ..hello.clone()
        },
        log[5],
        "all but the text is the last delta's"
    );
    assert_eq!(folded[3], log[6], "a row of one is left alone");
}

#[test]
fn whatever_comes_between_two_deltas_keeps_them_apart() {
    let other_role = json!({"content": "c", "role": "system", "message_id": "m1"});
    let no_text = json!({"content": {"a": 1}, "role": "assistant", "message_id": "m1"});
    let lone = |between: (RunId, &'static str, Value)| {
        let log = log(&[say("m1", "a"), between, say("m1", "b"), ended()]);
        assert_eq!(folded(&log), log);
    };
    lone(usage());
    lone(say("m2", "c"));
    lone((RUN, uploaded::STREAM_DELTA, other_role));
    lone((RUN, uploaded::STREAM_DELTA, no_text));
    lone((run_id(2), "RunQueued", json!({"prompt": "later"})));
    lone((run_id(2), uploaded::STREAM_DELTA, say("m1", "c").2));
}

#[test]
fn deltas_of_different_attempts_and_executors_are_different_messages() {
    let changes: [fn(&mut EventRecord); 3] = [
        |event| event.attempt = Some(2),
        |event| event.executor_id = Some("executor-2".to_owned()),
        |event| event.trace_id = Some("trace".to_owned()),
    ];
    for change in changes {
        let mut log = log(&[say("m1", "a"), say("m1", "b"), ended()]);
        change(&mut log[1]);
        assert_eq!(folded(&log), log);
    }
}

#[test]
fn of_a_calls_descriptions_the_last_one_is_left_unless_they_may_be_pieces() {
    let nameless = json!({"call_id": "c1", "tool_name": "", "arguments": null, "title": "List"});
    let log_of = log(&[
        describe("c1", &json!({"command": "l"})),
        describe("c1", &json!({"command": "ls"})),
        (RUN, uploaded::TOOL_CALL_DELTA, nameless),
        describe("c2", &json!({"command": "ls"})),
        ended(),
    ]);
    let folded_log = folded(&log_of);
    assert_eq!(places(&folded_log), [(1, 3), (4, 4), (5, 5)]);
    assert_eq!(
        folded_log[0].payload.value(),
        json!({"call_id": "c1", "tool_name": "bash", "arguments": {"command": "ls"}, "title": "List"})
    );
    let pieces = log(&[
        describe("c1", &json!("{\"command\"")),
        describe("c1", &json!(":\"ls\"}")),
        ended(),
    ]);
    assert_eq!(folded(&pieces), pieces);
}

#[test]
fn a_tools_output_is_put_together_where_nothing_beside_it_differs() {
    let failed = json!({"call_id": "c1", "display_result": "no", "is_error": true});
    let log = log(&[
        output("c1", "a."),
        output("c1", "txt"),
        (RUN, uploaded::TOOL_RESULT_DELTA, failed),
        output("c2", "x"),
        ended(),
    ]);
    let folded = folded(&log);
    assert_eq!(places(&folded), [(1, 2), (3, 3), (4, 4), (5, 5)]);
    assert_eq!(folded[0].payload.value()["display_result"], "a.txt");
}

#[test]
fn a_fold_is_no_larger_than_an_event_may_be() {
    // Quotes take two bytes each.
    let piece = "\"".repeat(1_000);
    let mut events: Vec<_> = (0..200).map(|_| say("m1", &piece)).collect();
    events.push(ended());
    let log = log(&events);
    let folded = folded(&log);
    assert_eq!(folded.len(), 3, "two folds and the end");
    let bytes = folded[0].payload.as_str().len();
    assert!(bytes <= limits::EVENT_BYTES && bytes + 2_000 > limits::EVENT_BYTES);
    let output: Vec<_> = (0..40).map(|_| output("c1", &"x".repeat(1_000))).collect();
    for event in folded_in_steps(&self::log(&output), &[], usize::MAX) {
        let shown = DisplayEvent::of(&event).unwrap().payload;
        assert_eq!(shown["truncated"], false);
    }
}

#[test]
fn a_message_that_the_tape_cuts_is_cut_at_the_same_place() {
    let piece = "x".repeat(1_000);
    let mut events: Vec<_> = (0..100).map(|_| say("m1", &piece)).collect();
    events.push(usage());
    events.extend((0..400).map(|_| say("m1", &piece)));
    events.push(ended());
    let log = log(&events);
    let folded = folded(&log);
    assert!(folded.len() < 8, "{:?}", places(&folded));
    assert_eq!(tape(&folded), tape(&log));
}

#[test]
fn no_fold_spans_a_cut() {
    let mut events: Vec<_> = (0..6).map(|_| say("m1", "x")).collect();
    events.push(ended());
    let log = log(&events);
    let folded = folded_in_steps(&log, &[2, 5], usize::MAX);
    assert_eq!(places(&folded), [(1, 2), (3, 5), (6, 6), (7, 7)]);
}

#[test]
fn a_place_inside_a_fold_is_overtaken() {
    let log = log(&[say("m1", "a"), say("m1", "b"), say("m1", "c"), ended()]);
    let mut folding = Folding::new(RUN, 1);
    folding.take(&log[..1], &[], false).unwrap();
    assert_eq!(folding.after(), 1, "one event alone is passed");
    let rest = &folded(&log);
    assert_eq!(folding.take(rest, &[], true), Err(Overtaken));
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        30 => "[a-z\"\\\\\n日]{0,5}",
        1 => (1_usize..90_000).prop_map(|size| "y".repeat(size)),
        1 => (1_usize..60_000).prop_map(|size| "\n".repeat(size)),
    ]
}

fn any_event() -> impl Strategy<Value = (RunId, &'static str, Value)> {
    let message = prop_oneof![Just(json!("m1")), Just(json!("m2")), Just(Value::Null)];
    let role = prop_oneof![9 => Just("assistant"), 1 => Just("system")];
    let call = prop_oneof![5 => Just("c1"), 1 => Just("c2"), 1 => Just("")];
    let said = (text(), message, role, any::<bool>(), 0..9).prop_map(
        |(text, id, role, thought, extra)| {
            let (kind, field) = if thought {
                (uploaded::THINKING_DELTA, "text")
            } else {
                (uploaded::STREAM_DELTA, "content")
            };
            (
                RUN,
                kind,
                json!({field: text, "role": role, "message_id": id, "index": extra}),
            )
        },
    );
    let returned = (text(), call.clone(), 0..9).prop_map(|(text, call_id, odds)| {
        let is_error = odds == 0;
        let result = if odds == 1 { json!({"a": text}) } else { json!(text) };
        let payload =
            json!({"call_id": call_id, "display_result": result, "is_error": is_error, "tool_name": "t"});
        (RUN, uploaded::TOOL_RESULT_DELTA, payload)
    });
    let described = (call.clone(), 0_usize..6).prop_map(|(call_id, odds)| {
        let arguments = match odds {
            0 => Value::Null,
            1 => json!("piece"),
            _ => json!({"odds": odds}),
        };
        let name = ["bash", "", "sh"][odds % 3];
        let payload = json!({"call_id": call_id, "tool_name": name, "arguments": arguments});
        (RUN, uploaded::TOOL_CALL_DELTA, payload)
    });
    let begun = call
        .clone()
        .prop_map(|call_id| (RUN, uploaded::TOOL_CALL_BEGIN, json!({"call_id": call_id})));
    let ended = (call, any::<bool>()).prop_map(|(call_id, finished)| {
        let status = finished.then_some("completed");
        (
            RUN,
            uploaded::TOOL_CALL_END,
            json!({"call_id": call_id, "status": status}),
        )
    });
    let else_where = prop_oneof![
        Just((RUN, "Usage", json!({"tokens": 1}))),
        Just((RUN, uploaded::PLAN, json!({"entries": []}))),
        Just((run_id(2), "RunQueued", json!({"prompt": "later"}))),
        Just((RUN, "RunLeaseExpired", json!({"attempt": 1}))),
    ];
    prop_oneof![10 => said, 6 => returned, 3 => described, 1 => begun, 1 => ended, 1 => else_where]
}

/// A log with messages of several pieces.
fn any_log() -> impl Strategy<Value = Vec<EventRecord>> {
    let again = prop_oneof![4 => Just(1_usize), 3 => 2_usize..5, 1 => 5_usize..12];
    prop::collection::vec((any_event(), again), 0..25).prop_map(|rows| {
        let mut events = vec![(RUN, "RunRequested", json!({"prompt": "Build it"}))];
        for (event, times) in rows {
            events.extend(std::iter::repeat_n(event, times));
        }
        events.push(ended());
        log(&events)
    })
}

/// What a person has read in the end: pieces of one message put together.
fn read(log: &[EventRecord]) -> Vec<(Value, String)> {
    let mut read: Vec<(Value, String)> = Vec::new();
    for shown in log.iter().filter_map(DisplayEvent::of) {
        let payload = &shown.payload;
        let text = payload["text"].as_str().or(payload["output"].as_str());
        let Some(text) = text else { continue };
        let of = json!([
            shown.kind.as_str(),
            payload["message_id"],
            payload["call_id"]
        ]);
        match read.last_mut() {
            Some((last, whole)) if *last == of => whole.push_str(text),
            Some(_) | None => read.push((of, text.to_owned())),
        }
    }
    read
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn a_folded_log_gives_the_same_tape_and_reads_the_same(log in any_log()) {
        let folded = folded(&log);
        prop_assert_eq!(tape(&folded), tape(&log));
        prop_assert_eq!(read(&folded), read(&log));
    }

    #[test]
    fn every_number_is_covered_once_and_the_rest_is_untouched(log in any_log()) {
        let folded = folded(&log);
        let mut covered = 0;
        for event in &folded {
            prop_assert_eq!(event.first_seq(), covered + 1);
            covered = event.session_seq;
            prop_assert!(event.payload.as_str().len() <= limits::EVENT_BYTES);
            if event.folded_from.is_none() {
                prop_assert_eq!(event, &log[usize::try_from(covered).unwrap() - 1]);
            }
        }
        prop_assert_eq!(covered, log.len() as u64);
    }

    #[test]
    fn steps_of_any_size_fold_the_same_and_folding_again_changes_nothing(
        log in any_log(),
        step in 2_usize..20,
        cuts in prop::collection::btree_set(1_u64..60, 0..4),
    ) {
        let cuts: Vec<_> = cuts.into_iter().collect();
        let whole = folded_in_steps(&log, &cuts, usize::MAX);
        prop_assert_eq!(&folded_in_steps(&log, &cuts, step), &whole);
        prop_assert_eq!(&folded_in_steps(&whole, &cuts, step), &whole);
        for cut in cuts {
            prop_assert!(whole.iter().all(|it| cut < it.first_seq() || it.session_seq <= cut));
        }
    }

    #[test]
    fn a_crash_between_two_steps_does_no_harm(log in any_log(), step in 2_usize..10) {
        let mut folding = Folding::new(RUN, 1);
        let events = &log[..step.min(log.len())];
        let folds = folding.take(events, &[], events.len() == log.len()).unwrap();
        prop_assert_eq!(folded(&applied(&log, &folds)), folded(&log));
    }
}
