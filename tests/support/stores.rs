//! Fresh databases for tests on either store, with a clock that tests move and ways to make a store
//! fail. The same words mean the same on both.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use tapedeck_control_plane::{ControlPlane, Hints};
use tapedeck_domain::{LeaseInstant, Timestamp};
use tapedeck_store::{Archive, Audit, Store};
use tapedeck_store_postgres::{self as postgres, PostgresStore};
use tapedeck_store_sqlite::{self as sqlite, Mode, SqliteStore};
use tempfile::TempDir;

use super::postgres::{Cluster, Database};

const WALL: Timestamp = Timestamp(1_800_000_000_000);
const LEASE: LeaseInstant = LeaseInstant(5_000_000);
/// Without hints a test waits for this instead.
const POLL: Duration = Duration::from_millis(20);
/// Many stores share one server.
const CONNECTIONS: u32 = 8;

/// Which store a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    /// Every hint between and inside processes is lost (faults 19).
    PostgresWithoutHints,
}

/// The clock of a test: both clocks of the store, and the machine's boots.
#[derive(Debug, Clone)]
pub(crate) struct TestClock {
    times: Times,
    lease: Arc<AtomicI64>,
    boot: Arc<AtomicU64>,
}

#[derive(Debug, Clone)]
enum Times {
    Sqlite(sqlite::ManualClock),
    Postgres(postgres::ManualClock),
}

impl TestClock {
    fn new(kind: Kind) -> Self {
        let times = match kind {
            Kind::Sqlite => Times::Sqlite(sqlite::ManualClock::new(WALL, LEASE)),
            Kind::Postgres | Kind::PostgresWithoutHints => {
                Times::Postgres(postgres::ManualClock::new(WALL, LEASE))
            }
        };
        Self {
            times,
            lease: Arc::new(AtomicI64::new(LEASE.0)),
            boot: Arc::new(AtomicU64::new(1)),
        }
    }

    /// Moves both clocks.
    pub(crate) fn advance(&self, ms: i64) {
        match &self.times {
            Times::Sqlite(clock) => clock.advance(ms),
            Times::Postgres(clock) => clock.advance(ms),
        }
        self.lease.fetch_add(ms, Ordering::SeqCst);
    }

    /// The lease clock.
    pub(crate) fn lease(&self) -> i64 {
        self.lease.load(Ordering::SeqCst)
    }

    /// Starts another boot whose lease clock shows `lease`; it counts from the next open. Only
    /// SQLite's clock is a machine's.
    pub(crate) fn reboot(&self, lease: i64) {
        let Times::Sqlite(clock) = &self.times else {
            panic!("a test with a reboot belongs into `on_sqlite!`");
        };
        self.boot.fetch_add(1, Ordering::SeqCst);
        clock.set_lease(LeaseInstant(lease));
        self.lease.store(lease, Ordering::SeqCst);
    }
}

/// Where a database is.
#[derive(Debug, Clone)]
enum Location {
    Directory(Arc<TempDir>),
    Postgres(Arc<Database>),
}

/// The open store by its own type.
#[derive(Debug, Clone)]
enum Opened {
    Sqlite(Arc<SqliteStore>),
    Postgres(Arc<PostgresStore>),
}

/// An open database of the test's own.
pub(crate) struct TestStore {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: TestClock,
    pub(crate) kind: Kind,
    opened: Opened,
    location: Location,
}

impl TestStore {
    /// A new database.
    pub(crate) async fn fresh(kind: Kind) -> Self {
        let location = match kind {
            Kind::Sqlite => Location::Directory(Arc::new(tempfile::tempdir().unwrap())),
            Kind::Postgres | Kind::PostgresWithoutHints => {
                let database = Cluster::shared().await.database_like("migrated", migrate);
                Location::Postgres(Arc::new(database.await))
            }
        };
        Self::open(kind, location, TestClock::new(kind), Mode::Server).await
    }

    async fn open(kind: Kind, location: Location, clock: TestClock, mode: Mode) -> Self {
        let opened = match (&location, &clock.times) {
            (Location::Directory(dir), Times::Sqlite(times)) => {
                let boot = format!("boot-{}", clock.boot.load(Ordering::SeqCst));
                let options = sqlite::Options {
                    clock: sqlite::Clock::manual(times.clone(), &boot),
                    ..sqlite::Options::new(dir.path(), mode)
                };
                Opened::Sqlite(Arc::new(SqliteStore::open(options).await.unwrap()))
            }
            (Location::Postgres(database), Times::Postgres(times)) => {
                let options = postgres_options(kind, database.url(), times.clone());
                Opened::Postgres(Arc::new(PostgresStore::open(options).await.unwrap()))
            }
            _ => unreachable!("a clock of the other store"),
        };
        let store: Arc<dyn Store> = match &opened {
            Opened::Sqlite(store) => Arc::<SqliteStore>::clone(store),
            Opened::Postgres(store) => Arc::<PostgresStore>::clone(store),
        };
        Self {
            store,
            clock,
            kind,
            opened,
            location,
        }
    }

