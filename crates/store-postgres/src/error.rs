//! What PostgreSQL's errors mean to the store. The differences that matter: which of them pass by
//! themselves, and which are worth another try of the whole command at once.

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use tapedeck_store::StoreError;

const SERIALIZATION_FAILURE: &str = "40001";
const DEADLOCK: &str = "40P01";
const UNIQUE_VIOLATION: &str = "23505";
const DISK_FULL: &str = "53100";
const DATA_CORRUPTED: &str = "XX001";
const INDEX_CORRUPTED: &str = "XX002";
const NO_SUCH_DATABASE: &str = "3D000";
const READ_ONLY: &str = "25006";
const IDLE_IN_TRANSACTION: &str = "25P03";
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// A statement touched another number of rows than it must.
#[derive(Debug, thiserror::Error)]
#[error("a statement on `{table}` touched {touched} rows where {expected} were expected")]
struct RowCount {
    table: &'static str,
    touched: u64,
    expected: u64,
}

/// Fails unless a statement touched as many rows as it must.
pub(crate) fn expect_rows(
    table: &'static str,
    touched: u64,
    expected: u64,
) -> Result<(), StoreError> {
    if touched == expected {
        Ok(())
    } else {
        Err(internal(RowCount {
            table,
            touched,
            expected,
        }))
    }
}

pub(crate) fn internal(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::Internal(error.into())
}

pub(crate) fn unavailable(reason: impl Into<String>) -> StoreError {
    StoreError::Unavailable {
        reason: reason.into(),
    }
}

pub(crate) fn overloaded(reason: impl Into<String>) -> StoreError {
    StoreError::Overloaded {
        reason: reason.into(),
    }
}

/// Translates a driver's error; for `map_err`.
pub(crate) fn from_sqlx(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(reported) => match reported.code().as_deref() {
            Some(DISK_FULL) => StoreError::StorageFull,
            Some(DATA_CORRUPTED | INDEX_CORRUPTED) => StoreError::Damaged {
                reason: error.to_string(),
            },
            Some(LOCK_NOT_AVAILABLE) => overloaded(error.to_string()),
            Some(code) if passes(code) => unavailable(error.to_string()),
            Some(_) | None => internal(error),
        },
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => unavailable(error.to_string()),
        _ => internal(error),
    }
}

/// Whether an error is one of the moment: nothing was written, and later the same command may pass.
fn passes(code: &str) -> bool {
    // Connections (08), who may connect (28), means (53), and an operator's interventions and
    // timeouts (57). A database that only reads is one that has just lost its part as the primary.
    ["08", "28", "53", "57"]
        .iter()
        .any(|class| code.starts_with(class))
        || matches!(code, READ_ONLY | IDLE_IN_TRANSACTION)
}

/// Whether the server has no database of the name that was asked for.
pub(crate) fn is_no_such_database(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| code == NO_SUCH_DATABASE)
}

/// Whether what is stored is the reason, for whoever looks at all of it.
pub(crate) fn is_of_the_data(error: &StoreError) -> bool {
    match error {
        StoreError::Damaged { .. } | StoreError::Inconsistent { .. } => true,
        // Data exceptions (22), such as text that a function can't take as JSON.
        StoreError::Internal(source) => source
            .downcast_ref::<sqlx::Error>()
            .and_then(sqlx::Error::as_database_error)
            .and_then(DatabaseError::code)
            .is_some_and(|code| code.starts_with("22")),
        StoreError::Unavailable { .. }
        | StoreError::Overloaded { .. }
        | StoreError::OutcomeUnknown { .. }
        | StoreError::StorageFull
        | StoreError::NoDatabase(_)
        | StoreError::SchemaTooNew { .. }
        | StoreError::SchemaTooOld { .. }
        | StoreError::Locked(_) => false,
    }
}

/// Why a command is worth another try at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// Two transactions stood in each other's way and this one gave way.
    Lost,
    /// Another transaction inserted the same key after this one had looked. Where nobody did, the
    /// next try fails alike.
    Duplicate,
}

/// Whether another try of the whole command may go better.
pub(crate) fn conflict(error: &StoreError) -> Option<Conflict> {
    let StoreError::Internal(source) = error else {
        return None;
    };
    let error = source.downcast_ref::<sqlx::Error>()?;
    match error.as_database_error()?.code()?.as_ref() {
        SERIALIZATION_FAILURE | DEADLOCK => Some(Conflict::Lost),
        UNIQUE_VIOLATION => Some(Conflict::Duplicate),
        _ => None,
    }
}

/// Whether the server itself refused a COMMIT. It then has rolled back for certain; where the
/// connection ended instead, even with a last word of the server, nobody knows.
pub(crate) fn is_refused_commit(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|reported| reported.try_downcast_ref::<PgDatabaseError>())
        .is_some_and(|reported| reported.severity() == PgSeverity::Error)
}
