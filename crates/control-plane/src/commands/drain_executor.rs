//! Tells an executor to take no new work, or to take it again. Its claims look at this under the lock
//! of its row, so none of them commits after a drain was answered.

use async_trait::async_trait;
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;

/// Drains an executor, or ends that.
#[derive(Debug)]
pub struct DrainExecutor {
    /// Its name.
    pub executor_id: String,
    /// Whether it is to take no new work.
    pub draining: bool,
}

#[async_trait]
impl Command for DrainExecutor {
    type Output = ();
    const LANE: Lane = Lane::Urgent;

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let (id, draining) = (&self.executor_id, self.draining);
        if !context.tx.set_draining(id, draining).await? {
            return Err(Failure::NotFound(Target::Executor));
        }
        context.effects().executors.push(id.clone());
        Ok(())
    }
}
