//! Folds: settled runs whose deltas become whole messages, and the rows that this replaces.

use async_trait::async_trait;
use tapedeck_domain::fold::Fold;
use tapedeck_domain::id::{RunId, RunKey, SessionKey};
use tapedeck_domain::time::Timestamp;

use super::Rows;

/// A settled run whose deltas have not been folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldCandidate {
    /// When it settled.
    pub settled_at: Timestamp,
    /// Its row number.
    pub key: RunKey,
    /// The run.
    pub run_id: RunId,
}

/// Where in the log a settled run begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSpan {
    /// The event that admits it.
    pub admitted_seq: u64,
    /// Its terminal event.
    pub settled_seq: u64,
}

/// Rows of `events`, `runs` and `sessions` that a fold looks at or changes.
#[async_trait]
pub trait FoldRows {
    /// Runs that settled before `before` and have not been folded, the oldest first, after a settled
    /// time and key: candidates, read without locks.
    async fn foldable_runs(
        &mut self,
        before: Timestamp,
        after: (Timestamp, RunKey),
        limit: u32,
    ) -> Rows<Vec<FoldCandidate>>;
    /// Where a run of a locked session lies that has settled and has not been folded.
    async fn foldable_span(&mut self, key: RunKey) -> Rows<Option<RunSpan>>;
    /// The numbers from `from` and before `to` after which a checkpoint or a fork begins, in order.
    async fn cuts(&mut self, session: SessionKey, from: u64, to: u64) -> Rows<Vec<u64>>;
    /// Deletes the swallowed rows and writes the folds to the last ones; as many rows as the folds
    /// say, or it fails. Raises the session's `folded_seq`. There is at least one fold.
    async fn apply_folds(&mut self, session: SessionKey, folds: &[Fold]) -> Rows<()>;
    /// Marks a run as folded.
    async fn mark_folded(&mut self, key: RunKey, at: Timestamp) -> Rows<()>;
}
