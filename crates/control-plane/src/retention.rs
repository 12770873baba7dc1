//! Retention: folds the deltas of runs that settled long ago, in the time that the store has nothing
//! else to do. It runs on every instance; each step is decided again under the session's lock, so
//! two instances at one run do no harm. It never deletes a run, a message or a number.

use std::time::Duration;

use tapedeck_domain::Timestamp;
use tapedeck_domain::fold::Folding;
use tapedeck_domain::id::RunKey;
use tapedeck_store::StoreError;
use tapedeck_store::rows::FoldCandidate;
use tokio::time::Instant;

use crate::ControlPlane;
use crate::commands::fold_run::{FoldRun, FoldStep};
use crate::commands::list_foldable::ListFoldable;
use crate::error::{Error, Outcome};

/// Candidates of a page.
const PAGE: u32 = 100;
/// Before every run.
const BEGINNING: (Timestamp, RunKey) = (Timestamp(i64::MIN), RunKey(0));

/// What a pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Folded {
    /// Runs that were folded to their ends.
    pub runs: u32,
    /// Runs that were left to a later pass: somebody else holds their sessions.
    pub left: u32,
    /// Runs that failed; each was logged.
    pub failed: u32,
    /// Whether the pass came to the last candidate; else the next one goes on.
    pub is_complete: bool,
}

/// Where the pass before stopped. It may be forgotten: then runs are looked at again.
#[derive(Debug)]
pub struct Retention {
    after: (Timestamp, RunKey),
    under_way: Option<(RunKey, Box<Folding>)>,
}

/// What ends a pass early.
struct Bounds {
    until: Instant,
    steps: u32,
}

impl Bounds {
    fn allow(&mut self, control: &ControlPlane) -> bool {
        let is_busy = control.store().health().queued > 0 || control.lifecycle().is_draining();
        if is_busy || Instant::now() >= self.until || self.steps == 0 {
            return false;
        }
        self.steps -= 1;
        true
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            after: BEGINNING,
            under_way: None,
        }
    }
}

impl Retention {
    /// Folds until all is done, the store has something else to do, or a part of the sweep's period
    /// is over.
    pub async fn pass(&mut self, control: &ControlPlane) -> Outcome<Folded> {
        self.steps(control, u32::MAX).await
    }

    /// The same in at most so many transactions.
    pub async fn steps(&mut self, control: &ControlPlane, most: u32) -> Outcome<Folded> {
        let Some(keep_ms) = control.timing().keep_deltas_ms else {
            return Ok(Folded::default());
        };
        let before = control.now().await?.wall.plus_ms(-keep_ms);
        let period = u64::try_from(control.timing().sweep_ms).unwrap_or(5_000);
        let mut bounds = Bounds {
            until: Instant::now() + Duration::from_millis(period / 4),
            steps: most,
        };
        let mut folded = Folded::default();
        loop {
            let list = ListFoldable {
                before,
                after: self.after,
                limit: PAGE,
            };
            let candidates = control.inner.execute(list).await?;
            for candidate in &candidates {
                match self.fold(control, candidate, &mut bounds).await {
                    Ok(Some(true)) => folded.runs += 1,
                    Ok(Some(false)) => folded.left += 1,
                    Ok(None) => return Ok(folded),
                    // The next run would fare no better.
                    Err(error) if is_of_the_store(&error) => return Err(error),
                    Err(error) => {
                        folded.failed += 1;
                        let run_id = candidate.run_id;
                        tracing::warn!(%run_id, %error, "retention.run_failed");
                    }
                }
                self.under_way = None;
                self.after = (candidate.settled_at, candidate.key);
            }
            if candidates.len() < PAGE as usize {
                self.after = BEGINNING;
                folded.is_complete = true;
                return Ok(folded);
            }
        }
    }

    /// Folds one run; gives whether it is folded now, or `None` where the time was over.
    async fn fold(
        &mut self,
        control: &ControlPlane,
        candidate: &FoldCandidate,
        bounds: &mut Bounds,
    ) -> Outcome<Option<bool>> {
        let resumed = self
            .under_way
            .take()
            .filter(|(key, _)| *key == candidate.key);
        let mut folding = resumed.map(|(_, folding)| folding);
        loop {
            if !bounds.allow(control) {
                self.under_way = folding.map(|folding| (candidate.key, folding));
                return Ok(None);
            }
            let step = FoldRun {
                run_id: candidate.run_id,
                folding,
            };
            match control.inner.execute(step).await? {
                FoldStep::Done => return Ok(Some(true)),
                FoldStep::Left => return Ok(Some(false)),
                FoldStep::More(next) => folding = next,
            }
        }
    }
}

/// Whether the store or the process is the reason, and not the run.
fn is_of_the_store(error: &Error) -> bool {
    matches!(
        error,
        Error::Draining
            | Error::Store(
                StoreError::Unavailable { .. }
                    | StoreError::Overloaded { .. }
                    | StoreError::OutcomeUnknown { .. }
                    | StoreError::StorageFull
            )
    )
}
