//! A database of an earlier release is opened with every row and value that it had.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tapedeck_domain::tape::{EntryKind, EntrySource};
use tapedeck_domain::{RunId, SessionId, SessionKey};
use tapedeck_store::read::{EventFilter, InteractionFilter};
use tapedeck_store::{PageRequest, RunFilter, Store as _, TapeFilter};
use tapedeck_store_postgres::{Options, PostgresStore};
use uuid::Uuid;

use crate::postgres::{Cluster, Database};
use crate::support::{connect, run};

const MIGRATIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/postgres");
const ROWS: &str = include_str!("first_release.sql");
/// The session that has something of everything.
const SESSION: SessionKey = SessionKey(3);

/// The ids of sessions are numbered from 1, those of runs from 0x101.
fn id(number: u128) -> Uuid {
    Uuid::from_u128(0x018c_2000_0000_7000_8000_0000_0000_0000 + number)
}

fn run_id(number: u128) -> RunId {
    RunId::new(id(0x100 + number))
}

/// A database as the first release left it.
async fn first_release() -> (Database, PgConnection) {
    let database = Cluster::shared().await.database().await;
    let mut conn = connect(&database).await;
    let mut migrations = Migrator::new(Path::new(MIGRATIONS)).await.unwrap();
    migrations.migrations.to_mut().retain(|it| it.version == 1);
    migrations.run(&mut conn).await.unwrap();
    conn.execute(ROWS).await.unwrap();
    (database, conn)
}

#[expect(clippy::disallowed_methods, reason = "a look past the store")]
async fn texts(conn: &mut PgConnection, statement: &str) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(statement.to_owned()))
        .fetch_all(conn)
        .await
        .unwrap()
}

/// The columns of every table.
async fn columns(conn: &mut PgConnection) -> BTreeMap<String, Vec<String>> {
    let tables = "SELECT tablename::text FROM pg_tables
                  WHERE schemaname = 'public' AND tablename != '_sqlx_migrations'";
    let mut columns = BTreeMap::new();
    for table in texts(conn, tables).await {
        let names = format!(
            "SELECT column_name::text FROM information_schema.columns
             WHERE table_schema = 'public' AND table_name = '{table}'
             ORDER BY ordinal_position"
        );
        columns.insert(table, texts(conn, &names).await);
    }
    columns
}

/// All values of these columns, each with its name: one text for each row. Where the keys of a table
/// go on counts as a value.
async fn rows(
    conn: &mut PgConnection,
    columns: &BTreeMap<String, Vec<String>>,
) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for (table, columns) in columns {
        let columns = columns.join(", ");
        let statement = format!(
            "SELECT row_to_json(r, true)::text AS value FROM (SELECT {columns} FROM {table}) AS r
             ORDER BY value"
        );
        let mut found = texts(conn, &statement).await;
        let sequences = format!(
            "SELECT sequencename || ' = ' || last_value FROM pg_sequences
             WHERE starts_with(sequencename, '{table}_') AND last_value IS NOT NULL"
        );
        found.extend(texts(conn, &sequences).await);
        rows.insert(table.clone(), found);
    }
    rows
}

/// What the projection remembers, of each session.
async fn tape_states(conn: &mut PgConnection) -> Vec<Value> {
    let states = texts(conn, "SELECT state FROM tape_states ORDER BY session_key").await;
    let parsed = states
        .iter()
        .map(|state| serde_json::from_str(state).unwrap());
    parsed.collect()
}

#[tokio::test]
async fn a_database_of_the_first_release_keeps_every_row_and_value() {
    let (database, mut conn) = first_release().await;
    let columns = columns(&mut conn).await;
    let mut before = rows(&mut conn, &columns).await;
    let states_before = tape_states(&mut conn).await;
    assert!(columns.len() > 14, "{columns:?}");
    for (table, rows) in &before {
        assert!(!rows.is_empty(), "the test has no row of `{table}`");
    }
    assert_eq!(before["runs"].last().unwrap(), "runs_run_key_seq = 91");

    let store = PostgresStore::open(Options::new(database.url())).await;
    store.unwrap().close().await;

    let after = rows(&mut conn, &columns).await;
    // They get a new field; what else is in them is compared below.
    before.remove("tape_states");
    for (table, rows) in &before {
        assert_eq!(after.get(table), Some(rows), "`{table}`");
    }
    let mut states = tape_states(&mut conn).await;
    let counted: Vec<_> = states
        .iter_mut()
        .map(|state| state.as_object_mut().unwrap().remove("entries").unwrap())
        .collect();
    assert_eq!(states, states_before);
    assert_eq!(counted, [8, 0]);

    let unchecked = "SELECT conname::text FROM pg_constraint
                     WHERE contype IN ('f', 'c') AND NOT convalidated
                     UNION ALL
                     SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid";
    let unchecked = texts(&mut conn, unchecked).await;
    assert!(unchecked.is_empty(), "{unchecked:?}");
    let versions = "SELECT version::text FROM _sqlx_migrations WHERE success ORDER BY 1";
    let known = std::fs::read_dir(MIGRATIONS).unwrap().count();
    assert_eq!(texts(&mut conn, versions).await.len(), known);
    conn.close().await.unwrap();
}

