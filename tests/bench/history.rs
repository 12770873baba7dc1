//! The two databases that are compared: one with a small history, which commands have made, and one
//! that holds this history many times over. What is copied gets keys, ids and numbers of its own, so
//! that the large one is as valid as the small one; the doctor's checks say so.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::types::Uuid;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use tapedeck_domain::SessionId;
use tapedeck_domain::settle::Ending;
use tapedeck_store::archive::{self, Column, Kind, Table};
use tapedeck_store::{Audit, AuditRequest, Check, Store};
use tapedeck_store_postgres::{self as postgres, PostgresStore};
use tapedeck_store_sqlite::{self as sqlite, Mode, SqliteStore};
use tempfile::TempDir;

use crate::postgres::{Cluster, Database};
use crate::side::Side;

/// Sessions of the small history, besides the one with the long log.
pub(crate) const SESSIONS: usize = 100;
/// How often the large history holds the small one.
pub(crate) const TIMES: usize = 1_000;
/// Events that the runs of a usual session upload.
const SHALLOW: usize = 4;
/// Runs of the session with the long log, and events that each uploads.
const DEEP: (usize, usize) = (5, 200);
/// Copies made in one transaction.
const AT_ONCE: usize = 100;
/// Between the keys of two copies; above all keys of the small history.
const KEYS: usize = 10_000;
/// The time in the ids of copies, in milliseconds: before all real ones, and rising from copy to
/// copy, so that those of one copy lie together as real ones do.
const EPOCH: usize = 1_500_000_000_000;
/// The tables whose rows are copied; the others hold what is live, or are empty.
const COPIED: [&str; 8] = [
    "sessions",
    "session_heads",
    "runs",
    "run_materials",
    "claims",
    "events",
    "tape_states",
    "tape_entries",
];
/// Where a database is.
pub(crate) enum Place {
    Sqlite(TempDir),
    Postgres(Database),
}

/// The small and the large history.
pub(crate) struct Histories {
    pub(crate) small: Place,
    pub(crate) large: Place,
    pub(crate) deep: SessionId,
}

/// The id before which all sessions of the first copies lie.
pub(crate) fn before_copy(number: usize) -> Uuid {
    Uuid::from_u128(((EPOCH + number) as u128) << 80)
}

impl Histories {
    pub(crate) async fn on_sqlite() -> Self {
        let new = || Place::Sqlite(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let (small, large) = (new(), new());
        let deep = make(&small).await;
        for file in std::fs::read_dir(small.dir()).unwrap() {
            let file = file.unwrap();
            if file
                .file_name()
                .to_string_lossy()
                .starts_with("tapedeck.db")
            {
                std::fs::copy(file.path(), large.dir().join(file.file_name())).unwrap();
            }
        }
        Self::multiplied(small, large, deep).await
    }

    pub(crate) async fn on_postgres(cluster: &Cluster) -> Self {
        let database = cluster.database().await;
        let small = Place::Postgres(database);
        let deep = make(&small).await;
        let Place::Postgres(database) = &small else {
            unreachable!()
        };
        let large = Place::Postgres(cluster.copy_of(database).await);
        Self::multiplied(small, large, deep).await
    }

    async fn multiplied(small: Place, large: Place, deep: SessionId) -> Self {
        multiply(&large).await;
        small.settle_down().await;
        large.settle_down().await;
        large.is_valid().await;
        Self { small, large, deep }
    }
}

impl Place {
    fn dir(&self) -> PathBuf {
        match self {
            Self::Sqlite(dir) => dir.path().to_owned(),
            Self::Postgres(_) => panic!("no directory"),
        }
    }

    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(dir) => Arc::new(open_file(dir).await),
            Self::Postgres(database) => Arc::new(open_database(database).await),
        }
    }

    async fn is_valid(&self) {
        let request = AuditRequest::of(Check::ALL);
        let checked = match self {
            Self::Sqlite(dir) => audited(&open_file(dir).await, &request).await,
            Self::Postgres(database) => audited(&open_database(database).await, &request).await,
        };
        assert_eq!(checked.len(), Check::ALL.len());
        for check in checked {
            assert!(check.findings.is_empty(), "{check:?}");
        }
    }

    /// What a database that has been there for a while has behind it.
    async fn settle_down(&self) {
        let mut beside = self.connect().await;
        match self {
            Self::Sqlite(_) => beside.run("PRAGMA wal_checkpoint(TRUNCATE)").await,
            Self::Postgres(_) => {
                beside.run("VACUUM (ANALYZE)").await;
                beside.run("CHECKPOINT").await;
            }
        }
        beside.close().await;
    }

    async fn connect(&self) -> Beside {
        match self {
            Self::Sqlite(dir) => {
                let file = SqliteConnectOptions::new()
                    .filename(dir.path().join("tapedeck.db"))
                    .busy_timeout(Duration::from_secs(10));
                Beside::Sqlite(file.connect().await.unwrap())
            }
            Self::Postgres(database) => {
                let options: PgConnectOptions = database.url().parse().unwrap();
                Beside::Postgres(options.connect().await.unwrap())
            }
        }
    }
}

