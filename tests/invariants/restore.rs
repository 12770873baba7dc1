//! Checkpoints and restores: one transaction, nothing deleted, everything there for an audit (I15;
//! design §4.6; ADR 13).

use serde_json::{Value, json};
use tapedeck_control_plane::commands::configure_session::SettingsPatch;
use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_control_plane::follow::EndReason;
use tapedeck_control_plane::{
    Error, FollowRequest, Followed, Outcome, PageRequest, RunFilter, SessionView, Start,
    TapeFilter, Target,
};
use tapedeck_domain::checkpoint::Checkpoint;
use tapedeck_domain::interaction::Scope;
use tapedeck_domain::run::{Run, RunStatus};
use tapedeck_domain::session::{ApprovalPolicy, SessionStatus, TurnStatus};
use tapedeck_domain::settle::Ending;
use tapedeck_domain::tape::TapeEntry;
use tapedeck_domain::{CheckpointId, Rejection, RunId, SessionId};

use crate::control::{Claim, NAMESPACE, TestControl};
use crate::write_paths::{assert_unchanged, cases};

on_every_store! {
    restore_is_atomic_and_keeps_audit,
    a_restore_that_fails_at_any_write_leaves_everything_as_it_was,
    a_restore_is_refused_while_a_run_is_active,
    a_restore_puts_aside_what_was_queued_before_and_ran_after_its_checkpoint,
    what_waits_in_a_held_queue_is_cancelled_by_a_restore,
    only_an_active_checkpoint_can_be_restored,
    restores_may_follow_one_another,
    the_run_after_a_restore_knows_that_the_agent_may_remember_more,
    a_stream_of_a_run_that_was_put_aside_says_so,
    checkpoints_are_counted_as_they_come_and_go,
}

pub(crate) async fn tape(
    t: &TestControl,
    session_id: SessionId,
    include_superseded: bool,
) -> Vec<TapeEntry> {
    let filter = TapeFilter {
        session_id,
        after: 0,
        limit: 1_000,
        max_bytes: usize::MAX,
        include_superseded,
    };
    t.control.tape(NAMESPACE, filter).await.unwrap()
}

/// A prompt whose run says one thing and completes.
pub(crate) async fn turn(t: &TestControl, session: SessionId, text: &str) -> Claim {
    t.prompt(session).await;
    let claim = t.claim("e1").await;
    t.say(&claim, "said", text).await.unwrap();
    let state = json!({"after": text});
    t.settle_with_state(&claim, Ending::Completed, Some(state))
        .await;
    claim
}

pub(crate) async fn checkpoint(t: &TestControl, session: SessionId, label: &str) -> Checkpoint {
    let label = Some(label.to_owned());
    let captured = t
        .control
        .capture_checkpoint(NAMESPACE, session, label, None);
    captured.await.unwrap()
}

async fn restore(t: &TestControl, session: SessionId, id: CheckpointId) -> Outcome<SessionView> {
    t.control
        .restore_session(NAMESPACE, session, id, None)
        .await
}

const FIRST_PAGE: PageRequest = PageRequest {
    before: None,
    limit: 100,
};

async fn runs(t: &TestControl, session: SessionId, include_superseded: bool) -> Vec<Run> {
    let filter = RunFilter {
        session_id: Some(session),
        include_superseded,
        unservable: false,
    };
    t.control
        .runs(NAMESPACE, filter, FIRST_PAGE)
        .await
        .unwrap()
        .items
}

async fn run_ids(t: &TestControl, session: SessionId, include_superseded: bool) -> Vec<RunId> {
    let runs = runs(t, session, include_superseded).await;
    runs.into_iter().map(|run| run.run_id).collect()
}

async fn checkpoints(t: &TestControl, session: SessionId, all: bool) -> Vec<CheckpointId> {
    let page = t
        .control
        .checkpoints(NAMESPACE, session, all, FIRST_PAGE)
        .await;
    let page = page.unwrap().items;
    page.into_iter()
        .map(|checkpoint| checkpoint.checkpoint_id)
        .collect()
}

fn agent(model: &str) -> SettingsPatch {
    SettingsPatch {
        agent: json!({"model": model}).as_object().cloned(),
        ..SettingsPatch::default()
    }
}

