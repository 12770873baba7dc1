//! What is written comes back as it was.

use serde_json::{Map, json};
use tapedeck_domain::RuleId;
use tapedeck_domain::checkpoint::ForkOrigin;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::interaction::InteractionStatus;
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::rule::{ArgumentPattern, Decision, Maker, RuleTerms, made};
use tapedeck_domain::run::{RunState, RunStatus};
use tapedeck_domain::session::{
    ApprovalPolicy, Constraints, ExecutorTarget, RunTarget, Session, SessionStatus, TurnStatus,
    Workspace,
};
use tapedeck_domain::tape::{EntryKind, EntrySource, NewEntry, OpenText, TapeState};
use tapedeck_domain::{CheckpointId, LeaseInstant, RunKey, TapeEntryId, Timestamp};
use tapedeck_store::{Failure, Store as _, StoreError};
use uuid::Uuid;

use crate::support::{
    Fixture, LEASE, WALL, claim, event, owner, question, run, run_id, session, session_id,
};

fn full_session(number: u128) -> Session {
    let mut session = session(number);
    let settings = &mut session.settings;
    settings.title = Some("a title".to_owned());
    settings.approval_policy = ApprovalPolicy::Auto;
    settings.agent.insert("model".to_owned(), json!("m"));
    settings.run_target = RunTarget {
        workspace: Some(Workspace::local_path("/somewhere")),
        executor: ExecutorTarget {
            pool: "p".to_owned(),
            labels: [("gpu".to_owned(), "yes".to_owned())].into(),
            executor_id: Some("pinned".to_owned()),
            ..ExecutorTarget::default()
        },
        isolation: Some("container".to_owned()),
        constraints: Constraints {
            max_attempts: Some(2),
            ..Constraints::default()
        },
        annotations: Map::new(),
    };
    settings.origin = Some("cli".to_owned());
    settings.metadata.insert("k".to_owned(), json!([1, null]));
    session.closed_at = Some(Timestamp(WALL + 9));
    session.forked_from = Some(ForkOrigin {
        session_id: session_id(8),
        checkpoint_id: Some(CheckpointId::new(Uuid::from_u128(9))),
        session_seq: 10,
    });
    session.restored_seq = Some(11);
    session.folded_seq = Some(12);
    session.updated_at = Timestamp(WALL + 1);
    let summary = &mut session.summary;
    summary.status = SessionStatus::WaitingApproval;
    summary.turn_status = TurnStatus::WaitingApproval;
    summary.active_run_id = Some(run_id(1));
    summary.last_run_id = Some(run_id(2));
    summary.last_run_status = Some(RunStatus::Interrupted);
    summary.last_interrupted_run_id = Some(run_id(3));
    summary.resume_from_event_id = Some("event".to_owned());
    summary.queued_runs = 4;
    summary.queue_held = true;
    summary.pending_interactions = 5;
    summary.checkpoint_count = 6;
    summary.latest_checkpoint_id = Some(CheckpointId::new(Uuid::from_u128(7)));
    summary.latest_checkpoint_label = Some("label".to_owned());
    session
}

#[tokio::test]
async fn a_session_and_its_head_come_back_as_they_were() {
    let fixture = Fixture::open().await;
    let written = run(&fixture.store, |tx| {
        Box::pin(async move {
            let mut session = full_session(1);
            session.key = tx.insert_session(&session).await?;
            let mut head = SessionHead::new(session.key, session.session_id, &owner(), tx.now());
            tx.insert_head(&head).await?;
            let locked = tx.lock_session_by_key(session.key).await?;
            assert_eq!((&locked.session, &locked.head), (&session, &head));

            session.settings.title = None;
            session.restored_seq = Some(13);
            session.summary.status = SessionStatus::Closed;
            session.summary.latest_checkpoint_id = None;
            session.updated_at = Timestamp(WALL + 2);
            tx.save_settings(&session).await?;
            tx.save_summary(&session).await?;
            head.head_seq = 12;
            head.projection_epoch = 3;
            head.active_run = Some(RunKey(9));
            head.last_activity_at = Timestamp(WALL + 3);
            let owner = head.owner.as_mut().unwrap();
            owner.expires_at = None;
            tx.save_head(&head).await?;
            session.last_activity_at = head.last_activity_at;
            let locked = tx
                .lock_session("default", session.session_id)
                .await?
                .unwrap();
            assert_eq!((&locked.session, &locked.head), (&session, &head));
            assert_eq!(tx.lock_session("other", session.session_id).await?, None);
            Ok((session, head))
        })
    })
    .await
    .unwrap();
    let reader = fixture.store.reader();
    let view = reader
        .session("default", session_id(1))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((view.session, view.head), written);
    assert_eq!(reader.session("other", session_id(1)).await.unwrap(), None);
    assert_eq!(reader.head_seq(session_id(1)).await.unwrap(), Some(12));
    assert_eq!(reader.head_seq(session_id(2)).await.unwrap(), None);
}

