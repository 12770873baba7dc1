//! What a command's caller is told: committed, refused, not done, or unknown; and nothing else than
//! what has happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _};
use tapedeck_domain::Rejection;
use tapedeck_store::{Failure, Store as _, StoreError};
use tapedeck_store_postgres::{Options, PostgresStore};

use crate::postgres::Cluster;
use crate::support::{Fixture, Pause, connect, number, run, session, session_id};

const SESSIONS: &str = "SELECT count(*) FROM sessions";

/// Makes every commit of a new session do something.
async fn at_commit(fixture: &Fixture, body: &str) {
    let mut conn = connect(&fixture.database).await;
    let statements = format!(
        "CREATE SEQUENCE tries;
         CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN {body} RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON sessions
         DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_commit()"
    );
    sqlx::raw_sql(AssertSqlSafe(statements))
        .execute(&mut conn)
        .await
        .unwrap();
    conn.close().await.unwrap();
}

async fn sessions(fixture: &Fixture) -> i64 {
    let mut conn = connect(&fixture.database).await;
    let count = number(&mut conn, SESSIONS).await;
    conn.close().await.unwrap();
    count
}

/// Inserts a session, and counts how often it is asked to.
async fn insert(store: &PostgresStore, tries: &Arc<AtomicU32>) -> Result<(), Failure> {
    let tries = Arc::clone(tries);
    run(store, move |tx| {
        tries.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            tx.insert_session(&session(1)).await?;
            Ok(())
        })
    })
    .await
}

#[tokio::test]
async fn a_connection_cut_while_it_commits_leaves_the_outcome_unknown() {
    let fixture = Fixture::open().await;
    at_commit(&fixture, "PERFORM pg_terminate_backend(pg_backend_pid());").await;
    let tries = Arc::default();
    let outcome = insert(&fixture.store, &tries).await;
    assert!(
        matches!(
            outcome,
            Err(Failure::Store(StoreError::OutcomeUnknown { .. }))
        ),
        "{outcome:?}"
    );
    assert_eq!(tries.load(Ordering::SeqCst), 1);
    fixture.store.close().await;
}

#[tokio::test]
async fn a_connection_cut_before_the_commit_has_written_nothing() {
    let fixture = Fixture::open().await;
    let pause = Pause::new();
    let standing = Arc::clone(&pause);
    let work = run(&fixture.store, move |tx| {
        let pause = Arc::clone(&standing);
        Box::pin(async move {
            tx.insert_session(&session(1)).await?;
            pause.here().await;
            tx.lock_session("default", session_id(1)).await?;
            Ok(())
        })
    });
    let cut = async {
        pause.reached().await;
        let cluster = Cluster::shared().await;
        assert!(
            cluster
                .terminate_backends(fixture.database.name())
                .await
                .ge(&1)
        );
        pause.release();
    };
    let (outcome, ()) = tokio::join!(work, cut);
    assert!(
        matches!(outcome, Err(Failure::Store(StoreError::Unavailable { .. }))),
        "{outcome:?}"
    );
    assert_eq!(sessions(&fixture).await, 0);
    // Every idle connection was cut as well, and no command notices.
    fixture.session(2).await;
    fixture.store.close().await;
}

#[tokio::test]
async fn a_commit_that_the_server_refuses_is_a_failure_and_not_unknown() {
    let fixture = Fixture::open().await;
    at_commit(&fixture, "RAISE EXCEPTION 'refused by the test';").await;
    let tries = Arc::default();
    let outcome = insert(&fixture.store, &tries).await;
    assert!(
        matches!(outcome, Err(Failure::Store(StoreError::Internal(_)))),
        "{outcome:?}"
    );
    assert_eq!(sessions(&fixture).await, 0);
    fixture.store.close().await;
}

#[tokio::test]
async fn a_command_that_loses_to_another_is_tried_again() {
    let fixture = Fixture::open().await;
    at_commit(
        &fixture,
        "IF nextval('tries') < 3 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END IF;",
    )
    .await;
    let tries = Arc::default();
    insert(&fixture.store, &tries).await.unwrap();
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    assert_eq!(sessions(&fixture).await, 1);
    fixture.store.close().await;
}

#[tokio::test]
async fn a_command_that_always_loses_is_given_up() {
    let fixture = Fixture::open().await;
    at_commit(&fixture, "RAISE EXCEPTION 'lost' USING ERRCODE = '40P01';").await;
    let tries = Arc::default();
    let outcome = insert(&fixture.store, &tries).await;
    assert!(
        matches!(outcome, Err(Failure::Store(StoreError::Unavailable { .. }))),
        "{outcome:?}"
    );
    assert!((2..20).contains(&tries.load(Ordering::SeqCst)));
    fixture.store.close().await;
}