async fn configure(t: &TestControl, session: SessionId, patch: SettingsPatch) {
    let configured = t.control.configure_session(NAMESPACE, session, patch).await;
    configured.unwrap();
}

#[expect(
    clippy::too_many_lines,
    reason = "one story: what was, what came, what is after the restore"
)]
async fn restore_is_atomic_and_keeps_audit(t: TestControl) {
    let session = t.session().await;
    configure(&t, session, agent("a")).await;
    let first = turn(&t, session, "one").await;
    let kept = checkpoint(&t, session, "after one").await;
    let (kept_tape, kept_view) = (tape(&t, session, true).await, t.view(session).await);

    // Everything a session can have comes after it: settings, deltas, an approval, runs of all ends,
    // another checkpoint.
    configure(
        &t,
        session,
        SettingsPatch {
            title: Some(Some("renamed".to_owned())),
            approval_policy: Some(ApprovalPolicy::Auto),
            ..agent("b")
        },
    )
    .await;
    t.prompt(session).await;
    let second = t.claim("e1").await;
    t.say(&second, "a", "two, ").await.unwrap();
    t.say(&second, "b", "in two pieces").await.unwrap();
    let asked = t.ask(&second, "q1").await.unwrap().interaction_id;
    t.answer_in_scope(asked, true, Scope::Session)
        .await
        .unwrap();
    t.control
        .run_alone(cases::claim_write(
            "SaveSnapshot",
            second.proof.clone(),
            cases::new_ids(&t),
        ))
        .await
        .unwrap();
    t.settle(&second, Ending::Failed).await.unwrap();
    let third = turn(&t, session, "three").await;
    let later = checkpoint(&t, session, "after three").await;
    t.prompt(session).await;
    let fourth = t.claim("e1").await;
    t.say(&fourth, "a", "four is cut").await.unwrap();
    t.settle(&fourth, Ending::Interrupted).await.unwrap();

    let (whole_tape, log) = (tape(&t, session, true).await, t.log(session).await);
    let records = runs(&t, session, true).await;
    let question = t.control.interaction(NAMESPACE, asked).await.unwrap();
    let snapshot = t
        .control
        .snapshot(NAMESPACE, second.run_id())
        .await
        .unwrap();

    let view = restore(&t, session, kept.checkpoint_id).await.unwrap();

    // What is active is as it was, but for what describes the session to people.
    let settings = &view.session.settings;
    assert_eq!(settings.agent, kept_view.session.settings.agent);
    assert_eq!(
        settings.approval_policy,
        kept_view.session.settings.approval_policy
    );
    assert_eq!(settings.run_target, kept_view.session.settings.run_target);
    assert_eq!(settings.title.as_deref(), Some("renamed"));
    assert_eq!(view.session.summary, kept_view.session.summary);
    assert_eq!(view.head.active_run, None);
    assert_eq!(
        view.head.projection_epoch,
        kept_view.head.projection_epoch + 1
    );
    assert_eq!(tape(&t, session, false).await, kept_tape);
    assert_eq!(run_ids(&t, session, false).await, [first.run_id()]);
    assert_eq!(checkpoints(&t, session, false).await, [kept.checkpoint_id]);
    let latest = t
        .control
        .latest_settled_run(NAMESPACE, session)
        .await
        .unwrap();
    assert_eq!(latest.unwrap().run_id, first.run_id());

    // Everything is still there for an audit, marked with the checkpoint that put it aside.
    let by = Some(kept.checkpoint_id);
    let marked: Vec<_> = whole_tape
        .iter()
        .cloned()
        .map(|entry| TapeEntry {
            superseded_by_checkpoint_id: by.filter(|_| entry.position > kept.tape_position),
            ..entry
        })
        .collect();
    assert!(marked.len() > kept_tape.len());
    assert_eq!(tape(&t, session, true).await, marked);
    let now = t.view(session).await.session.updated_at;
    let marked: Vec<_> = records
        .into_iter()
        .map(|run| {
            let later = run.admitted_seq > kept.session_seq;
            Run {
                superseded_at: Some(now).filter(|_| later),
                superseded_by_checkpoint_id: by.filter(|_| later),
                ..run
            }
        })
        .collect();
    assert_eq!(runs(&t, session, true).await, marked);
    for run in [&first, &second, &third, &fourth] {
        let record = t.run(run.run_id()).await;
        assert!(marked.contains(&record), "by its own id, too");
    }
    assert_eq!(
        checkpoints(&t, session, true).await,
        [later.checkpoint_id, kept.checkpoint_id]
    );
    assert_eq!(
        t.control.interaction(NAMESPACE, asked).await.unwrap(),
        question
    );
    assert_eq!(
        t.control
            .snapshot(NAMESPACE, second.run_id())
            .await
            .unwrap(),
        snapshot
    );

    // The log goes on, and says what happened.
    let grown = t.log(session).await;
    assert_eq!(grown[..log.len()], log[..]);
    assert_eq!(grown.len(), log.len() + 1);
    let restored = grown.last().unwrap();
    assert_eq!(restored.kind, "SessionRestored");
    let payload = restored.payload.value();
    assert_eq!(payload["checkpoint_id"], json!(kept.checkpoint_id));
    assert_eq!(payload["superseded_runs"], 3);
    assert_eq!(
        payload["superseded_entries"],
        json!(whole_tape.len() - kept_tape.len())
    );
    // The conversation goes on from there, at positions and numbers that were never used.
    turn(&t, session, "five").await;
    let active = tape(&t, session, false).await;
    assert_eq!(active[..kept_tape.len()], kept_tape[..]);
    let last = whole_tape.last().unwrap().position;
    assert!(
        active[kept_tape.len()..]
            .iter()
            .all(|entry| entry.position > last)
    );
}

