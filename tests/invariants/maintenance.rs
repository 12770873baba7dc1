//! Repairs: only where no live owner exists, and never without a trace (I20; design §4.8).

use tapedeck_domain::Rejection;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::settle::Ending;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_store::SessionView;

use crate::control::{NAMESPACE, TestControl};
use crate::write_paths::assert_unchanged;

on_every_store! {
    maintenance_needs_no_live_owner,
    a_repair_leaves_its_event_each_time_and_changes_what_is_sound_in_nothing,
    a_repair_derives_again_what_was_broken,
    a_repaired_queue_is_claimable_again,
    a_queue_that_nobody_would_ever_continue_is_held_again,
}

// That a local process is dead is known by its lock on a file in the directory.
on_sqlite! {
    a_repair_need_not_wait_for_the_lease_of_a_dead_owner,
}

async fn repair(t: &TestControl, session: SessionId) -> Vec<&'static str> {
    let repaired = t.control.repair_session(NAMESPACE, session, "doctor").await;
    repaired.unwrap()
}

async fn refused(by: &TestControl, t: &TestControl, session: SessionId) {
    let owner = t.view(session).await.head.owner.unwrap();
    let lease_ends = t
        .control
        .now()
        .await
        .unwrap()
        .wall_of(owner.expires_at.unwrap());
    let before = t.store.dump().await;
    assert_rejected!(
        by.control.repair_session(NAMESPACE, session, "doctor").await,
        Rejection::OwnedElsewhere { ref owner_id, until }
            if *owner_id == owner.owner_id && until == lease_ends
    );
    assert_unchanged(&before, &t.store.dump().await, "a refused repair");
}

async fn maintenance_needs_no_live_owner(t: TestControl) {
    let session = t.session().await;
    let other = TestControl::owned_by(t.store.shared(), "server:other").await;
    // The owner itself is one that is live.
    refused(&t, &t, session).await;
    refused(&other, &t, session).await;
    t.pass(59_999).await;
    refused(&other, &t, session).await;
    t.pass(1).await;
    repair(&other, session).await;
    // A live claim keeps its session owned.
    let (busy, _claim) = t.running("e1").await;
    t.pass(59_000).await;
    refused(&other, &t, busy).await;
    t.pass(1_000).await;
    repair(&other, busy).await;
    // Released is as good as ended.
    let released = t.session().await;
    t.control.release_owner(NAMESPACE, released).await.unwrap();
    repair(&t, released).await;
    // It acquires nothing, so there is still nobody.
    repair(&other, released).await;
}

fn repairs(log: &[EventRecord]) -> Vec<serde_json::Value> {
    let repaired = log.iter().filter(|event| event.kind == "SessionRepaired");
    repaired.map(|event| event.payload.value()).collect()
}

/// A session in which everything that is derived is something: a settled and an interrupted run, a
/// checkpoint, a run that works and asks, and one that waits. Its owner is gone.
async fn rich(t: &TestControl) -> (SessionId, RunId) {
    let (session, first) = t.running("e1").await;
    t.say(&first, "a", "x").await.unwrap();
    t.settle(&first, Ending::Interrupted).await.unwrap();
    let label = Some("here".to_owned());
    let captured = t
        .control
        .capture_checkpoint(NAMESPACE, session, label, None);
    captured.await.unwrap();
    t.prompt(session).await;
    let second = t.claim("e1").await;
    t.ask(&second, "q").await.unwrap();
    t.enqueue(session).await;
    t.pass(61_000).await;
    (session, second.run_id())
}

/// What a repair may not change: all but the log's end and the time of the last change.
fn kept(mut view: SessionView) -> SessionView {
    view.head.head_seq = 0;
    view.session.updated_at = view.session.created_at;
    view.session.last_activity_at = view.session.created_at;
    view.head.last_activity_at = view.session.created_at;
    view
}

async fn a_repair_leaves_its_event_each_time_and_changes_what_is_sound_in_nothing(t: TestControl) {
    let (session, run) = rich(&t).await;
    let (view, log, record) = (
        t.view(session).await,
        t.log(session).await,
        t.run(run).await,
    );
    for time in 1..=3 {
        assert_eq!(repair(&t, session).await, Vec::<&str>::new());
        let now = t.log(session).await;
        assert_eq!(now[..log.len()], log[..]);
        let traces = repairs(&now);
        assert_eq!(traces.len(), time);
        assert_eq!(
            traces[0],
            serde_json::json!({"by": "doctor", "changed": []})
        );
        assert_eq!(now.len(), log.len() + time);
        assert_eq!(kept(t.view(session).await), kept(view.clone()));
        assert_eq!(t.run(run).await, record);
    }
    // Owner and epoch are as they were, so nothing was taken over.
    let owner = t.view(session).await.head.owner.unwrap();
    assert_eq!(owner, view.head.owner.unwrap());
}

