//! Forks: a session of its own that begins with another one's settled conversation, and leaves that
//! one as it is (design §4.6; ADR 13; I19).

use serde_json::{Value, json};
use tapedeck_control_plane::commands::configure_session::SettingsPatch;
use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_control_plane::{Error, Outcome, SessionView, StoreError, Target};
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::{ApprovalPolicy, SessionStatus};
use tapedeck_domain::settle::Ending;
use tapedeck_domain::tape::TapeEntry;
use tapedeck_domain::{Rejection, SessionId};

use crate::control::{NAMESPACE, TestControl, key};
use crate::restore::{TABLES, checkpoint, tape, turn};
use crate::write_paths::{assert_unchanged, cases};

on_every_store! {
    a_fork_leaves_its_source_exactly_as_it_is,
    a_fork_begins_with_what_had_settled_at_its_point,
    a_fork_from_a_checkpoint_has_its_settings_and_not_its_agent,
    a_busy_session_can_be_forked_and_goes_on,
    forks_of_forks_keep_the_whole_conversation,
    a_fork_outlives_its_source,
    the_first_run_of_a_fork_gets_the_record,
    a_fork_that_fails_at_any_write_leaves_nothing,
    a_fork_of_a_restored_session_has_its_active_tape_only,
}

async fn try_fork(t: &TestControl, source: SessionId, point: ForkPoint) -> Outcome<SessionView> {
    t.control
        .fork_session(NAMESPACE, source, point, None, None)
        .await
}

async fn fork(t: &TestControl, source: SessionId, point: ForkPoint) -> SessionId {
    try_fork(t, source, point).await.unwrap().session.session_id
}

/// What of an entry a fork takes along.
fn copied(tape: &[TapeEntry]) -> Vec<(u64, &'static str, Value)> {
    let parts = |entry: &TapeEntry| (entry.position, entry.kind.as_str(), entry.payload.clone());
    tape.iter().map(parts).collect()
}

async fn a_fork_leaves_its_source_exactly_as_it_is(t: TestControl) {
    let (source, kept, last) = cases::settled(&t).await;
    let settled_seq = t.run(last.run_id()).await.settled_seq.unwrap();
    for point in [
        ForkPoint::Checkpoint(kept),
        ForkPoint::Seq(settled_seq),
        ForkPoint::Seq(0),
        ForkPoint::Head,
    ] {
        let before = t.store.dump().await;
        let fork = fork(&t, source, point).await;
        let after = t.store.dump().await;
        let gone: Vec<_> = before.iter().filter(|row| !after.contains(row)).collect();
        assert!(gone.is_empty(), "{point:?} changed {gone:#?}");
        assert!(after.len() > before.len());
        // Nor does anything that happens in the fork reach the source.
        let before = (
            t.view(source).await,
            t.log(source).await,
            tape(&t, source, true).await,
        );
        turn(&t, fork, "in the fork").await;
        checkpoint(&t, fork, "of the fork").await;
        t.control
            .delete_session(NAMESPACE, fork, false)
            .await
            .unwrap();
        let after = (
            t.view(source).await,
            t.log(source).await,
            tape(&t, source, true).await,
        );
        assert_eq!(before, after);
    }
}

async fn a_fork_begins_with_what_had_settled_at_its_point(t: TestControl) {
    let session = t.session().await;
    let one = turn(&t, session, "one").await;
    let two = turn(&t, session, "two").await;
    let whole = tape(&t, session, false).await;
    let ends = [
        t.run(one.run_id()).await.settled_seq.unwrap(),
        t.run(two.run_id()).await.settled_seq.unwrap(),
    ];
    let head = t.log(session).await.len() as u64;
    let through = |end: u64| -> Vec<TapeEntry> {
        let within = whole.iter().filter(|entry| entry.first_seq <= end);
        within.cloned().collect()
    };
    for seq in 0..=head {
        let settled = ends
            .iter()
            .rev()
            .find(|end| **end <= seq)
            .copied()
            .unwrap_or(0);
        let fork = try_fork(&t, session, ForkPoint::Seq(seq)).await.unwrap();
        let id = fork.session.session_id;
        let own = tape(&t, id, false).await;
        assert_eq!(copied(&own), copied(&through(settled)), "by {seq}");
        assert!(
            own.iter()
                .all(|entry| !whole.iter().any(|of| of.entry_id == entry.entry_id))
        );
        let origin = fork.session.forked_from.unwrap();
        assert_eq!((origin.session_id, origin.session_seq), (session, seq));
        assert_eq!(fork.session.summary.status, SessionStatus::Created);
        let log = t.log(id).await;
        assert_eq!(log.len(), 1);
        assert_eq!(log[0].kind, "SessionForked");
        assert_eq!(
            log[0].payload.value()["forked_from_session_id"],
            json!(session)
        );
        assert_eq!(log[0].payload.value()["session_seq"], seq);
    }
    let before = t.store.dump().await;
    assert_rejected!(
        try_fork(&t, session, ForkPoint::Seq(head + 1))
            .await
            .map(|_| ()),
        Rejection::Invalid(_)
    );
    let unknown = try_fork(&t, SessionId::new(t.control.new_id()), ForkPoint::Head).await;
    assert!(
        matches!(unknown, Err(Error::NotFound(Target::Session))),
        "{unknown:?}"
    );
    assert_unchanged(&before, &t.store.dump().await, "a refused fork");
}

