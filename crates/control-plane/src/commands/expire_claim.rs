//! The sweep's re-check of one candidate: what becomes of a claim whose lease has ended, or of a run
//! that goes on for longer than its session allows, decided again under the head's lock (fault 13).

use async_trait::async_trait;
use tapedeck_domain::RunId;
use tapedeck_domain::expire::{Expiry, POISON_CLAIMS, expire};
use tapedeck_domain::run::RunStatus;
use tapedeck_store::rows::RunProgress;
use tapedeck_store::{Failure, Lane};

use crate::commands::cancel_run::cancel_locked;
use crate::context::Context;
use crate::execute::Command;
use crate::settling;

/// Who cancels a run that goes on for too long.
const BOUND: &str = "system:max_run_seconds";

/// Recovers one run, if its lease has really ended.
#[derive(Debug)]
pub struct ExpireClaim {
    /// The candidate.
    pub run_id: RunId,
}

#[async_trait]
impl Command for ExpireClaim {
    type Output = bool;
    const LANE: Lane = Lane::Urgent;

    async fn apply(&self, context: &mut Context<'_>) -> Result<bool, Failure> {
        let locked_run = context.own_run(self.run_id).await?;
        let Some(live) = locked_run.live else {
            // It may have ended just now, with the takeover of its session.
            return Ok(!context.effects().runs.is_empty());
        };
        let Some(claim) = live.state.claim().cloned() else {
            return Ok(false);
        };
        let suspicious = live.attempts.unacknowledged + 1 >= POISON_CLAIMS && !claim.acknowledged;
        let seen = suspicious && context.tx.claimants_seen(live.key, POISON_CLAIMS).await?;
        let key = live.key;
        let expiry = expire(live.clone(), seen, context.now, context.timing);
        if matches!(expiry, Expiry::Nothing) {
            return Ok(false);
        }
        let mut locked = context.lock_with(locked_run.head).await?;
        match expiry {
            Expiry::Nothing => {}
            Expiry::Cancel => {
                cancel_locked(context, &mut locked, live, BOUND, false).await?;
            }
            Expiry::Settle { event, end } => {
                context
                    .append(&mut locked.head, event.into_iter().collect())
                    .await?;
                settling::settle(context, &mut locked, live, end, None).await?;
            }
            Expiry::Requeue {
                run,
                event,
                unservable,
            } => {
                let attempt = run.attempts.attempt;
                settling::requeue(context, &mut locked, &live, (run, event)).await?;
                if unservable.is_some() {
                    let progress = RunProgress {
                        status: RunStatus::Requested,
                        attempt,
                        executor_id: None,
                        claimed_at: None,
                        started_at: None,
                        unservable: unservable.map(str::to_owned),
                    };
                    context.tx.save_progress(key, &progress).await?;
                }
            }
        }
        context.save(&locked).await?;
        Ok(true)
    }
}