async fn open_file(dir: &TempDir) -> SqliteStore {
    let options = sqlite::Options::new(dir.path(), Mode::Server);
    SqliteStore::open(options).await.unwrap()
}

async fn open_database(database: &Database) -> PostgresStore {
    let options = postgres::Options::new(database.url());
    PostgresStore::open(options).await.unwrap()
}

async fn audited(
    store: &(impl Audit + Store),
    request: &AuditRequest,
) -> Vec<tapedeck_store::Checked> {
    let checked = store.audit(request).await.unwrap();
    store.close().await;
    checked
}

/// Makes the small history by commands; gives the session with the long log.
async fn make(place: &Place) -> SessionId {
    let side = Side::open(place.open().await, SessionId::new(Uuid::nil())).await;
    let deep = side.session().await;
    for _ in 0..DEEP.0 {
        let mut work = side.working(deep).await;
        side.speak(&mut work, DEEP.1).await;
        side.settle(work, Ending::Completed).await;
    }
    for number in 0..SESSIONS {
        let session = side.session().await;
        let mut work = side.working(session).await;
        side.speak(&mut work, SHALLOW).await;
        let ending = if number % 10 == 0 {
            Ending::Failed
        } else {
            Ending::Completed
        };
        side.settle(work, ending).await;
    }
    side.close().await;
    // As after a night, in which the deployment has let go of what nobody works on.
    let mut beside = place.connect().await;
    beside
        .run("UPDATE session_heads SET owner_expires_at = NULL")
        .await;
    beside.close().await;
    deep
}

/// What lies between two copies within the session with the long log.
struct Stretch {
    deep: i64,
    events: i64,
    entries: i64,
}

/// Adds the copies. Copies of the session with the long log continue it.
async fn multiply(place: &Place) {
    let mut beside = place.connect().await;
    beside.prepare_to_fill().await;
    let text = beside
        .text(
            "SELECT state FROM tape_states WHERE session_key = \
             (SELECT min(session_key) FROM sessions)",
        )
        .await;
    let mut state: Value = serde_json::from_str(&text).unwrap();
    let number = |field: &str| state[field].as_i64().unwrap();
    // The session was made first, and is idle.
    let stretch = Stretch {
        deep: 1,
        events: number("tape_seq"),
        entries: number("position"),
    };
    for first in (1..TIMES).step_by(AT_ONCE) {
        let last = (first + AT_ONCE - 1).min(TIMES - 1);
        beside.run("BEGIN").await;
        for name in COPIED {
            let (_, table) = archive::table(name).unwrap();
            beside
                .run(&beside.copies(table, &stretch, (first, last)))
                .await;
        }
        beside.run("COMMIT").await;
    }
    let copies = i64::try_from(TIMES - 1).unwrap();
    for (field, by) in [
        ("tape_seq", stretch.events),
        ("position", stretch.entries),
        ("entries", stretch.entries),
    ] {
        state[field] = (state[field].as_i64().unwrap() + copies * by).into();
    }
    let head = state["tape_seq"].as_i64().unwrap();
    let key = stretch.deep;
    let state = state.to_string().replace('\'', "''");
    beside
        .run(&format!(
            "UPDATE tape_states SET state = '{state}' WHERE session_key = {key}; \
             UPDATE session_heads SET head_seq = {head} WHERE session_key = {key}; \
             UPDATE sessions SET resume_from_event_id = 'srv:{head}', last_run_id = (\
                SELECT run_id FROM runs WHERE session_key = {key} AND settled_seq = {head}\
             ) WHERE session_key = {key}"
        ))
        .await;
    beside.end_of_fill().await;
    beside.close().await;
}

/// A connection beside the store.
enum Beside {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Beside {
    async fn run(&mut self, statements: &str) {
        let statements = AssertSqlSafe(statements.to_owned());
        match self {
            Self::Sqlite(conn) => {
                let done = sqlx::Executor::execute(conn, statements).await;
                done.unwrap();
            }
            Self::Postgres(conn) => {
                let done = sqlx::raw_sql(statements).execute(conn).await;
                done.unwrap();
            }
        }
    }

    async fn text(&mut self, statement: &str) -> String {
        let statement = AssertSqlSafe(statement.to_owned());
        #[expect(clippy::disallowed_methods, reason = "a measurement's own statement")]
        match self {
            Self::Sqlite(conn) => {
                let query = sqlx::query_scalar::<sqlx::Sqlite, String>(statement);
                query.fetch_one(conn).await.unwrap()
            }
            Self::Postgres(conn) => {
                let query = sqlx::query_scalar::<sqlx::Postgres, String>(statement);
                query.fetch_one(conn).await.unwrap()
            }
        }
    }

