use uuid::Uuid;

use super::*;
use crate::checkpoint::ForkOrigin;
use crate::fixture::{RUN, SESSION, after, at, run_id, session, settled};
use crate::id::CheckpointId;
use crate::run::{Attempts, RunState};
use crate::session::SessionSummary;
use crate::tape::{EntryKind, EntrySource};

fn anchor_id() -> TapeEntryId {
    TapeEntryId::new(Uuid::from_u128(77))
}

fn request(text: Option<&str>) -> Resume {
    let mut metadata = Map::new();
    metadata.insert("ticket".to_owned(), json!(42));
    Resume {
        run_id: run_id(2),
        text: text.map(str::to_owned),
        reason: "user_resume".to_owned(),
        metadata,
        anchor_id: anchor_id(),
    }
}

fn entry(position: u64, kind: EntryKind, payload: Value) -> TapeEntry {
    TapeEntry {
        position,
        entry_id: TapeEntryId::new(Uuid::from_u128(u128::from(position))),
        kind,
        payload,
        anchor_type: None,
        run_id: Some(RUN),
        first_seq: position,
        created_at: after(0).wall,
        source: EntrySource::Projection,
        meta: None,
        superseded_by_checkpoint_id: None,
    }
}

fn said(position: u64, text: &str) -> TapeEntry {
    entry(position, EntryKind::AssistantMessage, json!({"text": text}))
}

fn material(tail: Vec<TapeEntry>) -> ResumeMaterial {
    let mut previous = settled(RunStatus::Interrupted);
    previous.error = Some("the executor was lost".to_owned());
    let tape_entry_count = tail.len() as u64 + 100;
    ResumeMaterial {
        previous: Some(previous),
        tail,
        tape_entry_count,
        agent_state: None,
        snapshot: None,
    }
}

fn resumed(material: &ResumeMaterial, text: Option<&str>) -> Resumed {
    let mut session = interrupted();
    resume(&mut session, material, request(text), 9, after(5)).unwrap()
}

fn interrupted() -> Session {
    let mut session = session();
    session.summary = SessionSummary {
        last_run_id: Some(RUN),
        last_run_status: Some(RunStatus::Interrupted),
        resume_from_event_id: Some("srv:8".to_owned()),
        queued_runs: 2,
        queue_held: true,
        ..SessionSummary::empty()
    };
    session
}

fn context(resumed: &Resumed) -> &Value {
    resumed.run.resume_context.as_ref().unwrap()
}

#[test]
fn a_resume_needs_an_open_session_at_rest_with_a_settled_run() {
    let none = ResumeMaterial {
        previous: None,
        ..material(Vec::new())
    };
    let refuse = |mut session: Session, material: ResumeMaterial| {
        let before = session.clone();
        let refused = resume(&mut session, &material, request(None), 9, after(5)).unwrap_err();
        assert_eq!(session, before);
        refused
    };
    let mut busy = interrupted();
    busy.summary.active_run_id = Some(RUN);
    let mut closed = busy.clone();
    closed.closed_at = Some(after(0).wall);
    assert_eq!(
        refuse(closed, material(Vec::new())),
        Rejection::SessionClosed
    );
    let active = Rejection::SessionBusy { active_run_id: RUN };
    assert_eq!(refuse(busy.clone(), material(Vec::new())), active);
    assert_eq!(refuse(busy, none.clone()), active);
    assert_eq!(refuse(session(), none), Rejection::NothingToResume);
}

#[test]
fn a_resume_is_a_new_run_linked_to_the_previous_one() {
    let mut session = interrupted();
    let material = material(vec![said(1, "half done")]);
    let previous = material.previous.clone();
    let resumed = resume(&mut session, &material, request(Some("Go on")), 9, after(5));
    let resumed = resumed.unwrap();
    assert_eq!(material.previous, previous);
    assert_eq!(
        (resumed.run.run_id, resumed.run.parent_run_id),
        (run_id(2), Some(RUN))
    );
    assert_eq!(
        (resumed.run.status, resumed.run.admitted_seq),
        (RunStatus::Requested, 9)
    );
    assert_eq!(resumed.run.prompt, "Go on");
    assert_eq!(resumed.run.requested_at, after(5).wall);
    assert_eq!(resumed.live.state, RunState::Requested { ready_at: at(5) });
    assert_eq!(
        (resumed.live.attempts, resumed.live.session_id),
        (Attempts::new(1), SESSION)
    );
    assert_eq!(resumed.event.kind, "RunRequested");
    let payload = json!({
        "status": "requested",
        "prompt": "Go on",
        "previous_run_id": RUN,
        "resume_from_run_id": RUN,
        "resume_from_event_id": "srv:8",
    });
    assert_eq!(resumed.event.payload.value(), payload);
    let anchor = json!({"run_id": run_id(2), "previous_run_id": RUN, "reason": "user_resume"});
    assert_eq!(resumed.anchor, anchor);
    assert_eq!(session.summary.active_run_id, Some(run_id(2)));
    assert_eq!(session.summary.last_run_id, Some(run_id(2)));
    assert_eq!(
        (session.summary.queue_held, session.summary.queued_runs),
        (false, 2)
    );
}