    /// Whether a control plane over it may wake who waits.
    pub(crate) fn hints(&self) -> Hints {
        match self.kind {
            Kind::Sqlite | Kind::Postgres => Hints::Sent,
            Kind::PostgresWithoutHints => Hints::Dropped,
        }
    }

    /// The same open database, for a second control plane.
    pub(crate) fn shared(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            clock: self.clock.clone(),
            kind: self.kind,
            opened: self.opened.clone(),
            location: self.location.clone(),
        }
    }

    /// The same database opened once more, as another instance of a server does. A directory has
    /// one server only.
    pub(crate) async fn another_instance(&self) -> Self {
        assert_ne!(self.kind, Kind::Sqlite, "a directory has one server");
        let location = self.location.clone();
        Self::open(self.kind, location, self.clock.clone(), Mode::Server).await
    }

    /// The same directory opened once more, by another local process of this owner.
    pub(crate) async fn beside(&self, owner_id: &str) -> Self {
        assert_eq!(self.kind, Kind::Sqlite, "a local process has a directory");
        let owner_id = owner_id.to_owned();
        let mode = Mode::Embedded { owner_id };
        Self::open(self.kind, self.location.clone(), self.clock.clone(), mode).await
    }

    /// Closes the database and opens it again, as a restarted process does.
    pub(crate) async fn reopened(self, control: ControlPlane) -> Self {
        self.reopened_as(control, Mode::Server).await
    }

    /// Closes the database and opens it again as a local process of this owner does. There are
    /// local processes on SQLite only.
    pub(crate) async fn reopened_by(self, control: ControlPlane, owner_id: &str) -> Self {
        assert_eq!(self.kind, Kind::Sqlite, "a local process has a directory");
        let owner_id = owner_id.to_owned();
        self.reopened_as(control, Mode::Embedded { owner_id }).await
    }

    async fn reopened_as(self, control: ControlPlane, mode: Mode) -> Self {
        control.lifecycle().finish(Duration::from_secs(5)).await;
        drop(control);
        self.store.close().await;
        let Self {
            store,
            clock,
            kind,
            opened,
            location,
        } = self;
        drop((store, opened));
        Self::open(kind, location, clock, mode).await
    }

    /// Makes every insert into a table fail, as a store's own fault would.
    pub(crate) async fn refuse_inserts_into(&self, table: &str) {
        self.refuse("INSERT", table).await;
    }

    /// Makes every statement of this kind fail on a table: `INSERT`, `UPDATE` or `DELETE`.
    pub(crate) async fn refuse(&self, verb: &str, table: &str) {
        self.run(&match &self.location {
            Location::Directory(_) => format!(
                "CREATE TRIGGER refuse_writes BEFORE {verb} ON {table} \
                 BEGIN SELECT RAISE(ABORT, 'refused by the test'); END"
            ),
            Location::Postgres(_) => format!(
                "CREATE FUNCTION refuse_writes() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN RAISE EXCEPTION 'refused by the test'; END $$; \
                 CREATE TRIGGER refuse_writes BEFORE {verb} ON {table} \
                 FOR EACH ROW EXECUTE FUNCTION refuse_writes()"
            ),
        })
        .await;
    }

    /// Ends what [`Self::refuse_inserts_into`] or [`Self::refuse`] began.
    pub(crate) async fn allow_writes(&self) {
        self.run(match &self.location {
            Location::Directory(_) => "DROP TRIGGER refuse_writes",
            Location::Postgres(_) => "DROP FUNCTION refuse_writes CASCADE",
        })
        .await;
    }

    /// Every row of every table as text, in order: two dumps are the same if nothing has changed.
    pub(crate) async fn dump(&self) -> Vec<String> {
        let tables = match &self.location {
            Location::Directory(_) => {
                "SELECT 'SELECT ''' || m.name || ' '' || ' || \
                 group_concat('''' || p.name || '='' || quote(\"' || p.name || '\")', \
                 ' || '' '' || ') || ' FROM ' || m.name \
                 FROM sqlite_master m JOIN pragma_table_info(m.name) p WHERE m.type = 'table' \
                 AND m.name NOT LIKE '\\_%' ESCAPE '\\' AND m.name NOT LIKE 'sqlite%' \
                 GROUP BY m.name"
            }
            Location::Postgres(_) => {
                "SELECT format('SELECT ''%s '' || row_to_json(t)::text FROM %s t', \
                 tablename, tablename) FROM pg_tables \
                 WHERE schemaname = current_schema() AND tablename NOT LIKE '\\_%'"
            }
        };
        let rows = self.values::<String>(tables).await.join(" UNION ALL ");
        let mut dump = self.values::<String>(&rows).await;
        dump.sort_unstable();
        dump
    }

    /// How many rows each table holds.
    pub(crate) async fn row_counts(&self) -> Vec<(String, i64)> {
        let tables = match &self.location {
            Location::Directory(_) => {
                "SELECT name FROM sqlite_master WHERE type = 'table' \
                 AND name NOT LIKE '\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite%' ORDER BY name"
            }
            Location::Postgres(_) => {
                "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() \
                 AND tablename NOT LIKE '\\_%' ORDER BY tablename"
            }
        };
        let mut counts = Vec::new();
        for name in self.values::<String>(tables).await {
            let count = self.values(&format!("SELECT count(*) FROM {name}")).await;
            counts.push((name, count[0]));
        }
        counts
    }

    /// The database as a whole.
    pub(crate) fn audit(&self) -> &dyn Audit {
        match &self.opened {
            Opened::Sqlite(store) => store.as_ref(),
            Opened::Postgres(store) => store.as_ref(),
        }
    }

    /// The database as rows.
    pub(crate) fn archive(&self) -> &dyn Archive {
        match &self.opened {
            Opened::Sqlite(store) => store.as_ref(),
            Opened::Postgres(store) => store.as_ref(),
        }
    }

    /// Runs a read and counts its statements.
    pub(crate) async fn count_reads<T>(&self, read: impl Future<Output = T>) -> (T, u64) {
        let count = || match &self.opened {
            Opened::Sqlite(store) => store.read_statements(),
            Opened::Postgres(store) => store.read_statements(),
        };
        let before = count();
        let output = read.await;
        (output, count() - before)
    }

    /// Runs statements beside the store.
    pub(crate) async fn run(&self, statements: &str) {
        let statements = AssertSqlSafe(statements.to_owned());
        match &self.location {
            Location::Directory(dir) => {
                let mut connection = open_file(&database(dir.path())).await;
                let done = sqlx::Executor::execute(&mut connection, statements).await;
                done.unwrap();
                connection.close().await.unwrap();
            }
            Location::Postgres(database) => {
                let mut connection = connect(database.url()).await;
                let done = sqlx::Executor::execute(&mut connection, statements).await;
                done.unwrap();
                connection.close().await.unwrap();
            }
        }
    }

    /// Runs statements in a transaction that stays open, as another instance that is slow has one.
    pub(crate) async fn begin(&self, statements: &str) -> OpenTransaction {
        let Location::Postgres(database) = &self.location else {
            panic!("SQLite has one writer; a test with two belongs into `on_postgres!`");
        };
        let mut connection = connect(database.url()).await;
        let begin = AssertSqlSafe(format!("BEGIN; {statements}"));
        let done = sqlx::Executor::execute(&mut connection, begin).await;
        done.unwrap();
        OpenTransaction(connection)
    }

    /// The one column that a statement gives, read beside the store.
    pub(crate) async fn values<T>(&self, statement: &str) -> Vec<T>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
        T: Send + Unpin,
    {
        let statement = AssertSqlSafe(statement.to_owned());
        match &self.location {
            Location::Directory(dir) => {
                let mut connection = open_file(&database(dir.path())).await;
                #[expect(clippy::disallowed_methods, reason = "a test's own statement")]
                let query = sqlx::query_scalar::<sqlx::Sqlite, T>(statement);
                query.fetch_all(&mut connection).await.unwrap()
            }
            Location::Postgres(database) => {
                let mut connection = connect(database.url()).await;
                #[expect(clippy::disallowed_methods, reason = "a test's own statement")]
                let query = sqlx::query_scalar::<sqlx::Postgres, T>(statement);
                query.fetch_all(&mut connection).await.unwrap()
            }
        }
    }
}

