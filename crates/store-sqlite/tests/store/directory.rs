//! Who may open a directory: one server or several local processes, of whom the dead are known.

use std::path::Path;
use std::time::Duration;

use tapedeck_store::{Heard, Store as _, StoreError};
use tapedeck_store_sqlite::{Clock, Mode, Options, SqliteStore};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::support::{Fixture, manual, options, raw, run, session};

/// Longer than the pause between two looks at the database.
const QUIET: Duration = Duration::from_millis(450);

fn embedded(dir: &Path, owner_id: &str) -> Options {
    let mode = Mode::Embedded {
        owner_id: owner_id.to_owned(),
    };
    Options {
        clock: Clock::manual(manual(), "boot-a"),
        ..Options::new(dir, mode)
    }
}

fn locked(opened: Result<SqliteStore, StoreError>) -> String {
    match opened {
        Err(StoreError::Locked(message)) => message,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

async fn is_dead(store: &SqliteStore, owner_id: &'static str) -> bool {
    run(store, move |tx| {
        let dead = tx.owner_is_dead(owner_id);
        Box::pin(async move { Ok(dead) })
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_second_server_is_refused_and_told_by_whom() {
    let fixture = Fixture::open().await;
    let second = SqliteStore::open(options(fixture.dir.path(), &fixture.clock)).await;
    let message = locked(second);
    let pid = std::process::id();
    assert!(
        message.contains(&format!("a server (process {pid})")),
        "{message}"
    );
    let message = locked(SqliteStore::open(embedded(fixture.dir.path(), "cli:1")).await);
    assert!(
        message.contains(&format!("a server (process {pid})")),
        "{message}"
    );
    let reopened = fixture.reopen("boot-a").await;
    reopened.store.close().await;
}

#[tokio::test]
async fn every_path_to_a_directory_is_the_same_database() {
    let fixture = Fixture::open().await;
    let dir = fixture.dir.path();
    let other = TempDir::new().unwrap();
    let link = other.path().join("link");
    std::os::unix::fs::symlink(dir, &link).unwrap();
    let dotted = dir.join("..").join(dir.file_name().unwrap());
    for path in [link, dotted] {
        locked(SqliteStore::open(options(&path, &fixture.clock)).await);
    }
    fixture.store.close().await;
}

#[tokio::test]
async fn local_processes_share_a_directory_and_name_themselves_to_a_server() {
    let dir = TempDir::new().unwrap();
    let first = SqliteStore::open(embedded(dir.path(), "cli:1"))
        .await
        .unwrap();
    let second = SqliteStore::open(embedded(dir.path(), "acp-stdio:2"))
        .await
        .unwrap();
    assert_eq!(first.reader().identity(), second.reader().identity());

    assert!(!is_dead(&first, "acp-stdio:2").await);
    assert!(!is_dead(&first, "cli:1").await, "nobody is dead to itself");
    assert!(is_dead(&first, "cli:never-was").await);
    assert!(
        is_dead(&first, "server:1").await,
        "no server lives beside a local process"
    );
    assert!(
        !is_dead(&first, "cli:../lock").await,
        "a name that is no file proves nothing"
    );

    let message = locked(SqliteStore::open(options(dir.path(), &manual())).await);
    let pid = std::process::id();
    for name in ["cli:1", "acp-stdio:2"] {
        assert!(
            message.contains(&format!("`{name}` (process {pid})")),
            "{message}"
        );
    }
    let message = locked(SqliteStore::open(embedded(dir.path(), "cli:1")).await);
    assert!(message.contains("already writes as `cli:1`"), "{message}");

    second.close().await;
    assert!(is_dead(&first, "acp-stdio:2").await);
    first.close().await;
    let server = SqliteStore::open(options(dir.path(), &manual()))
        .await
        .unwrap();
    assert!(is_dead(&server, "cli:1").await);
    server.close().await;
}

#[tokio::test]
async fn a_process_hears_that_another_has_written_and_closing_ends_the_wait() {
    let dir = TempDir::new().unwrap();
    let first = SqliteStore::open(embedded(dir.path(), "cli:1"))
        .await
        .unwrap();
    let second = SqliteStore::open(embedded(dir.path(), "acp-stdio:2"))
        .await
        .unwrap();
    // The second one's opening may have written; what is heard of it is over before its commit.
    while timeout(QUIET, first.hear()).await.is_ok() {}

    run(&second, |tx| {
        Box::pin(async move { Ok(tx.insert_session(&session(1)).await?) })
    })
    .await
    .unwrap();
    assert_eq!(first.hear().await.unwrap(), Heard::ReadAgain);
    let again = timeout(QUIET, first.hear()).await;
    assert!(again.is_err(), "one write is heard once: {again:?}");

    let (heard, ()) = tokio::join!(first.hear(), first.close());
    assert!(
        matches!(heard, Err(StoreError::Unavailable { .. })),
        "{heard:?}"
    );
    assert!(
        first.hear().await.is_err(),
        "nobody waits for a closed store"
    );
    second.close().await;
}

#[tokio::test]
async fn a_server_that_is_alone_hears_nothing() {
    let fixture = Fixture::open().await;
    fixture.session(1).await;
    let heard = timeout(QUIET, fixture.store.hear()).await;
    assert!(heard.is_err(), "{heard:?}");
    let (heard, ()) = tokio::join!(fixture.store.hear(), fixture.store.close());
    assert!(
        matches!(heard, Err(StoreError::Unavailable { .. })),
        "{heard:?}"
    );
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused_and_left_alone() {
    let fixture = Fixture::open().await;
    fixture.store.close().await;
    raw(
        fixture.dir.path(),
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'later', true, x'00', 0)",
    )
    .await;
    let opened = SqliteStore::open(options(fixture.dir.path(), &fixture.clock)).await;
    let Err(StoreError::SchemaTooNew { found, known }) = opened else {
        panic!("expected a refusal, got {opened:?}");
    };
    assert_eq!(found, 9999);
    assert!(known < found);
    raw(
        fixture.dir.path(),
        "DELETE FROM _sqlx_migrations WHERE version = 9999",
    )
    .await;
    let store = SqliteStore::open(options(fixture.dir.path(), &fixture.clock))
        .await
        .unwrap();
    store.close().await;
}

#[tokio::test]
async fn the_identity_stays_and_the_settings_are_what_durability_says() {
    let fixture = Fixture::open().await;
    let identity = fixture.store.reader().identity();
    let health = fixture.store.health();
    assert_eq!((health.engine, health.durability), ("sqlite", "full"));
    let fixture = fixture.reopen("boot-a").await;
    assert_eq!(fixture.store.reader().identity(), identity);
    fixture.store.close().await;
    let other = Fixture::with(|options| {
        options.durability = tapedeck_store_sqlite::Durability::Relaxed;
    })
    .await;
    assert_ne!(other.store.reader().identity(), identity);
    assert_eq!(other.store.health().durability, "relaxed");
    other.store.close().await;
}

#[tokio::test]
async fn local_processes_that_start_at_once_make_one_database() {
    let dir = TempDir::new().unwrap();
    let names = ["cli:1", "cli:2", "cli:3", "acp-stdio:4"];
    let opening = names.map(|name| SqliteStore::open(embedded(dir.path(), name)));
    let stores: Vec<_> = futures::future::join_all(opening)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    for (number, store) in (1..).zip(&stores) {
        assert_eq!(store.reader().identity(), stores[0].reader().identity());
        run(store, move |tx| {
            Box::pin(async move { Ok(tx.insert_session(&session(number)).await?) })
        })
        .await
        .unwrap();
    }
    for store in &stores {
        store.close().await;
    }
}

#[tokio::test]
async fn the_database_is_its_owners_alone_wherever_it_lies() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let store = SqliteStore::open(Options::new(dir.path(), Mode::Server))
        .await
        .unwrap();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with("tapedeck.db")
        {
            let mode = entry.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{entry:?} {mode:o}");
        }
    }
    store.close().await;
}
