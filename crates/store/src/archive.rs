//! A whole database as rows, for copies between databases and engines: one list of tables and
//! columns that both stores follow, and what becomes of the values that mean something in one
//! database only. How rows are written down is in [`lines`].

pub mod lines;
mod tables;

use std::fmt;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::id::{DeploymentId, LogId};
use tapedeck_domain::owner::DEPLOYMENT_PREFIX;
use tapedeck_domain::{LeaseInstant, Timestamp};
use uuid::Uuid;

pub use tables::TABLES;

use crate::error::StoreError;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number, a key or a counter.
    Integer,
    /// Yes or no.
    Flag,
    /// Words.
    Text,
    /// JSON as text, kept byte for byte.
    Json,
    /// An identifier.
    Id,
    /// An identifier in a column without nulls, in which a value of its own stands for none.
    IdOrNone,
    /// A digest.
    Digest,
    /// A moment of wall time.
    Wall,
    /// A moment on the lease clock. In a copy it is the time from the deployment's last sign of
    /// life, so that the time which the copy lay about counts against nobody (rules R6).
    Lease,
    /// Who owns a session. The deployment itself is [`DEPLOYMENT`] in a copy, because another
    /// database has another name.
    Owner,
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Whether it may be null.
    pub optional: bool,
}

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The column by which its rows are ordered.
    pub key: &'static str,
    /// Its columns. What a store derives from others is not among them.
    pub columns: &'static [Column],
}

impl Table {
    /// Where the key is among the columns.
    pub fn key_index(&self) -> Option<usize> {
        self.columns
            .iter()
            .position(|column| column.name == self.key)
    }
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// None.
    Null,
    /// Of [`Kind::Integer`], [`Kind::Wall`] and [`Kind::Lease`].
    Integer(i64),
    /// Of [`Kind::Flag`].
    Flag(bool),
    /// Of [`Kind::Text`], [`Kind::Json`] and [`Kind::Owner`].
    Text(String),
    /// Of [`Kind::Id`] and [`Kind::IdOrNone`].
    Id(Uuid),
    /// Of [`Kind::Digest`].
    Digest(Digest),
}

/// A key as messages name it.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
            Self::Id(id) => id.fmt(f),
            Self::Null | Self::Flag(_) | Self::Digest(_) => f.write_str("without a key"),
        }
    }
}

/// Whether a text is JSON.
pub fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

/// Where a copy comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The store's name.
    pub engine: String,
    /// The schema's version.
    pub schema: i64,
    /// The deployment.
    pub deployment_id: DeploymentId,
    /// The log.
    pub log_id: LogId,
    /// When the copy was made.
    pub created_at: Timestamp,
}

/// Why a copy can't be made or taken.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The store failed.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The file can't be read or written.
    #[error("the export can't be read or written: {0}")]
    File(#[from] std::io::Error),
    /// The file is something else.
    #[error("this is no export of Tapedeck")]
    NotAnExport,
    /// The file is in a form that this version doesn't know.
    #[error("the export has form {found}, and this version reads form {known}")]
    Version {
        /// In the file.
        found: u64,
        /// In this binary.
        known: u64,
    },
    /// The rows are those of another schema.
    #[error(
        "the export has the rows of schema {found}, and this version works on {known}; export it \
         with this version, or import it with the one that made it"
    )]
    Schema {
        /// In the file.
        found: i64,
        /// In this binary.
        known: i64,
    },
    /// A line is none of an export's.
    #[error("line {line} of the export is broken: {why}")]
    Line {
        /// Its number.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The end is missing.
    #[error("the export ends after line {lines}, before its end: it was cut off")]
    Truncated {
        /// How many there are.
        lines: u64,
    },
    /// What the end says doesn't fit what came before.
    #[error("the export was changed after it was made: {why}")]
    Altered {
        /// What doesn't fit.
        why: String,
    },
    /// The database holds something.
    #[error("`{table}` has rows already; an import needs an empty database")]
    NotEmpty {
        /// Where.
        table: &'static str,
    },
}

