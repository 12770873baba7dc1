use uuid::Uuid;

use super::*;
use crate::fixture::{RUN, after, run_id, session, settled};
use crate::owner::Authority;
use crate::run::RunStatus;
use crate::session::SessionStatus;

fn checkpoint_id(number: u128) -> CheckpointId {
    CheckpointId::new(Uuid::from_u128(number))
}

fn head(seq: u64) -> SessionHead {
    let authority = Authority {
        owner_id: "server:1".to_owned(),
        epoch: None,
        lease_ms: 60_000,
    };
    let session = session();
    let mut head = SessionHead::new(session.key, session.session_id, &authority, after(0));
    head.head_seq = seq;
    head
}

fn captured(session: &mut Session, seq: u64, number: u128) -> (Checkpoint, Draft) {
    let material = CaptureMaterial {
        run_id: Some(RUN),
        agent_state: Some(json!({"token": 1})),
        snapshot_id: Some(format!("{RUN}:latest")),
        tape_position: 4,
    };
    let label = Some(format!("mark {number}"));
    capture(
        session,
        &head(seq),
        material,
        checkpoint_id(number),
        label,
        after(3),
    )
    .unwrap()
}

#[test]
fn a_capture_records_the_place_and_shows_in_the_summary() {
    let mut session = session();
    session
        .settings
        .agent
        .insert("model".to_owned(), json!("one"));
    let (checkpoint, event) = captured(&mut session, 9, 1);
    assert_eq!((checkpoint.tape_position, checkpoint.session_seq), (4, 9));
    assert_eq!(checkpoint.settings.agent["model"], "one");
    assert!(checkpoint.is_active());
    assert_eq!(session.summary.checkpoint_count, 1);
    assert_eq!(
        session.summary.latest_checkpoint_label.as_deref(),
        Some("mark 1")
    );
    assert_eq!(event.kind, "CheckpointCaptured");
    assert_eq!(event.payload.value()["tape_position"], 4);
}

#[test]
fn nothing_is_captured_while_a_run_is_active_or_after_the_close() {
    let mut busy = session();
    busy.summary.active_run_id = Some(RUN);
    let mut closed = session();
    closed.closed_at = Some(after(1).wall);
    let material = CaptureMaterial::default;
    let id = checkpoint_id(1);
    let refused = capture(&mut busy, &head(1), material(), id, None, after(2));
    assert_eq!(
        refused.unwrap_err(),
        Rejection::SessionBusy { active_run_id: RUN }
    );
    let refused = capture(&mut closed, &head(1), material(), id, None, after(2));
    assert_eq!(refused.unwrap_err(), Rejection::SessionClosed);
    assert_eq!(
        busy.summary.checkpoint_count + closed.summary.checkpoint_count,
        0
    );
}

#[test]
fn a_restore_brings_back_settings_and_summary_and_opens_a_new_view() {
    let mut session = session();
    session.settings.title = Some("Title".to_owned());
    session
        .settings
        .agent
        .insert("model".to_owned(), json!("one"));
    let (checkpoint, _) = captured(&mut session, 9, 1);
    session
        .settings
        .agent
        .insert("model".to_owned(), json!("two"));
    session.settings.title = Some("Renamed".to_owned());
    session.summary.last_run_id = Some(run_id(2));
    session.summary.last_run_status = Some(RunStatus::Failed);
    session.summary.queue_held = true;
    let mut head = head(20);
    let mut latest = settled(RunStatus::Completed);
    latest.settled_seq = Some(8);
    let remaining = Remaining {
        latest: Some(latest),
        last_interrupted_run_id: None,
        checkpoint_count: 1,
        superseded_runs: 1,
        superseded_entries: 3,
    };
    let event = restore(&mut session, &mut head, &checkpoint, &remaining, after(9));
    assert_eq!(session.settings.agent["model"], "one");
    assert_eq!(
        session.settings.title.as_deref(),
        Some("Renamed"),
        "people's notes stay"
    );
    assert_eq!(session.summary.last_run_id, Some(RUN));
    assert_eq!(session.summary.status, SessionStatus::Completed);
    assert_eq!(
        session.summary.resume_from_event_id.as_deref(),
        Some("srv:8")
    );
    assert!(!session.summary.queue_held);
    assert_eq!(session.restored_seq, Some(21));
    assert_eq!((head.projection_epoch, head.head_seq), (2, 20));
    assert_eq!(event.payload.value()["superseded_runs"], 1);
}

#[test]
fn a_restore_to_the_present_leaves_the_agents_memory_valid() {
    let mut session = session();
    let (checkpoint, _) = captured(&mut session, 9, 1);
    let remaining = Remaining::default();
    restore(
        &mut session,
        &mut head(10),
        &checkpoint,
        &remaining,
        after(9),
    );
    assert_eq!(session.restored_seq, None);
    assert_eq!(session.summary.status, SessionStatus::Created);
}

#[test]
fn what_was_put_aside_or_deleted_is_no_longer_active() {
    let (checkpoint, _) = captured(&mut session(), 9, 1);
    let mut superseded = checkpoint.clone();
    superseded.superseded_at = Some(after(5).wall);
    let mut deleted = checkpoint.clone();
    deleted.deleted_at = Some(after(5).wall);
    assert_eq!(checkpoint.check_active(), Ok(()));
    for gone in [superseded, deleted] {
        let refused = Rejection::CheckpointSuperseded {
            checkpoint_id: checkpoint_id(1),
        };
        assert_eq!(gone.check_active(), Err(refused));
    }
}

#[test]
fn a_deleted_checkpoint_leaves_the_summary_with_the_newest_that_stays() {
    let mut session = session();
    let (first, _) = captured(&mut session, 9, 1);
    captured(&mut session, 12, 2);
    delete(&mut session, Some(&first), after(9));
    assert_eq!(session.summary.checkpoint_count, 1);
    assert_eq!(session.summary.latest_checkpoint_id, Some(checkpoint_id(1)));
    delete(&mut session, None, after(9));
    assert_eq!(session.summary.checkpoint_count, 0);
    assert_eq!(session.summary.latest_checkpoint_label, None);
}

#[test]
fn a_fork_takes_the_checkpoints_settings_and_shares_no_state() {
    let mut source = session();
    source
        .settings
        .agent
        .insert("model".to_owned(), json!("one"));
    let (checkpoint, _) = captured(&mut source, 9, 1);
    source
        .settings
        .agent
        .insert("model".to_owned(), json!("two"));
    source.summary.last_run_id = Some(RUN);
    source.summary.pending_interactions = 2;
    let request = Fork {
        session_id: SessionId::new(Uuid::from_u128(900)),
        tape_id: TapeId::new(Uuid::from_u128(901)),
        title: Some("Other way".to_owned()),
    };
    let origin = ForkOrigin {
        session_id: source.session_id,
        checkpoint_id: Some(checkpoint_id(1)),
        session_seq: 9,
    };
    let (forked, event) = fork(&source, Some(&checkpoint), origin, &request, after(9));
    assert_eq!(forked.settings.agent["model"], "one");
    assert_eq!(forked.settings.title.as_deref(), Some("Other way"));
    assert_eq!(forked.summary, SessionSummary::empty());
    assert_eq!(forked.forked_from, Some(origin));
    assert_ne!(forked.tape_id, source.tape_id);
    assert_eq!(event.kind, "SessionForked");
    let (now, _) = fork(
        &source,
        None,
        origin,
        &Fork {
            title: None,
            ..request
        },
        after(9),
    );
    assert_eq!(now.settings.agent["model"], "two");
    assert_eq!(now.settings.title, source.settings.title);
}
