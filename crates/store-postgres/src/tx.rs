//! One command's transaction: READ COMMITTED, so that each statement sees what was committed before
//! it began. Locks are taken by statements of their own, and all that is decided under one is read
//! by later statements (rules R1).

use sqlx::PgConnection;
use tapedeck_domain::{Now, SessionKey};
use tapedeck_store::Tx;

/// One command's transaction.
pub(crate) struct PostgresTx<'a> {
    conn: &'a mut PgConnection,
    now: Now,
    /// Heads that this transaction has locked.
    held: Vec<SessionKey>,
}

impl<'a> PostgresTx<'a> {
    pub(crate) fn new(conn: &'a mut PgConnection, now: Now) -> Self {
        Self {
            conn,
            now,
            held: Vec::new(),
        }
    }

    /// The transaction's connection.
    pub(crate) fn conn(&mut self) -> &mut PgConnection {
        self.conn
    }

    /// Remembers that a head is locked for the rest of the transaction.
    pub(crate) fn note_held(&mut self, session: SessionKey) {
        if !self.holds(session) {
            self.held.push(session);
        }
    }

    /// Whether a head is known to be locked.
    pub(crate) fn holds(&self, session: SessionKey) -> bool {
        self.held.contains(&session)
    }
}

impl std::fmt::Debug for PostgresTx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresTx")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Tx for PostgresTx<'_> {
    fn now(&self) -> Now {
        self.now
    }

    /// Local owners share a SQLite file; here nobody's process can be proved dead.
    fn owner_is_dead(&self, _owner_id: &str) -> bool {
        false
    }
}
