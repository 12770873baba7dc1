//! Moves the tape along the log in bounded steps (rules R19).

use tapedeck_domain::id::TapeEntryId;
use tapedeck_domain::limits::{EVENT_PAGE_BYTES, PROJECTION_STEP};
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::tape::{EntryKind, NewEntry, RESUME_BOUNDARY, TapeState, project};
use tapedeck_store::StoreError;
use tapedeck_store::rows::LockedSession;

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
    run_id: tapedeck_domain::RunId,
) -> Result<(), StoreError> {
    let mut state = context.tx.tape_state(head.session_key).await?;
    state.position += 1;
    let entry = NewEntry {
        kind: EntryKind::Anchor,
        payload: anchor.1,
        run_id: Some(run_id),
        first_seq: head.head_seq,
        created_at: context.now.wall,
        anchor_type: Some(RESUME_BOUNDARY),
    };
    context
        .tx
        .insert_tape_entries(head.session_key, &[(state.position, anchor.0, entry)])
        .await?;
    context.tx.save_tape_state(head.session_key, &state).await
}
