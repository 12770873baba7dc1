//! Runs come back as they were, in every state and at their end.

use serde_json::json;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::run::{Attempts, Recovery, RunState, RunStatus, SettledClaim};
use tapedeck_domain::{CheckpointId, LeaseInstant, RunKey, SessionKey, Timestamp};
use tapedeck_store::rows::{RunProgress, SettledRun};
use tapedeck_store::{Failure, PageRequest, RunFilter, Store as _, Tx};
use uuid::Uuid;

use crate::support::{Fixture, LEASE, WALL, claim, live_run, new_run, run, run_id};

fn every_state() -> Vec<RunState> {
    let mut unacknowledged = claim("e", 2, LEASE + 10);
    unacknowledged.acknowledged = false;
    unacknowledged.instance_id = None;
    vec![
        RunState::Queued,
        RunState::Requested {
            ready_at: LeaseInstant(LEASE + 3),
        },
        RunState::Claimed(unacknowledged),
        RunState::Running(claim("e", 3, LEASE + 20)),
        RunState::Cancelling {
            claim: claim("e", 4, LEASE + 30),
            deadline: LeaseInstant(LEASE + 31),
        },
    ]
}

#[tokio::test]
async fn a_live_run_comes_back_in_every_state() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    for (number, state) in (1..).zip(every_state()) {
        let inserted = fixture.run(&session, number, state).await;
        // Saved over with each of the states, every column of the one before must be gone.
        for state in every_state() {
            let mut run_now = inserted.clone();
            run_now.state = state;
            run_now.attempts = Attempts {
                attempt: 4,
                used: 3,
                unacknowledged: 2,
                max: 9,
            };
            run_now.place = -7;
            run_now.event_count = 11;
            run_now.has_output = true;
            run_now.pending_interactions = 1;
            let first = inserted.clone();
            run(&fixture.store, move |tx| {
                let (first, saved) = (first.clone(), run_now.clone());
                Box::pin(async move {
                    tx.save_live_run(&first).await?;
                    assert_eq!(tx.live_run(first.key).await?.as_ref(), Some(&first));
                    tx.save_live_run(&saved).await?;
                    assert_eq!(tx.live_run(saved.key).await?.as_ref(), Some(&saved));
                    let locked = tx.lock_run(saved.run_id).await?.unwrap();
                    assert_eq!(locked.live, Some(saved));
                    assert_eq!(locked.settled, None);
                    assert_eq!(tx.lock_run_if_free(locked.run_id).await?, Some(locked));
                    Ok(())
                })
            })
            .await
            .unwrap();
        }
    }
    assert_eq!(fixture.store.reader().live_run_count().await.unwrap(), 5);
}

