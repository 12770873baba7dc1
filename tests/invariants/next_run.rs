//! What the run after a settled one gets: tape, snapshot and resume context. Wherever a run was cut
//! and whatever its executor had sent, each tool call is answered exactly once (fault 12; rules R19;
//! design §4.4, §4.6; ADR 15, 16).

mod story;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tapedeck_control_plane::commands::append_events::AppendEvents;
use tapedeck_control_plane::commands::append_tape::AppendTape;
use tapedeck_control_plane::commands::save_snapshot::SaveSnapshot;
use tapedeck_control_plane::commands::settle_run::SettleRun;
use tapedeck_control_plane::{Error, Outcome, ResumeRequest};
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::Ending;
use tapedeck_domain::tape::upload::{EntryBatch, UploadedEntry};
use tapedeck_domain::tape::{EntryKind, TapeEntry};
use tapedeck_domain::{Rejection, SessionId};

use crate::control::{Claim, NAMESPACE, TestControl};
use crate::restore::{checkpoint, tape, turn};
use crate::write_paths::{assert_unchanged, cases};

on_every_store! {
    whatever_a_run_left_the_next_one_finds_each_call_answered_once,
    an_executors_own_entries_replace_what_was_projected,
    an_attempt_without_own_entries_is_on_the_tape_after_one_with_them,
    own_entries_with_the_completion_are_settled_with_it,
    a_batch_that_breaks_a_rule_writes_nothing,
    a_snapshot_is_the_runs_last_and_is_answered_when_it_is_handed_out,
    a_resume_says_all_that_it_goes_on_from,
    a_claim_whose_tape_is_far_behind_gets_the_whole_context,
    a_settle_far_behind_is_caught_up_by_whoever_needs_it,
}

async fn upload(t: &TestControl, claim: &Claim, events: &[(&str, Value)]) {
    let check = |(index, (kind, data)): (usize, &(&str, Value))| {
        let id = t.control.new_id().to_string();
        Uploaded::check(index, id, (*kind).to_owned(), data, None).unwrap()
    };
    let append = AppendEvents {
        proof: claim.proof.clone(),
        batch: events.iter().enumerate().map(check).collect(),
    };
    t.control.append_events(append).await.unwrap();
}

fn own(kind: &str, payload: Value) -> UploadedEntry {
    UploadedEntry {
        entry_id: None,
        kind: kind.to_owned(),
        payload,
        meta: None,
        anchor_type: (kind == "anchor").then(|| "mark".to_owned()),
    }
}

async fn send(
    t: &TestControl,
    claim: &Claim,
    entries: Vec<UploadedEntry>,
) -> Outcome<Vec<TapeEntry>> {
    let append = AppendTape {
        batch: EntryBatch::check(claim.run_id(), entries)?,
        proof: claim.proof.clone(),
        weight: 0,
    };
    t.control.append_tape(append).await
}

async fn snapshot(t: &TestControl, claim: &Claim, messages: Vec<Value>) {
    let save = SaveSnapshot {
        proof: claim.proof.clone(),
        messages,
        metadata: Map::new(),
        weight: 0,
    };
    t.control.save_snapshot(save).await.unwrap();
}

fn said(tape: &[TapeEntry]) -> Vec<String> {
    let said = tape
        .iter()
        .filter(|entry| entry.kind == EntryKind::AssistantMessage);
    said.map(|entry| entry.payload["text"].as_str().unwrap().to_owned())
        .collect()
}

/// Fails unless each call among the entries has one answer.
#[track_caller]
fn assert_answered(entries: &[Value], what: &str) {
    let mut calls = BTreeSet::new();
    for entry in entries.iter().filter(|entry| entry["kind"] == "tool_call") {
        let payload = &entry["payload"];
        assert!(payload["result"].is_string(), "{what}: {entry}");
        let call = (entry["run_id"].to_string(), payload["call_id"].to_string());
        assert!(calls.insert(call), "{what}: twice: {entry}\n{entries:#?}");
    }
    assert!(
        !entries.iter().any(|entry| entry["kind"] == "tool_result"),
        "{what}: an answer apart from its call"
    );
}

async fn whatever_a_run_left_the_next_one_finds_each_call_answered_once(t: TestControl) {
    story::play(&t).await;
}

