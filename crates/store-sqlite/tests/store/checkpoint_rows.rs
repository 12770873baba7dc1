//! Checkpoints come back as they were, and are only ever marked.

use serde_json::json;
use tapedeck_domain::checkpoint::{Checkpoint, KeptSettings};
use tapedeck_domain::session::{Session, SessionSettings};
use tapedeck_domain::{CheckpointId, Timestamp};
use tapedeck_store::{Failure, PageRequest, Store as _};
use uuid::Uuid;

use crate::support::{Fixture, WALL, run, run_id, session_id};

fn checkpoint_id(number: u64) -> CheckpointId {
    CheckpointId::new(Uuid::from_u128(0x4000_0000 + u128::from(number)))
}

/// A checkpoint with as little as there can be.
fn checkpoint(session: &Session, number: u64) -> Checkpoint {
    Checkpoint {
        checkpoint_id: checkpoint_id(number),
        session_id: session.session_id,
        label: None,
        tape_position: number,
        session_seq: number * 10,
        settings: KeptSettings::of(&SessionSettings::default()),
        agent_state: None,
        run_id: None,
        snapshot_id: None,
        projection_epoch: 0,
        created_at: Timestamp(WALL),
        superseded_at: None,
        superseded_by_checkpoint_id: None,
        deleted_at: None,
    }
}

/// A checkpoint with everything there can be.
fn full(session: &Session, number: u64) -> Checkpoint {
    let mut settings = SessionSettings::default();
    settings.agent.insert("model".to_owned(), json!("m"));
    Checkpoint {
        label: Some("a label, quoted \"so\"".to_owned()),
        settings: KeptSettings::of(&settings),
        agent_state: Some(json!({"session": "s", "n": 1.5})),
        run_id: Some(run_id(1)),
        snapshot_id: Some("snapshot".to_owned()),
        projection_epoch: 3,
        superseded_at: Some(Timestamp(WALL + 1)),
        superseded_by_checkpoint_id: Some(checkpoint_id(1)),
        deleted_at: Some(Timestamp(WALL + 2)),
        ..checkpoint(session, number)
    }
}

#[tokio::test]
async fn a_checkpoint_comes_back_as_it_was() {
    let fixture = Fixture::open().await;
    let (session, other) = (fixture.session(1).await, fixture.session(2).await);
    let written = [checkpoint(&session, 1), full(&session, 2)];
    let expected = written.clone();
    run(&fixture.store, move |tx| {
        let (written, key, other) = (written.clone(), session.key, other.key);
        Box::pin(async move {
            for checkpoint in &written {
                tx.insert_checkpoint(key, checkpoint).await?;
                let id = checkpoint.checkpoint_id;
                assert_eq!(tx.checkpoint(key, id).await?.as_ref(), Some(checkpoint));
                assert_eq!(tx.checkpoint(other, id).await?, None);
            }
            assert_eq!(tx.checkpoint(key, checkpoint_id(3)).await?, None);
            Ok(())
        })
    })
    .await
    .unwrap();
    let reader = fixture.store.reader();
    for checkpoint in expected {
        let id = checkpoint.checkpoint_id;
        let found = reader.checkpoint("default", id).await.unwrap();
        assert_eq!(found, Some(checkpoint));
        assert_eq!(reader.checkpoint("other", id).await.unwrap(), None);
    }
    fixture.store.close().await;
}

#[tokio::test]
async fn the_active_ones_are_neither_deleted_nor_put_aside() {
    let fixture = Fixture::open().await;
    let (session, other) = (fixture.session(1).await, fixture.session(2).await);
    run(&fixture.store, move |tx| {
        let (session, other) = (session.clone(), other.clone());
        Box::pin(async move {
            let key = session.key;
            assert_eq!(tx.latest_checkpoint(key).await?, None);
            assert_eq!(tx.active_checkpoint_count(key).await?, 0);
            for number in 1..=5 {
                tx.insert_checkpoint(key, &checkpoint(&session, number))
                    .await?;
            }
            tx.insert_checkpoint(other.key, &checkpoint(&other, 9))
                .await?;

            let at = Timestamp(WALL + 7);
            tx.mark_checkpoint_deleted(checkpoint_id(5), at).await?;
            let deleted = tx.checkpoint(key, checkpoint_id(5)).await?.unwrap();
            assert_eq!(
                (deleted.deleted_at, deleted.superseded_at),
                (Some(at), None)
            );
            assert_eq!(tx.active_checkpoint_count(key).await?, 4);
            let latest = tx.latest_checkpoint(key).await?.unwrap();
            assert_eq!(latest.checkpoint_id, checkpoint_id(4));

            // Those captured at the same number or earlier stay, and so do other sessions'.
            let (by, at) = (checkpoint_id(2), Timestamp(WALL + 8));
            assert_eq!(tx.supersede_checkpoints(key, 20, by, at).await?, 2);
            for (number, expected) in [(2, None), (3, Some(at)), (4, Some(at)), (5, None)] {
                let found = tx.checkpoint(key, checkpoint_id(number)).await?.unwrap();
                assert_eq!(found.superseded_at, expected, "{number}");
                let marked = found.superseded_by_checkpoint_id;
                assert_eq!(marked, expected.map(|_| by), "{number}");
            }
            assert_eq!(tx.active_checkpoint_count(key).await?, 2);
            let latest = tx.latest_checkpoint(key).await?.unwrap();
            assert_eq!(latest.checkpoint_id, checkpoint_id(2));
            assert_eq!(tx.active_checkpoint_count(other.key).await?, 1);

            // What was put aside keeps the mark of the first restore.
            let again = checkpoint_id(1);
            assert_eq!(tx.supersede_checkpoints(key, 10, again, at).await?, 1);
            let kept = tx.checkpoint(key, checkpoint_id(3)).await?.unwrap();
            assert_eq!(kept.superseded_by_checkpoint_id, Some(by));
            Ok(())
        })
    })
    .await
    .unwrap();

    let reader = fixture.store.reader();
    let ids = |page: &tapedeck_store::Page<Checkpoint>| -> Vec<_> {
        page.items.iter().map(|item| item.checkpoint_id).collect()
    };
    let first = PageRequest {
        before: None,
        limit: 2,
    };
    let list = |include, page| reader.checkpoints("default", session_id(1), include, page);
    let active = list(false, first).await.unwrap();
    assert_eq!(
        (ids(&active), active.next),
        ([checkpoint_id(1)].into(), None)
    );
    let mut page = first;
    let mut seen = Vec::new();
    loop {
        let found = list(true, page).await.unwrap();
        seen.extend(ids(&found));
        let Some(next) = found.next else { break };
        page.before = Some(next);
    }
    assert_eq!(seen, [5, 4, 3, 2, 1].map(checkpoint_id));
    let hidden = reader
        .checkpoints("other", session_id(1), true, first)
        .await;
    assert!(hidden.unwrap().items.is_empty());
    fixture.store.close().await;
}

#[tokio::test]
async fn a_checkpoint_is_not_deleted_twice() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let refused = run(&fixture.store, move |tx| {
        let session = session.clone();
        Box::pin(async move {
            tx.insert_checkpoint(session.key, &checkpoint(&session, 1))
                .await?;
            for _ in 0..2 {
                tx.mark_checkpoint_deleted(checkpoint_id(1), Timestamp(WALL))
                    .await?;
            }
            Ok(())
        })
    })
    .await;
    let Err(Failure::Store(error)) = refused else {
        panic!("the second deletion must fail");
    };
    assert!(
        error.to_string().contains("`checkpoints` touched 0 rows"),
        "{error}"
    );
}