#[test]
fn every_settled_status_can_be_resumed() {
    for status in RunStatus::ALL
        .iter()
        .copied()
        .filter(|status| status.is_terminal())
    {
        let material = ResumeMaterial {
            previous: Some(settled(status)),
            ..material(Vec::new())
        };
        let resumed = resumed(&material, None);
        assert_eq!(context(&resumed)["previous_status"], json!(status));
    }
}

#[test]
fn metadata_names_what_was_used_and_wins_over_the_clients_notes() {
    let tail = vec![
        said(1, "a"),
        entry(2, EntryKind::Plan, json!({"entries": ["b"]})),
    ];
    let mut session = interrupted();
    let mut request = request(None);
    request
        .metadata
        .insert("resume_reason".to_owned(), json!("forged"));
    let checkpoint_id = CheckpointId::new(Uuid::from_u128(55));
    session.summary.checkpoint_count = 3;
    session.summary.latest_checkpoint_id = Some(checkpoint_id);
    session.summary.latest_checkpoint_label = Some("before the move".to_owned());
    let mut material = material(tail);
    material.snapshot = Some(SnapshotFacts {
        run_id: RUN,
        message_count: 12,
        bytes: 400,
    });
    let resumed = resume(&mut session, &material, request, 9, after(5)).unwrap();
    let context = resumed.run.resume_context.as_ref().unwrap();
    assert_eq!(context["message_snapshot"]["message_count"], 12);
    assert_eq!(context["checkpoint"]["label"], "before the move");
    let expected = json!({
        "ticket": 42,
        "previous_run_id": RUN,
        "resume_from_run_id": RUN,
        "resume_from_event_id": "srv:8",
        "resume_reason": "user_resume",
        "resume_context_injected": true,
        "resume_context_strategy": "checkpoint+tape_tail+message_snapshot",
        "checkpoint_count": 3,
        "latest_checkpoint_id": checkpoint_id,
        "latest_checkpoint_label": "before the move",
        "latest_message_snapshot_id": format!("{RUN}:latest"),
        "latest_message_snapshot_message_count": 12,
        "tape_entry_count": 102,
        "resume_tape_tail_entry_count": 2,
        "resume_plan_note_included": true,
        "resume_boundary_anchor_id": anchor_id(),
        "resume_boundary_anchor_type": "resume_boundary",
    });
    assert_eq!(Value::Object(resumed.run.metadata), expected);
}

#[test]
fn a_state_from_before_a_restore_is_said_to_have_diverged() {
    let mut previous = settled(RunStatus::Completed);
    previous.settled_seq = Some(8);
    for (restored_seq, diverged) in [(None, false), (Some(7), false), (Some(12), true)] {
        let mut session = interrupted();
        session.restored_seq = restored_seq;
        let mut material = material(Vec::new());
        material.previous = Some(previous.clone());
        material.agent_state = Some(json!({"session": "s1"}));
        let resumed = resume(&mut session, &material, request(None), 9, after(5)).unwrap();
        let context = resumed.run.resume_context.unwrap();
        assert_eq!(context["agent_state"]["session"], "s1");
        assert_eq!(
            context["agent_state_diverged"], diverged,
            "{restored_seq:?}"
        );
    }
}

#[test]
fn the_first_prompt_of_a_fork_gets_the_record_it_was_copied_with() {
    let mut forked = session();
    let material = ResumeMaterial {
        tail: vec![said(1, "what the source said")],
        tape_entry_count: 1,
        ..ResumeMaterial::default()
    };
    let run = settled(RunStatus::Requested);
    assert_eq!(
        follow_up(&forked, &material, &run),
        None,
        "no fork, no past"
    );
    forked.forked_from = Some(ForkOrigin {
        session_id: SESSION,
        checkpoint_id: None,
        session_seq: 4,
    });
    // Entries of the new run itself are left out; these are the source's.
    let mut run = run;
    run.run_id = run_id(2);
    let context = follow_up(&forked, &material, &run).unwrap();
    let prompt = context["composed_prompt"].as_str().unwrap();
    assert!(prompt.contains("what the source said"), "{prompt}");
    assert_eq!(context["previous_run_id"], Value::Null);
    assert_eq!(context["agent_state"], Value::Null);
    assert_eq!(context["forked_from_session_id"], json!(SESSION));
}