#[tokio::test]
async fn readers_understand_what_the_first_release_wrote() {
    let (database, conn) = first_release().await;
    conn.close().await.unwrap();
    let store = PostgresStore::open(Options::new(database.url())).await;
    let store = store.unwrap();
    let reader = store.reader();
    let page = PageRequest {
        before: None,
        limit: 100,
    };
    let session_id = SessionId::new(id(1));

    let sessions = reader.sessions("default", page).await.unwrap().items;
    assert_eq!(sessions.len(), 2);
    let view = &sessions[1];
    assert_eq!(
        (view.session.session_id, view.head.head_seq),
        (session_id, 16)
    );
    assert_eq!(view.session.forked_from, None);
    assert_eq!(
        (view.session.restored_seq, view.session.folded_seq),
        (None, None)
    );
    let runs = reader.runs("default", RunFilter::default(), page).await;
    assert_eq!(runs.unwrap().items.len(), 6);
    let events = EventFilter {
        session_id,
        after: 0,
        limit: 100,
        max_bytes: 1 << 20,
        run_id: None,
        kinds: Vec::new(),
    };
    let events = reader.events(&events).await.unwrap().events;
    assert_eq!(events.len(), 16);
    assert!(events.iter().all(|event| event.folded_from.is_none()));
    let all = InteractionFilter::default();
    let inbox = reader.interactions("default", &all, page).await.unwrap();
    assert_eq!(inbox.items.len(), 2);
    assert_eq!(reader.executors(None, 9).await.unwrap().len(), 2);

    let tape = TapeFilter {
        session_id,
        after: 0,
        limit: 100,
        max_bytes: 1 << 20,
        include_superseded: false,
    };
    let tape = reader.tape(&tape).await.unwrap();
    assert_eq!(
        tape.iter().map(|it| it.position).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6, 7, 8]
    );
    for entry in &tape {
        let expected = match entry.kind {
            EntryKind::Anchor => EntrySource::Server,
            _ => EntrySource::Projection,
        };
        assert_eq!((entry.source, &entry.meta), (expected, &None), "{entry:?}");
    }
    assert_eq!(tape[7].run_id, None, "an entry of no run has none");
    store.close().await;
}

#[tokio::test]
async fn the_conversation_of_the_first_release_goes_on() {
    let (database, conn) = first_release().await;
    conn.close().await.unwrap();
    let store = PostgresStore::open(Options::new(database.url())).await;
    let store = store.unwrap();
    run(&store, |tx| {
        Box::pin(async move {
            let state = tx.tape_state(SESSION).await?;
            assert_eq!((state.entries, state.position), (8, 8));
            assert_eq!(state.open_text.unwrap().text, "so far ü\0");
            assert!(state.own_tape.is_empty());
            let latest = tx.latest_settled_run(SESSION).await?.unwrap();
            assert_eq!(
                latest.run_id,
                run_id(2),
                "the one that ended in the queue is none"
            );
            assert_eq!(tx.latest_interrupted_run(SESSION).await?, Some(run_id(2)));
            for (seq, position) in [(7, 0), (8, 4), (11, 4), (12, 6), (16, 6)] {
                assert_eq!(tx.settled_position(SESSION, seq).await?, position, "{seq}");
            }
            let live = tx.live_runs(SESSION).await?;
            let ids: Vec<_> = live.iter().map(|live| live.run_id).collect();
            assert_eq!(ids, [4, 3].map(run_id));
            Ok(())
        })
    })
    .await
    .unwrap();
    store.close().await;
}
