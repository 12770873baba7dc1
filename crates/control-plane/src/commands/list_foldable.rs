//! Lists runs whose deltas may be folded: plain reads without locks; each is checked again in a
//! transaction of its own.

use async_trait::async_trait;
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::RunKey;
use tapedeck_store::rows::FoldCandidate;
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Lists one page of candidates.
#[derive(Debug)]
pub struct ListFoldable {
    /// Runs that settled before.
    pub before: Timestamp,
    /// Runs after this place.
    pub after: (Timestamp, RunKey),
    /// At most this many.
    pub limit: u32,
}

#[async_trait]
impl Command for ListFoldable {
    type Output = Vec<FoldCandidate>;
    const LANE: Lane = Lane::Background;

    async fn apply(&self, context: &mut Context<'_>) -> Result<Vec<FoldCandidate>, Failure> {
        let candidates = context
            .tx
            .foldable_runs(self.before, self.after, self.limit);
        Ok(candidates.await?)
    }
}
