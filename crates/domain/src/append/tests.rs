use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixture::{RUN, SESSION, after, cases};
use crate::id::RunKey;

fn uploaded(event_id: &str, kind: &str, data: &Value) -> Uploaded {
    check(event_id, kind, data).unwrap()
}

fn check(event_id: &str, kind: &str, data: &Value) -> Result<Uploaded, FieldError> {
    Uploaded::check(3, event_id.to_owned(), kind.to_owned(), data, None)
}

fn delta(event_id: &str, text: &str) -> Uploaded {
    uploaded(
        event_id,
        uploaded::STREAM_DELTA,
        &json!({"content": text, "role": "assistant"}),
    )
}

fn nested(levels: usize) -> Value {
    (1..levels).fold(json!(1), |inner, _| json!({"a": inner}))
}

/// An object of exactly that many bytes of JSON.
fn sized(bytes: usize) -> Value {
    json!({"t": "x".repeat(bytes - r#"{"t":""}"#.len())})
}

#[test]
fn an_event_that_a_store_can_hold_passes() {
    let longest_id = "ä".repeat(limits::EVENT_ID_CHARS);
    let longest_kind = "ö".repeat(limits::EVENT_KIND_CHARS);
    for (event_id, kind, data) in [
        ("e1", "StreamDelta", json!({"content": "x"})),
        ("e1", "my.own/kind", json!({})),
        ("e1", "TurnEnd", json!({})),
        ("e1", "turnend", json!({})),
        ("xsrv:1", "Plan", json!({})),
        (
            longest_id.as_str(),
            longest_kind.as_str(),
            json!({"😀": [1.5, null]}),
        ),
        ("deepest", "Plan", nested(limits::JSON_DEPTH)),
        ("largest", "Plan", sized(limits::EVENT_BYTES)),
    ] {
        let event = check(event_id, kind, &data).unwrap();
        assert_eq!(
            (event.event_id.as_str(), event.kind.as_str()),
            (event_id, kind)
        );
        assert_eq!(event.payload.value(), data);
        assert_eq!(event.digest, Digest::of_json(kind, &data));
    }
}

#[test]
fn an_event_that_breaks_a_rule_is_named_by_its_place_in_the_batch() {
    let long_id = "a".repeat(limits::EVENT_ID_CHARS + 1);
    let long_kind = "a".repeat(limits::EVENT_KIND_CHARS + 1);
    let fine = json!({});
    for (event_id, kind, data, field) in [
        ("", "Plan", fine.clone(), "event_id"),
        (long_id.as_str(), "Plan", fine.clone(), "event_id"),
        ("srv:1", "Plan", fine.clone(), "event_id"),
        ("srv:", "Plan", fine.clone(), "event_id"),
        ("a\0b", "Plan", fine.clone(), "event_id"),
        ("e1", "", fine.clone(), "event"),
        ("e1", long_kind.as_str(), fine.clone(), "event"),
        ("e1", "a\0b", fine, "event"),
        ("e1", "Plan", json!(null), "data"),
        ("e1", "Plan", json!([1]), "data"),
        ("e1", "Plan", json!("text"), "data"),
        ("e1", "Plan", json!({"a": ["b\0"]}), "data"),
        ("e1", "Plan", json!({"a\0": 1}), "data"),
        ("e1", "Plan", nested(limits::JSON_DEPTH + 1), "data"),
        ("e1", "Plan", sized(limits::EVENT_BYTES + 1), "data"),
    ] {
        let error = check(event_id, kind, &data).unwrap_err();
        assert_eq!(error.path, format!("events[3].{field}"), "{error:?}");
        assert!(!error.message.is_empty());
    }
}

#[test]
fn kinds_that_only_the_server_writes_are_refused_but_turn_end() {
    for kind in EventKind::ALL.iter().copied() {
        let checked = check("e1", kind.as_str(), &json!({}));
        if kind == EventKind::TurnEnd {
            assert!(checked.unwrap().is_ignored());
        } else {
            assert_eq!(checked.unwrap_err().path, "events[3].event", "{kind}");
        }
    }
}

#[test]
fn all_but_the_turns_beginning_and_its_status_lines_is_output() {
    for (kind, output) in [
        (uploaded::TURN_BEGIN, false),
        (uploaded::TURN_STATUS_DELTA, false),
        ("TurnEnd", false),
        (uploaded::STREAM_DELTA, true),
        (uploaded::THINKING_DELTA, true),
        (uploaded::TOOL_CALL_BEGIN, true),
        (uploaded::PLAN, true),
        ("my.own/kind", true),
    ] {
        let event = uploaded("e1", kind, &json!({}));
        assert_eq!(event.is_output(), output, "{kind}");
        let planned = plan(vec![event], &HashMap::new()).unwrap();
        assert_eq!(planned.has_output, output, "{kind}");
    }
}

#[test]
fn key_order_and_creation_time_make_no_other_event() {
    let one: Value = serde_json::from_str(r#"{"a":1,"b":2}"#).unwrap();
    let two: Value = serde_json::from_str(r#"{"b":2,"a":1}"#).unwrap();
    let first = uploaded("e1", "Plan", &one);
    let mut second = uploaded("e1", "Plan", &two);
    second.created_at = Some(after(5).wall);
    let planned = plan(vec![first, second], &HashMap::new()).unwrap();
    assert_eq!(planned.slots, [Slot::New(0), Slot::New(0)]);
    assert_eq!(planned.new.len(), 1);
}

#[test]
fn an_id_that_comes_twice_in_a_batch_counts_once_or_refuses_the_batch() {
    let planned = plan(
        vec![delta("a", "1"), delta("b", "2"), delta("a", "1")],
        &HashMap::new(),
    );
    let planned = planned.unwrap();
    assert_eq!(planned.slots, [Slot::New(0), Slot::New(1), Slot::New(0)]);
    let ids = planned
        .new
        .iter()
        .map(|draft| draft.event_id.as_deref().unwrap());
    assert_eq!(ids.collect::<Vec<_>>(), ["a", "b"]);
    let conflicting = plan(vec![delta("a", "1"), delta("a", "2")], &HashMap::new());
    assert_eq!(
        conflicting,
        Err(Rejection::EventIdConflict {
            event_id: "a".to_owned()
        })
    );
}

#[test]
fn the_same_id_under_another_kind_is_another_content() {
    let mut log = Log::default();
    log.upload(vec![uploaded("a", "Plan", &json!({}))]).unwrap();
    let conflict = log.upload(vec![delta("b", "1"), uploaded("a", "Usage", &json!({}))]);
    assert_eq!(
        conflict,
        Err(Rejection::EventIdConflict {
            event_id: "a".to_owned()
        })
    );
    assert_eq!(log.records.len(), 1);
}

#[test]
fn a_record_without_a_digest_is_never_the_same_as_an_upload() {
    let event = delta("a", "1");
    let mut log = Log::default();
    log.upload(vec![event.clone()]).unwrap();
    log.known.get_mut("a").unwrap().digest = None;
    let conflict = Err(Rejection::EventIdConflict {
        event_id: "a".to_owned(),
    });
    assert_eq!(log.upload(vec![event]), conflict);
}

#[test]
fn turn_end_is_acknowledged_and_not_recorded() {
    let end = || uploaded("end", "TurnEnd", &json!({"any": 1}));
    let mut log = Log::default();
    assert_eq!(
        log.upload(vec![delta("a", "1"), end()]),
        Ok(vec![Some(1), None])
    );
    assert_eq!(
        log.upload(vec![end(), delta("b", "1")]),
        Ok(vec![None, Some(2)])
    );
}

/// What a store does with a plan: numbers for the new events only, and records by id.
#[derive(Default)]
struct Log {
    records: Vec<EventRecord>,
    known: HashMap<String, Known>,
}

impl Log {
    fn upload(&mut self, batch: Vec<Uploaded>) -> Result<Vec<Option<u64>>, Rejection> {
        let plan = plan(batch, &self.known)?;
        let first_new = self.records.len();
        for draft in plan.new {
            let seq = self.records.len() as u64 + 1;
            let digest = draft.digest;
            let new = draft.of(RunKey(7), RUN).record(SESSION, seq, after(0).wall);
            let known = Known {
                digest,
                record: new.record.clone(),
            };
            let before = self.known.insert(new.record.event_id.clone(), known);
            assert_eq!(before, None, "an id is recorded once");
            self.records.push(new.record);
        }
        let answers = plan.slots.into_iter().map(|slot| match slot {
            Slot::New(index) => Some(self.records[first_new + index].session_seq),
            Slot::Known(record) => Some(record.session_seq),
            Slot::Ignored => None,
        });
        Ok(answers.collect())
    }
}

/// Few ids and few contents, so that repetitions and conflicts are common.
fn batches() -> impl Strategy<Value = Vec<Vec<Uploaded>>> {
    let event = (
        0..12_u8,
        prop_oneof![9 => Just(0_u8), 1 => Just(1_u8)],
        0..10_u8,
    )
        .prop_map(|(id, content, kind)| match kind {
            0 => uploaded(&format!("e{id}"), "TurnEnd", &json!({"content": content})),
            _ => delta(&format!("e{id}"), &format!("{id} {content}")),
        });
    prop::collection::vec(prop::collection::vec(event, 0..8), 0..12)
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn any_uploads_leave_no_gap_and_no_duplicate_and_get_the_same_answers_again(
        batches in batches(),
        again in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut log = Log::default();
        let mut accepted = Vec::new();
        let mut contents: BTreeMap<String, Digest> = BTreeMap::new();
        for batch in batches {
            let mut merged = contents.clone();
            let conflicts = batch.iter().filter(|event| !event.is_ignored()).any(|event| {
                *merged.entry(event.event_id.clone()).or_insert(event.digest) != event.digest
            });
            let before = log.records.clone();
            let answer = log.upload(batch.clone());
            prop_assert_eq!(answer.is_err(), conflicts);
            if let Ok(numbers) = answer {
                contents = merged;
                accepted.push((batch, numbers));
            } else {
                prop_assert_eq!(&log.records, &before);
            }
        }
        let numbers = log.records.iter().map(|record| record.session_seq).collect::<Vec<_>>();
        prop_assert_eq!(numbers, (1..=log.records.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(log.records.len(), contents.len());
        for (batch, numbers) in &accepted {
            for (event, number) in batch.iter().zip(numbers) {
                let stored = number.map(|number| log.records[usize::try_from(number - 1).unwrap()].clone());
                let expected = (!event.is_ignored()).then_some(&event.event_id);
                prop_assert_eq!(stored.as_ref().map(|record| &record.event_id), expected);
                prop_assert!(stored.is_none_or(|record| record.payload == event.payload));
            }
        }

        let before = log.records.clone();
        for index in again.iter().filter(|_| !accepted.is_empty()) {
            let (batch, numbers) = index.get(&accepted);
            prop_assert_eq!(log.upload(batch.clone()), Ok(numbers.clone()));
        }
        prop_assert_eq!(log.records, before);
    }
}

#[test]
fn kinds_that_a_stream_would_take_for_its_own_frames_are_refused() {
    for kind in [
        "stream.open",
        "stream.live",
        "stream.end",
        "stream.later",
        "two\nlines",
    ] {
        let refused = Uploaded::check(3, "a".to_owned(), kind.to_owned(), &json!({}), None);
        assert_eq!(refused.unwrap_err().path, "events[3].event", "{kind:?}");
    }
}
