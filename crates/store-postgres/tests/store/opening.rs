//! Opening a database: whose schema is whose, several instances at once, and a server that is away.

use std::time::Duration;

use futures::future::join_all;
use sqlx::Connection as _;
use tapedeck_store::{Failure, Store as _, StoreError};
use tapedeck_store_postgres::{Options, PostgresStore};

use crate::postgres::{Cluster, ClusterOptions};
use crate::support::{Fixture, connect, number, run};
use crate::wait::eventually;

#[tokio::test]
async fn a_newer_schema_is_refused_before_anything_is_written() {
    let fixture = Fixture::open().await;
    fixture.store.close().await;
    let mut conn = connect(&fixture.database).await;
    let newer = "INSERT INTO _sqlx_migrations
            (version, description, installed_on, success, checksum, execution_time)
        VALUES (9999, 'of a later version', now(), true, '', 0);
        DELETE FROM deployment";
    sqlx::raw_sql(newer).execute(&mut conn).await.unwrap();
    let known = "SELECT max(version) FROM _sqlx_migrations WHERE version < 9999";
    let known_version = number(&mut conn, known).await;
    let refused = PostgresStore::open(Options::new(fixture.database.url())).await;
    assert!(matches!(
        refused,
        Err(StoreError::SchemaTooNew { found: 9999, known }) if known == known_version
    ));
    assert_eq!(
        number(&mut conn, "SELECT count(*) FROM deployment").await,
        0
    );
    conn.close().await.unwrap();
}

#[tokio::test]
async fn instances_that_open_an_empty_database_at_once_agree_on_it() {
    let database = Cluster::shared().await.database().await;
    let opening = (0..6).map(|_| PostgresStore::open(Options::new(database.url())));
    let stores: Vec<_> = join_all(opening)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let identity = stores[0].reader().identity();
    for store in &stores {
        assert_eq!(store.reader().identity(), identity);
        store.close().await;
    }
    let again = PostgresStore::open(Options::new(database.url()))
        .await
        .unwrap();
    assert_eq!(again.reader().identity(), identity);
    again.close().await;
}

#[tokio::test]
async fn a_server_that_is_away_is_named_without_the_password() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let url = format!("postgres://somebody:secret@127.0.0.1:{port}/tapedeck");
    let options = Options::new(url);
    assert!(!format!("{options:?}").contains("secret"));
    let error = PostgresStore::open(options).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("no connection"), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn the_databases_own_clock_tells_the_time() {
    let database = Cluster::shared().await.database().await;
    let store = PostgresStore::open(Options::new(database.url()))
        .await
        .unwrap();
    let mut conn = connect(&database).await;
    let clock = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let before = number(&mut conn, clock).await;
    let told = run(&store, |tx| Box::pin(async move { Ok(tx.now()) })).await;
    let told = told.unwrap();
    let read = store.reader().now().await.unwrap();
    let after = number(&mut conn, clock).await;
    for now in [told, read] {
        assert!((before..=after).contains(&now.wall.0), "{before} {now:?}");
        assert_eq!(now.wall.0, now.lease.0);
        assert_eq!(now.judged, now.lease);
    }
    assert!(told.wall.0 <= read.wall.0);
    conn.close().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let cluster = Cluster::own(ClusterOptions::default()).await;
    let database = cluster.database().await;
    let options = Options {
        acquire_timeout: Duration::from_millis(500),
        ..Options::new(database.url())
    };
    let store = PostgresStore::open(options).await.unwrap();
    let now = || run(&store, |tx| Box::pin(async move { Ok(tx.now()) }));
    now().await.unwrap();
    assert!(store.health().writable);

    cluster.stop().await;
    let refused = now().await.unwrap_err();
    assert!(
        matches!(refused, Failure::Store(StoreError::Unavailable { .. })),
        "{refused}"
    );
    assert!(!store.health().writable);
    let unread = store.reader().live_run_count().await.unwrap_err();
    assert!(matches!(unread, StoreError::Unavailable { .. }), "{unread}");

    cluster.start().await;
    eventually("a command passes", Duration::from_secs(20), async || {
        now().await.ok()
    })
    .await;
    assert!(store.health().writable);
    store.close().await;
}