    async fn close(self) {
        match self {
            Self::Sqlite(conn) => conn.close().await.unwrap(),
            Self::Postgres(conn) => conn.close().await.unwrap(),
        }
    }

    /// Nothing of this outlives the connection.
    async fn prepare_to_fill(&mut self) {
        self.run(match self {
            Self::Sqlite(_) => {
                "PRAGMA synchronous = OFF; PRAGMA foreign_keys = OFF; PRAGMA cache_size = -262144"
            }
            Self::Postgres(_) => {
                "SET synchronous_commit = off; SET session_replication_role = replica"
            }
        })
        .await;
    }

    /// New rows get keys after those of the copies.
    async fn end_of_fill(&mut self) {
        let Self::Postgres(_) = self else { return };
        for name in COPIED {
            let (_, table) = archive::table(name).unwrap();
            let (key, name) = (table.key, table.name);
            self.run(&format!(
                "SELECT setval(sequence, (SELECT max({key}) FROM {name})) \
                 FROM pg_get_serial_sequence('{name}', '{key}') AS sequence \
                 WHERE sequence IS NOT NULL"
            ))
            .await;
        }
    }

    /// The statement that adds these copies of a table's rows.
    fn copies(&self, table: &Table, stretch: &Stretch, (first, last): (usize, usize)) -> String {
        let names: Vec<_> = table.columns.iter().map(|column| column.name).collect();
        let values: Vec<_> = table
            .columns
            .iter()
            .map(|column| self.copied(table, column, stretch))
            .collect();
        let numbers = match self {
            Self::Sqlite(_) => format!(
                "WITH RECURSIVE copies (copy) AS (SELECT {first} UNION ALL SELECT copy + 1 FROM copies WHERE copy < {last})"
            ),
            Self::Postgres(_) => {
                format!("WITH copies AS (SELECT generate_series({first}, {last}) AS copy)")
            }
        };
        let deep = stretch.deep;
        let which = match table.name {
            "sessions" | "session_heads" | "tape_states" => format!("session_key <> {deep}"),
            _ => "true".to_owned(),
        };
        let (name, key, names, values) =
            (table.name, table.key, names.join(", "), values.join(", "));
        format!(
            "{numbers} INSERT INTO {name} ({names}) SELECT {values} FROM copies CROSS JOIN (\
                SELECT * FROM {name} WHERE {key} < {KEYS}\
             ) AS t WHERE {which} ORDER BY copy, {key}"
        )
    }

    /// A column's value in a copy.
    fn copied(&self, table: &Table, column: &Column, stretch: &Stretch) -> String {
        let (name, deep) = (column.name, stretch.deep);
        let moved = |by: i64| {
            format!("CASE WHEN session_key = {deep} THEN {name} + copy * {by} ELSE {name} END")
        };
        match (name, column.kind) {
            ("session_key", _) => format!(
                "CASE WHEN session_key = {deep} THEN session_key ELSE session_key + copy * {KEYS} END"
            ),
            ("session_id", _) => format!(
                "CASE WHEN session_key = {deep} THEN session_id ELSE {} END",
                self.id(name)
            ),
            ("session_seq" | "admitted_seq" | "settled_seq" | "first_seq", _) => {
                moved(stretch.events)
            }
            ("position", _) => moved(stretch.entries),
            ("event_id", _) => format!(
                "CASE WHEN session_key = {deep} AND event_id LIKE 'srv:%' \
                 THEN 'srv:' || (session_seq + copy * {}) ELSE event_id END",
                stretch.events
            ),
            ("request_hash", _) => match self {
                Self::Sqlite(_) => {
                    "unhex(printf('%016x', copy) || substr(hex(request_hash), 17))".to_owned()
                }
                Self::Postgres(_) => "int8send(copy::bigint) || substr(request_hash, 9)".to_owned(),
            },
            (_, Kind::Id | Kind::IdOrNone) => self.id(name),
            (_, Kind::Integer) if name.ends_with("_key") => format!("{name} + copy * {KEYS}"),
            _ => {
                debug_assert!(table.columns.contains(column));
                name.to_owned()
            }
        }
    }

    /// An id with the time of its copy; none stays none.
    fn id(&self, name: &str) -> String {
        match self {
            Self::Sqlite(_) => format!(
                "iif(coalesce(length({name}), 0) = 0, {name}, \
                 unhex(printf('%012x', {EPOCH} + copy) || substr(hex({name}), 13)))"
            ),
            Self::Postgres(_) => format!(
                "CASE WHEN {name} = '00000000-0000-0000-0000-000000000000' THEN {name} ELSE \
                 (lpad(to_hex({EPOCH} + copy), 12, '0') || substr(replace({name}::text, '-', ''), 13))::uuid END"
            ),
        }
    }
}
