//! Moves the tape along the log in bounded steps (rules R19).

use tapedeck_domain::id::{CheckpointId, RunId, SessionKey, TapeEntryId};
use tapedeck_domain::limits::{EVENT_PAGE_BYTES, PROJECTION_STEP};
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::tape::upload::{EntryBatch, EntrySlot};
use tapedeck_domain::tape::{
    EntryKind, EntrySource, NewEntry, RESUME_BOUNDARY, TapeEntry, TapeState, project,
};
use tapedeck_store::rows::LockedSession;
use tapedeck_store::{Failure, StoreError};

use crate::context::Context;

/// One step: at most [`PROJECTION_STEP`] events. Gives whether the tape has caught up.
pub(crate) async fn step(
    context: &mut Context<'_>,
    head: &SessionHead,
) -> Result<bool, StoreError> {
    let mut state = context.tx.tape_state(head.session_key).await?;
    if state.tape_seq >= head.head_seq {
        return Ok(true);
    }
    advance(context, head, &mut state).await
}

/// The step at a settle: closes the tape if it is near, else leaves it behind for the background.
pub(crate) async fn step_at_settle(
    context: &mut Context<'_>,
    locked: &LockedSession,
) -> Result<(), StoreError> {
    let head = &locked.head;
    let mut state = context.tx.tape_state(head.session_key).await?;
    let behind = head.head_seq.saturating_sub(state.tape_seq);
    let near = behind <= u64::from(PROJECTION_STEP);
    if !near || !advance(context, head, &mut state).await? {
        let behind = (locked.session.namespace.clone(), locked.session.session_id);
        context.effects().project.push(behind);
    }
    Ok(())
}

/// Moves a tape that has caught up before over the few events that came since. Whoever needs it at
/// the head has moved it there outside the transaction (rules R19).
pub(crate) async fn step_to_head(
    context: &mut Context<'_>,
    head: &SessionHead,
) -> Result<(), StoreError> {
    if step(context, head).await? {
        Ok(())
    } else {
        Err(behind())
    }
}

/// The log has grown faster than the tape could follow; nothing was written.
pub(crate) fn behind() -> StoreError {
    StoreError::Unavailable {
        reason: "the tape has not caught up with the log".to_owned(),
    }
}

/// Puts active entries after a position aside. Gives how many.
pub(crate) async fn supersede(
    context: &mut Context<'_>,
    session: SessionKey,
    after_position: u64,
    by: CheckpointId,
) -> Result<u64, StoreError> {
    let count = context
        .tx
        .supersede_tape(session, after_position, by)
        .await?;
    let mut state = context.tx.tape_state(session).await?;
    state.entries = state.entries.saturating_sub(count);
    context.tx.save_tape_state(session, &state).await?;
    Ok(count)
}

/// What of an executor's entries is to be written.
pub(crate) enum Written {
    /// Nothing: all were stored before.
    Before(Vec<TapeEntry>),
    /// These.
    Now(Vec<EntrySlot>),
}

/// Looks an executor's entries up among what is stored, on any tape.
pub(crate) async fn plan_entries(
    context: &mut Context<'_>,
    head: &SessionHead,
    batch: EntryBatch,
) -> Result<Written, Failure> {
    let known = context.tx.known_tape_entries(&batch.ids()).await?;
    let slots = batch.plan(head.session_id, &known, head.head_seq, context.now.wall)?;
    let stored: Option<Vec<_>> = slots
        .iter()
        .map(|slot| match slot {
            EntrySlot::Known(entry) => Some(entry.clone()),
            EntrySlot::New(..) => None,
        })
        .collect();
    Ok(stored.map_or(Written::Now(slots), Written::Before))
}

/// Leaves a run's part of a tape that has caught up to its executor: its uploads are no longer
/// projected, and what was projected of them is replaced.
pub(crate) async fn leave_to_executor(
    context: &mut Context<'_>,
    head: &SessionHead,
    run_id: RunId,
) -> Result<TapeState, Failure> {
    step_to_head(context, head).await?;
    let key = head.session_key;
    let mut state = context.tx.tape_state(key).await?;
    if !state.own_tape.contains(&run_id) {
        state.leave_to_executor(run_id);
        let replaced = context.tx.replace_projected(key, run_id).await?;
        state.entries = state.entries.saturating_sub(replaced);
        context.tx.save_tape_state(key, &state).await?;
    }
    Ok(state)
}

/// Writes an executor's entries to a tape that has caught up, which is left to it from the first of
/// them on.
pub(crate) async fn write_entries(
    context: &mut Context<'_>,
    head: &SessionHead,
    run_id: RunId,
    slots: Vec<EntrySlot>,
) -> Result<Vec<TapeEntry>, Failure> {
    let key = head.session_key;
    let mut state = leave_to_executor(context, head, run_id).await?;
    let (mut placed, mut answer) = (Vec::new(), Vec::new());
    for slot in slots {
        match slot {
            EntrySlot::Known(entry) => answer.push(entry),
            EntrySlot::New(entry_id, entry) => {
                state.position += 1;
                answer.push(TapeEntry::placed(state.position, entry_id, entry.clone()));
                placed.push((state.position, entry_id, entry));
            }
        }
    }
    state.entries += placed.len() as u64;
    context.tx.insert_tape_entries(key, &placed).await?;
    context.tx.save_tape_state(key, &state).await?;
    Ok(answer)
}

async fn advance(
    context: &mut Context<'_>,
    head: &SessionHead,
    state: &mut TapeState,
) -> Result<bool, StoreError> {
    let events = context
        .tx
        .events_after(
            head.session_key,
            state.tape_seq,
            PROJECTION_STEP,
            EVENT_PAGE_BYTES,
        )
        .await?;
    let entries = project(state, &events);
    write(context, head, state, entries).await?;
    Ok(state.tape_seq >= head.head_seq)
}

async fn write(
    context: &mut Context<'_>,
    head: &SessionHead,
    state: &mut TapeState,
    entries: Vec<NewEntry>,
) -> Result<(), StoreError> {
    let placed: Vec<_> = entries
        .into_iter()
        .map(|entry| {
            state.position += 1;
            (state.position, TapeEntryId::new(context.ids.next()), entry)
        })
        .collect();
    state.entries += placed.len() as u64;
    if !placed.is_empty() {
        context
            .tx
            .insert_tape_entries(head.session_key, &placed)
            .await?;
    }
    context.tx.save_tape_state(head.session_key, state).await
}

/// Puts the boundary anchor of a resume on a tape that has caught up.
pub(crate) async fn write_anchor(
    context: &mut Context<'_>,
    head: &SessionHead,
    anchor: (TapeEntryId, serde_json::Value),
    run_id: RunId,
) -> Result<(), StoreError> {
    let mut state = context.tx.tape_state(head.session_key).await?;
    state.position += 1;
    state.entries += 1;
    let entry = NewEntry {
        kind: EntryKind::Anchor,
        payload: anchor.1,
        run_id: Some(run_id),
        first_seq: head.head_seq,
        created_at: context.now.wall,
        anchor_type: Some(RESUME_BOUNDARY.to_owned()),
        source: EntrySource::Server,
        meta: None,
    };
    context
        .tx
        .insert_tape_entries(head.session_key, &[(state.position, anchor.0, entry)])
        .await?;
    context.tx.save_tape_state(head.session_key, &state).await
}
