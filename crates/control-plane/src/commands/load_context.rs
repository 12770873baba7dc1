//! Composes the context of a claimed run whose tape had not caught up when it was claimed (rules
//! R19).

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::RunId;
use tapedeck_store::{Failure, Lane};

use crate::commands::claim_run::{Composed, compose};
use crate::context::Context;
use crate::execute::Command;
use crate::projection;

/// Composes the context of a run.
#[derive(Debug)]
pub struct LoadContext {
    /// The run.
    pub run_id: RunId,
}

#[async_trait]
impl Command for LoadContext {
    type Output = Option<Value>;
    const LANE: Lane = Lane::Admission;

    async fn apply(&self, context: &mut Context<'_>) -> Result<Option<Value>, Failure> {
        let locked = context.own_run(self.run_id).await?;
        let session = context.lock_with(locked.head).await?;
        projection::step_to_head(context, &session.head).await?;
        let run = context.tx.run(locked.key).await?;
        match compose(context, &session, &run).await? {
            Composed::Ready(composed) => {
                context.tx.save_head(&session.head).await?;
                Ok(composed)
            }
            Composed::Behind => Err(projection::behind().into()),
        }
    }
}
