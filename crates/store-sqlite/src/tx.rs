//! One command's view of the writer's transaction. A savepoint is opened right before the first
//! write, and only where other commands share the transaction: a command that is refused before it
//! wrote anything costs no statement at all.

use sqlx::{Executor as _, SqliteConnection};
use tapedeck_domain::Now;
use tapedeck_store::rows::Rows;
use tapedeck_store::{Failure, StoreError, Tx};

use crate::clock::Clock;
use crate::error::from_sqlx;
use crate::lock::DirLock;

/// The savepoint of a group's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Savepoint {
    /// The command is alone in its transaction.
    Unneeded,
    /// None is open.
    Absent,
    /// One is open and belongs to a command that has succeeded.
    Left,
    /// One is open and nothing has been written since.
    Fresh,
    /// One is open and belongs to the present command.
    Mine,
}

/// What all transactions of a store share.
pub(crate) struct Shared<'a> {
    pub(crate) clock: &'a Clock,
    pub(crate) lock: &'a DirLock,
}

/// One command's transaction.
pub(crate) struct SqliteTx<'a> {
    conn: &'a mut SqliteConnection,
    savepoint: &'a mut Savepoint,
    now: Now,
    shared: &'a Shared<'a>,
}

impl<'a> SqliteTx<'a> {
    pub(crate) fn new(
        conn: &'a mut SqliteConnection,
        savepoint: &'a mut Savepoint,
        now: Now,
        shared: &'a Shared<'a>,
    ) -> Self {
        Self {
            conn,
            savepoint,
            now,
            shared,
        }
    }

    /// The connection, for statements that write nothing.
    pub(crate) fn read(&mut self) -> &mut SqliteConnection {
        self.conn
    }

    /// The connection, for statements that write.
    pub(crate) async fn write(&mut self) -> Rows<&mut SqliteConnection> {
        let open = match *self.savepoint {
            Savepoint::Unneeded | Savepoint::Mine => return Ok(self.conn),
            Savepoint::Fresh => None,
            Savepoint::Absent => Some("SAVEPOINT command"),
            Savepoint::Left => Some("RELEASE command; SAVEPOINT command"),
        };
        if let Some(statement) = open {
            self.conn.execute(statement).await.map_err(from_sqlx)?;
        }
        *self.savepoint = Savepoint::Mine;
        Ok(self.conn)
    }

    pub(crate) fn boot_id(&self) -> &'a str {
        self.shared.clock.boot_id()
    }

    /// The local owners whose processes live, as JSON for statements.
    pub(crate) fn living_owners(&self) -> String {
        serde_json::Value::from(self.shared.lock.living_owners()).to_string()
    }

    /// Keeps what a successful command wrote.
    pub(crate) fn keep(self) {
        if *self.savepoint == Savepoint::Mine {
            *self.savepoint = Savepoint::Left;
        }
    }

    /// Undoes what a refused command wrote.
    pub(crate) async fn undo(self) -> Result<(), StoreError> {
        if *self.savepoint == Savepoint::Mine {
            let undone = self.conn.execute("ROLLBACK TO command").await;
            undone.map_err(from_sqlx)?;
            *self.savepoint = Savepoint::Fresh;
        }
        Ok(())
    }
}

impl std::fmt::Debug for SqliteTx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteTx")
            .field("savepoint", &self.savepoint)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Tx for SqliteTx<'_> {
    fn now(&self) -> Now {
        self.now
    }

    fn owner_is_dead(&self, owner_id: &str) -> bool {
        self.shared.lock.owner_is_dead(owner_id)
    }
}

/// What a command gave, for the writer.
pub(crate) fn is_refusal(failure: &Failure) -> bool {
    match failure {
        Failure::Rejected(_) | Failure::NotFound(_) => true,
        Failure::Store(error) => crate::error::is_local(error),
    }
}

/// A failure that the writer itself answers with.
pub(crate) fn unavailable(reason: &str) -> Failure {
    Failure::Store(StoreError::Unavailable {
        reason: reason.to_owned(),
    })
}
