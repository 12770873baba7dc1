//! One command in one transaction, tried again where another transaction stood in its way. Only the
//! store's own tasks come here, so nobody can cancel a transaction half-way; and a connection whose
//! state is in doubt is closed and never given back.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
use tapedeck_domain::Now;
use tapedeck_store::{Failure, StoreError, Work};
use tokio::time::{Instant, timeout, timeout_at};

use crate::clock::Clock;
use crate::error::{Conflict, conflict, from_sqlx, internal, is_refused_commit, unavailable};
use crate::tx::PostgresTx;

/// Tries of a command that lost to others. Each has let one of them through, so few are needed.
const TRIES: u32 = 8;
/// Tries of a command that found its key taken: the second one sees who took it.
const DUPLICATE_TRIES: u32 = 2;
/// The longest pause before the second try; it doubles with each.
const PAUSE: Duration = Duration::from_millis(4);
/// How long a rollback may take before the connection is closed instead, to the same end.
const ROLLBACK: Duration = Duration::from_secs(5);

/// A statement first, because COMMIT of a failed transaction is no error: it rolls back and says so
/// where nobody looks.
const COMMIT: &str = "SELECT; COMMIT";

/// Runs transactions.
#[derive(Debug)]
pub(crate) struct Transactions {
    pub(crate) pool: PgPool,
    pub(crate) clock: Clock,
    pub(crate) command_timeout: Duration,
    /// Whether the last transaction could begin.
    pub(crate) reached: AtomicBool,
}

/// How a try ended that did not commit.
enum Ended {
    /// No transaction began. A connection may have been lost while it lay idle.
    NotBegun(StoreError),
    /// Nothing was written: the work was refused or failed, or the server refused the commit.
    RolledBack(Failure),
    /// Nobody knows.
    Unknown(String),
}

impl Transactions {
    /// Runs a command until it commits, is refused, or has failed often enough.
    pub(crate) async fn run(&self, work: &mut dyn Work) -> Result<(), Failure> {
        let deadline = Instant::now() + self.command_timeout;
        let mut tries = 0;
        loop {
            tries += 1;
            let Err(ended) = self.attempt(work, deadline).await else {
                return Ok(());
            };
            let late = Instant::now() >= deadline;
            match ended {
                Ended::Unknown(reason) => {
                    tracing::warn!(reason, "the outcome of a commit is unknown");
                    return Err(StoreError::OutcomeUnknown { reason }.into());
                }
                Ended::NotBegun(error) => {
                    // Where one idle connection was cut, the others were, too: the pool holds no
                    // more than it has.
                    if late || tries > self.pool.options().get_max_connections() {
                        return Err(error.into());
                    }
                }
                Ended::RolledBack(Failure::Store(error)) => match conflict(&error) {
                    Some(Conflict::Lost) if tries < TRIES && !late => {
                        tracing::debug!(%error, tries, "a transaction gave way to another");
                        tokio::time::sleep(pause(tries)).await;
                    }
                    Some(Conflict::Lost) => {
                        return Err(unavailable(format!(
                            "other transactions stood in the way {tries} times"
                        ))
                        .into());
                    }
                    Some(Conflict::Duplicate) if tries < DUPLICATE_TRIES && !late => {}
                    Some(Conflict::Duplicate) | None => return Err(error.into()),
                },
                Ended::RolledBack(failure) => return Err(failure),
            }
        }
    }

    async fn attempt(&self, work: &mut dyn Work, deadline: Instant) -> Result<(), Ended> {
        let mut conn = match self.pool.acquire().await {
            Ok(conn) => Leased(Some(conn)),
            Err(error) => {
                self.reached.store(false, Ordering::Relaxed);
                // The pool has waited for the server as long as it may.
                return Err(Ended::RolledBack(from_sqlx(error).into()));
            }
        };
        let now = match timeout_at(deadline, self.clock.begin(conn.get()?)).await {
            Ok(Ok(now)) => now,
            Ok(Err(error)) => {
                self.reached.store(false, Ordering::Relaxed);
                return Err(Ended::NotBegun(from_sqlx(error)));
            }
            Err(_elapsed) => {
                self.reached.store(false, Ordering::Relaxed);
                return Err(Ended::NotBegun(unavailable("the database does not answer")));
            }
        };
        self.reached.store(true, Ordering::Relaxed);
        match apply(conn.get()?, now, work, deadline).await {
            Ok(()) => {
                self.commit(conn.get()?).await?;
                conn.give_back();
                Ok(())
            }
            Err(failure) => {
                let rollback = sqlx::raw_sql("ROLLBACK").execute(conn.get()?);
                if let Ok(Ok(_done)) = timeout(ROLLBACK, rollback).await {
                    conn.give_back();
                }
                Err(Ended::RolledBack(failure))
            }
        }
    }

    async fn commit(&self, conn: &mut PgConnection) -> Result<(), Ended> {
        match timeout(
            self.command_timeout,
            sqlx::raw_sql(COMMIT).execute(&mut *conn),
        )
        .await
        {
            Ok(Ok(_done)) => Ok(()),
            Ok(Err(error)) if is_refused_commit(&error) => {
                Err(Ended::RolledBack(from_sqlx(error).into()))
            }
            Ok(Err(error)) => Err(Ended::Unknown(format!("a commit failed: {error}"))),
            Err(_elapsed) => Err(Ended::Unknown("a commit was not answered".to_owned())),
        }
    }
}

/// Runs the work. A panic in it is a failure of its own command only.
async fn apply(
    conn: &mut PgConnection,
    now: Now,
    work: &mut dyn Work,
    deadline: Instant,
) -> Result<(), Failure> {
    let mut tx = PostgresTx::new(conn, now);
    let run = AssertUnwindSafe(work.run(&mut tx)).catch_unwind();
    match timeout_at(deadline, run).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_panic)) => Err(Failure::Store(internal("a command panicked"))),
        Err(_elapsed) => Err(unavailable("the command took too long").into()),
    }
}

/// A random pause, so that those who met once don't meet again.
fn pause(tries: u32) -> Duration {
    let longest = PAUSE.saturating_mul(1 << tries.min(6));
    longest.mul_f64(f64::from(rand::random::<u16>()) / f64::from(u16::MAX))
}

/// A connection that is closed unless it is given back.
struct Leased(Option<PoolConnection<Postgres>>);

impl Leased {
    fn get(&mut self) -> Result<&mut PgConnection, Ended> {
        match &mut self.0 {
            Some(conn) => Ok(conn),
            None => Err(Ended::NotBegun(internal(
                "a connection was used after its end",
            ))),
        }
    }

    fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if let Some(conn) = &mut self.0 {
            conn.close_on_drop();
        }
    }
}
