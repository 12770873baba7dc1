use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::fixture::{RUN, SESSION, after, run_id};

fn upload(kind: &str, payload: Value) -> UploadedEntry {
    UploadedEntry {
        entry_id: None,
        kind: kind.to_owned(),
        payload,
        meta: None,
        anchor_type: None,
    }
}

fn planned(uploads: Vec<UploadedEntry>) -> Vec<NewEntry> {
    let batch = EntryBatch::check(RUN, uploads).unwrap();
    let slots = batch.plan(SESSION, &[], 9, after(1).wall).unwrap();
    let new = slots.into_iter().map(|slot| match slot {
        EntrySlot::New(_, entry) => entry,
        EntrySlot::Known(entry) => panic!("{entry:?} is known"),
    });
    new.collect()
}

fn refused(uploads: Vec<UploadedEntry>) -> Vec<(String, String)> {
    match EntryBatch::check(RUN, uploads) {
        Err(Rejection::Invalid(faults)) => faults
            .into_iter()
            .map(|fault| (fault.path, fault.message))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_result_joins_its_call_and_a_call_without_one_is_answered() {
    let entries = planned(vec![
        upload("assistant_message", json!({"text": "I look."})),
        upload("tool_call", json!({"call_id": "a", "tool_name": "read"})),
        upload("tool_call", json!({"call_id": "b", "tool_name": "write"})),
        upload("tool_result", json!({"call_id": "a", "result": "ok"})),
        upload("tool_call", json!({"call_id": "c", "result": "there"})),
    ]);
    let shown: Vec<_> = entries
        .iter()
        .map(|entry| {
            (
                entry.kind,
                entry.payload["result"].clone(),
                entry.payload["is_error"].clone(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            (EntryKind::AssistantMessage, Value::Null, Value::Null),
            (EntryKind::ToolCall, json!("ok"), json!(false)),
            (EntryKind::ToolCall, json!(NO_RESULT), json!(true)),
            (EntryKind::ToolCall, json!("there"), Value::Null),
        ]
    );
    assert!(
        entries
            .iter()
            .all(|entry| entry.source == EntrySource::Executor)
    );
}

#[test]
fn what_breaks_a_rule_is_refused_by_its_place() {
    let mut boundary = upload("anchor", json!({}));
    boundary.anchor_type = Some(RESUME_BOUNDARY.to_owned());
    let mut stray = upload("plan", json!({}));
    stray.anchor_type = Some("mark".to_owned());
    let mut twin = upload("plan", json!({}));
    twin.entry_id = Some(TapeEntryId::new(Uuid::from_u128(5)));
    let faults = refused(vec![
        upload("run_end", json!({})),
        upload("poem", json!({})),
        upload("plan", json!("no object")),
        upload("tool_call", json!({"tool_name": "read"})),
        upload("tool_result", json!({"call_id": "never"})),
        boundary,
        upload("anchor", json!({})),
        stray,
        twin.clone(),
        twin,
    ]);
    let paths: Vec<_> = faults.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "tape_entries[0].kind",
            "tape_entries[1].kind",
            "tape_entries[2].payload",
            "tape_entries[3].payload.call_id",
            "tape_entries[4].payload",
            "tape_entries[5].anchor_type",
            "tape_entries[6].anchor_type",
            "tape_entries[7].anchor_type",
            "tape_entries[9].entry_id",
        ]
    );
}

#[test]
fn a_call_is_answered_once() {
    let faults = refused(vec![
        upload("tool_call", json!({"call_id": "a", "result": "first"})),
        upload("tool_result", json!({"call_id": "a", "result": "second"})),
    ]);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].1.contains("already"), "{faults:?}");
}

#[test]
fn an_entry_without_an_id_gets_the_same_one_again() {
    let uploads = vec![
        upload("plan", json!({"a": 1})),
        upload("plan", json!({"a": 1})),
    ];
    let first = EntryBatch::check(RUN, uploads.clone()).unwrap().ids();
    let again = EntryBatch::check(RUN, uploads.clone()).unwrap().ids();
    let other_run = EntryBatch::check(run_id(9), uploads).unwrap().ids();
    assert_eq!(first, again);
    assert_ne!(first[0], first[1]);
    assert_ne!(first, other_run);
}

#[test]
fn a_stored_id_is_known_only_with_the_same_content_run_and_session() {
    let uploads = vec![upload("plan", json!({"a": 1}))];
    let batch = EntryBatch::check(RUN, uploads).unwrap();
    let entry_id = batch.ids()[0];
    let slots = batch.clone().plan(SESSION, &[], 9, after(1).wall).unwrap();
    let EntrySlot::New(_, new) = slots[0].clone() else {
        panic!("{slots:?}");
    };
    let stored = KnownEntry {
        session_id: SESSION,
        entry: TapeEntry::placed(4, entry_id, new),
    };
    let known = batch
        .clone()
        .plan(SESSION, std::slice::from_ref(&stored), 12, after(2).wall);
    assert_eq!(known, Ok(vec![EntrySlot::Known(stored.entry.clone())]));

    let mut others: Vec<KnownEntry> = std::iter::repeat_n(stored, 5).collect();
    others[0].session_id = SessionId::new(Uuid::from_u128(1));
    others[1].entry.run_id = Some(run_id(9));
    others[2].entry.payload = json!({"a": 2});
    others[3].entry.kind = EntryKind::Thinking;
    others[4].entry.source = EntrySource::Projection;
    for other in others {
        let planned = batch.clone().plan(SESSION, &[other], 12, after(2).wall);
        assert_eq!(planned, Err(Rejection::EntryIdConflict { entry_id }));
    }
}