#[tokio::test]
async fn a_run_goes_from_admission_to_its_end() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    run(&fixture.store, move |tx| {
        let session = session.clone();
        Box::pin(async move {
            let mut new = new_run(1, RunStatus::Requested);
            new.parent_run_id = Some(run_id(9));
            new.metadata.insert("why".to_owned(), json!("because"));
            new.resume_context = Some(json!({"tail": []}));
            let key = tx.insert_run(session.key, &new).await?;
            assert_eq!(tx.resume_context(key).await?, new.resume_context);
            assert_eq!(tx.agent_state(key).await?, None);
            let mut live = live_run(&session, 1, RunState::Running(claim("e", 1, LEASE + 9)));
            live.key = key;
            tx.insert_live_run(&live).await?;
            let progress = RunProgress {
                status: RunStatus::Running,
                attempt: 1,
                executor_id: Some("e".to_owned()),
                claimed_at: Some(Timestamp(WALL + 1)),
                started_at: Some(Timestamp(WALL + 2)),
                unservable: Some("labels".to_owned()),
            };
            tx.save_progress(key, &progress).await?;
            let kept = RunProgress {
                executor_id: None,
                claimed_at: None,
                started_at: None,
                unservable: None,
                ..progress
            };
            tx.save_progress(key, &kept).await?;
            let record = tx.run(key).await?;
            assert_eq!(record.executor_id.as_deref(), Some("e"));
            assert_eq!(record.claimed_at, Some(Timestamp(WALL + 1)));
            assert_eq!(record.started_at, Some(Timestamp(WALL + 2)));
            assert_eq!(record.unservable, None);
            assert_eq!(record.metadata, new.metadata);
            assert_eq!(record.parent_run_id, new.parent_run_id);
            assert_eq!(record.recovery, None);

            let settled = SettledRun {
                status: RunStatus::Interrupted,
                result: Some(json!({"ok": false})),
                error: Some("lost".to_owned()),
                recovery: Some(Recovery {
                    reclaimable: true,
                    reason: "lease_expired".to_owned(),
                    recovered_at: Timestamp(WALL + 4),
                }),
                claim: SettledClaim {
                    attempt: 1,
                    token_hash: Some(Digest::of_bytes(b"token")),
                    body_digest: None,
                },
                agent_state: Some(json!({"session": "s"})),
                event_count: 3,
                settled_at: Timestamp(WALL + 4),
                settled_seq: 8,
            };
            tx.settle_run(key, &settled).await?;
            tx.delete_live_run(key).await?;
            let record = tx.run(key).await?;
            assert_eq!(record.status, RunStatus::Interrupted);
            assert_eq!(record.result, settled.result);
            assert_eq!(record.error, settled.error);
            assert_eq!(record.recovery, settled.recovery);
            assert_eq!(record.settled_at, Some(settled.settled_at));
            assert_eq!(record.settled_seq, Some(8));
            assert_eq!(tx.agent_state(key).await?, settled.agent_state);
            assert_eq!(tx.resume_context(key).await?, new.resume_context);
            let locked = tx.lock_run(run_id(1)).await?.unwrap();
            assert_eq!(locked.live, None);
            assert_eq!(locked.settled, Some(settled.claim));
            assert_eq!(locked.status, RunStatus::Interrupted);
            assert_eq!(tx.lock_run(run_id(2)).await?, None);
            Ok(())
        })
    })
    .await
    .unwrap();
}

fn ended(status: RunStatus, seq: u64) -> SettledRun {
    SettledRun {
        status,
        result: None,
        error: None,
        recovery: None,
        claim: SettledClaim {
            attempt: 0,
            token_hash: None,
            body_digest: None,
        },
        agent_state: None,
        event_count: 0,
        settled_at: Timestamp(WALL),
        settled_seq: seq,
    }
}