async fn a_fork_from_a_checkpoint_has_its_settings_and_not_its_agent(t: TestControl) {
    let (session, first) = t.running("e1").await;
    t.say(&first, "a", "one").await.unwrap();
    t.settle_with_state(&first, Ending::Completed, Some(json!({"agent": 1})))
        .await;
    let kept = checkpoint(&t, session, "kept").await;
    let patch = SettingsPatch {
        title: Some(Some("renamed".to_owned())),
        approval_policy: Some(ApprovalPolicy::Yolo),
        ..SettingsPatch::default()
    };
    t.control
        .configure_session(NAMESPACE, session, patch)
        .await
        .unwrap();
    turn(&t, session, "two").await;
    let forked = try_fork(&t, session, ForkPoint::Checkpoint(kept.checkpoint_id))
        .await
        .unwrap();
    let settings = &forked.session.settings;
    assert_eq!(settings.approval_policy, ApprovalPolicy::Interactive);
    assert_eq!(settings.title.as_deref(), Some("renamed"));
    let origin = forked.session.forked_from.unwrap();
    assert_eq!(origin.checkpoint_id, Some(kept.checkpoint_id));
    assert_eq!(origin.session_seq, kept.session_seq);
    let now = try_fork(&t, session, ForkPoint::Head).await.unwrap();
    assert_eq!(now.session.settings.approval_policy, ApprovalPolicy::Yolo);
    // Two sessions must not write into one conversation of an agent.
    for fork in [forked, now] {
        let claim = turn(&t, fork.session.session_id, "x").await;
        let context = claim.claimed.resume_context.unwrap();
        assert_eq!(context["agent_state"], Value::Null);
        assert_eq!(context["message_snapshot"], Value::Null);
    }
}

async fn a_busy_session_can_be_forked_and_goes_on(t: TestControl) {
    let session = t.session().await;
    turn(&t, session, "one").await;
    let settled = tape(&t, session, false).await;
    t.prompt(session).await;
    let claim = t.claim("e1").await;
    t.say(&claim, "a", "not settled").await.unwrap();
    t.ask(&claim, "q").await.unwrap();
    let fork = fork(&t, session, ForkPoint::Head).await;
    assert_eq!(copied(&tape(&t, fork, false).await), copied(&settled));
    let summary = t.view(fork).await.session.summary;
    assert_eq!(
        (summary.active_run_id, summary.pending_interactions),
        (None, 0)
    );
    turn(&t, fork, "beside it").await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Running);
    t.say(&claim, "b", " yet").await.unwrap();
    t.complete(&claim).await;
    assert!(tape(&t, session, false).await.len() > settled.len());
}

async fn forks_of_forks_keep_the_whole_conversation(t: TestControl) {
    let mut sessions = vec![t.session().await];
    for text in ["one", "two", "three", "four"] {
        let last = *sessions.last().unwrap();
        turn(&t, last, text).await;
        sessions.push(fork(&t, last, ForkPoint::Head).await);
    }
    for pair in sessions.windows(2) {
        let of_source = tape(&t, pair[0], false).await;
        let of_fork = tape(&t, pair[1], false).await;
        assert_eq!(copied(&of_fork[..of_source.len()]), copied(&of_source));
        assert_eq!(
            t.view(pair[1])
                .await
                .session
                .forked_from
                .map(|origin| origin.session_id),
            Some(pair[0])
        );
    }
    // A fork that nothing has settled in begins its own forks with all that it was made with.
    let last = *sessions.last().unwrap();
    for point in [ForkPoint::Head, ForkPoint::Seq(0)] {
        let again = fork(&t, last, point).await;
        assert_eq!(
            copied(&tape(&t, again, false).await),
            copied(&tape(&t, last, false).await)
        );
    }
    let kept = checkpoint(&t, last, "before anything").await;
    turn(&t, last, "five").await;
    let of_checkpoint = fork(&t, last, ForkPoint::Checkpoint(kept.checkpoint_id)).await;
    let said = tape(&t, of_checkpoint, false).await;
    let said = said
        .iter()
        .filter(|entry| entry.kind.as_str() == "assistant_message");
    let said: Vec<_> = said.map(|entry| entry.payload["text"].clone()).collect();
    assert_eq!(said, ["one", "two", "three", "four"]);
}

