//! A fold replaces exactly the rows that it says, or nothing; what it looks at first is found in order.

use tapedeck_domain::digest::Digest;
use tapedeck_domain::fold::Fold;
use tapedeck_domain::run::{RunState, RunStatus, SettledClaim};
use tapedeck_domain::session::Session;
use tapedeck_domain::{JsonText, RunKey, SessionKey, Timestamp};
use tapedeck_store::rows::{RunSpan, SettledRun};
use tapedeck_store::{Failure, Store as _, StoreError, Tx};

use crate::support::{Fixture, WALL, event, new_run, run, run_id};

fn fold(first_seq: u64, last_seq: u64) -> Fold {
    Fold {
        first_seq,
        last_seq,
        swallowed: last_seq - first_seq,
        payload: JsonText::from_stored(r#"{"content":"a \"quoted\" line\nand ü 😀"}"#),
    }
}

async fn log_of(fixture: &Fixture, session: &Session) {
    let session = session.clone();
    run(&fixture.store, move |tx| {
        let events: Vec<_> = (1..=9).map(|seq| event(&session, None, seq)).collect();
        let key = session.key;
        Box::pin(async move { Ok(tx.insert_events(key, &events).await?) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_fold_replaces_its_rows_and_is_found_over_the_numbers_inside() {
    let fixture = Fixture::open().await;
    let (session, other) = (fixture.session(1).await, fixture.session(2).await);
    log_of(&fixture, &session).await;
    log_of(&fixture, &other).await;
    let (written, untouched) = (session.clone(), other.clone());
    run(&fixture.store, move |tx| {
        let (session, other) = (written.clone(), untouched.clone());
        Box::pin(async move {
            let folds = [fold(2, 4), fold(5, 6)];
            tx.apply_folds(session.key, &folds).await?;
            let mut expected: Vec<_> = [1, 4, 6, 7, 8, 9]
                .map(|seq| event(&session, None, seq).record)
                .into();
            for (place, fold) in [1, 2].into_iter().zip(&folds) {
                expected[place].folded_from = Some(fold.first_seq);
                expected[place].payload = fold.payload.clone();
            }
            assert_eq!(
                tx.events_after(session.key, 0, 100, 1 << 20).await?,
                expected
            );
            let rest = tx.events_after(other.key, 0, 100, 1 << 20).await?;
            assert_eq!(rest.len(), 9, "another session's log stays as it is");
            let folded = tx.lock_session_by_key(session.key).await?;
            assert_eq!(folded.session.folded_seq, Some(6));
            // An earlier part that is folded later lowers nothing.
            tx.apply_folds(
                session.key,
                &[fold(1, 4)].map(|it| Fold { swallowed: 1, ..it }),
            )
            .await?;
            let folded = tx.lock_session_by_key(session.key).await?;
            assert_eq!(folded.session.folded_seq, Some(6));
            Ok(())
        })
    })
    .await
    .unwrap();
    let reader = fixture.store.reader();
    for (seq, expected) in [
        (0, None),
        (1, Some(1)),
        (3, Some(1)),
        (4, None),
        (5, Some(5)),
        (6, None),
        (9, None),
    ] {
        let over = reader.fold_over(session.session_id, seq).await.unwrap();
        assert_eq!(over, expected, "{seq}");
        assert_eq!(reader.fold_over(other.session_id, seq).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_fold_over_other_rows_than_it_says_changes_nothing() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    log_of(&fixture, &session).await;
    let too_many = Fold {
        swallowed: 3,
        ..fold(2, 4)
    };
    for wrong in [too_many, fold(8, 10)] {
        let key = session.key;
        let refused = run(&fixture.store, move |tx| {
            let wrong = wrong.clone();
            Box::pin(async move { Ok(tx.apply_folds(key, &[wrong]).await?) })
        })
        .await;
        assert!(
            matches!(refused, Err(Failure::Store(StoreError::Internal(_)))),
            "{refused:?}"
        );
    }
    let key = session.key;
    let log = run(&fixture.store, move |tx| {
        Box::pin(async move { Ok(tx.events_after(key, 0, 100, 1 << 20).await?) })
    })
    .await
    .unwrap();
    assert_eq!(log.len(), 9);
}

async fn settled(
    tx: &mut dyn Tx,
    session: SessionKey,
    number: u128,
    at: i64,
) -> Result<RunKey, Failure> {
    let key = tx
        .insert_run(session, &new_run(number, RunStatus::Requested))
        .await?;
    let settled = SettledRun {
        status: RunStatus::Completed,
        result: None,
        error: None,
        recovery: None,
        claim: SettledClaim {
            attempt: 1,
            token_hash: Some(Digest::of_bytes(b"token")),
            body_digest: None,
        },
        agent_state: None,
        event_count: 0,
        settled_at: Timestamp(WALL + at),
        settled_seq: 9,
    };
    tx.settle_run(key, &settled).await?;
    Ok(key)
}

#[tokio::test]
async fn candidates_come_in_the_order_of_their_ends_and_leave_once_folded() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let live = fixture.run(&session, 9, RunState::Queued).await;
    run(&fixture.store, move |tx| {
        let (key, live) = (session.key, live.key);
        Box::pin(async move {
            let late = settled(tx, key, 1, 20).await?;
            let first = settled(tx, key, 2, 10).await?;
            let second = settled(tx, key, 3, 10).await?;
            settled(tx, key, 4, 30).await?;
            let beginning = (Timestamp(i64::MIN), RunKey(0));
            let before = Timestamp(WALL + 30);
            let found = tx.foldable_runs(before, beginning, 10).await?;
            let keys: Vec<_> = found.iter().map(|it| it.key).collect();
            assert_eq!(keys, [first, second, late]);
            assert_eq!(found[0].run_id, run_id(2));
            let after = (found[0].settled_at, found[0].key);
            let rest = tx.foldable_runs(before, after, 1).await?;
            assert_eq!(rest, found[1..2]);

            let span = RunSpan {
                admitted_seq: 1,
                settled_seq: 9,
            };
            assert_eq!(tx.foldable_span(second).await?, Some(span));
            assert_eq!(tx.foldable_span(live).await?, None);
            tx.mark_folded(second, Timestamp(WALL + 40)).await?;
            assert_eq!(tx.foldable_span(second).await?, None);
            let left = tx.foldable_runs(before, beginning, 10).await?;
            assert_eq!(left.len(), 2);
            let twice = tx.mark_folded(second, Timestamp(WALL + 41)).await;
            assert!(matches!(twice, Err(StoreError::Internal(_))), "{twice:?}");
            Ok(())
        })
    })
    .await
    .unwrap();
}
