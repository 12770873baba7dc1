//! Appends tape entries that an executor sends instead of having its uploads projected (design
//! §4.6). The tape must have caught up before (rules R19).

use async_trait::async_trait;
use tapedeck_domain::SessionId;
use tapedeck_domain::tape::TapeEntry;
use tapedeck_domain::tape::upload::EntryBatch;
use tapedeck_store::{Failure, Lane};

use crate::commands::heartbeat::{ClaimProof, renew_held};
use crate::context::Context;
use crate::execute::Command;
use crate::projection::{self, Written};

/// Appends tape entries.
#[derive(Debug)]
pub struct AppendTape {
    /// Who.
    pub proof: ClaimProof,
    /// The batch, checked at the edge.
    pub batch: EntryBatch,
    /// Bytes of the request, for the writer's batches.
    pub weight: usize,
}

#[async_trait]
impl Command for AppendTape {
    type Output = Vec<TapeEntry>;
    const LANE: Lane = Lane::Append;

    fn session(&self) -> Option<SessionId> {
        self.proof.session_id
    }

    fn weight(&self) -> usize {
        512 + self.weight
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Vec<TapeEntry>, Failure> {
        let proof = &self.proof;
        let claimed = context
            .hold_claim(proof.run_id, &proof.executor_id, &proof.token)
            .await?;
        let head = claimed.locked.head.clone();
        match projection::plan_entries(context, &head, self.batch.clone()).await? {
            // Sending only stored entries again is fine after the settle, too (rules R11). A later
            // attempt that does so means them as its own.
            Written::Before(entries) => {
                if let Ok((head, live)) = claimed.live() {
                    let run_id = live.run_id;
                    let (_, head) = renew_held(context, head, live, None).await?;
                    if !entries.is_empty() {
                        projection::leave_to_executor(context, &head, run_id).await?;
                    }
                }
                Ok(entries)
            }
            Written::Now(slots) => {
                let (head, mut live) = claimed.live()?;
                live.has_output = true;
                let run_id = live.run_id;
                let (_, head) = renew_held(context, head, live, None).await?;
                projection::write_entries(context, &head, run_id, slots).await
            }
        }
    }
}
