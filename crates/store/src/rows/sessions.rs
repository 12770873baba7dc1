//! Sessions: the wide row.

use async_trait::async_trait;
use tapedeck_domain::SessionKey;
use tapedeck_domain::id::SessionId;
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::session::Session;

use super::Rows;

/// A session whose head is locked for the rest of the transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockedSession {
    /// The wide row.
    pub session: Session,
    /// The hot row.
    pub head: SessionHead,
}

/// Rows of `sessions`.
#[async_trait]
pub trait SessionRows {
    /// Inserts a session; the store gives the key, whatever `session.key` says.
    async fn insert_session(&mut self, session: &Session) -> Rows<SessionKey>;
    /// Locks the head first, then reads the session (rules R1, R2).
    async fn lock_session(&mut self, namespace: &str, id: SessionId)
    -> Rows<Option<LockedSession>>;
    /// The same by key, in any namespace.
    async fn lock_session_by_key(&mut self, key: SessionKey) -> Rows<LockedSession>;
    /// Writes settings, `closed_at`, `restored_seq` and `updated_at`.
    async fn save_settings(&mut self, session: &Session) -> Rows<()>;
    /// Writes the summary columns and `updated_at`.
    async fn save_summary(&mut self, session: &Session) -> Rows<()>;
    /// Deletes the session and everything of it.
    async fn delete_session(&mut self, key: SessionKey) -> Rows<()>;
}
