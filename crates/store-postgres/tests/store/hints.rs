//! Hints between instances: they arrive, many at once, and wherever one may have been lost the
//! listener is told to read again.

use std::time::Duration;

use sqlx::Connection as _;
use tapedeck_store::{Heard, Hint, Store as _};
use tapedeck_store_postgres::{Hints, Options, PostgresStore};

use crate::postgres::Database;
use crate::support::{Fixture, connect, number, run_id, session_id};
use crate::wait::within;

const LIMIT: Duration = Duration::from_secs(20);
/// So long that no poll comes while a test runs.
const NEVER: Duration = Duration::from_mins(10);

async fn instance(database: &Database, hints: Hints, poll: Duration) -> PostgresStore {
    let options = Options {
        hints,
        poll,
        ..Options::new(database.url())
    };
    PostgresStore::open(options).await.unwrap()
}

fn head(head_seq: u64) -> Hint {
    Hint::Head {
        session_id: session_id(1),
        head_seq,
    }
}

async fn hear(store: &PostgresStore) -> Heard {
    within("something is heard", LIMIT, store.hear())
        .await
        .unwrap()
}

/// Hears until `wanted` is among the hints. Gives how often that was.
async fn hear_until(store: &PostgresStore, wanted: &Hint) -> usize {
    for times in 1.. {
        match hear(store).await {
            Heard::Hints(hints) if hints.contains(wanted) => return times,
            Heard::Hints(_) => {}
            Heard::ReadAgain => panic!("nothing was lost"),
        }
    }
    unreachable!()
}

#[tokio::test]
async fn many_hints_arrive_in_few_sendings() {
    let fixture = Fixture::open().await;
    let here = instance(&fixture.database, Hints::Sent, NEVER).await;
    let there = instance(&fixture.database, Hints::Sent, NEVER).await;
    // What was said before it listened is lost.
    assert_eq!(hear(&there).await, Heard::ReadAgain);
    for head_seq in 1..=500 {
        here.announce(vec![head(head_seq), Hint::Run(run_id(1))]);
        tokio::task::yield_now().await;
    }
    assert!(hear_until(&there, &head(500)).await < 100);
    let last = Hint::Queue {
        executor_kind: "agent".to_owned(),
        pool: "default".to_owned(),
    };
    here.announce(vec![Hint::Deleted(session_id(2)), last.clone()]);
    hear_until(&there, &last).await;
    here.close().await;
    there.close().await;
    fixture.store.close().await;
}

#[tokio::test]
async fn a_listener_that_was_cut_off_reads_again_and_hears_again() {
    let fixture = Fixture::open().await;
    let here = instance(&fixture.database, Hints::Sent, NEVER).await;
    let there = instance(&fixture.database, Hints::Sent, NEVER).await;
    assert_eq!(hear(&there).await, Heard::ReadAgain);
    here.announce(vec![head(1)]);
    hear_until(&there, &head(1)).await;
    let mut conn = connect(&fixture.database).await;
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    assert!(number(&mut conn, cut).await >= 2);
    assert_eq!(hear(&there).await, Heard::ReadAgain);
    here.announce(vec![head(2)]);
    hear_until(&there, &head(2)).await;

    // What the sender could not send becomes "read again" for everybody.
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE '%pg_notify%'
          AND pid <> pg_backend_pid()";
    assert!(number(&mut conn, cut).await >= 1);
    here.announce(vec![head(3)]);
    assert_eq!(hear(&there).await, Heard::ReadAgain);
    conn.close().await.unwrap();
    here.close().await;
    there.close().await;
    fixture.store.close().await;
}

#[tokio::test]
async fn where_hints_are_dropped_a_poll_comes_instead() {
    let fixture = Fixture::open().await;
    let poll = Duration::from_millis(20);
    let here = instance(&fixture.database, Hints::Dropped, poll).await;
    let there = instance(&fixture.database, Hints::Sent, NEVER).await;
    assert_eq!(hear(&there).await, Heard::ReadAgain);
    here.announce(vec![head(1)]);
    there.announce(vec![head(2)]);
    for _ in 0..5 {
        assert_eq!(hear(&here).await, Heard::ReadAgain);
    }
    // The first was never sent.
    assert_eq!(hear_until(&there, &head(2)).await, 1);
    here.close().await;
    there.close().await;
    fixture.store.close().await;
}

#[tokio::test]
async fn a_listener_polls_now_and_then_although_nothing_is_lost() {
    let fixture = Fixture::open().await;
    let poll = Duration::from_millis(5);
    let store = instance(&fixture.database, Hints::Sent, poll).await;
    for _ in 0..5 {
        assert_eq!(hear(&store).await, Heard::ReadAgain);
    }
    store.close().await;
    fixture.store.close().await;
}