async fn an_executors_own_entries_replace_what_was_projected(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let begun = json!({"call_id": "c1", "tool_name": "shell"});
    let events = [
        (
            "StreamDelta",
            json!({"content": "projected", "role": "assistant"}),
        ),
        ("ToolCallBegin", begun),
    ];
    upload(&t, &claim, &events).await;
    assert_eq!(said(&tape(&t, session, false).await), ["projected"]);
    let entries = vec![
        own("assistant_message", json!({"text": "my own words"})),
        own(
            "tool_call",
            json!({"call_id": "c1", "tool_name": "shell", "arguments": {"a": 1}}),
        ),
        own("tool_result", json!({"call_id": "c1", "result": "done"})),
        own("tool_call", json!({"call_id": "c2", "tool_name": "shell"})),
    ];
    let sent = send(&t, &claim, entries.clone()).await.unwrap();
    assert_eq!(sent.len(), 3, "a call and its result are one entry");
    let before = t.store.dump().await;
    // The same again finds the same entries.
    assert_eq!(send(&t, &claim, entries).await.unwrap(), sent);
    assert_unchanged(&before, &t.store.dump().await, "the same entries");
    upload(&t, &claim, &events).await;
    upload(
        &t,
        &claim,
        &[(
            "ToolResultDelta",
            json!({"call_id": "c9", "display_result": "x"}),
        )],
    )
    .await;
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    let active = tape(&t, session, false).await;
    let kinds: Vec<_> = active.iter().map(|entry| entry.kind.as_str()).collect();
    assert_eq!(
        kinds,
        [
            "user_message",
            "assistant_message",
            "tool_call",
            "tool_call",
            "run_end"
        ]
    );
    assert_eq!(said(&active), ["my own words"]);
    assert_eq!(active[2].payload["result"], "done");
    assert_eq!(active[3].payload["is_error"], true);
    // Nothing is deleted: an audit still finds what was replaced.
    assert_eq!(
        said(&tape(&t, session, true).await),
        ["projected", "my own words"]
    );
    // Another run of the session is projected again.
    turn(&t, session, "the next").await;
    assert_eq!(
        said(&tape(&t, session, false).await),
        ["my own words", "the next"]
    );
}

async fn an_attempt_without_own_entries_is_on_the_tape_after_one_with_them(t: TestControl) {
    let mut settings = SessionSettings::default();
    settings.run_target.constraints.max_attempts = Some(3);
    let session = t.session_with(settings).await;
    t.prompt(session).await;
    let first = t.claim("e1").await;
    let mine = || vec![own("assistant_message", json!({"text": "by the first"}))];
    send(&t, &first, mine()).await.unwrap();
    t.pass(61_000).await;
    t.sweep().await;
    // The second executor doesn't send entries.
    let second = t.claim("e2").await;
    t.say(&second, "2a", "by the second").await.unwrap();
    assert_eq!(said(&tape(&t, session, false).await), ["by the first"]);
    t.pass(61_000).await;
    t.sweep().await;
    assert_eq!(
        said(&tape(&t, session, false).await),
        ["by the first", "by the second"]
    );
    // The third one does, and the very same as the first: its uploads are not projected beside them.
    let third = t.claim("e1").await;
    t.say(&third, "3a", "by the third").await.unwrap();
    send(&t, &third, mine()).await.unwrap();
    t.say(&third, "3b", "and more").await.unwrap();
    t.complete(&third).await;
    assert_eq!(said(&tape(&t, session, false).await), ["by the first"]);
}

async fn own_entries_with_the_completion_are_settled_with_it(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    t.say(&claim, "a", "projected").await.unwrap();
    let entries = vec![own("assistant_message", json!({"text": "at the end"}))];
    let batch = EntryBatch::check(claim.run_id(), entries).unwrap();
    let settle = || SettleRun {
        tape: Some(batch.clone()),
        tape_id: None,
        ..cases::settle(claim.proof.clone(), None)
    };
    let settled = t.control.settle_run(settle()).await.unwrap();
    let active = tape(&t, session, false).await;
    assert_eq!(said(&active), ["at the end"]);
    assert_eq!(active.last().unwrap().kind, EntryKind::RunEnd);
    // The same completion again gets the same answer and writes nothing.
    let before = t.store.dump().await;
    assert_eq!(t.control.settle_run(settle()).await.unwrap(), settled);
    assert_unchanged(&before, &t.store.dump().await, "the same completion");
}

