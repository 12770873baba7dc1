//! Lists what the sweep should look at: plain reads without locks; each is checked again in a
//! transaction of its own.

use async_trait::async_trait;
use tapedeck_domain::id::RunKey;
use tapedeck_domain::{InteractionId, RunId};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Lists one page of candidates of each kind.
#[derive(Debug)]
pub struct ListExpired {
    /// Runs after this key.
    pub after_run: RunKey,
    /// Questions after this id.
    pub after_interaction: Option<InteractionId>,
    /// At most this many of each.
    pub limit: u32,
}

/// Candidates.
#[derive(Debug, Default)]
pub struct Expired {
    /// Runs whose lease has ended, those whose session's owner is another one and gone, and those that
    /// go on for too long.
    pub runs: Vec<(RunKey, RunId)>,
    /// Open questions whose time is over.
    pub interactions: Vec<InteractionId>,
}

#[async_trait]
impl Command for ListExpired {
    type Output = Expired;
    const LANE: Lane = Lane::Urgent;

    async fn apply(&self, context: &mut Context<'_>) -> Result<Expired, Failure> {
        let at = context.now.judged;
        let (me, after) = (&context.authority.owner_id, self.after_run);
        let mut runs = context.tx.expired_claims(at, after, self.limit).await?;
        let orphans = context.tx.orphaned_runs(me, at, after, self.limit).await?;
        runs.extend(orphans);
        runs.extend(context.tx.overrun_runs(at, after, self.limit).await?);
        // One page of all: whatever is left out comes after its last key.
        runs.sort_unstable_by_key(|(key, _)| *key);
        runs.dedup();
        runs.truncate(self.limit as usize);
        Ok(Expired {
            runs,
            interactions: context
                .tx
                .overdue_interactions(at, self.after_interaction, self.limit)
                .await?,
        })
    }
}