pub(crate) const TABLES: [&str; 19] = [
    "access_tokens",
    "approval_rules",
    "artifacts",
    "checkpoints",
    "claims",
    "events",
    "executors",
    "idempotency_keys",
    "interactions",
    "message_snapshots",
    "queue_turns",
    "run_heads",
    "run_materials",
    "run_queue",
    "runs",
    "session_heads",
    "sessions",
    "tape_entries",
    "tape_states",
];

async fn a_restore_that_fails_at_any_write_leaves_everything_as_it_was(t: TestControl) {
    let mut failed = Vec::new();
    for table in TABLES {
        for verb in ["INSERT", "UPDATE", "DELETE"] {
            // A checkpoint, a run and a checkpoint after it, and one that waits in a held queue.
            let (session, kept, _) = cases::settled(&t).await;
            checkpoint(&t, session, "later").await;
            t.prompt(session).await;
            let claim = t.claim("e1").await;
            t.enqueue(session).await;
            t.settle(&claim, Ending::Interrupted).await.unwrap();
            let before = t.store.dump().await;
            t.store.refuse(verb, table).await;
            let key = crate::control::key("restore", &format!("{verb} {table}"), "b");
            let keyed = t
                .control
                .restore_session(NAMESPACE, session, kept, Some(key));
            let outcome = keyed.await;
            t.store.allow_writes().await;
            if outcome.is_err() {
                assert!(matches!(outcome, Err(Error::Store(_))), "{outcome:?}");
                let what = format!("a restore without {verb} of {table}");
                assert_unchanged(&before, &t.store.dump().await, &what);
                failed.push(format!("{verb} {table}"));
                restore(&t, session, kept).await.unwrap();
            }
            t.control
                .delete_session(NAMESPACE, session, true)
                .await
                .unwrap();
        }
    }
    // Every row that a restore writes was refused once.
    for write in [
        "INSERT events",
        "INSERT idempotency_keys",
        "UPDATE checkpoints",
        "UPDATE runs",
        "DELETE run_heads",
        "UPDATE session_heads",
        "UPDATE sessions",
        "UPDATE tape_entries",
    ] {
        assert!(
            failed.iter().any(|name| name == write),
            "{write}: {failed:?}"
        );
    }
    assert!(failed.iter().any(|name| name.ends_with("tape_states")));
}

