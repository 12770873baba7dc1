//! Completes a run by its claim's holder; the same completion again gets the stored answer (rules
//! R11).

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::claim::Proof;
use tapedeck_domain::expire::hand_back;
use tapedeck_domain::run::Run;
use tapedeck_domain::settle::{Ending, RunEnd, check_complete, repeated};
use tapedeck_domain::tape::upload::EntryBatch;
use tapedeck_domain::{Rejection, SessionId, TapeId};
use tapedeck_store::{Failure, Lane};

use crate::commands::heartbeat::ClaimProof;
use crate::context::Context;
use crate::execute::Command;
use crate::projection::{self, Written};
use crate::settling;

/// Completes a run.
#[derive(Debug)]
pub struct SettleRun {
    /// Who.
    pub proof: ClaimProof,
    /// How it ends; carries the digest of the body.
    pub end: RunEnd,
    /// Events the executor uploaded under this claim (ADR 7).
    pub event_count: Option<u64>,
    /// The agent's own state for a later resume.
    pub agent_state: Option<Value>,
    /// The tape that the executor means.
    pub tape_id: Option<TapeId>,
    /// Its own tape entries instead of the projected ones.
    pub tape: Option<EntryBatch>,
}

#[async_trait]
impl Command for SettleRun {
    type Output = Run;
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        self.proof.session_id
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Run, Failure> {
        let proof = &self.proof;
        let claimed = context
            .hold_claim(proof.run_id, &proof.executor_id, &proof.token)
            .await?;
        let key = claimed.locked.key;
        if claimed.proof == Proof::Settled {
            let status = claimed.locked.status;
            let settled = claimed
                .locked
                .settled
                .as_ref()
                .ok_or(Rejection::RunSettled { status })?;
            let digest = self
                .end
                .body_digest
                .ok_or(Rejection::RunSettled { status })?;
            repeated(settled, status, digest)?;
            return Ok(context.tx.run(key).await?);
        }
        let (head, live) = claimed.live()?;
        check_complete(&live, self.event_count)?;
        let mut locked = context.lock_with(head).await?;
        if self.tape_id.is_some_and(|tape_id| tape_id != locked.session.tape_id) {
            return Err(Rejection::invalid("tape_id", "is not the session's tape").into());
        }
        if let Some(batch) = self.tape.clone().filter(|batch| !batch.is_empty()) {
            match projection::plan_entries(context, &locked.head, batch).await? {
                Written::Now(slots) => {
                    projection::write_entries(context, &locked.head, live.run_id, slots).await?;
                }
                Written::Before(_) => {
                    projection::leave_to_executor(context, &locked.head, live.run_id).await?;
                }
            }
        }
        let again = match self.end.ending {
            Ending::Interrupted => hand_back(&live, self.end.error.as_deref(), context.now),
            Ending::Completed | Ending::Failed | Ending::Cancelled => None,
        };
        if let Some(again) = again {
            if let Some(state) = &self.agent_state {
                context.tx.save_agent_state(key, state).await?;
            }
            settling::requeue(context, &mut locked, &live, again).await?;
        } else {
            let (end, agent_state) = (self.end.clone(), self.agent_state.clone());
            settling::settle(context, &mut locked, live, end, agent_state).await?;
        }
        context.save(&locked).await?;
        Ok(context.tx.run(key).await?)
    }
}
