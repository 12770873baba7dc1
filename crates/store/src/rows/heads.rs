//! Session heads: the one mutex of a session, its owner, and its next number.

use async_trait::async_trait;
use tapedeck_domain::Timestamp;
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::time::LeaseInstant;

use super::Rows;

/// Rows of `session_heads`.
#[async_trait]
pub trait HeadRows {
    /// Inserts the head of a new session.
    async fn insert_head(&mut self, head: &SessionHead) -> Rows<()>;
    /// Writes a locked head back.
    async fn save_head(&mut self, head: &SessionHead) -> Rows<()>;
    /// Extends the lease of every head of `owner_id` that has an active run and a live lease (R5).
    /// Gives how many.
    async fn renew_active_heads(
        &mut self,
        owner_id: &str,
        now: LeaseInstant,
        expires_at: LeaseInstant,
    ) -> Rows<u64>;
    /// Releases heads of `owner_id` without an active run whose last activity lies before `idle_since`; at
    /// most `limit` (R4). Deletes nothing. Gives how many.
    async fn release_idle_heads(
        &mut self,
        owner_id: &str,
        idle_since: Timestamp,
        limit: u32,
    ) -> Rows<u64>;
}
