//! Why a use case gave nothing.

use tapedeck_domain::{LogId, Rejection};
use tapedeck_store::{Failure, StoreError, Target};

/// An error of the control plane; the wire's problem documents are made from it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A rule refused it; nothing has changed.
    #[error(transparent)]
    Rejected(Rejection),
    /// Its target isn't there.
    #[error("{0:?} not found")]
    NotFound(Target),
    /// A cursor can't be served.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// The process is going down; nothing was written.
    #[error("the server is shutting down")]
    Draining,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a cursor can't be served (design §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// It lies after the head.
    #[error("the cursor {after} lies after the newest event {head_seq}")]
    Future {
        /// The cursor.
        after: u64,
        /// The newest event.
        head_seq: u64,
    },
    /// It lies inside events that have been folded into one, which would repeat what it has seen
    /// (rules R20).
    #[error(
        "the cursor {after} lies inside events that have been folded into one; start again after \
         {restart_after}"
    )]
    Folded {
        /// The cursor.
        after: u64,
        /// The nearest cursor before it that can be served.
        restart_after: u64,
    },
    /// It is of another log: a backup or an export was put in this one's place (rules R22).
    #[error("the cursor is of log {cursor_log_id}, this is log {log_id}; start again")]
    LogChanged {
        /// The cursor's log.
        cursor_log_id: LogId,
        /// The present one.
        log_id: LogId,
    },
    /// It lies after everything there is.
    #[error("the cursor lies after the newest event")]
    FeedFuture,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Rejected(rejection) => Self::Rejected(rejection),
            Failure::NotFound(target) => Self::NotFound(target),
            Failure::Store(error) => Self::Store(error),
        }
    }
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

/// What use cases give.
pub type Outcome<T> = Result<T, Error>;
