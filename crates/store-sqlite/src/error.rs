//! What SQLite's errors mean to the store. The difference that matters: which of them can have
//! ended the whole transaction (rules R3), and which make this process untrustworthy.

use std::io;
use std::path::Path;

use sqlx::error::DatabaseError;
use tapedeck_store::StoreError;

/// What a statement did to its values.
const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READ_ONLY: i32 = 8;
const IO: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CONSTRAINT: i32 = 19;
const NO_DATABASE: i32 = 26;
const IO_FSYNC: i32 = IO + (4 << 8);
const IO_DIR_FSYNC: i32 = IO + (5 << 8);
/// The index of the write-ahead log can't grow: the disk is full.
const IO_SHM_SIZE: i32 = IO + (19 << 8);

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

/// A fault of ours, or of the files around the database: those are full when it is.
pub(crate) fn internal(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    let error = error.into();
    let of_files = match error.downcast_ref::<sqlx::Error>() {
        Some(sqlx::Error::Io(error)) => Some(error),
        _ => error.downcast_ref::<io::Error>(),
    };
    let is_full = of_files.is_some_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    });
    if is_full {
        StoreError::StorageFull
    } else {
        StoreError::Internal(error)
    }
}

/// An error of a file or a directory. Its kind stays: it tells whether the path is to blame.
pub(crate) fn of_path(path: &Path, error: &io::Error) -> StoreError {
    let text = format!("`{}`: {error}", path.display());
    internal(io::Error::new(error.kind(), text))
}

/// Translates a driver's error; for `map_err`.
pub(crate) fn from_sqlx(error: sqlx::Error) -> StoreError {
    match code(&error) {
        Some(IO_SHM_SIZE) => return StoreError::StorageFull,
        Some(code) if code & 0xff == FULL => return StoreError::StorageFull,
        Some(code) if matches!(code & 0xff, BUSY | LOCKED) => {
            return StoreError::Overloaded {
                reason: "another process keeps the database busy".to_owned(),
            };
        }
        Some(code) if code & 0xff == READ_ONLY => {
            return internal(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, error));
        }
        Some(code) if matches!(code & 0xff, CORRUPT | NO_DATABASE) => {
            let said = error.as_database_error().map(DatabaseError::message);
            return StoreError::Damaged {
                reason: said.unwrap_or_default().to_owned(),
            };
        }
        Some(_) | None => {}
    }
    match error {
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
            StoreError::Unavailable {
                reason: error.to_string(),
            }
        }
        other => internal(other),
    }
}

fn code(error: &sqlx::Error) -> Option<i32> {
    error
        .as_database_error()
        .and_then(DatabaseError::code)
        .and_then(|code| code.parse().ok())
}

/// Whether the error is one of reading or writing files, other than a full disk.
pub(crate) fn is_io(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| code & 0xff == IO && code != IO_SHM_SIZE)
}

/// Says which file is damaged; for `map_err`.
pub(crate) fn in_file(path: &Path) -> impl Fn(StoreError) -> StoreError + '_ {
    move |error| match error {
        StoreError::Damaged { reason } => StoreError::Damaged {
            reason: format!("`{}`: {reason}", path.display()),
        },
        other => other,
    }
}

/// Whether what is stored is the reason, for whoever looks at all of it.
pub(crate) fn is_of_the_data(error: &StoreError) -> bool {
    match error {
        StoreError::Damaged { .. } | StoreError::Inconsistent { .. } => true,
        // Such as text that a function can't take as JSON.
        StoreError::Internal(source) => {
            let code = source.downcast_ref::<sqlx::Error>().and_then(code);
            code.is_some_and(|code| code == ERROR)
        }
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

/// Whether a sync failed under a statement: the page cache can't be trusted any more.
pub(crate) fn is_failed_sync(error: &StoreError) -> bool {
    let StoreError::Internal(source) = error else {
        return false;
    };
    source
        .downcast_ref::<sqlx::Error>()
        .and_then(code)
        .is_some_and(|code| code == IO_FSYNC || code == IO_DIR_FSYNC)
}

/// Whether the error concerns its own command only: SQLite undoes one statement for a constraint,
/// and an unreadable row or a wrong count of rows is not SQLite's failure at all.
pub(crate) fn is_local(error: &StoreError) -> bool {
    match error {
        StoreError::Inconsistent { .. } => true,
        StoreError::Internal(source) => {
            source.is::<RowCount>()
                || source
                    .downcast_ref::<sqlx::Error>()
                    .and_then(code)
                    .is_some_and(|code| code & 0xff == CONSTRAINT)
        }
        StoreError::Unavailable { .. }
        | StoreError::Overloaded { .. }
        | StoreError::OutcomeUnknown { .. }
        | StoreError::StorageFull
        | StoreError::NoDatabase(_)
        | StoreError::Damaged { .. }
        | StoreError::SchemaTooNew { .. }
        | StoreError::SchemaTooOld { .. }
        | StoreError::Locked(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_be_written_is_known_by_its_kind() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = of_path(Path::new("lock"), &denied);
        assert!(error.to_string().contains("`lock`"), "{error}");
        let StoreError::Internal(source) = error else {
            panic!("{error}")
        };
        let kind = source.downcast_ref::<io::Error>().map(io::Error::kind);
        assert_eq!(kind, Some(io::ErrorKind::PermissionDenied));
    }

    #[test]
    fn the_disk_is_full_wherever_it_is_met() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        for error in [
            internal(full()),
            of_path(Path::new("lock"), &full()),
            from_sqlx(sqlx::Error::Io(full())),
        ] {
            assert!(matches!(error, StoreError::StorageFull), "{error}");
        }
    }
}
