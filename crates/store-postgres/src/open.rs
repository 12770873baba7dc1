//! Opening: one connection first, which looks at the server, then the schema, then everything else.
//! A database of a newer version is refused before anything is written to it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool};
use tapedeck_store::StoreError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::database::PostgresDatabase;
use crate::error::{from_sqlx, internal, is_no_such_database, unavailable};
use crate::gate::Gate;
use crate::notify::{Announcer, Ear};
use crate::options::{Hints, Options};
use crate::read::PostgresReader;
use crate::rows::deployment;
use crate::store::PostgresStore;
use crate::transaction::Transactions;

static MIGRATIONS: Migrator = sqlx::migrate!();

/// As `server_version_num` says it.
const OLDEST_SERVER: i32 = 140_000;
/// A connection that has lain idle this long is tried before it is used.
const STALE: Duration = Duration::from_secs(1);
const STATEMENTS_KEPT: usize = 256;
const MIGRATION_LOCK_TIMEOUT: Duration = Duration::from_mins(1);

impl PostgresStore {
    /// Opens a database, making or migrating its schema if need be.
    pub async fn open(options: Options) -> Result<Self, StoreError> {
        let connect = connect_options(&options.url)?;
        let mut conn = first_connection(&connect, options.acquire_timeout).await?;
        let durability = look_at_server(&mut conn).await?;
        migrate(&mut conn).await?;
        deployment::adopt_feed(&mut conn).await?;
        let now = options.clock.read(&mut conn).await?;
        let identity = deployment::identity(&mut conn, now.wall).await?;
        conn.close().await.map_err(from_sqlx)?;

        let connections = options.connections.max(4);
        let readers = connections / 3;
        let pool = pool(
            with_bounds(connect.clone(), &options),
            connections,
            &options,
        );
        let database = PostgresDatabase::new(connect.clone(), options.clock.clone());
        let stop = CancellationToken::new();
        let announcer = Arc::new(Announcer::new(connect.clone(), options.notify_interval));
        let ear = Arc::new(Ear::new(options.poll));
        let messengers = TaskTracker::new();
        if options.hints == Hints::Sent {
            let (sender, told) = (Arc::clone(&announcer), stop.clone());
            messengers.spawn(async move { sender.run(&told).await });
            let (listener, told) = (Arc::clone(&ear), stop.clone());
            messengers.spawn(async move { listener.run(connect, &told).await });
        }
        Ok(Self {
            database,
            gate: Arc::new(Gate::new(
                (connections - readers) as usize,
                options.queue_commands,
                options.queue_bytes,
            )),
            transactions: Arc::new(Transactions {
                pool: pool.clone(),
                clock: options.clock.clone(),
                command_timeout: options.command_timeout,
                reached: AtomicBool::new(true),
            }),
            tasks: TaskTracker::new(),
            reader: PostgresReader::new(
                pool,
                readers as usize,
                options.acquire_timeout,
                options.clock,
                identity,
            ),
            hints: options.hints,
            announcer,
            ear,
            messengers,
            _stop_when_dropped: stop.clone().drop_guard(),
            stop,
            durability,
            patience: options.queue_timeout,
        })
    }
}

pub(crate) fn connect_options(url: &str) -> Result<PgConnectOptions, StoreError> {
    let options: PgConnectOptions = url
        .parse()
        .map_err(|error| internal(format!("the database's URL can't be read: {error}")))?;
    Ok(options
        .application_name("tapedeck")
        .statement_cache_capacity(STATEMENTS_KEPT)
        .disable_statement_logging())
}

/// Bounds what a statement may take, and keeps the planner from what pays for long statements only:
/// it takes a page of a long log for one of them, and starting workers or compiling takes longer
/// than the page.
fn with_bounds(connect: PgConnectOptions, options: &Options) -> PgConnectOptions {
    let ms = |duration: Duration| duration.as_millis().to_string();
    connect.options([
        ("jit", "off".to_owned()),
        ("max_parallel_workers_per_gather", "0".to_owned()),
        ("statement_timeout", ms(options.statement_timeout)),
        ("lock_timeout", ms(options.lock_timeout)),
        (
            "idle_in_transaction_session_timeout",
            ms(options.idle_in_transaction_timeout),
        ),
    ])
}