/// A transaction that a test has begun beside the store.
pub(crate) struct OpenTransaction(PgConnection);

impl OpenTransaction {
    /// Commits it.
    pub(crate) async fn commit(mut self) {
        let done = sqlx::Executor::execute(&mut self.0, "COMMIT").await;
        done.unwrap();
        self.0.close().await.unwrap();
    }
}

fn postgres_options(kind: Kind, url: &str, times: postgres::ManualClock) -> postgres::Options {
    postgres::Options {
        clock: postgres::Clock::manual(times),
        hints: match kind {
            Kind::PostgresWithoutHints => postgres::Hints::Dropped,
            Kind::Sqlite | Kind::Postgres => postgres::Hints::Sent,
        },
        poll: POLL,
        connections: CONNECTIONS,
        ..postgres::Options::new(url)
    }
}

/// Brings an empty database to the present schema, as its first server does.
async fn migrate(url: String) {
    let times = postgres::ManualClock::new(WALL, LEASE);
    let options = postgres_options(Kind::Postgres, &url, times);
    PostgresStore::open(options).await.unwrap().close().await;
}

fn database(dir: &Path) -> PathBuf {
    dir.join("tapedeck.db")
}

async fn open_file(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(Duration::from_secs(10))
        .connect()
        .await
        .unwrap()
}

async fn connect(url: &str) -> PgConnection {
    let options: PgConnectOptions = url.parse().unwrap();
    options.connect().await.unwrap()
}
