//! What can go wrong below the rules.

use tapedeck_domain::Rejection;

/// A failure of the store itself.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store is away or about to close; nothing was written. Retry later.
    #[error("the store is away: {reason}")]
    Unavailable {
        /// Why, for the log.
        reason: String,
    },
    /// The store has too much to do; nothing was written. Retry later.
    #[error("the store is busy: {reason}")]
    Overloaded {
        /// Why, for the log.
        reason: String,
    },
    /// Nobody knows whether the commit happened. Only a command with an idempotency key may be
    /// retried (rules R17).
    #[error("the outcome of the commit is unknown: {reason}")]
    OutcomeUnknown {
        /// Why, for the log.
        reason: String,
    },
    /// The disk is full; nothing was written (rules R3).
    #[error("the disk that holds the database is full")]
    StorageFull,
    /// The database's server has no database of this name.
    #[error("there is no database `{0}` on the PostgreSQL server")]
    NoDatabase(String),
    /// The database itself is damaged, or is none.
    #[error("the database is damaged: {reason}")]
    Damaged {
        /// What the engine says.
        reason: String,
    },
    /// A row can't be read as what it should be.
    #[error("`{table}`.`{column}` holds something unreadable in row {row}")]
    Inconsistent {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The row.
        row: String,
    },
    /// The database was written by a newer version.
    #[error(
        "the database has schema {found}, this version knows up to {known}; start a newer version"
    )]
    SchemaTooNew {
        /// In the database.
        found: i64,
        /// In this binary.
        known: i64,
    },
    /// The database was written by an older version, and whoever only looks doesn't migrate it.
    #[error(
        "the database has schema {found}, and this version works on {known}; a server brings it up \
         to date when it starts"
    )]
    SchemaTooOld {
        /// In the database.
        found: i64,
        /// In this binary.
        known: i64,
    },
    /// Another process holds the database.
    #[error("{0}")]
    Locked(String),
    /// A fault of ours or of the driver.
    #[error("the store failed: {0}")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What was looked for and isn't there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A session.
    Session,
    /// A run.
    Run,
    /// An interaction.
    Interaction,
    /// An approval rule.
    Rule,
    /// A checkpoint.
    Checkpoint,
    /// A message snapshot.
    Snapshot,
    /// An executor.
    Executor,
    /// What a run changed.
    Changes,
    /// An access token.
    Token,
}

/// Why a command gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A rule refused it.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// Its target isn't there.
    #[error("{0:?} not found")]
    NotFound(Target),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
