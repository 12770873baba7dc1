//! Callers that go away (faults 18): their commands are done all the same, and no connection is left
//! inside a transaction or in the middle of an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use sqlx::Connection as _;
use tapedeck_store::{PageRequest, Store as _};
use tapedeck_store_postgres::{Options, PostgresStore};
use tokio::time::timeout;

use crate::support::{Fixture, connect, event, number, run, session_id};
use crate::wait::eventually;

const SESSIONS: u128 = 6;
const CALLERS: usize = 40;
const CALLS: usize = 12;

/// Appends one event to a session, as a command does.
async fn append(store: &PostgresStore, session: u128, done: &Arc<AtomicU64>) {
    let counted = Arc::clone(done);
    let appended = run(store, move |tx| {
        let done = Arc::clone(&counted);
        Box::pin(async move {
            let locked = tx.lock_session("default", session_id(session)).await?;
            let mut locked = locked.unwrap();
            locked.head.head_seq += 1;
            let event = event(&locked.session, None, locked.head.head_seq);
            tx.insert_events(locked.session.key, &[event]).await?;
            tx.save_head(&locked.head).await?;
            done.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    })
    .await;
    appended.unwrap();
}

fn impatience() -> Duration {
    Duration::from_micros(u64::from(rand::random::<u16>()) / 8)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_away_leave_no_transaction_behind() {
    let fixture = Fixture::open().await;
    for session in 1..=SESSIONS {
        fixture.session(session).await;
    }
    let options = Options {
        connections: 6,
        ..Options::new(fixture.database.url())
    };
    let store = PostgresStore::open(options).await.unwrap();
    let begun = AtomicU64::new(0);
    let done = Arc::new(AtomicU64::new(0));
    let page = PageRequest {
        before: None,
        limit: 50,
    };
    let callers = (0..CALLERS).map(|caller| {
        let (store, begun, done) = (&store, &begun, &done);
        async move {
            for call in 0..CALLS {
                let session = 1 + ((caller + call) as u128) % SESSIONS;
                if (caller + call) % 3 == 0 {
                    let read = store.reader().sessions("default", page);
                    if let Ok(read) = timeout(impatience(), read).await {
                        assert_eq!(read.unwrap().items.len() as u128, SESSIONS);
                    }
                } else {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let _gone = timeout(impatience(), append(store, session, done)).await;
                }
            }
        }
    });
    join_all(callers).await;

    // A read that comes after all this is a whole one.
    let read = store.reader().sessions("default", page).await.unwrap();
    assert_eq!(read.items.len() as u128, SESSIONS);
    let done = async || {
        let done = done.load(Ordering::SeqCst);
        (done == begun.load(Ordering::SeqCst)).then_some(done)
    };
    let limit = Duration::from_secs(30);
    let done = eventually("every command is done", limit, done).await;
    let mut conn = connect(&fixture.database).await;
    let idle = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    eventually("no transaction is left", limit, async || {
        (number(&mut conn, idle).await == 0).then_some(())
    })
    .await;
    let events = "SELECT count(*) FROM events";
    eventually("every event is committed", limit, async || {
        (number(&mut conn, events).await == i64::try_from(done).unwrap()).then_some(())
    })
    .await;
    for session in 1..=SESSIONS {
        fixture.check_log(session).await;
    }
    conn.close().await.unwrap();
    store.close().await;
    fixture.store.close().await;
}
