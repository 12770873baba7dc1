//! Flags runs that nobody who was heard of lately can serve, and clears the flag where somebody can.
//! It changes what is shown, never what may be claimed.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tapedeck_domain::id::RunKey;
use tapedeck_domain::queue::{Unservable, flag};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Looks at one page of the runs that wait.
#[derive(Debug)]
pub struct FlagUnservable {
    /// Runs after this key.
    pub after: RunKey,
    /// At most this many.
    pub limit: u32,
}

/// What a page came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flagged {
    /// Where the next page begins; `None` after the last.
    pub next: Option<RunKey>,
    /// Runs whose flag changed.
    pub changed: u64,
}

#[async_trait]
impl Command for FlagUnservable {
    type Output = Flagged;
    const LANE: Lane = Lane::Background;

    async fn apply(&self, context: &mut Context<'_>) -> Result<Flagged, Failure> {
        let (now, timing) = (context.now.judged, context.timing);
        // An executor that starts together with its run is heard of within moments.
        let ready_before = now.plus_ms(-timing.sweep_ms);
        let me = &context.authority.owner_id;
        let waiting = context
            .tx
            .waiting_runs(me, ready_before, self.after, self.limit)
            .await?;
        let next = waiting
            .last()
            .filter(|_| waiting.len() == self.limit as usize)
            .map(|run| run.run_key);
        if waiting.is_empty() {
            return Ok(Flagged { next, changed: 0 });
        }
        let since = now.plus_ms(-timing.unservable_ms);
        let seen = context.tx.executors_seen(since).await?;
        let mut due_flags: BTreeMap<Option<&'static str>, Vec<RunKey>> = BTreeMap::new();
        for run in waiting {
            let present = run.unservable.as_deref();
            let due = flag(present, &run.target, &seen).map(Unservable::as_str);
            if due != present {
                due_flags.entry(due).or_default().push(run.run_key);
            }
        }
        let mut changed = 0;
        for (due, runs) in due_flags {
            changed += context.tx.flag_runs(&runs, due).await?;
        }
        Ok(Flagged { next, changed })
    }
}
