//! Records that an executor's process ends: from then on nobody waits for it.

use async_trait::async_trait;
use tapedeck_domain::executor::{Report, leave};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Takes an executor's leave.
#[derive(Debug)]
pub struct LeaveExecutor {
    /// Its name.
    pub executor_id: String,
    /// The process that ends.
    pub instance_id: Option<String>,
}

#[async_trait]
impl Command for LeaveExecutor {
    type Output = ();
    const LANE: Lane = Lane::Urgent;

    /// One that nobody knows has nothing to leave.
    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let Some(executor) = context.tx.known_executor(&self.executor_id).await? else {
            return Ok(());
        };
        let (instance_id, now) = (self.instance_id.as_deref(), context.now);
        if let Some(seen) = leave(&executor, instance_id, now, context.timing) {
            let (id, report) = (&self.executor_id, Report::default());
            context.tx.touch_executor(id, &report, seen).await?;
        }
        Ok(())
    }
}