async fn a_fork_outlives_its_source(t: TestControl) {
    let source = t.session().await;
    turn(&t, source, "one").await;
    let kept = checkpoint(&t, source, "kept").await;
    let forked = fork(&t, source, ForkPoint::Checkpoint(kept.checkpoint_id)).await;
    turn(&t, forked, "two").await;
    let of_fork = checkpoint(&t, forked, "of the fork").await;
    let before = (
        t.view(forked).await,
        t.log(forked).await,
        tape(&t, forked, true).await,
    );
    t.control
        .delete_session(NAMESPACE, source, false)
        .await
        .unwrap();
    let after = (
        t.view(forked).await,
        t.log(forked).await,
        tape(&t, forked, true).await,
    );
    assert_eq!(before, after);
    let three = turn(&t, forked, "three").await;
    let composed = three.claimed.resume_context.unwrap()["composed_prompt"].clone();
    let composed = composed.as_str().unwrap();
    assert!(composed.contains("Assistant: one") && composed.contains("Assistant: two"));
    let restored = t
        .control
        .restore_session(NAMESPACE, forked, of_fork.checkpoint_id, None)
        .await;
    restored.unwrap();
    assert_eq!(tape(&t, forked, false).await, before.2);
}

async fn the_first_run_of_a_fork_gets_the_record(t: TestControl) {
    let source = t.session().await;
    turn(&t, source, "what was said").await;
    let forked = fork(&t, source, ForkPoint::Head).await;
    let record = tape(&t, forked, false).await;
    t.prompt(forked).await;
    let claim = t.claim("e1").await;
    let context = claim.claimed.resume_context.clone().unwrap();
    assert_eq!(context["forked_from_session_id"], json!(source));
    assert_eq!(context["previous_run_id"], Value::Null);
    assert_eq!(context["raw_prompt"], "do it");
    let composed = context["composed_prompt"].as_str().unwrap();
    assert!(composed.contains("Assistant: what was said"), "{composed}");
    assert!(composed.ends_with("do it"), "{composed}");
    let tail = context["tape_tail"].as_array().unwrap();
    assert_eq!(tail.len(), record.len());
    // There is nothing to resume before a run of its own has settled.
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    let resumed = t.resume(forked).await.unwrap();
    assert_eq!(
        t.run(resumed.run_id).await.parent_run_id,
        Some(claim.run_id())
    );
    let other = fork(&t, source, ForkPoint::Head).await;
    assert_rejected!(t.resume(other).await, Rejection::NothingToResume);
}

async fn a_fork_that_fails_at_any_write_leaves_nothing(t: TestControl) {
    let (source, kept, _) = cases::settled(&t).await;
    let mut failed = Vec::new();
    for table in TABLES {
        for verb in ["INSERT", "UPDATE"] {
            let before = t.store.dump().await;
            t.store.refuse(verb, table).await;
            let key = key("fork", &format!("{verb} {table}"), "b");
            let point = ForkPoint::Checkpoint(kept);
            let outcome = t
                .control
                .fork_session(NAMESPACE, source, point, None, Some(key));
            let outcome = outcome.await;
            t.store.allow_writes().await;
            if let Err(error) = outcome {
                assert!(
                    matches!(error, Error::Store(StoreError::Internal(_))),
                    "{error:?}"
                );
                let what = format!("a fork without {verb} of {table}");
                assert_unchanged(&before, &t.store.dump().await, &what);
                failed.push(format!("{verb} {table}"));
            }
        }
    }
    for table in [
        "sessions",
        "session_heads",
        "events",
        "tape_entries",
        "tape_states",
    ] {
        let name = format!("INSERT {table}");
        assert!(failed.contains(&name), "{name}: {failed:?}");
    }
    assert!(failed.contains(&"INSERT idempotency_keys".to_owned()));
}

async fn a_fork_of_a_restored_session_has_its_active_tape_only(t: TestControl) {
    let (source, kept, last) = cases::settled(&t).await;
    let settled_seq = t.run(last.run_id()).await.settled_seq.unwrap();
    let restored = t.control.restore_session(NAMESPACE, source, kept, None);
    restored.await.unwrap();
    let active = tape(&t, source, false).await;
    for point in [ForkPoint::Head, ForkPoint::Seq(settled_seq)] {
        let forked = fork(&t, source, point).await;
        assert_eq!(
            copied(&tape(&t, forked, true).await),
            copied(&active),
            "{point:?}"
        );
    }
}
