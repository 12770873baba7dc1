//! The store's clock is the database's (rules R7): all instances read the same one, and no host's
//! clock decides anything. A transaction reads it once, as it begins.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{Executor as _, PgConnection, Row as _};
use tapedeck_domain::{LeaseInstant, Now, Timestamp};
use tapedeck_store::StoreError;

use crate::error::from_sqlx;

/// A reading tells the time this long where nothing is decided on it that a transaction doesn't
/// decide again: commands ask for the time before they begin, and one more statement for each would
/// be dear.
const FRESH: Duration = Duration::from_millis(100);

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The database's clock.
#[derive(Debug, Clone)]
pub struct Clock {
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    Database(Arc<Mutex<Option<Reading>>>),
    Manual(ManualClock),
}

/// A reading of the database's clock, and when it came.
#[derive(Debug, Clone, Copy)]
struct Reading {
    ms: i64,
    came: Instant,
}

impl Clock {
    /// The clock of the database.
    pub fn database() -> Self {
        Self {
            source: Source::Database(Arc::default()),
        }
    }

    /// Clocks that a test sets.
    pub fn manual(clock: ManualClock) -> Self {
        Self {
            source: Source::Manual(clock),
        }
    }

    /// Begins a transaction and reads the clock, in one round trip.
    pub(crate) async fn begin(&self, conn: &mut PgConnection) -> sqlx::Result<Now> {
        match &self.source {
            Source::Database(last) => {
                let rows = sqlx::raw_sql(BEGIN).fetch_all(&mut *conn).await?;
                let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
                row.try_get(0).map(|ms| note(last, ms))
            }
            Source::Manual(clock) => {
                let statement = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
                conn.execute(sqlx::raw_sql(statement)).await?;
                Ok(clock.now())
            }
        }
    }

    /// Reads the clock outside a transaction.
    pub(crate) async fn read(&self, conn: &mut PgConnection) -> Result<Now, StoreError> {
        match &self.source {
            Source::Database(last) => sqlx::query_scalar!(
                r#"SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS "ms!""#
            )
            .fetch_one(conn)
            .await
            .map(|ms| note(last, ms))
            .map_err(from_sqlx),
            Source::Manual(clock) => Ok(clock.now()),
        }
    }

    /// The time without asking the database: from a reading of just now.
    pub(crate) fn told(&self) -> Option<Now> {
        match &self.source {
            Source::Database(last) => {
                let reading = (*last.lock().unwrap_or_else(PoisonError::into_inner))?;
                let age = reading.came.elapsed();
                let age_ms = i64::try_from(age.as_millis()).ok()?;
                (age < FRESH).then(|| at(reading.ms.saturating_add(age_ms)))
            }
            Source::Manual(clock) => Some(clock.now()),
        }
    }
}

fn note(last: &Mutex<Option<Reading>>, ms: i64) -> Now {
    let came = Instant::now();
    *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Reading { ms, came });
    at(ms)
}

fn at(ms: i64) -> Now {
    Now {
        wall: Timestamp(ms),
        lease: LeaseInstant(ms),
        judged: LeaseInstant(ms),
    }
}

/// Times that a test sets, shared by everybody who holds a clone. The lease clock can be set apart,
/// so that tests which know two clocks run here, too.
#[derive(Debug, Clone)]
pub struct ManualClock {
    times: Arc<Times>,
}

#[derive(Debug)]
struct Times {
    wall: AtomicI64,
    lease: AtomicI64,
}

impl ManualClock {
    /// Clocks that stand at these times.
    pub fn new(wall: Timestamp, lease: LeaseInstant) -> Self {
        Self {
            times: Arc::new(Times {
                wall: AtomicI64::new(wall.0),
                lease: AtomicI64::new(lease.0),
            }),
        }
    }

    /// Moves both clocks by `ms`.
    pub fn advance(&self, ms: i64) {
        self.times.wall.fetch_add(ms, Ordering::SeqCst);
        self.times.lease.fetch_add(ms, Ordering::SeqCst);
    }

    /// Sets the wall clock alone.
    pub fn set_wall(&self, wall: Timestamp) {
        self.times.wall.store(wall.0, Ordering::SeqCst);
    }

    /// Sets the lease clock alone.
    pub fn set_lease(&self, lease: LeaseInstant) {
        self.times.lease.store(lease.0, Ordering::SeqCst);
    }

    fn now(&self) -> Now {
        let lease = LeaseInstant(self.times.lease.load(Ordering::SeqCst));
        Now {
            wall: Timestamp(self.times.wall.load(Ordering::SeqCst)),
            lease,
            judged: lease,
        }
    }
}
