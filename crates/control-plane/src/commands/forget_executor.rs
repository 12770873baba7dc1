//! Removes an executor that is gone from the list. Nothing of its runs changes.

use async_trait::async_trait;
use tapedeck_domain::executor::may_forget;
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;

/// Forgets an executor.
#[derive(Debug)]
pub struct ForgetExecutor {
    /// Its name.
    pub executor_id: String,
}

#[async_trait]
impl Command for ForgetExecutor {
    type Output = ();
    const LANE: Lane = Lane::Urgent;

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let known = context.tx.known_executor(&self.executor_id).await?;
        let executor = known.ok_or(Failure::NotFound(Target::Executor))?;
        may_forget(&executor, context.now, context.timing)?;
        context.tx.delete_executor(&self.executor_id).await?;
        Ok(())
    }
}