async fn a_batch_that_breaks_a_rule_writes_nothing(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let mine = tapedeck_domain::TapeEntryId::new(t.control.new_id());
    let first = vec![cases::entry(mine, "mine")];
    send(&t, &claim, first).await.unwrap();
    let before = t.store.dump().await;
    let conflicting = vec![
        own("assistant_message", json!({"text": "new"})),
        cases::entry(mine, "something else"),
    ];
    assert_rejected!(
        send(&t, &claim, conflicting).await,
        Rejection::EntryIdConflict { entry_id } if entry_id == mine
    );
    for broken in [
        own("tool_result", json!({"call_id": "nobody's", "result": "x"})),
        own("run_end", json!({})),
        own("assistant_message", json!("no object")),
        own("tool_call", json!({"tool_name": "without an id"})),
    ] {
        let batch = vec![own("assistant_message", json!({"text": "new"})), broken];
        let outcome = send(&t, &claim, batch).await;
        assert!(
            matches!(outcome, Err(Error::Rejected(Rejection::Invalid(_)))),
            "{outcome:?}"
        );
    }
    assert_unchanged(&before, &t.store.dump().await, "a broken batch");
    assert_eq!(said(&tape(&t, session, false).await), ["mine"]);
}

async fn a_snapshot_is_the_runs_last_and_is_answered_when_it_is_handed_out(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    snapshot(
        &t,
        &claim,
        vec![json!({"role": "user", "content": "first"})],
    )
    .await;
    let calls = json!([{"id": "c1"}, {"id": "c2"}]);
    let messages = vec![
        json!({"role": "user", "content": "do it"}),
        json!({"role": "assistant", "content": null, "tool_calls": calls}),
        json!({"role": "tool", "tool_call_id": "c1", "content": "one"}),
        json!({"role": "tool", "tool_call_id": "c1", "content": "one again"}),
    ];
    snapshot(&t, &claim, messages.clone()).await;
    let stored = t.control.snapshot(NAMESPACE, claim.run_id()).await.unwrap();
    assert_eq!(stored.messages, messages, "it is kept as it came");
    let count = "SELECT count(*) FROM message_snapshots";
    assert_eq!(t.store.values::<i64>(count).await, [1]);
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    let resumed = t.resume(session).await.unwrap();
    let metadata = t.run(resumed.run_id).await.metadata;
    let id = format!("{}:latest", claim.run_id());
    assert_eq!(metadata["latest_message_snapshot_id"], json!(id));
    assert_eq!(metadata["latest_message_snapshot_message_count"], 4);
    let next = t.claim("e1").await;
    let context = next.claimed.resume_context.clone().unwrap();
    let handed_out = context["message_snapshot"]["messages"].as_array().unwrap();
    story::assert_messages_answered(handed_out, "a snapshot");
    assert_eq!(handed_out[..3], messages[..3]);
    assert_eq!(handed_out.len(), 4);
    // The new run has none until it reports one.
    let none = t.control.snapshot(NAMESPACE, next.run_id()).await;
    assert!(matches!(none, Err(Error::NotFound(_))), "{none:?}");
}

async fn a_resume_says_all_that_it_goes_on_from(t: TestControl) {
    let session = t.session().await;
    turn(&t, session, "one").await;
    checkpoint(&t, session, "first").await;
    let kept = checkpoint(&t, session, "second").await;
    t.prompt(session).await;
    let claim = t.claim("e1").await;
    upload(
        &t,
        &claim,
        &[("Plan", json!({"entries": [{"content": "go on"}]}))],
    )
    .await;
    snapshot(
        &t,
        &claim,
        vec![json!({"role": "user", "content": "do it"}); 3],
    )
    .await;
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    let entries = tape(&t, session, false).await.len();
    let end = t.log(session).await.last().unwrap().event_id.clone();
    let request = ResumeRequest {
        text: Some("and now?".to_owned()),
        reason: "after_crash".to_owned(),
        metadata: json!({"mine": 1}).as_object().cloned().unwrap(),
        key: None,
    };
    let resumed = t.control.resume(NAMESPACE, session, request).await.unwrap();
    let run = t.run(resumed.run_id).await;
    let mut metadata = run.metadata.clone();
    let anchor_id = metadata.remove("resume_boundary_anchor_id").unwrap();
    // Every key of design §4.4, and nothing else.
    let expected = json!({
        "mine": 1,
        "previous_run_id": claim.run_id(),
        "resume_from_run_id": claim.run_id(),
        "resume_from_event_id": end,
        "resume_reason": "after_crash",
        "resume_context_injected": true,
        "resume_context_strategy": "checkpoint+tape_tail+message_snapshot",
        "checkpoint_count": 2,
        "latest_checkpoint_id": kept.checkpoint_id,
        "latest_checkpoint_label": "second",
        "tape_entry_count": entries,
        "resume_tape_tail_entry_count": entries,
        "resume_plan_note_included": true,
        "latest_message_snapshot_id": format!("{}:latest", claim.run_id()),
        "latest_message_snapshot_message_count": 3,
        "resume_boundary_anchor_type": "resume_boundary",
    });
    assert_eq!(Value::Object(metadata), expected);
    // The anchor that it names stands on the tape, written in the same transaction.
    let active = tape(&t, session, false).await;
    let anchor = active
        .iter()
        .find(|entry| json!(entry.entry_id) == anchor_id)
        .unwrap();
    assert_eq!(anchor.kind, EntryKind::Anchor);
    assert_eq!(anchor.anchor_type.as_deref(), Some("resume_boundary"));
    assert_eq!(anchor.run_id, Some(run.run_id));
    assert_eq!(anchor.first_seq, resumed.session_seq);
    let next = t.claim("e1").await;
    let context = next.claimed.resume_context.unwrap();
    assert_eq!(context["boundary_anchor_id"], anchor_id);
    assert_eq!(context["resume_reason"], "after_crash");
    assert_eq!(context["resume_from_event_id"], json!(end));
    assert_eq!(context["checkpoint"]["label"], "second");
    assert_eq!(context["plan"], json!({"entries": [{"content": "go on"}]}));
    let composed = context["composed_prompt"].as_str().unwrap();
    assert!(
        composed.contains("[Last plan]") && composed.ends_with("and now?"),
        "{composed}"
    );
}

