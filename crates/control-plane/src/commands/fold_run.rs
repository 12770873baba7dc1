//! Folds a bounded part of a settled run's deltas into whole messages (rules R20). Each step is whole
//! in itself: a run whose folding ends half-way is as correct as before, and is begun again.

use async_trait::async_trait;
use tapedeck_domain::RunId;
use tapedeck_domain::fold::{Folding, Overtaken};
use tapedeck_domain::limits::{EVENT_BYTES, EVENT_PAGE_BYTES, PROJECTION_STEP};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;
use crate::projection;

/// One step over at most [`PROJECTION_STEP`] events.
#[derive(Debug, Clone)]
pub struct FoldRun {
    /// The candidate.
    pub run_id: RunId,
    /// How far the step before came; `None` begins.
    pub folding: Option<Box<Folding>>,
}

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoldStep {
    /// The run is folded.
    Done,
    /// The next step goes on from here; `None` begins again.
    More(Option<Box<Folding>>),
    /// Not now: the session is busy or another live owner's, or somebody else was quicker.
    Left,
}

#[async_trait]
impl Command for FoldRun {
    type Output = FoldStep;
    const LANE: Lane = Lane::Background;

    fn weight(&self) -> usize {
        EVENT_BYTES
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<FoldStep, Failure> {
        let Some(locked) = context.tend_run(self.run_id).await? else {
            return Ok(FoldStep::Left);
        };
        let session = locked.head.session_key;
        let Some(span) = context.tx.foldable_span(locked.key).await? else {
            return Ok(FoldStep::Left);
        };
        if context.tx.tape_state(session).await?.tape_seq < span.settled_seq {
            projection::step(context, &locked.head).await?;
            return Ok(FoldStep::More(self.folding.clone()));
        }
        let begin = || Box::new(Folding::new(self.run_id, span.admitted_seq));
        let mut folding = self.folding.clone().unwrap_or_else(begin);
        let after = folding.after();
        let mut events = context
            .tx
            .events_after(session, after, PROJECTION_STEP, EVENT_PAGE_BYTES)
            .await?;
        events.retain(|event| event.session_seq <= span.settled_seq);
        let through = events.last().map_or(after, |event| event.session_seq);
        let is_last = events.is_empty() || through >= span.settled_seq;
        // A checkpoint needs an idle session and a resume a settled one, so both lie between runs. A
        // fork may name any number, and says so for ever.
        let cuts = context.tx.cuts(session, after, through).await?;
        let folds = match folding.take(&events, &cuts, is_last) {
            Ok(folds) => folds,
            Err(Overtaken) => return Ok(FoldStep::More(None)),
        };
        if !folds.is_empty() {
            context.tx.apply_folds(session, &folds).await?;
            context.effects().folded.push(locked.head.session_id);
        }
        if is_last {
            context.tx.mark_folded(locked.key, context.now.wall).await?;
            return Ok(FoldStep::Done);
        }
        Ok(FoldStep::More(Some(folding)))
    }
}
