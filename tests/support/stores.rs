//! Fresh databases for tests, with a clock that tests move and ways to make a store fail.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use tapedeck_control_plane::ControlPlane;
use tapedeck_domain::{LeaseInstant, Timestamp};
use tapedeck_store::Store;
use tapedeck_store_sqlite::{Clock, ManualClock, Mode, Options, SqliteStore};
use tempfile::TempDir;

/// The clock of a test: both clocks of the store, and the machine's boots.
#[derive(Debug, Clone)]
pub(crate) struct TestClock {
    manual: ManualClock,
    lease: Arc<AtomicI64>,
    boot: Arc<AtomicU64>,
}

impl TestClock {
    fn new() -> Self {
        let manual = ManualClock::new(Timestamp(1_800_000_000_000), LeaseInstant(5_000_000));
        Self {
            manual,
            lease: Arc::new(AtomicI64::new(5_000_000)),
            boot: Arc::new(AtomicU64::new(1)),
        }
    }

    /// Moves both clocks.
    pub(crate) fn advance(&self, ms: i64) {
        self.manual.advance(ms);
        self.lease.fetch_add(ms, Ordering::SeqCst);
    }

    /// The lease clock.
    pub(crate) fn lease(&self) -> i64 {
        self.lease.load(Ordering::SeqCst)
    }

    /// Starts another boot whose lease clock shows `lease`; it counts from the next open.
    pub(crate) fn reboot(&self, lease: i64) {
        self.boot.fetch_add(1, Ordering::SeqCst);
        self.manual.set_lease(LeaseInstant(lease));
        self.lease.store(lease, Ordering::SeqCst);
    }

    fn clock(&self) -> Clock {
        Clock::manual(
            self.manual.clone(),
            &format!("boot-{}", self.boot.load(Ordering::SeqCst)),
        )
    }
}

/// An open database in a directory of its own.
pub(crate) struct TestStore {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: TestClock,
    sqlite: Arc<SqliteStore>,
    dir: Arc<TempDir>,
}

impl TestStore {
    pub(crate) async fn fresh() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::open(dir, TestClock::new(), Mode::Server).await
    }

    async fn open(dir: Arc<TempDir>, clock: TestClock, mode: Mode) -> Self {
        let options = Options {
            clock: clock.clock(),
            ..Options::new(dir.path(), mode)
        };
        let sqlite = Arc::new(SqliteStore::open(options).await.unwrap());
        Self {
            store: Arc::<SqliteStore>::clone(&sqlite),
            clock,
            sqlite,
            dir,
        }
    }

    /// The same open database, for a second control plane.
    pub(crate) fn shared(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            clock: self.clock.clone(),
            sqlite: Arc::clone(&self.sqlite),
            dir: Arc::clone(&self.dir),
        }
    }

    /// Closes the database and opens it again, as a restarted process does.
    pub(crate) async fn reopened(self, control: ControlPlane) -> Self {
        self.reopened_as(control, Mode::Server).await
    }

    /// Closes the database and opens it again as a local process of this owner does.
    pub(crate) async fn reopened_by(self, control: ControlPlane, owner_id: &str) -> Self {
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
            sqlite,
            dir,
        } = self;
        drop((store, sqlite));
        Self::open(dir, clock, mode).await
    }

    /// Makes every insert into a table fail, as a store's own fault would.
    pub(crate) async fn refuse_inserts_into(&self, table: &str) {
        let trigger = format!(
            "CREATE TRIGGER refuse_inserts BEFORE INSERT ON {table} \
             BEGIN SELECT RAISE(ABORT, 'refused by the test'); END"
        );
        self.run(&trigger).await;
    }

    pub(crate) async fn allow_inserts(&self) {
        self.run("DROP TRIGGER refuse_inserts").await;
    }

    /// How many rows each table holds.
    pub(crate) async fn row_counts(&self) -> Vec<(String, i64)> {
        let mut connection = self.connection().await;
        let tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite%' ORDER BY name";
        let names: Vec<String> = scalar(&mut connection, tables).await;
        let mut counts = Vec::new();
        for name in names {
            let count: Vec<i64> =
                scalar(&mut connection, &format!("SELECT count(*) FROM {name}")).await;
            counts.push((name, count[0]));
        }
        counts
    }

    /// Runs a read and counts its statements.
    pub(crate) async fn count_reads<T>(&self, read: impl Future<Output = T>) -> (T, u64) {
        let before = self.sqlite.read_statements();
        let output = read.await;
        (output, self.sqlite.read_statements() - before)
    }

    async fn run(&self, statement: &str) {
        let mut connection = self.connection().await;
        #[expect(clippy::disallowed_methods, reason = "a test's own statement")]
        let query = sqlx::query(AssertSqlSafe(statement.to_owned()));
        query.execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    async fn connection(&self) -> SqliteConnection {
        open_database(&database(self.dir.path())).await
    }
}

async fn scalar<T>(connection: &mut SqliteConnection, statement: &str) -> Vec<T>
where
    T: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + Send + Unpin,
{
    #[expect(clippy::disallowed_methods, reason = "a test's own statement")]
    let query = sqlx::query_scalar(AssertSqlSafe(statement.to_owned()));
    query.fetch_all(connection).await.unwrap()
}

fn database(dir: &Path) -> PathBuf {
    dir.join("tapedeck.db")
}

async fn open_database(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(Duration::from_secs(10))
        .connect()
        .await
        .unwrap()
}
