//! Opening: locks first, then the schema, then the connections. A database of a newer version is
//! refused before anything is written to it.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tapedeck_store::StoreError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{from_sqlx, in_file, internal};
use crate::file::SqliteFile;
use crate::group::WriteConnection;
use crate::lock::{DirLock, TRIES, canonical_dir};
use crate::options::{Durability, Options};
use crate::queue::Queue;
use crate::read::SqliteReader;
use crate::rows::deployment;
use crate::store::SqliteStore;
use crate::watch::Watch;
use crate::writer::Writer;

static MIGRATIONS: Migrator = sqlx::migrate!();

/// The database in its directory.
pub(crate) const FILE: &str = "tapedeck.db";
const LOG_FILE: &str = "tapedeck.db-wal";

impl SqliteStore {
    /// Opens the database of a directory, making or migrating it if need be.
    pub async fn open(options: Options) -> Result<Self, StoreError> {
        let dir = canonical_dir(&options.dir)?;
        let mut lock = DirLock::acquire(&dir, &options.mode).await?;
        let connect = write_options(&dir, &options);
        let mut conn = prepare(&connect, &mut lock).await?;
        let identity = deployment::identity(&mut conn, &options.clock).await?;
        if let Some(pages) = options.max_page_count {
            set_max_pages(&mut conn, pages).await?;
        }
        let read = read_options(&dir, &options);
        let watch = if lock.is_shared() {
            Watch::over(read.connect().await.map_err(from_sqlx)?).await?
        } else {
            Watch::nothing()
        };
        let pool = SqlitePoolOptions::new()
            .max_connections(options.readers.max(1))
            .test_before_acquire(false)
            .acquire_timeout(options.busy_timeout)
            .connect_lazy_with(read);
        let lock = Arc::new(lock);
        let queue = Arc::new(Queue::new(options.queue_commands, options.queue_bytes));
        let fatal = CancellationToken::new();
        let tasks = TaskTracker::new();
        let writer = Writer {
            conn: WriteConnection::new(conn).await?,
            queue: Arc::clone(&queue),
            clock: options.clock.clone(),
            lock: Arc::clone(&lock),
            log_path: dir.join(LOG_FILE),
            fatal: fatal.clone(),
            busy_timeout: options.busy_timeout,
        };
        tasks.spawn(writer.run());
        let file = SqliteFile::new(&dir.join(FILE), options.clock.clone());
        Ok(Self {
            file,
            queue,
            tasks,
            reader: SqliteReader::new(pool, options.clock.clone(), identity),
            clock: options.clock,
            durability: options.durability,
            fatal,
            watch,
            lock: Mutex::new(Some(lock)),
            closed: AtomicBool::new(false),
        })
    }
}

/// Connects to a database of the present schema. It is made or migrated by whoever gets the
/// directory alone; of several local processes that start at once the others wait for that one.
async fn prepare(
    connect: &SqliteConnectOptions,
    lock: &mut DirLock,
) -> Result<SqliteConnection, StoreError> {
    for _ in 0..TRIES {
        let file = connect.get_filename();
        if let Some(conn) = connect_if_current(connect).await.map_err(in_file(file))? {
            return Ok(conn);
        }
        if lock.try_alone()? {
            create_private(connect.get_filename())?;
            let mut conn = connect.connect().await.map_err(from_sqlx)?;
            MIGRATIONS.run(&mut conn).await.map_err(internal)?;
            lock.share().await?;
            return Ok(conn);
        }
        lock.share_later().await?;
    }
    Err(lock.refused_alone())
}

/// Makes the database's file for its owner alone; SQLite gives the same rights to the files it puts
/// beside it. The directory may be open to others.
fn create_private(path: &Path) -> Result<(), StoreError> {
    let made = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path);
    made.map(drop).map_err(internal)
}

/// Connects if there is a database and it has the present schema.
async fn connect_if_current(
    connect: &SqliteConnectOptions,
) -> Result<Option<SqliteConnection>, StoreError> {
    if !connect.get_filename().exists() {
        return Ok(None);
    }
    let known = known_schema();
    let mut conn = connect.connect().await.map_err(from_sqlx)?;
    let found = schema_version(&mut conn).await?;
    if found == known {
        return Ok(Some(conn));
    }
    conn.close().await.map_err(from_sqlx)?;
    if found > known {
        return Err(StoreError::SchemaTooNew { found, known });
    }
    Ok(None)
}

/// The schema of this version.
pub(crate) fn known_schema() -> i64 {
    let versions = MIGRATIONS.iter().map(|migration| migration.version);
    versions.max().unwrap_or(0)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the migrations' own table is none of the schema that statements are checked against"
)]
pub(crate) async fn schema_version(conn: &mut SqliteConnection) -> Result<i64, StoreError> {
    let migrated: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'")
            .fetch_one(&mut *conn)
            .await
            .map_err(from_sqlx)?;
    if migrated == 0 {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success")
        .fetch_one(conn)
        .await
        .map_err(from_sqlx)
}

async fn set_max_pages(conn: &mut SqliteConnection, pages: u32) -> Result<(), StoreError> {
    let statement = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
    sqlx::Executor::execute(conn, statement)
        .await
        .map_err(from_sqlx)?;
    Ok(())
}

/// Caches are small and nothing is mapped: an idle server stays under 30 MiB.
fn common(dir: &Path, options: &Options) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(dir.join(FILE))
        .busy_timeout(options.busy_timeout)
        .foreign_keys(true)
        .disable_statement_logging()
        .pragma("temp_store", "MEMORY")
}

fn write_options(dir: &Path, options: &Options) -> SqliteConnectOptions {
    let synchronous = match options.durability {
        Durability::Full => SqliteSynchronous::Full,
        Durability::Relaxed => SqliteSynchronous::Normal,
    };
    common(dir, options)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous)
        .pragma("cache_size", "-8000")
        .pragma("journal_size_limit", "33554432")
        .pragma("wal_autocheckpoint", "0")
}

fn read_options(dir: &Path, options: &Options) -> SqliteConnectOptions {
    common(dir, options)
        .pragma("cache_size", "-2000")
        .pragma("query_only", "ON")
}
