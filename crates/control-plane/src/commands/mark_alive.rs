//! Records that an instance is alive, and credits time in which none was to the leases that were
//! live then (rules R6): an outage interrupts nobody whom it kept from renewing.

use async_trait::async_trait;
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Marks the deployment alive.
#[derive(Debug)]
pub struct MarkAlive;

/// What the deployment's clock showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alive {
    /// The gap that was credited, in milliseconds; 0 for none.
    pub credited_ms: i64,
    /// How many claims it reached.
    pub claims: u64,
}

#[async_trait]
impl Command for MarkAlive {
    type Output = Alive;
    const LANE: Lane = Lane::Urgent;

    async fn apply(&self, context: &mut Context<'_>) -> Result<Alive, Failure> {
        let deployment = context.tx.deployment().await?;
        let now = context.now.lease;
        let mut alive = Alive {
            credited_ms: 0,
            claims: 0,
        };
        if let Some(alive_at) = deployment.alive_at {
            let gap = now.since(alive_at);
            if deployment.boot_changed || gap > 2 * context.timing.sweep_ms {
                alive = Alive {
                    credited_ms: gap,
                    claims: context.tx.shift_leases(alive_at, gap).await?,
                };
            }
        }
        context.tx.set_alive(now).await?;
        context.effects().alive_at = Some(now);
        Ok(alive)
    }
}
