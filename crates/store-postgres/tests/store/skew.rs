//! A database whose clock is not the host's: what the database says decides (rules R7).

use sqlx::Connection as _;
use tapedeck_store::Store as _;
use tapedeck_store_postgres::{Options, PostgresStore};

use crate::postgres::Cluster;
use crate::support::{connect, run};

/// How far the database is ahead.
const AHEAD_MS: i64 = 3_600_000;

#[tokio::test]
async fn a_host_with_another_clock_than_the_database_decides_nothing() {
    let database = Cluster::shared().await.database().await;
    let store = PostgresStore::open(Options::new(database.url()))
        .await
        .unwrap();
    store.close().await;
    let mut conn = connect(&database).await;
    // A function of that name is found before the server's own.
    let ahead = format!(
        "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
         $$ SELECT pg_catalog.clock_timestamp() + interval '{AHEAD_MS} ms' $$; \
         ALTER DATABASE {} SET search_path = public, pg_catalog",
        database.name()
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(ahead))
        .execute(&mut conn)
        .await
        .unwrap();
    conn.close().await.unwrap();

    let store = PostgresStore::open(Options::new(database.url()))
        .await
        .unwrap();
    let host = host_ms();
    let told = run(&store, |tx| Box::pin(async move { Ok(tx.now()) }))
        .await
        .unwrap();
    let read = store.reader().now().await.unwrap();
    for now in [told, read] {
        let ahead = now.lease.0 - host;
        assert!((AHEAD_MS..AHEAD_MS + 60_000).contains(&ahead), "{ahead}");
        assert_eq!((now.wall.0, now.judged), (now.lease.0, now.lease));
    }
    store.close().await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "the clock that must decide nothing"
)]
fn host_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.unwrap().as_millis()).unwrap()
}