#[tokio::test]
async fn a_run_cancelled_while_queued_is_not_the_latest_settled_one() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    run(&fixture.store, move |tx| {
        let key = session.key;
        Box::pin(async move {
            assert_eq!(tx.lock_run_if_free(run_id(1)).await?, None);
            assert_eq!(tx.latest_settled_run(key).await?, None);
            let first = tx
                .insert_run(key, &new_run(1, RunStatus::Requested))
                .await?;
            tx.settle_run(first, &ended(RunStatus::Completed, 3))
                .await?;
            let queued = tx.insert_run(key, &new_run(2, RunStatus::Queued)).await?;
            tx.settle_run(queued, &ended(RunStatus::Cancelled, 4))
                .await?;
            assert_eq!(tx.latest_settled_run(key).await?.unwrap().key, first);
            let requested = tx
                .insert_run(key, &new_run(3, RunStatus::Requested))
                .await?;
            tx.settle_run(requested, &ended(RunStatus::Cancelled, 5))
                .await?;
            assert_eq!(tx.latest_settled_run(key).await?.unwrap().key, requested);
            Ok(())
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn queued_runs_keep_their_places() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let active = fixture
        .run(&session, 1, RunState::Running(claim("e", 1, LEASE)))
        .await;
    let late = fixture.run(&session, 2, RunState::Queued).await;
    let early = fixture.run(&session, 3, RunState::Queued).await;
    run(&fixture.store, move |tx| {
        let (mut late, mut early) = (late.clone(), early.clone());
        let (key, active) = (active.session_key, active.clone());
        Box::pin(async move {
            (late.place, early.place) = (5, -2);
            tx.save_live_run(&late).await?;
            tx.save_live_run(&early).await?;
            let places = tx.queue_places(key).await?;
            assert_eq!((places.first, places.last), (Some(-2), Some(5)));
            let (first, prompt) = tx.first_queued_run(key).await?.unwrap();
            assert_eq!((first, prompt.as_str()), (early.clone(), "prompt 3"));
            assert_eq!(tx.queued_runs(key).await?, [early.clone(), late.clone()]);
            assert_eq!(tx.live_runs(key).await?, [early, active.clone(), late]);
            let none = tx.queue_places(SessionKey(99)).await?;
            assert_eq!((none.first, none.last), (None, None));
            assert_eq!(tx.first_queued_run(SessionKey(99)).await?, None);
            Ok(())
        })
    })
    .await
    .unwrap();
}

/// A run that was admitted at one number and has ended at another.
async fn settled(
    tx: &mut dyn Tx,
    session: SessionKey,
    number: u128,
    (admitted, settled): (u64, u64),
    status: RunStatus,
) -> Result<RunKey, Failure> {
    let mut new = new_run(number, RunStatus::Requested);
    new.admitted_seq = admitted;
    let key = tx.insert_run(session, &new).await?;
    tx.settle_run(key, &ended(status, settled)).await?;
    Ok(key)
}

#[tokio::test]
async fn a_restore_puts_later_settled_runs_aside_and_nothing_else() {
    let fixture = Fixture::open().await;
    let (session, other) = (fixture.session(1).await, fixture.session(2).await);
    let (session_id, other_id) = (session.session_id, other.session_id);
    let by = CheckpointId::new(Uuid::from_u128(5));
    let at = Timestamp(WALL + 8);
    run(&fixture.store, move |tx| {
        let (key, other) = (session.key, other.key);
        let session = session.clone();
        Box::pin(async move {
            let interrupted = RunStatus::Interrupted;
            assert_eq!(tx.latest_interrupted_run(key).await?, None);
            let kept = settled(tx, key, 1, (2, 3), interrupted).await?;
            settled(tx, key, 2, (4, 5), RunStatus::Completed).await?;
            let late = settled(tx, key, 3, (6, 7), interrupted).await?;
            let elsewhere = settled(tx, other, 4, (6, 7), interrupted).await?;
            let mut live = live_run(&session, 5, RunState::Queued);
            let mut new = new_run(5, RunStatus::Queued);
            new.admitted_seq = 8;
            live.key = tx.insert_run(key, &new).await?;
            tx.insert_live_run(&live).await?;

            assert_eq!(tx.latest_interrupted_run(key).await?, Some(run_id(3)));
            assert_eq!(tx.supersede_runs(key, 3, by, at).await?, 2);
            assert_eq!(tx.latest_interrupted_run(key).await?, Some(run_id(1)));
            assert_eq!(tx.latest_settled_run(key).await?.unwrap().key, kept);
            let record = tx.run(late).await?;
            assert_eq!(record.superseded_at, Some(at));
            assert_eq!(record.superseded_by_checkpoint_id, Some(by));
            assert_eq!(tx.run(live.key).await?.superseded_at, None);
            assert_eq!(tx.run(elsewhere).await?.superseded_at, None);

            // What was put aside keeps the mark of the first restore.
            let again = CheckpointId::new(Uuid::from_u128(6));
            assert_eq!(
                tx.supersede_runs(key, 1, again, Timestamp(WALL + 9))
                    .await?,
                1
            );
            assert_eq!(tx.run(late).await?.superseded_by_checkpoint_id, Some(by));
            assert_eq!(tx.latest_interrupted_run(key).await?, None);
            assert_eq!(tx.latest_settled_run(key).await?, None);
            Ok(())
        })
    })
    .await
    .unwrap();

    let reader = fixture.store.reader();
    let latest = reader.latest_settled_run("default", session_id).await;
    assert_eq!(latest.unwrap(), None);
    let latest = reader.latest_settled_run("default", other_id).await;
    assert_eq!(latest.unwrap().unwrap().run_id, run_id(4));
    let hidden = reader.latest_settled_run("other", other_id).await;
    assert_eq!(hidden.unwrap(), None);
    let page = PageRequest {
        before: None,
        limit: 9,
    };
    for (session, include_superseded, expected) in [
        (Some(session_id), false, vec![5]),
        (Some(session_id), true, vec![5, 3, 2, 1]),
        (None, false, vec![5, 4]),
        (None, true, vec![5, 4, 3, 2, 1]),
    ] {
        let filter = RunFilter {
            session_id: session,
            include_superseded,
            unservable: false,
        };
        let found = reader.runs("default", filter, page).await.unwrap();
        let ids: Vec<_> = found.items.iter().map(|run| run.run_id).collect();
        let expected: Vec<_> = expected.into_iter().map(run_id).collect();
        assert_eq!(ids, expected, "{filter:?}");
    }
    fixture.store.close().await;
}