/// A session whose settled run left more events than a step takes, and whose tape stands where it
/// stood before them: as if the process had died between the settle and the steps that follow it.
async fn far_behind(t: &TestControl) -> SessionId {
    let (session, claim) = t.running("e1").await;
    let deltas: Vec<_> = (0..1_400)
        .map(|n| {
            (
                "StreamDelta",
                json!({"content": format!("<{n}>"), "role": "assistant"}),
            )
        })
        .collect();
    for part in deltas.chunks(700) {
        upload(t, &claim, part).await;
    }
    t.complete(&claim).await;
    t.control.catch_up_tape(NAMESPACE, session).await.unwrap();
    t.store.run("DELETE FROM tape_entries").await;
    let nothing = r#"{"tape_seq":0,"position":0,"open_text":null,"open_calls":{}}"#;
    t.store
        .run(&format!("UPDATE tape_states SET state = '{nothing}'"))
        .await;
    session
}

async fn a_claim_whose_tape_is_far_behind_gets_the_whole_context(t: TestControl) {
    let session = far_behind(&t).await;
    let admitted = t.prompt(session).await;
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), admitted.run_id);
    let context = claim.claimed.resume_context.clone().unwrap();
    let composed = context["composed_prompt"].as_str().unwrap();
    assert!(
        composed.contains("Assistant: <0><1><2>"),
        "from its beginning"
    );
    assert_eq!(context["tape_entry_count"], 4);
    let tail = context["tape_tail"].as_array().unwrap();
    let kinds: Vec<_> = tail.iter().map(|entry| entry["kind"].clone()).collect();
    assert_eq!(kinds, ["user_message", "assistant_message", "run_end"]);
    // The claim is as good as any.
    t.beat(&claim).await.unwrap();
    t.complete(&claim).await;
}

async fn a_settle_far_behind_is_caught_up_by_whoever_needs_it(t: TestControl) {
    let pieces: Vec<_> = (0..1_400).map(|n| format!("<{n}>")).collect();
    let whole = pieces.concat();
    for who in ["tape", "checkpoint", "resume", "fork"] {
        let session = far_behind(&t).await;
        let forked = match who {
            "checkpoint" => {
                let captured = checkpoint(&t, session, "here").await;
                assert_eq!(captured.tape_position, 3);
                session
            }
            "resume" => {
                let resumed = t.resume(session).await.unwrap();
                assert_eq!(t.run(resumed.run_id).await.metadata["tape_entry_count"], 3);
                session
            }
            "fork" => {
                let point = tapedeck_control_plane::commands::fork_session::ForkPoint::Head;
                let forked = t
                    .control
                    .fork_session(NAMESPACE, session, point, None, None)
                    .await;
                forked.unwrap().session.session_id
            }
            _ => session,
        };
        assert_eq!(
            said(&tape(&t, forked, false).await),
            [whole.as_str()],
            "{who}"
        );
        for session in [forked, session] {
            let gone = t.control.delete_session(NAMESPACE, session, true).await;
            assert!(matches!(gone, Ok(()) | Err(Error::NotFound(_))), "{gone:?}");
        }
    }
}