#[tokio::test]
async fn a_full_disk_is_told_apart() {
    let fixture = Fixture::open().await;
    at_commit(
        &fixture,
        "RAISE EXCEPTION 'no space left' USING ERRCODE = '53100';",
    )
    .await;
    let outcome = insert(&fixture.store, &Arc::default()).await;
    assert!(
        matches!(outcome, Err(Failure::Store(StoreError::StorageFull))),
        "{outcome:?}"
    );
    fixture.store.close().await;
}

#[tokio::test]
async fn a_key_that_is_taken_is_tried_once_more_and_then_a_failure() {
    let fixture = Fixture::open().await;
    fixture.session(1).await;
    let tries = Arc::default();
    let outcome = insert(&fixture.store, &tries).await;
    assert!(
        matches!(outcome, Err(Failure::Store(StoreError::Internal(_)))),
        "{outcome:?}"
    );
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    fixture.store.close().await;
}

#[tokio::test]
async fn a_failed_statement_that_a_command_overlooks_is_no_success() {
    let fixture = Fixture::open().await;
    fixture.session(1).await;
    let outcome = run(&fixture.store, |tx| {
        Box::pin(async move {
            tx.insert_session(&session(2)).await?;
            assert!(tx.insert_session(&session(1)).await.is_err());
            Ok(())
        })
    })
    .await;
    assert!(outcome.is_err());
    assert_eq!(sessions(&fixture).await, 1);
    fixture.store.close().await;
}

#[tokio::test]
async fn what_a_refused_or_panicking_command_wrote_is_undone() {
    let fixture = Fixture::open().await;
    let refused = run::<_, ()>(&fixture.store, |tx| {
        Box::pin(async move {
            tx.insert_session(&session(1)).await?;
            Err(Rejection::NoRunAvailable.into())
        })
    })
    .await;
    assert!(matches!(
        refused,
        Err(Failure::Rejected(Rejection::NoRunAvailable))
    ));
    let panicked = run::<_, ()>(&fixture.store, |tx| {
        Box::pin(async move {
            tx.insert_session(&session(1)).await?;
            panic!("a mistake in a command");
        })
    })
    .await;
    assert!(matches!(
        panicked,
        Err(Failure::Store(StoreError::Internal(_)))
    ));
    assert_eq!(sessions(&fixture).await, 0);
    fixture.session(1).await;
    fixture.store.close().await;
}

#[tokio::test]
async fn a_lock_that_does_not_come_is_busy_and_not_a_failure() {
    let fixture = Fixture::open().await;
    fixture.session(1).await;
    let options = Options {
        lock_timeout: Duration::from_millis(50),
        ..Options::new(fixture.database.url())
    };
    let hurried = PostgresStore::open(options).await.unwrap();
    let mut conn = connect(&fixture.database).await;
    let lock = "BEGIN; SELECT FROM session_heads FOR UPDATE";
    sqlx::raw_sql(lock).execute(&mut conn).await.unwrap();
    let outcome = run(&hurried, |tx| {
        Box::pin(async move {
            tx.lock_session("default", session_id(1)).await?;
            Ok(())
        })
    })
    .await;
    assert!(
        matches!(outcome, Err(Failure::Store(StoreError::Overloaded { .. }))),
        "{outcome:?}"
    );
    conn.close().await.unwrap();
    hurried.close().await;
    fixture.store.close().await;
}

#[tokio::test]
async fn nothing_is_taken_after_the_close_and_what_was_taken_is_done() {
    let fixture = Fixture::open().await;
    let pause = Pause::new();
    let standing = Arc::clone(&pause);
    let work = run(&fixture.store, move |tx| {
        let pause = Arc::clone(&standing);
        Box::pin(async move {
            pause.here().await;
            tx.insert_session(&session(1)).await?;
            Ok(())
        })
    });
    let close = async {
        pause.reached().await;
        let mut closing = Box::pin(fixture.store.close());
        assert!(futures::poll!(&mut closing).is_pending());
        let late = insert(&fixture.store, &Arc::default()).await;
        assert!(
            matches!(late, Err(Failure::Store(StoreError::Unavailable { .. }))),
            "{late:?}"
        );
        pause.release();
        closing.await;
    };
    let (outcome, ()) = tokio::join!(work, close);
    outcome.unwrap();
    assert_eq!(sessions(&fixture).await, 1);
}
