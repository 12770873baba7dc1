//! The sweep: recovers expired claims, ends overdue questions, keeps house, flags what nobody can
//! serve (stores §2). It runs on
//! every instance; each candidate is decided again in a transaction of its own, so one bad row never
//! blocks the others. What another live owner has is left to it (rules R5).

use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::RngExt;
use tapedeck_domain::Rejection;
use tapedeck_domain::id::RunKey;

use crate::ControlPlane;
use crate::commands::expire_claim::ExpireClaim;
use crate::commands::expire_interaction::ExpireInteraction;
use crate::commands::flag_unservable::FlagUnservable;
use crate::commands::keep_house::KeepHouse;
use crate::commands::list_expired::ListExpired;
use crate::commands::mark_alive::Alive;
use crate::error::{Error, Outcome};
use crate::retention::Retention;

/// Candidates of a page.
const PAGE: u32 = 100;

/// Runs of a page that may be unservable.
const WAITING_PAGE: u32 = 500;

/// Such pages of one pass; the next pass goes on where this one ended.
const WAITING_PAGES: u32 = 20;

/// What one pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Claims that were recovered.
    pub claims: u32,
    /// Questions that were ended.
    pub interactions: u32,
    /// Runs that were flagged as unservable, or are so no more.
    pub flagged: u64,
    /// Rows that failed; each was logged.
    pub failed: u32,
}

/// Runs [`step`] until the process drains.
pub async fn run(control: ControlPlane) {
    let lifecycle = control.lifecycle().clone();
    let mut retention = Retention::default();
    loop {
        let period = u64::try_from(control.timing().sweep_ms).unwrap_or(5_000);
        let jittered = rand::rng().random_range(period * 8 / 10..=period * 12 / 10);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(jittered)) => {}
            () = lifecycle.soft().cancelled() => return,
        }
        match step(&control).await {
            Ok(swept) if swept != Swept::default() => {
                tracing::info!(
                    claims = swept.claims,
                    interactions = swept.interactions,
                    flagged = swept.flagged,
                    failed = swept.failed,
                    "sweep.done"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "sweep.failed"),
        }
        match retention.pass(&control).await {
            Ok(folded) if folded.runs + folded.failed > 0 => {
                tracing::info!(
                    runs = folded.runs,
                    failed = folded.failed,
                    "retention.folded"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "retention.failed"),
        }
    }
}

/// Marks the deployment alive, before any other command of a starting process (rules R6).
pub async fn start(control: &ControlPlane) -> Outcome<Alive> {
    control.inner.mark_alive().await
}

/// One pass.
pub async fn step(control: &ControlPlane) -> Outcome<Swept> {
    start(control).await?;
    let mut swept = Swept::default();
    let (mut after_run, mut after_interaction) = (RunKey(0), None);
    loop {
        let list = ListExpired {
            after_run,
            after_interaction,
            limit: PAGE,
        };
        let expired = control.inner.execute(list).await?;
        for (key, run_id) in &expired.runs {
            after_run = *key;
            match control.inner.execute(ExpireClaim { run_id: *run_id }).await {
                Ok(true) => swept.claims += 1,
                Ok(false) | Err(Error::Rejected(Rejection::OwnedElsewhere { .. })) => {}
                Err(error) => {
                    swept.failed += 1;
                    tracing::warn!(%run_id, %error, "sweep.claim_failed");
                }
            }
        }
        for interaction_id in &expired.interactions {
            after_interaction = Some(*interaction_id);
            let command = ExpireInteraction {
                interaction_id: *interaction_id,
            };
            match control.inner.execute(command).await {
                Ok(true) => swept.interactions += 1,
                Ok(false) | Err(Error::Rejected(Rejection::OwnedElsewhere { .. })) => {}
                Err(error) => {
                    swept.failed += 1;
                    tracing::warn!(%interaction_id, %error, "sweep.interaction_failed");
                }
            }
        }
        let page = PAGE as usize;
        if expired.runs.len() < page && expired.interactions.len() < page {
            break;
        }
    }
    control.inner.execute(KeepHouse).await?;
    swept.flagged = flag_unservable(control).await?;
    Ok(swept)
}

/// Looks at runs that wait, a bounded number in each pass.
async fn flag_unservable(control: &ControlPlane) -> Outcome<u64> {
    let mut flagged = 0;
    for _ in 0..WAITING_PAGES {
        let after = RunKey(control.flagged_through.load(Ordering::Relaxed));
        let page = FlagUnservable {
            after,
            limit: WAITING_PAGE,
        };
        let page = control.inner.execute(page).await?;
        flagged += page.changed;
        let through = page.next.map_or(0, |key| key.0);
        control.flagged_through.store(through, Ordering::Relaxed);
        if page.next.is_none() {
            break;
        }
    }
    Ok(flagged)
}
