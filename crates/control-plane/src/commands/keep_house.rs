//! The sweep's own chores: heads with an active run stay owned, idle ones are released, old
//! idempotency keys go (rules R4, R5, R17). Nothing of a session is ever deleted here.

use async_trait::async_trait;
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Rows a pass touches at most, of each kind.
const PASS: u32 = 500;

/// Keeps house.
#[derive(Debug)]
pub struct KeepHouse;

#[async_trait]
impl Command for KeepHouse {
    type Output = ();
    const LANE: Lane = Lane::Background;

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let authority = context.authority;
        let now = context.now;
        let expires_at = now.lease.plus_ms(authority.lease_ms);
        context
            .tx
            .renew_active_heads(&authority.owner_id, now.lease, expires_at)
            .await?;
        let idle_since = now.wall.plus_ms(-context.timing.idle_release_ms);
        context
            .tx
            .release_idle_heads(&authority.owner_id, idle_since, PASS)
            .await?;
        let before = now.wall.plus_ms(-context.timing.idempotency_ms);
        context.tx.purge_results(before, PASS).await?;
        Ok(())
    }
}
