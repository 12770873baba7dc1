//! Writes the end of a run: record, session, terminal event, open questions, tape, and the next
//! run's promotion, all in the caller's transaction (design §4.3).

use serde_json::Value;
use tapedeck_domain::event::Draft;
use tapedeck_domain::interaction::{self, InteractionStatus};
use tapedeck_domain::run::{LiveRun, RunState, RunStatus};
use tapedeck_domain::settle::{self, Ending, RunEnd};
use tapedeck_store::Failure;
use tapedeck_store::rows::{LockedSession, SettledRun};

use crate::context::Context;
use crate::projection;

/// Settles a live run of a locked session and promotes the next one. The caller saves the session.
pub(crate) async fn settle(
    context: &mut Context<'_>,
    locked: &mut LockedSession,
    run: LiveRun,
    end: RunEnd,
    agent_state: Option<Value>,
) -> Result<RunStatus, Failure> {
    let mut drafts = end_questions(context, &run, None).await?;
    let settlement = settle::settle(&run, end, context.now);
    let status = settlement.status;
    drafts.push(settlement.turn_end);
    let records = context.append(&mut locked.head, drafts).await?;
    let settled_seq = records
        .last()
        .map_or(locked.head.head_seq, |record| record.session_seq);
    let settled = SettledRun {
        status,
        result: settlement.result,
        error: settlement.error,
        recovery: settlement.recovery,
        claim: settlement.claim,
        agent_state,
        event_count: run.event_count,
        settled_at: context.now.wall,
        settled_seq,
    };
    context.tx.settle_run(run.key, &settled).await?;
    context.tx.delete_live_run(run.key).await?;
    if matches!(run.state, RunState::Requested { .. }) {
        context.tx.dequeue(run.key).await?;
    }
    settle::settle_summary(&mut locked.session.summary, &run, status, settled_seq);
    context.effects().runs.push(run.run_id);
    if let Some(claim) = run.state.claim() {
        let executor_id = claim.executor_id.clone();
        context.effects().executors.push(executor_id);
    }
    if !matches!(run.state, RunState::Queued) {
        locked.head.active_run = None;
        promote(context, locked).await?;
    }
    refresh(context, locked).await?;
    projection::step_at_settle(context, locked).await?;
    Ok(status)
}

/// Makes the first queued run the active one, unless the queue is held or the session closed.
pub(crate) async fn promote(
    context: &mut Context<'_>,
    locked: &mut LockedSession,
) -> Result<(), Failure> {
    let summary = &locked.session.summary;
    if locked.head.active_run.is_some()
        || summary.queue_held
        || summary.queued_runs == 0
        || locked.session.closed_at.is_some()
    {
        return Ok(());
    }
    let Some((queued, prompt)) = context.tx.first_queued_run(locked.head.session_key).await? else {
        locked.session.summary.queued_runs = 0;
        return Ok(());
    };
    let (run, draft) = settle::promote(queued, &prompt, &mut locked.session.summary, context.now);
    context.append(&mut locked.head, vec![draft]).await?;
    context.tx.save_live_run(&run).await?;
    locked.head.active_run = Some(run.key);
    context.enqueue(locked, &run).await?;
    context.show(locked, &run, false).await?;
    Ok(())
}

/// Ends the open questions of a run as cancelled; gives the events to append. With `attempt`, only
/// those of that attempt (rules R15).
pub(crate) async fn end_questions(
    context: &mut Context<'_>,
    run: &LiveRun,
    attempt: Option<u32>,
) -> Result<Vec<Draft>, Failure> {
    if run.pending_interactions == 0 {
        return Ok(Vec::new());
    }
    let mut drafts = Vec::new();
    for pending in context.tx.pending_interactions(run.key).await? {
        if attempt.is_some_and(|attempt| attempt != pending.attempt) {
            continue;
        }
        let (ended, draft) = interaction::end(
            pending,
            InteractionStatus::Cancelled,
            "system:run_ended",
            context.now,
        );
        context.tx.save_interaction(&ended).await?;
        drafts.push(draft);
    }
    Ok(drafts)
}

/// Offers a run again that was `held` until now; `event` says why.
pub(crate) async fn requeue(
    context: &mut Context<'_>,
    locked: &mut LockedSession,
    held: &LiveRun,
    (mut run, event): (LiveRun, Draft),
) -> Result<(), Failure> {
    let attempt = held.state.claim().map(|claim| claim.attempt);
    let mut drafts = end_questions(context, held, attempt).await?;
    run.pending_interactions = 0;
    drafts.push(event);
    context.append(&mut locked.head, drafts).await?;
    context.tx.save_live_run(&run).await?;
    context.enqueue(locked, &run).await?;
    Ok(context.show(locked, &run, false).await?)
}

/// Cancels every queued run of a session: takeover, close and forced delete (rules R16).
pub(crate) async fn cancel_queued(
    context: &mut Context<'_>,
    locked: &mut LockedSession,
) -> Result<(), Failure> {
    if locked.session.summary.queued_runs == 0 {
        return Ok(());
    }
    for run in context.tx.queued_runs(locked.head.session_key).await? {
        let end = RunEnd {
            ending: Ending::Cancelled,
            result: None,
            error: None,
            recovery_reason: None,
            body_digest: None,
        };
        Box::pin(settle(context, locked, run, end, None)).await?;
    }
    locked.session.summary.queue_held = false;
    Ok(())
}

/// Derives the session's status from what is active now.
pub(crate) async fn refresh(
    context: &mut Context<'_>,
    locked: &mut LockedSession,
) -> Result<(), Failure> {
    let active = match locked.head.active_run {
        Some(key) => context.tx.live_run(key).await?.map(|run| run.status()),
        None => None,
    };
    let closed = locked.session.closed_at.is_some();
    locked.session.summary.derive(active, closed);
    locked.session.updated_at = context.now.wall;
    Ok(())
}