#[test]
fn a_key_without_a_value_is_absent() {
    let mut session = session();
    let resumed = resume(
        &mut session,
        &material(Vec::new()),
        request(None),
        9,
        after(5),
    )
    .unwrap();
    assert!(!resumed.run.metadata.contains_key("resume_from_event_id"));
    assert_eq!(
        resumed.event.payload.value().get("resume_from_event_id"),
        None
    );
    assert_eq!(
        resumed.run.metadata["resume_plan_note_included"],
        json!(false)
    );
}

#[test]
fn the_tail_holds_the_newest_entries_up_to_both_bounds() {
    let tail_of = |entries: Vec<TapeEntry>| -> Vec<u64> {
        let resumed = resumed(&material(entries), None);
        let tail = context(&resumed)["tape_tail"].as_array().unwrap().clone();
        let count = json!(tail.len());
        assert_eq!(resumed.run.metadata["resume_tape_tail_entry_count"], count);
        tail.iter()
            .map(|entry| entry["position"].as_u64().unwrap())
            .collect()
    };
    let small = |count: u64| {
        (1..=count)
            .map(|position| said(position, "x"))
            .collect::<Vec<_>>()
    };
    assert_eq!(tail_of(Vec::new()), Vec::<u64>::new());
    assert_eq!(tail_of(small(40)), (1..=40).collect::<Vec<_>>());
    assert_eq!(tail_of(small(60)), (21..=60).collect::<Vec<_>>());

    // "Assistant: " takes 11 bytes of each text.
    let quarter = "y".repeat(limits::RESUME_TAIL_BYTES / 4 - 11);
    let large = (1..=6)
        .map(|position| said(position, &quarter))
        .collect::<Vec<_>>();
    assert_eq!(tail_of(large.clone()), [3, 4, 5, 6]);
    let mut just_too_large = large;
    just_too_large.push(said(7, ""));
    assert_eq!(tail_of(just_too_large), [4, 5, 6, 7]);
}

#[test]
fn the_composed_prompt_is_note_then_record_then_plan_then_request() {
    let tail = vec![
        entry(1, EntryKind::UserMessage, json!({"text": "Build it"})),
        said(2, "Working"),
        entry(
            3,
            EntryKind::ToolCall,
            json!({"tool_name": "bash", "arguments": {"command": "ls"}, "result": "a.txt"}),
        ),
        entry(
            4,
            EntryKind::RunEnd,
            json!({"status": "interrupted", "error": "lost"}),
        ),
    ];
    let resumed = resumed(&material(tail), Some("Now test it"));
    let context = context(&resumed);
    let expected = "[Context: this continues an earlier run of the same session that ended as \
        `interrupted` (the executor was lost). What is below is a record of it; do not repeat \
        finished steps.]\n\
        \n[Record, oldest first]\n\
        User: Build it\n\
        Assistant: Working\n\
        Tool `bash` {\"command\":\"ls\"} -> a.txt\n\
        Run ended as `interrupted` lost\n\
        \n[Request]\nNow test it";
    assert_eq!(context["composed_prompt"], json!(expected));
    assert_eq!(context["raw_prompt"], json!("Now test it"));
    assert_eq!(context["previous_run_id"], json!(RUN));
    assert_eq!(context["boundary_anchor_id"], json!(anchor_id()));
}

#[test]
fn the_newest_plan_is_noted_even_where_it_lies_before_the_tail() {
    let mut tail = vec![
        entry(1, EntryKind::Plan, json!({"entries": ["old"]})),
        entry(2, EntryKind::Plan, json!({"entries": ["new"]})),
    ];
    tail.extend((3..=60).map(|position| said(position, "x")));
    let resumed = resumed(&material(tail), None);
    assert_eq!(context(&resumed)["plan"], json!({"entries": ["new"]}));
    let composed = context(&resumed)["composed_prompt"].as_str().unwrap();
    assert!(composed.contains("\n[Last plan]\n{\"entries\":[\"new\"]}\n\n[Request]\n"));
}

#[test]
fn without_words_of_a_person_the_run_is_asked_to_continue() {
    let resumed = resumed(&material(Vec::new()), None);
    assert_eq!(resumed.run.prompt, CONTINUE_PROMPT);
    let composed = context(&resumed)["composed_prompt"].as_str().unwrap();
    assert!(composed.ends_with("\n[Request]\nContinue from the last known state."));
    assert!(!composed.contains("[Record"));
}

#[test]
fn the_agents_own_state_is_handed_on() {
    let state = json!({"acp_session_id": "s-1"});
    let material = ResumeMaterial {
        agent_state: Some(state.clone()),
        ..material(Vec::new())
    };
    let resumed = resumed(&material, None);
    assert_eq!(context(&resumed)["agent_state"], state);
}