#[tokio::test]
async fn a_head_without_an_owner_comes_back() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    run(&fixture.store, move |tx| {
        let key = session.key;
        Box::pin(async move {
            let mut head = tx.lock_session_by_key(key).await?.head;
            head.owner = None;
            tx.save_head(&head).await?;
            assert_eq!(tx.lock_session_by_key(key).await?.head, head);
            Ok(())
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn events_come_back_byte_for_byte_and_are_known_by_id() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let running = fixture
        .run(&session, 1, RunState::Running(claim("e", 1, LEASE)))
        .await;
    run(&fixture.store, move |tx| {
        let (session, running) = (session.clone(), running.clone());
        Box::pin(async move {
            let mut events: Vec<_> = (1..=1_000)
                .map(|seq| event(&session, Some(&running), seq))
                .collect();
            events[0].run_key = None;
            events[0].record.run_id = None;
            events[0].digest = None;
            events[0].record.attempt = None;
            events[0].record.executor_id = None;
            events[0].record.trace_id = Some("trace".to_owned());
            events[2].record.folded_from = Some(2);
            tx.insert_events(session.key, &events).await?;
            let page = tx.events_after(session.key, 0, 2_000, 1 << 20).await?;
            let written: Vec<_> = events.iter().map(|event| event.record.clone()).collect();
            assert_eq!(page, written);
            let page = tx.events_after(session.key, 990, 5, 1 << 20).await?;
            assert_eq!(page, written[990..995]);

            let ids = ["event-2", "event-1000", "unheard-of", "event-1"].map(str::to_owned);
            let mut known = tx.known_events(running.key, &ids).await?;
            known.sort_by_key(|(_, known)| known.record.session_seq);
            // The first event belongs to no run.
            assert_eq!(known.len(), 2);
            assert_eq!(known[0].0, "event-2");
            assert_eq!(known[0].1.digest, events[1].digest);
            assert_eq!(known[1].1.record, written[999]);
            Ok(())
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_number_or_an_event_id_is_never_stored_twice() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let running = fixture.run(&session, 1, RunState::Queued).await;
    for (seq, id) in [(1, "other"), (2, "event-1")] {
        let (session, running) = (session.clone(), running.clone());
        let refused = run(&fixture.store, move |tx| {
            let mut twice = event(&session, Some(&running), seq);
            twice.record.event_id = id.to_owned();
            let (session, running) = (session.clone(), running.clone());
            Box::pin(async move {
                let first = event(&session, Some(&running), 1);
                tx.insert_events(session.key, &[first, twice]).await?;
                Ok(())
            })
        })
        .await;
        assert!(matches!(
            refused,
            Err(Failure::Store(StoreError::Internal(_)))
        ));
    }
}

#[tokio::test]
async fn tape_entries_are_kept_once_and_read_from_the_end() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    run(&fixture.store, move |tx| {
        let key = session.key;
        Box::pin(async move {
            let entry = |position: u64, run| {
                let entry = NewEntry {
                    kind: EntryKind::Anchor,
                    payload: json!({"text": position}),
                    run_id: run,
                    first_seq: position,
                    created_at: Timestamp(WALL),
                    anchor_type: Some("resume_boundary".to_owned()),
                    source: EntrySource::Projection,
                    meta: None,
                };
                let id = TapeEntryId::new(Uuid::from_u128(u128::from(position) + 1));
                (position, id, entry)
            };
            let entries = [entry(1, None), entry(2, Some(run_id(1))), entry(3, None)];
            tx.insert_tape_entries(key, &entries).await?;
            // The same again under other positions and ids, with and without a run.
            let mut again = [entry(1, None), entry(2, Some(run_id(1)))];
            for (position, id, _) in &mut again {
                *position += 10;
                *id = TapeEntryId::new(Uuid::from_u128(u128::from(*position) + 50));
            }
            tx.insert_tape_entries(key, &again).await?;
            let tail = tx.tape_tail(key, 2).await?;
            assert_eq!(tail.len(), 2);
            assert_eq!((tail[0].position, tail[1].position), (2, 3));
            assert_eq!(tail[0].run_id, Some(run_id(1)));
            assert_eq!(tail[0].entry_id, entries[1].1);
            assert_eq!(tail[1].run_id, None);
            assert_eq!(tail[1].payload, json!({"text": 3}));
            assert_eq!(tail[1].anchor_type.as_deref(), Some("resume_boundary"));
            assert_eq!(tx.tape_tail(key, 9).await?.len(), 3);

            assert_eq!(tx.tape_state(key).await?, TapeState::default());
            for tape_seq in [4, 5] {
                let state = TapeState {
                    tape_seq,
                    position: 3,
                    open_text: Some(OpenText {
                        thinking: true,
                        message_id: None,
                        text: "so far".to_owned(),
                        run_id: Some(run_id(1)),
                        first_seq: 4,
                        created_at: Timestamp(WALL),
                    }),
                    ..TapeState::default()
                };
                tx.save_tape_state(key, &state).await?;
                assert_eq!(tx.tape_state(key).await?, state);
            }
            Ok(())
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn questions_are_found_by_every_key_and_keep_their_answer() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let running = fixture
        .run(&session, 1, RunState::Running(claim("e", 1, LEASE)))
        .await;
    run(&fixture.store, move |tx| {
        let (session, running) = (session.clone(), running.clone());
        Box::pin(async move {
            let mut first = question(&session, &running, 1);
            let mut second = question(&session, &running, 2);
            second.request_id.clone_from(&first.request_id);
            second.attempt = 2;
            second.deadline = LeaseInstant(LEASE + 2_000);
            tx.insert_interaction(session.key, &first).await?;
            tx.insert_interaction(session.key, &second).await?;
            assert_eq!(tx.interaction(first.interaction_id).await?.unwrap(), first);
            let found = tx
                .interaction_of_request(running.key, 2, "request-1")
                .await?;
            assert_eq!(found.as_ref(), Some(&second));
            let newest = tx.interaction_in_session(session.key, "request-1").await?;
            assert_eq!(newest.as_ref(), Some(&second));
            let pending = tx.pending_interactions(running.key).await?;
            assert_eq!(pending, [first.clone(), second.clone()]);

            let at = LeaseInstant(LEASE + 1_000);
            let due = tx.overdue_interactions(at, None, 9).await?;
            assert_eq!(due, [first.interaction_id]);
            let later = LeaseInstant(LEASE + 2_000);
            let after = Some(first.interaction_id);
            let due = tx.overdue_interactions(later, after, 9).await?;
            assert_eq!(due, [second.interaction_id]);

            first.status = InteractionStatus::Approved;
            first.response = Some(json!({"approved": true}));
            first.resolved_at = Some(Timestamp(WALL + 1));
            first.resolved_by = Some("someone".to_owned());
            tx.save_interaction(&first).await?;
            assert_eq!(tx.interaction(first.interaction_id).await?.unwrap(), first);
            assert_eq!(tx.pending_interactions(running.key).await?, [second]);
            assert_eq!(tx.overdue_interactions(at, None, 9).await?, []);
            Ok(())
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn rules_of_a_session_and_of_the_namespace_are_kept_apart_until_they_are_revoked() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let other = fixture.session(2).await;
    run(&fixture.store, move |tx| {
        let id = session.session_id;
        let (session, other) = (session.key, other.key);
        Box::pin(async move {
            let rule = |number, session_id| {
                let terms = RuleTerms {
                    tool_name: "shell".to_owned(),
                    arguments: Some(ArgumentPattern::Equals(serde_json::json!({"a": 1}))),
                    decision: Decision::Deny,
                };
                let maker = Maker {
                    rule_id: RuleId::new(Uuid::from_u128(number)),
                    namespace: "default".to_owned(),
                    by: "ann".to_owned(),
                    at: Timestamp(WALL),
                };
                made(terms, session_id, None, maker)
            };
            let (own, of_all) = (rule(1, Some(id)), rule(2, None));
            tx.insert_rule(Some(session), &own).await?;
            tx.insert_rule(None, &of_all).await?;
            assert_eq!(tx.session_rules(session).await?, std::slice::from_ref(&own));
            assert_eq!(tx.session_rules(other).await?, []);
            assert_eq!(
                tx.namespace_rules("default").await?,
                std::slice::from_ref(&of_all)
            );
            assert_eq!(tx.namespace_rules("other").await?, []);
            assert_eq!(tx.rule("other", own.rule_id).await?, None);
            let at = Timestamp(WALL + 1);
            for rule in [&own, &of_all] {
                tx.revoke_rule(rule.rule_id, "bob", at).await?;
                let kept = tx.rule("default", rule.rule_id).await?.unwrap();
                assert_eq!(
                    (kept.revoked_at, kept.revoked_by.as_deref()),
                    (Some(at), Some("bob"))
                );
            }
            assert_eq!(tx.session_rules(session).await?, []);
            assert_eq!(tx.namespace_rules("default").await?, []);
            Ok(())
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn results_are_kept_under_their_keys_and_purged_by_age() {
    let fixture = Fixture::open().await;
    run(&fixture.store, |tx| {
        Box::pin(async move {
            let key = |key: &str| IdempotencyKey {
                namespace: "default".to_owned(),
                principal: "p".to_owned(),
                operation: "prompt".to_owned(),
                key: key.to_owned(),
                body_digest: Digest::of_bytes(b"body"),
            };
            for (name, at) in [("a", 1), ("b", 2), ("c", 3)] {
                tx.insert_result(&key(name), &json!({"run": name}), Timestamp(at))
                    .await?;
            }
            let mut other_body = key("b");
            other_body.body_digest = Digest::of_bytes(b"other");
            let stored = tx.stored_result(&other_body).await?.unwrap();
            assert_eq!(stored.body_digest, Digest::of_bytes(b"body"));
            assert_eq!(stored.result, json!({"run": "b"}));
            assert_eq!(tx.purge_results(Timestamp(3), 1).await?, 1);
            assert_eq!(tx.stored_result(&key("a")).await?, None);
            assert_eq!(tx.purge_results(Timestamp(3), 9).await?, 1);
            assert!(tx.stored_result(&key("c")).await?.is_some());
            Ok(())
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn deleting_a_session_leaves_nothing_of_it() {
    let fixture = Fixture::open().await;
    let kept = fixture.session(1).await;
    let gone = fixture.session(2).await;
    let running = fixture
        .run(&gone, 1, RunState::Running(claim("e", 1, LEASE)))
        .await;
    let other = fixture.run(&kept, 2, RunState::Queued).await;
    run(&fixture.store, move |tx| {
        let (kept, gone) = (kept.clone(), gone.clone());
        let (running, other) = (running.clone(), other.clone());
        Box::pin(async move {
            tx.insert_events(gone.key, &[event(&gone, Some(&running), 1)])
                .await?;
            tx.insert_events(kept.key, &[event(&kept, Some(&other), 1)])
                .await?;
            tx.insert_interaction(gone.key, &question(&gone, &running, 1))
                .await?;
            tx.delete_session(gone.key).await?;
            assert_eq!(tx.lock_session("default", gone.session_id).await?, None);
            assert_eq!(tx.lock_run(running.run_id).await?, None);
            assert_eq!(tx.live_run(running.key).await?, None);
            assert_eq!(tx.events_after(gone.key, 0, 9, 1 << 20).await?, []);
            assert_eq!(tx.pending_interactions(running.key).await?, []);
            assert_eq!(tx.events_after(kept.key, 0, 9, 1 << 20).await?.len(), 1);
            assert_eq!(tx.live_run(other.key).await?, Some(other));
            Ok(())
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn writing_to_a_row_that_is_not_there_fails() {
    let fixture = Fixture::open().await;
    let absent = session(9);
    let failed = run(&fixture.store, move |tx| {
        let absent = absent.clone();
        Box::pin(async move { Ok(tx.save_summary(&absent).await?) })
    })
    .await;
    let Err(Failure::Store(error)) = failed else {
        panic!("the write must fail");
    };
    assert!(
        error.to_string().contains("`sessions` touched 0 rows"),
        "{error}"
    );
}