fn pool(connect: PgConnectOptions, connections: u32, options: &Options) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(false)
        .before_acquire(|conn, meta| {
            Box::pin(async move {
                if meta.idle_for > STALE {
                    conn.ping().await?;
                }
                Ok(true)
            })
        })
        .connect_lazy_with(connect)
}

/// One try: whoever starts a server wants to know at once what is wrong.
pub(crate) async fn first_connection(
    connect: &PgConnectOptions,
    patience: Duration,
) -> Result<PgConnection, StoreError> {
    match timeout(patience, connect.connect()).await {
        Ok(Ok(conn)) => Ok(conn),
        Ok(Err(error)) if is_no_such_database(&error) => {
            // Without a name in the URL it is the user's.
            let name = connect.get_database().unwrap_or(connect.get_username());
            Err(StoreError::NoDatabase(name.to_owned()))
        }
        Ok(Err(error)) => Err(unavailable(format!("no connection to PostgreSQL: {error}"))),
        Err(_elapsed) => Err(unavailable("PostgreSQL does not answer")),
    }
}

/// Refuses a server that can't serve. Gives how durable a commit is.
#[expect(
    clippy::disallowed_methods,
    reason = "an old server must be told from one that doesn't know the statement"
)]
async fn look_at_server(conn: &mut PgConnection) -> Result<&'static str, StoreError> {
    let (version, name, encoding, commit): (i32, String, String, String) = sqlx::query_as(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'),
                current_setting('server_encoding'), current_setting('synchronous_commit')",
    )
    .fetch_one(conn)
    .await
    .map_err(from_sqlx)?;
    if version < OLDEST_SERVER {
        return Err(internal(format!(
            "PostgreSQL 14 or newer is needed, and this server is {name}"
        )));
    }
    if encoding != "UTF8" {
        return Err(internal(format!(
            "a database in UTF8 is needed, and this one is in {encoding}"
        )));
    }
    if commit == "off" {
        tracing::warn!("`synchronous_commit` is off: a crash of the server loses the last commits");
        return Ok("relaxed");
    }
    Ok("full")
}

/// Brings the schema up to date. Of several instances that start at once, one does it and the
/// others wait for it at the migrator's own lock.
async fn migrate(conn: &mut PgConnection) -> Result<(), StoreError> {
    let known = known_schema();
    if is_current(conn, known).await? {
        return Ok(());
    }
    let patience = MIGRATION_LOCK_TIMEOUT.as_millis();
    let patience = sqlx::AssertSqlSafe(format!("SET lock_timeout = {patience}"));
    sqlx::Executor::execute(&mut *conn, patience)
        .await
        .map_err(from_sqlx)?;
    let migrated = MIGRATIONS.run(&mut *conn).await;
    // Another instance, a newer one, may have been first.
    if is_current(conn, known).await? {
        return Ok(());
    }
    migrated.map_err(internal)
}

/// The schema of this version.
pub(crate) fn known_schema() -> i64 {
    let versions = MIGRATIONS.iter().map(|migration| migration.version);
    versions.max().unwrap_or(0)
}

/// Whether the schema is the one this version knows; fails where it is a later one.
async fn is_current(conn: &mut PgConnection, known: i64) -> Result<bool, StoreError> {
    let found = schema_version(conn).await?;
    if found > known {
        return Err(StoreError::SchemaTooNew { found, known });
    }
    Ok(found == known)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the migrations' own table is none of the schema that statements are checked against"
)]
pub(crate) async fn schema_version(conn: &mut PgConnection) -> Result<i64, StoreError> {
    let migrated: bool = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *conn)
        .await
        .map_err(from_sqlx)?;
    if !migrated {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success")
        .fetch_one(conn)
        .await
        .map_err(from_sqlx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_statement_is_compiled_or_gets_workers() {
        let url = "postgres://tapedeck@localhost/tapedeck";
        let connect = with_bounds(connect_options(url).unwrap(), &Options::new(url));
        let settings = connect.get_options().unwrap();
        for setting in ["jit=off", "max_parallel_workers_per_gather=0"] {
            assert!(settings.contains(setting), "{settings}");
        }
    }
}
