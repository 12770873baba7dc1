//! Message snapshots: the newest report of a run, and what is known of it unread.

use serde_json::{Map, json};
use tapedeck_domain::Timestamp;
use tapedeck_domain::run::RunState;
use tapedeck_domain::snapshot::{MessageSnapshot, SnapshotFacts};
use tapedeck_store::Store as _;

use crate::support::{Fixture, WALL, claim, run, run_id};

#[tokio::test]
async fn a_report_replaces_the_one_before_and_keeps_when_the_first_came() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let running = fixture
        .run(&session, 1, RunState::Running(claim("e", 1, 9)))
        .await;
    let first = MessageSnapshot {
        run_id: running.run_id,
        messages: vec![json!({"role": "user", "content": "ü 😀 \"quoted\""})],
        metadata: [("provider".to_owned(), json!("p"))].into_iter().collect(),
        attempt: 1,
        created_at: Timestamp(WALL + 1),
        updated_at: Timestamp(WALL + 1),
    };
    let second = MessageSnapshot {
        messages: vec![
            json!({"role": "user"}),
            json!({"role": "assistant", "n": 1.0}),
        ],
        metadata: Map::new(),
        attempt: 2,
        created_at: Timestamp(WALL + 5),
        updated_at: Timestamp(WALL + 5),
        ..first.clone()
    };
    let newest = MessageSnapshot {
        created_at: first.created_at,
        ..second.clone()
    };
    let expected = newest.clone();
    run(&fixture.store, move |tx| {
        let (first, second, expected) = (first.clone(), second.clone(), expected.clone());
        let (session, key) = (session.key, running.key);
        Box::pin(async move {
            assert_eq!(tx.snapshot(key).await?, None);
            assert_eq!(tx.snapshot_facts(key).await?, None);
            for (written, read) in [(&first, &first), (&second, &expected)] {
                tx.save_snapshot(session, key, written).await?;
                assert_eq!(tx.snapshot(key).await?.as_ref(), Some(read));
                let facts = SnapshotFacts {
                    run_id: run_id(1),
                    message_count: written.messages.len() as u64,
                    bytes: serde_json::to_string(&written.messages).unwrap().len() as u64,
                };
                assert_eq!(tx.snapshot_facts(key).await?, Some(facts));
            }
            Ok(())
        })
    })
    .await
    .unwrap();
    let reader = fixture.store.reader();
    assert_eq!(
        reader.snapshot("default", run_id(1)).await.unwrap(),
        Some(newest)
    );
    assert_eq!(reader.snapshot("other", run_id(1)).await.unwrap(), None);
    assert_eq!(reader.snapshot("default", run_id(2)).await.unwrap(), None);
    fixture.store.close().await;
}
