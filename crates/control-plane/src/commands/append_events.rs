//! Appends an uploaded batch: guard, known ids, plan, insert, renew (stores §3).

use std::collections::HashMap;

use async_trait::async_trait;
use tapedeck_domain::append::{Plan, Slot, Uploaded, plan};
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::{Rejection, SessionId};
use tapedeck_store::{Failure, Lane};

use crate::commands::heartbeat::{ClaimProof, renew_held};
use crate::context::Context;
use crate::execute::Command;

/// Appends events.
#[derive(Debug)]
pub struct AppendEvents {
    /// Who.
    pub proof: ClaimProof,
    /// The batch, checked at the edge.
    pub batch: Vec<Uploaded>,
}

/// What an upload gets back.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// The run's session.
    pub session_id: SessionId,
    /// In the order of the request; `None` for an ignored `TurnEnd`.
    pub events: Vec<Option<EventRecord>>,
}

#[async_trait]
impl Command for AppendEvents {
    type Output = Recorded;
    const LANE: Lane = Lane::Append;

    fn session(&self) -> Option<SessionId> {
        self.proof.session_id
    }

    fn weight(&self) -> usize {
        self.batch
            .iter()
            .map(|event| 200 + event.payload.as_str().len())
            .sum()
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Recorded, Failure> {
        let proof = &self.proof;
        let claimed = context
            .hold_claim(proof.run_id, &proof.executor_id, &proof.token)
            .await?;
        let ids: Vec<String> = self
            .batch
            .iter()
            .map(|event| event.event_id.clone())
            .collect();
        let known: HashMap<_, _> = context
            .tx
            .known_events(claimed.locked.key, &ids)
            .await?
            .into_iter()
            .collect();
        let session_id = claimed.locked.head.session_id;
        let recorded = |slots, new: &[EventRecord]| Recorded {
            session_id,
            events: answer(slots, new),
        };
        let planned = plan(self.batch.clone(), &known)?;
        if planned.new.is_empty() && claimed.locked.live.is_none() {
            // Re-uploading only stored events is fine after the settle, too (rules R11).
            return Ok(recorded(planned.slots, &[]));
        }
        let (mut head, mut live) = claimed.live()?;
        let Some(claim) = live.state.claim().cloned() else {
            return Err(Rejection::ClaimLost.into());
        };
        let Plan {
            new,
            slots,
            has_output,
        } = planned;
        live.event_count += new.len() as u64;
        live.has_output |= has_output;
        let first_sign = !claim.acknowledged;
        let drafts: Vec<_> = new
            .into_iter()
            .map(|draft| draft.of_run(&live).by(&claim))
            .collect();
        if first_sign {
            // `RunStarted` comes before the first uploaded event.
            let (renewed, renewed_head) = renew_held(context, head, live, None).await?;
            (live, head) = (renewed, renewed_head);
            let records = context.append(&mut head, drafts).await?;
            context.tx.save_live_run(&live).await?;
            context.tx.save_head(&head).await?;
            return Ok(recorded(slots, &records));
        }
        let records = context.append(&mut head, drafts).await?;
        renew_held(context, head, live, None).await?;
        Ok(recorded(slots, &records))
    }
}

fn answer(slots: Vec<Slot>, new: &[EventRecord]) -> Vec<Option<EventRecord>> {
    slots
        .into_iter()
        .map(|slot| match slot {
            Slot::New(index) => new.get(index).cloned(),
            Slot::Known(record) => Some(record),
            Slot::Ignored => None,
        })
        .collect()
}