/// Takes the rows of a copy, table by table in the order of [`TABLES`].
#[async_trait]
pub trait RowSink: Send {
    /// Comes first.
    async fn begin(&mut self, origin: &Origin) -> Result<(), ArchiveError>;
    /// Takes a row, its cells in the order of the table's columns.
    async fn take(&mut self, table: &'static Table, row: Vec<Cell>) -> Result<(), ArchiveError>;
}

/// Gives the rows of a copy in the order of [`TABLES`].
#[async_trait]
pub trait RowSource: Send {
    /// Comes first.
    async fn origin(&mut self) -> Result<Origin, ArchiveError>;
    /// The next row; `None` only once the end has proved that no row is missing or changed.
    async fn next(&mut self) -> Result<Option<(&'static Table, Vec<Cell>)>, ArchiveError>;
}

/// A database that can be copied as rows.
#[async_trait]
pub trait Archive: Send + Sync {
    /// Gives every row of one moment of the database. Nothing is written, and nobody else waits.
    async fn export(&self, sink: &mut dyn RowSink) -> Result<(), ArchiveError>;
    /// Takes every row into this database, which must be empty, in one transaction. The database
    /// keeps its own names: a copy is another deployment with another log.
    async fn import(&self, source: &mut dyn RowSource) -> Result<(), ArchiveError>;
}

/// What stands for the deployment itself among the owners of a copy.
pub const DEPLOYMENT: &str = "server";

/// Turns the values of one database into those of a copy and back.
#[derive(Debug, Clone)]
pub struct Translation {
    /// As the deployment is called among owners.
    owner_id: String,
    /// The moment from which leases are counted in a copy.
    from: LeaseInstant,
}

impl Translation {
    /// For a deployment that gave its last sign of life at `from`.
    pub fn new(deployment: DeploymentId, from: LeaseInstant) -> Self {
        Self {
            owner_id: format!("{DEPLOYMENT_PREFIX}{deployment}"),
            from,
        }
    }

    /// The row as it stands in a copy. Owners other than the deployment are processes that stay
    /// with the database: in a copy their leases have ended. So have back-offs: a run that came after
    /// the last sign of life must not wait that time once more.
    pub fn outgoing(&self, table: &Table, row: &mut [Cell]) {
        let mut foreign = false;
        for (column, cell) in table.columns.iter().zip(&mut *row) {
            match (column.kind, cell) {
                (Kind::Lease, Cell::Integer(at)) => {
                    *at = at.saturating_sub(self.from.0);
                    if column.name == "ready_at" {
                        *at = (*at).min(0);
                    }
                }
                (Kind::Owner, Cell::Text(owner)) if *owner == self.owner_id => {
                    DEPLOYMENT.clone_into(owner);
                }
                (Kind::Owner, Cell::Text(_)) => foreign = true,
                _ => {}
            }
        }
        if foreign {
            for (column, cell) in table.columns.iter().zip(row) {
                if column.name == "owner_expires_at" {
                    *cell = Cell::Null;
                }
            }
        }
    }

    /// The row as it stands in this database.
    pub fn incoming(&self, table: &Table, row: &mut [Cell]) {
        for (column, cell) in table.columns.iter().zip(row) {
            match (column.kind, cell) {
                (Kind::Lease, Cell::Integer(left)) => *left = left.saturating_add(self.from.0),
                (Kind::Owner, Cell::Text(owner)) if *owner == DEPLOYMENT => {
                    owner.clone_from(&self.owner_id);
                }
                _ => {}
            }
        }
    }
}

/// The table of a name, and its place in the list.
pub fn table(name: &str) -> Option<(usize, &'static Table)> {
    TABLES
        .iter()
        .enumerate()
        .find(|(_, table)| table.name == name)
}

#[cfg(test)]
mod tests;
