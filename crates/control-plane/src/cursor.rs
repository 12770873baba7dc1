//! Whether a cursor of a session's log can be served (design §6, rules R20). Every error comes before
//! the first event, and nothing is read for a cursor that no fold can lie over.

use tapedeck_domain::event::EventRecord;
use tapedeck_domain::run::Run;
use tapedeck_store::{EventFilter, Reader, SessionView};

use crate::error::{CursorError, Outcome};

/// Where a reader of a run's events really begins: nothing of it comes before its admission.
pub(crate) fn within(run: &Run, after: u64) -> u64 {
    after.max(run.admitted_seq.saturating_sub(1))
}

/// Whether nothing of a run follows the cursor.
pub(crate) fn is_past(run: &Run, after: u64) -> bool {
    run.settled_seq.is_some_and(|settled| after >= settled)
}

/// Refuses a cursor that lies after the head.
pub(crate) fn check_head(view: &SessionView, after: u64) -> Result<(), CursorError> {
    let head_seq = view.head.head_seq;
    if after > head_seq {
        return Err(CursorError::Future { after, head_seq });
    }
    Ok(())
}

/// Refuses a cursor that lies strictly inside a fold.
pub(crate) async fn check_folds(
    reader: &dyn Reader,
    view: &SessionView,
    after: u64,
) -> Outcome<()> {
    if !may_be_folded(view, after) {
        return Ok(());
    }
    match reader.fold_over(view.session.session_id, after).await? {
        Some(first_seq) => Err(folded(after, first_seq).into()),
        None => Ok(()),
    }
}

/// Checks the cursor of a page.
pub(crate) async fn check_page(
    reader: &dyn Reader,
    view: &SessionView,
    filter: &EventFilter,
) -> Outcome<()> {
    check_head(view, filter.after)?;
    if !may_be_folded(view, filter.after) {
        return Ok(());
    }
    let run = match filter.run_id {
        Some(run_id) => reader.run(&view.session.namespace, run_id).await?,
        None => None,
    };
    let run = run.filter(|run| run.session_id == filter.session_id);
    match &run {
        Some(run) if is_past(run, filter.after) => Ok(()),
        Some(run) => check_folds(reader, view, within(run, filter.after)).await,
        None => check_folds(reader, view, filter.after).await,
    }
}

/// Refuses what was read after a cursor if it repeats what the cursor's holder has seen, because a
/// fold came between the check and the read.
pub(crate) fn check_read(after: u64, first: Option<&EventRecord>) -> Result<(), CursorError> {
    match first.map(EventRecord::first_seq) {
        Some(first_seq) if first_seq <= after => Err(folded(after, first_seq)),
        Some(_) | None => Ok(()),
    }
}

fn may_be_folded(view: &SessionView, after: u64) -> bool {
    view.session
        .folded_seq
        .is_some_and(|folded_seq| after < folded_seq)
}

const fn folded(after: u64, first_seq: u64) -> CursorError {
    CursorError::Folded {
        after,
        restart_after: first_seq.saturating_sub(1),
    }
}