async fn a_restore_is_refused_while_a_run_is_active(t: TestControl) {
    let (session, kept, _) = cases::settled(&t).await;
    let admitted = t.prompt(session).await;
    let refused = async |what: &str| {
        let before = t.store.dump().await;
        let restored = t
            .control
            .run_alone(cases::restore(NAMESPACE, session, kept))
            .await;
        assert_rejected!(
            restored,
            Rejection::SessionBusy { active_run_id } if active_run_id == admitted.run_id
        );
        let captured = cases::capture(NAMESPACE, session, CheckpointId::new(t.control.new_id()));
        assert_rejected!(
            t.control.run_alone(captured).await,
            Rejection::SessionBusy { .. }
        );
        assert_unchanged(&before, &t.store.dump().await, what);
    };
    refused("requested").await;
    let claim = t.claim("e1").await;
    refused("claimed").await;
    t.beat(&claim).await.unwrap();
    refused("running").await;
    t.ask(&claim, "q").await.unwrap();
    refused("waiting for an answer").await;
    t.control
        .cancel_session(NAMESPACE, session, "client")
        .await
        .unwrap();
    refused("cancelling").await;
    t.settle(&claim, Ending::Cancelled).await.unwrap();
    restore(&t, session, kept).await.unwrap();
    t.control.close_session(NAMESPACE, session).await.unwrap();
    assert_rejected!(
        restore(&t, session, kept).await.map(|_| ()),
        Rejection::SessionClosed
    );
}

async fn a_restore_puts_aside_what_was_queued_before_and_ran_after_its_checkpoint(t: TestControl) {
    let (session, first) = t.running("e1").await;
    let queued = t.enqueue(session).await;
    t.settle(&first, Ending::Interrupted).await.unwrap();
    let kept = checkpoint(&t, session, "queue held").await;
    let kept_tape = tape(&t, session, false).await;
    t.control.continue_queue(NAMESPACE, session).await.unwrap();
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), queued.run_id);
    t.say(&claim, "a", "after the checkpoint").await.unwrap();
    t.complete(&claim).await;
    let view = restore(&t, session, kept.checkpoint_id).await.unwrap();
    assert_eq!(tape(&t, session, false).await, kept_tape);
    assert_eq!(view.session.summary.last_run_id, Some(first.run_id()));
    assert_eq!(view.session.summary.status, SessionStatus::Interrupted);
    assert_eq!(run_ids(&t, session, false).await, [first.run_id()]);
    let resumed = t.resume(session).await.unwrap();
    assert_eq!(
        t.run(resumed.run_id).await.parent_run_id,
        Some(first.run_id())
    );
}

async fn what_waits_in_a_held_queue_is_cancelled_by_a_restore(t: TestControl) {
    let session = t.session().await;
    turn(&t, session, "one").await;
    let kept = checkpoint(&t, session, "one").await;
    t.prompt(session).await;
    let claim = t.claim("e1").await;
    let waiting = [
        t.enqueue(session).await.run_id,
        t.enqueue(session).await.run_id,
    ];
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    assert!(t.view(session).await.session.summary.queue_held);
    let view = restore(&t, session, kept.checkpoint_id).await.unwrap();
    let summary = &view.session.summary;
    assert_eq!((summary.queued_runs, summary.queue_held), (0, false));
    assert_eq!(summary.turn_status, TurnStatus::Idle);
    for run in waiting {
        assert_eq!(t.run(run).await.status, RunStatus::Cancelled);
    }
    assert_rejected!(
        t.try_claim("e1").await.map(|_| ()),
        Rejection::NoRunAvailable
    );
    let kinds = t.kinds(session).await;
    assert_eq!(kinds.last().map(String::as_str), Some("SessionRestored"));
    assert_eq!(kinds.iter().filter(|kind| *kind == "TurnEnd").count(), 4);
}

