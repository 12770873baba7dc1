//! Message snapshots: one of a run, replaced by each newer report.

use async_trait::async_trait;
use tapedeck_domain::id::{RunKey, SessionKey};
use tapedeck_domain::snapshot::{MessageSnapshot, SnapshotFacts};

use super::Rows;

/// Rows of `message_snapshots`.
#[async_trait]
pub trait SnapshotRows {
    /// Writes a run's snapshot; `created_at` stays that of the first.
    async fn save_snapshot(
        &mut self,
        session: SessionKey,
        run: RunKey,
        snapshot: &MessageSnapshot,
    ) -> Rows<()>;
    /// What is known of a run's snapshot, without reading its messages.
    async fn snapshot_facts(&mut self, run: RunKey) -> Rows<Option<SnapshotFacts>>;
    /// A run's snapshot with its messages.
    async fn snapshot(&mut self, run: RunKey) -> Rows<Option<MessageSnapshot>>;
}
