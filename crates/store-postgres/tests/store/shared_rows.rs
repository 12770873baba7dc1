//! Rows that several transactions want at once and none may wait for, and the one that they must.

use std::sync::Arc;

use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use tapedeck_domain::digest::Digest;
use tapedeck_domain::executor::{Contact, Report};
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::run::RunState;
use tapedeck_domain::{LeaseInstant, Timestamp};
use tapedeck_store::Store as _;

use crate::locks::somebody_waits;
use crate::support::{Fixture, LEASE, OWNER, Pause, WALL, claim, connect, number, run, session_id};

async fn begin(conn: &mut PgConnection, lock: &'static str) {
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await.unwrap();
    sqlx::raw_sql(lock).execute(conn).await.unwrap();
}

async fn end(conn: &mut PgConnection) {
    sqlx::raw_sql("ROLLBACK").execute(conn).await.unwrap();
}

fn key() -> IdempotencyKey {
    IdempotencyKey {
        namespace: "default".to_owned(),
        principal: "p".to_owned(),
        operation: "prompt".to_owned(),
        key: "k".to_owned(),
        body_digest: Digest::of_bytes(b"body"),
    }
}

/// Rules R17: the second of two commands under one key answers what the first did, even where both
/// are on their way at once and on different instances.
#[tokio::test]
async fn a_command_waits_for_the_other_under_its_key_and_sees_its_result() {
    let fixture = Fixture::open().await;
    let other = fixture.instance().await;
    let pause = Pause::new();
    let standing = Arc::clone(&pause);
    let first = run(&fixture.store, move |tx| {
        let pause = Arc::clone(&standing);
        Box::pin(async move {
            assert_eq!(tx.stored_result(&key()).await?, None);
            pause.here().await;
            let now = tx.now().wall;
            tx.insert_result(&key(), &json!({"run_id": 1}), now).await?;
            Ok(())
        })
    });
    let second = async {
        pause.reached().await;
        let mut conn = connect(&fixture.database).await;
        let look = run(&other, |tx| {
            Box::pin(async move { Ok(tx.stored_result(&key()).await?) })
        });
        let release = async {
            somebody_waits(&mut conn).await;
            pause.release();
        };
        let (found, ()) = tokio::join!(look, release);
        conn.close().await.unwrap();
        found.unwrap().unwrap().result
    };
    let (first, second) = tokio::join!(first, second);
    first.unwrap();
    assert_eq!(second, json!({"run_id": 1}));
    other.close().await;
    fixture.store.close().await;
}

fn contact() -> Contact {
    Contact {
        executor_id: "e".to_owned(),
        instance_id: None,
        executor_kind: "agent".to_owned(),
        pool: "default".to_owned(),
        labels: std::collections::BTreeMap::new(),
        process_id: None,
        version: None,
        capabilities: None,
        workspace: None,
        max_runs: Some(2),
    }
}

#[tokio::test]
async fn a_contact_is_skipped_where_another_transaction_holds_its_row() {
    let fixture = Fixture::open().await;
    let save = |instance: &'static str| {
        run(&fixture.store, move |tx| {
            Box::pin(async move {
                let contact = Contact {
                    instance_id: Some(instance.to_owned()),
                    ..contact()
                };
                let now = tx.now();
                tx.save_contact(&contact, now).await?;
                let report = Report {
                    process_id: Some(7),
                    ..Report::default()
                };
                tx.touch_executor("e", &report, now).await?;
                Ok(())
            })
        })
    };
    let instance = async || {
        let executor = fixture.store.reader().executor("e").await.unwrap();
        executor.unwrap().contact.instance_id
    };
    save("first").await.unwrap();
    let mut conn = connect(&fixture.database).await;
    begin(&mut conn, "SELECT FROM executors FOR UPDATE").await;
    save("second").await.unwrap();
    assert_eq!(instance().await.as_deref(), Some("first"));
    end(&mut conn).await;
    save("third").await.unwrap();
    assert_eq!(instance().await.as_deref(), Some("third"));
    conn.close().await.unwrap();
    fixture.store.close().await;
}

#[tokio::test]
async fn sweeps_pass_over_heads_that_a_command_holds() {
    let fixture = Fixture::open().await;
    for number in 1..=4 {
        let session = fixture.session(number).await;
        if number <= 2 {
            let state = RunState::Running(claim("e", 1, LEASE + 60_000));
            let live = fixture.run(&session, number, state).await;
            run(&fixture.store, move |tx| {
                let key = live.key;
                Box::pin(async move {
                    let locked = tx.lock_session("default", session_id(number)).await?;
                    let mut head = locked.unwrap().head;
                    head.active_run = Some(key);
                    tx.save_head(&head).await?;
                    Ok(())
                })
            })
            .await
            .unwrap();
        }
    }
    let sweep = || {
        run(&fixture.store, |tx| {
            Box::pin(async move {
                let (at, until) = (LeaseInstant(LEASE), LeaseInstant(LEASE + 90_000));
                let renewed = tx.renew_active_heads(OWNER, at, until).await?;
                let idle_since = Timestamp(WALL + 1);
                let released = tx.release_idle_heads(OWNER, idle_since, 10).await?;
                Ok((renewed, released))
            })
        })
    };
    let mut conn = connect(&fixture.database).await;
    begin(
        &mut conn,
        "SELECT FROM session_heads WHERE session_key IN (
            (SELECT min(session_key) FROM session_heads), (SELECT max(session_key) FROM session_heads)
         ) FOR UPDATE",
    )
    .await;
    assert_eq!(sweep().await.unwrap(), (1, 1));
    end(&mut conn).await;
    assert_eq!(sweep().await.unwrap(), (1, 1));
    assert_eq!(sweep().await.unwrap(), (0, 0));
    let released = "SELECT count(*) FROM session_heads WHERE released";
    assert_eq!(number(&mut conn, released).await, 2);
    conn.close().await.unwrap();
    fixture.store.close().await;
}

/// Rules R6: of two instances that come back from one outage, the second must not credit it again.
#[tokio::test]
async fn an_outage_is_credited_once() {
    let fixture = Fixture::open().await;
    let other = fixture.instance().await;
    let session = fixture.session(1).await;
    let state = RunState::Running(claim("e", 1, LEASE + 60_000));
    fixture.run(&session, 1, state).await;
    let pause = Pause::new();
    let come_back = |store, pause: Option<Arc<Pause>>| {
        run(store, move |tx| {
            let pause = pause.clone();
            Box::pin(async move {
                let alive_at = tx.deployment().await?.alive_at;
                if let Some(pause) = pause {
                    pause.here().await;
                }
                let mut moved = 0;
                if alive_at.is_none() {
                    moved = tx.shift_leases(LeaseInstant(LEASE), 5_000).await?;
                }
                tx.set_alive(LeaseInstant(LEASE + 5_000)).await?;
                Ok(moved)
            })
        })
    };
    let first = come_back(&fixture.store, Some(Arc::clone(&pause)));
    let second = async {
        pause.reached().await;
        let mut conn = connect(&fixture.database).await;
        let release = async {
            somebody_waits(&mut conn).await;
            pause.release();
        };
        let (moved, ()) = tokio::join!(come_back(&other, None), release);
        conn.close().await.unwrap();
        moved.unwrap()
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!((first.unwrap(), second), (1, 0));
    other.close().await;
    fixture.store.close().await;
}