async fn only_an_active_checkpoint_can_be_restored(t: TestControl) {
    let session = t.session().await;
    turn(&t, session, "one").await;
    let kept = checkpoint(&t, session, "kept").await;
    let deleted = checkpoint(&t, session, "deleted").await;
    turn(&t, session, "two").await;
    let later = checkpoint(&t, session, "later").await;
    let delete = |id| t.control.delete_checkpoint(NAMESPACE, session, id);
    delete(deleted.checkpoint_id).await.unwrap();
    restore(&t, session, kept.checkpoint_id).await.unwrap();
    for gone in [&deleted, &later] {
        let id = gone.checkpoint_id;
        let before = t.store.dump().await;
        for command in [
            cases::restore(NAMESPACE, session, id),
            cases::fork(
                NAMESPACE,
                session,
                ForkPoint::Checkpoint(id),
                (
                    SessionId::new(t.control.new_id()),
                    tapedeck_domain::TapeId::new(t.control.new_id()),
                ),
            ),
        ] {
            assert_rejected!(
                t.control.run_alone(command).await,
                Rejection::CheckpointSuperseded { checkpoint_id } if checkpoint_id == id
            );
        }
        let again = t
            .control
            .run_alone(cases::delete_checkpoint(NAMESPACE, session, id))
            .await;
        assert!(
            matches!(again, Err(Error::NotFound(Target::Checkpoint))),
            "{again:?}"
        );
        assert_unchanged(&before, &t.store.dump().await, "what is gone");
    }
    let unknown = CheckpointId::new(t.control.new_id());
    let unknown = restore(&t, session, unknown).await.map(|_| ());
    assert!(
        matches!(unknown, Err(Error::NotFound(Target::Checkpoint))),
        "{unknown:?}"
    );
}

