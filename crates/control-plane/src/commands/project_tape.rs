//! Moves a session's tape one bounded step along its log (rules R19). Readers ask for it too, so it
//! takes nothing over.

use async_trait::async_trait;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;
use crate::projection;

/// One step; gives whether the tape has caught up.
#[derive(Debug, Clone)]
pub struct ProjectTape {
    /// Whose.
    pub target: TapeOf,
}

/// Whose tape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TapeOf {
    /// A session's.
    Session(String, SessionId),
    /// The one that a run's entries go to.
    Run(RunId),
}

#[async_trait]
impl Command for ProjectTape {
    type Output = bool;
    const LANE: Lane = Lane::Background;

    fn session(&self) -> Option<SessionId> {
        match self.target {
            TapeOf::Session(_, session_id) => Some(session_id),
            TapeOf::Run(_) => None,
        }
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<bool, Failure> {
        let head = match &self.target {
            TapeOf::Session(namespace, session_id) => {
                context.tend_session(namespace, *session_id).await?
            }
            TapeOf::Run(run_id) => context.tend_session_of(*run_id).await?,
        };
        let caught_up = projection::step(context, &head).await?;
        Ok(caught_up)
    }
}