async fn a_repair_derives_again_what_was_broken(t: TestControl) {
    let (session, run) = rich(&t).await;
    let sound = t.view(session).await;
    let everything = "UPDATE sessions SET active_run_id = NULL, last_run_id = NULL, \
        last_run_status = 'completed', last_interrupted_run_id = NULL, \
        resume_from_event_id = 'srv:99', queued_runs = 7, \
        pending_interactions = 5, checkpoint_count = 0, latest_checkpoint_id = NULL, \
        latest_checkpoint_label = 'wrong', status = 'closed', turn_status = 'idle'; \
        UPDATE session_heads SET active_run_key = NULL; \
        UPDATE run_heads SET pending_interactions = 9";
    t.store.run(everything).await;
    let changed = repair(&t, session).await;
    let expected = [
        "head.active_run",
        "active_run_id",
        "last_run_id",
        "last_run_status",
        "last_interrupted_run_id",
        "resume_from_event_id",
        "queued_runs",
        "pending_interactions",
        "checkpoint_count",
        "latest_checkpoint",
        "status",
        "turn_status",
    ];
    assert_eq!(changed, expected);
    assert_eq!(kept(t.view(session).await), kept(sound.clone()));
    let pending = "SELECT CAST(pending_interactions AS BIGINT) FROM run_heads ORDER BY run_key";
    assert_eq!(t.store.values::<i64>(pending).await, [1, 0]);
    // The trace says what was wrong, and the next repair finds nothing.
    let traces = repairs(&t.log(session).await);
    assert_eq!(traces[0]["changed"], serde_json::json!(expected));
    assert_eq!(repair(&t, session).await, Vec::<&str>::new());
    // Each fault by itself is found, too, and nothing beside it.
    for (fault, name) in [
        ("sessions SET queued_runs = 0", "queued_runs"),
        ("sessions SET last_run_status = 'failed'", "last_run_status"),
        ("sessions SET checkpoint_count = 4", "checkpoint_count"),
        ("sessions SET turn_status = 'idle'", "turn_status"),
        ("session_heads SET active_run_key = NULL", "head.active_run"),
    ] {
        t.store.run(&format!("UPDATE {fault}")).await;
        assert_eq!(repair(&t, session).await, [name], "{fault}");
        assert_eq!(kept(t.view(session).await), kept(sound.clone()), "{fault}");
    }
    // The session goes on: the sweep ends the run that nobody holds any more.
    t.sweep().await;
    t.sweep().await;
    assert!(t.run(run).await.status.is_terminal());
}

async fn a_repaired_queue_is_claimable_again(t: TestControl) {
    let session = t.session().await;
    let waiting = t.prompt(session).await;
    t.store.run("DELETE FROM run_queue").await;
    assert_rejected!(
        t.try_claim("e1").await.map(|_| ()),
        Rejection::NoRunAvailable
    );
    t.control.release_owner(NAMESPACE, session).await.unwrap();
    repair(&t, session).await;
    repair(&t, session).await;
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), waiting.run_id);
    // And a place in the queue that belongs to nobody who waits is none.
    t.beat(&claim).await.unwrap();
    t.complete(&claim).await;
    assert_rejected!(
        t.try_claim("e1").await.map(|_| ()),
        Rejection::NoRunAvailable
    );
}

async fn a_repair_need_not_wait_for_the_lease_of_a_dead_owner(t: TestControl) {
    let local = "cli:01890000-0000-7000-8000-000000000001";
    let store = t.store.reopened_by(t.control, local).await;
    let local = TestControl::owned_by(store, local).await;
    let session = local.session().await;
    refused(&local, &local, session).await;
    // The process ends without releasing anything, and a server comes.
    let server = local.restarted().await;
    let owner = server.view(session).await.head.owner.unwrap();
    repair(&server, session).await;
    assert_eq!(server.view(session).await.head.owner.unwrap(), owner);
}

async fn a_queue_that_nobody_would_ever_continue_is_held_again(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let waiting = t.enqueue(session).await;
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    t.store
        .run("UPDATE sessions SET queue_held = NOT queue_held")
        .await;
    t.control.release_owner(NAMESPACE, session).await.unwrap();
    assert_eq!(repair(&t, session).await, ["queue_held"]);
    t.control.continue_queue(NAMESPACE, session).await.unwrap();
    assert_eq!(t.claim("e1").await.run_id(), waiting.run_id);
}