async fn restores_may_follow_one_another(t: TestControl) {
    let session = t.session().await;
    let empty = checkpoint(&t, session, "empty").await;
    let one = turn(&t, session, "one").await;
    let after_one = checkpoint(&t, session, "one").await;
    let two = turn(&t, session, "two").await;
    let back = restore(&t, session, after_one.checkpoint_id).await.unwrap();
    assert_eq!(back.head.projection_epoch, 2);
    // The same again puts nothing aside, and is an event all the same.
    let again = restore(&t, session, after_one.checkpoint_id).await.unwrap();
    assert_eq!(again.head.projection_epoch, 3);
    let log = t.log(session).await;
    let last = log.last().unwrap().payload.value();
    assert_eq!(
        (&last["superseded_runs"], &last["superseded_entries"]),
        (&json!(0), &json!(0))
    );
    let three = turn(&t, session, "three").await;
    let texts = |tape: Vec<TapeEntry>| -> Vec<String> {
        let said = tape
            .iter()
            .filter_map(|entry| entry.payload["text"].as_str());
        said.filter(|text| *text != "do it")
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(texts(tape(&t, session, false).await), ["one", "three"]);
    // Back to before everything.
    let view = restore(&t, session, empty.checkpoint_id).await.unwrap();
    assert_eq!(view.session.summary.status, SessionStatus::Created);
    assert_eq!(view.session.summary.last_run_id, None);
    assert_eq!(tape(&t, session, false).await, []);
    assert_rejected!(t.resume(session).await, Rejection::NothingToResume);
    assert_eq!(
        texts(tape(&t, session, true).await),
        ["one", "two", "three"]
    );
    // Each row names the restore that put it aside, not a later one.
    let by = async |claim: &Claim| t.run(claim.run_id()).await.superseded_by_checkpoint_id;
    assert_eq!(by(&two).await, Some(after_one.checkpoint_id));
    assert_eq!(by(&one).await, Some(empty.checkpoint_id));
    assert_eq!(by(&three).await, Some(empty.checkpoint_id));
    let next = turn(&t, session, "anew").await;
    assert_eq!(
        next.claimed.resume_context, None,
        "nothing is left of the past"
    );
}

async fn the_run_after_a_restore_knows_that_the_agent_may_remember_more(t: TestControl) {
    let session = t.session().await;
    turn(&t, session, "one").await;
    let kept = checkpoint(&t, session, "one").await;
    let context = async |claim: &Claim| -> Value { claim.claimed.resume_context.clone().unwrap() };
    // Where nothing was put aside the agent remembers what the session does.
    restore(&t, session, kept.checkpoint_id).await.unwrap();
    let two = turn(&t, session, "two").await;
    let of_two = context(&two).await;
    assert_eq!(of_two["agent_state"], json!({"after": "one"}));
    assert_eq!(of_two["agent_state_diverged"], false);
    restore(&t, session, kept.checkpoint_id).await.unwrap();
    t.resume(session).await.unwrap();
    let three = t.claim("e1").await;
    let of_three = context(&three).await;
    assert_eq!(of_three["agent_state"], json!({"after": "one"}));
    assert_eq!(of_three["agent_state_diverged"], true);
    let composed = of_three["composed_prompt"].as_str().unwrap();
    assert!(composed.contains("Assistant: one"), "{composed}");
    assert!(!composed.contains("Assistant: two"), "{composed}");
    let state = json!({"after": "three"});
    t.settle_with_state(&three, Ending::Completed, Some(state))
        .await;
    // A run that has ended since knows it all.
    let four = turn(&t, session, "four").await;
    assert_eq!(context(&four).await["agent_state_diverged"], false);
}

async fn a_stream_of_a_run_that_was_put_aside_says_so(t: TestControl) {
    let session = t.session().await;
    let one = turn(&t, session, "one").await;
    let kept = checkpoint(&t, session, "one").await;
    let two = turn(&t, session, "two").await;
    restore(&t, session, kept.checkpoint_id).await.unwrap();
    let log = t.log(session).await;
    for (claim, expected) in [(one, EndReason::Settled), (two, EndReason::Superseded)] {
        let run_id = Some(claim.run_id());
        let of_run = log.iter().filter(|event| event.run_id == run_id);
        let numbers: Vec<_> = of_run.map(|event| event.session_seq).collect();
        // From the beginning, and after its end.
        for (after, expected_numbers) in [(0, numbers), (log.len() as u64, Vec::new())] {
            let request = FollowRequest {
                namespace: NAMESPACE.to_owned(),
                session_id: session,
                start: Start::After(after),
                run_id,
                kinds: Vec::new(),
            };
            let mut follower = t.control.follow(request).await.unwrap();
            let (mut seen, mut end) = (Vec::new(), None);
            while let Some(item) = follower.next().await.unwrap() {
                match item {
                    Followed::Events(events) => {
                        seen.extend(events.iter().map(|event| event.record.session_seq));
                    }
                    Followed::End(reason) => end = Some(reason),
                    Followed::Open { .. } | Followed::Live { .. } => {}
                }
            }
            assert_eq!((seen, end), (expected_numbers, Some(expected)));
        }
    }
}

async fn checkpoints_are_counted_as_they_come_and_go(t: TestControl) {
    let session = t.session().await;
    let latest = async || {
        let summary = t.view(session).await.session.summary;
        (
            summary.checkpoint_count,
            summary.latest_checkpoint_id,
            summary.latest_checkpoint_label,
        )
    };
    let shown = |count, checkpoint: &Checkpoint| {
        (
            count,
            Some(checkpoint.checkpoint_id),
            checkpoint.label.clone(),
        )
    };
    let first = checkpoint(&t, session, "first").await;
    turn(&t, session, "one").await;
    let second = checkpoint(&t, session, "second").await;
    assert_eq!(latest().await, shown(2, &second));
    assert!(second.tape_position > first.tape_position);
    assert_eq!(second.session_seq, t.log(session).await.len() as u64 - 1);
    assert_eq!(second.agent_state, Some(json!({"after": "one"})));
    t.control
        .delete_checkpoint(NAMESPACE, session, second.checkpoint_id)
        .await
        .unwrap();
    assert_eq!(latest().await, shown(1, &first));
    let third = checkpoint(&t, session, "third").await;
    assert_eq!(latest().await, shown(2, &third));
    t.control
        .delete_checkpoint(NAMESPACE, session, first.checkpoint_id)
        .await
        .unwrap();
    assert_eq!(latest().await, shown(1, &third));
    t.control
        .delete_checkpoint(NAMESPACE, session, third.checkpoint_id)
        .await
        .unwrap();
    assert_eq!(latest().await, (0, None, None));
    // What a person deletes is out of sight, never out of the database.
    let all = checkpoints(&t, session, true).await;
    assert_eq!(
        all,
        [
            third.checkpoint_id,
            second.checkpoint_id,
            first.checkpoint_id
        ]
    );
    assert_eq!(checkpoints(&t, session, false).await, []);
}
