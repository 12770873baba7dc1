//! A repair: what is derived of a session is derived again from its rows (design §4.8). It decides
//! nothing that a rule decides elsewhere, and the same repair again changes nothing.

use crate::checkpoint::Checkpoint;
use crate::event::server_event_id;
use crate::id::RunId;
use crate::owner::SessionHead;
use crate::run::{LiveRun, Run};
use crate::session::Session;

/// What the rows of a session say.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Derived {
    /// The newest settled run that is not superseded.
    pub latest: Option<Run>,
    /// The newest interrupted one.
    pub last_interrupted_run_id: Option<RunId>,
    /// The newest active checkpoint.
    pub latest_checkpoint: Option<Checkpoint>,
    /// Active checkpoints.
    pub checkpoint_count: u32,
    /// Open questions of the active run.
    pub pending_interactions: u32,
}

/// Derives a session's head and summary again. Gives the names of what was wrong.
pub fn repair(
    session: &mut Session,
    head: &mut SessionHead,
    live: &[LiveRun],
    derived: &Derived,
) -> Vec<&'static str> {
    let active = live.iter().find(|run| run.status().is_active());
    let queued = live.iter().filter(|run| !run.status().is_active()).count();
    let queued = u32::try_from(queued).unwrap_or(u32::MAX);
    let mut summary = session.summary.clone();
    summary.active_run_id = active.map(|run| run.run_id);
    let newest = derived.latest.as_ref();
    summary.last_run_id = active
        .map(|run| run.run_id)
        .or_else(|| newest.map(|run| run.run_id));
    summary.last_run_status = active
        .map(LiveRun::status)
        .or_else(|| newest.map(|run| run.status));
    summary.last_interrupted_run_id = derived.last_interrupted_run_id;
    summary.resume_from_event_id = newest.and_then(|run| run.settled_seq).map(server_event_id);
    summary.queued_runs = queued;
    summary.queue_held &= queued > 0;
    // A queue that nothing is in front of and nobody holds would wait for ever.
    summary.queue_held |= queued > 0 && active.is_none();
    summary.pending_interactions = derived.pending_interactions;
    summary.checkpoint_count = derived.checkpoint_count;
    let checkpoint = derived.latest_checkpoint.as_ref();
    summary.latest_checkpoint_id = checkpoint.map(|checkpoint| checkpoint.checkpoint_id);
    summary.latest_checkpoint_label = checkpoint.and_then(|checkpoint| checkpoint.label.clone());
    summary.derive(active.map(LiveRun::status), session.closed_at.is_some());

    let before = &session.summary;
    let mut changed = Vec::new();
    let mut note = |name, differs: bool| {
        if differs {
            changed.push(name);
        }
    };
    let active_key = active.map(|run| run.key);
    note("head.active_run", head.active_run != active_key);
    note(
        "active_run_id",
        before.active_run_id != summary.active_run_id,
    );
    note("last_run_id", before.last_run_id != summary.last_run_id);
    note(
        "last_run_status",
        before.last_run_status != summary.last_run_status,
    );
    note(
        "last_interrupted_run_id",
        before.last_interrupted_run_id != summary.last_interrupted_run_id,
    );
    note(
        "resume_from_event_id",
        before.resume_from_event_id != summary.resume_from_event_id,
    );
    note("queued_runs", before.queued_runs != summary.queued_runs);
    note("queue_held", before.queue_held != summary.queue_held);
    note(
        "pending_interactions",
        before.pending_interactions != summary.pending_interactions,
    );
    note(
        "checkpoint_count",
        before.checkpoint_count != summary.checkpoint_count,
    );
    note(
        "latest_checkpoint",
        before.latest_checkpoint_id != summary.latest_checkpoint_id
            || before.latest_checkpoint_label != summary.latest_checkpoint_label,
    );
    note("status", before.status != summary.status);
    note("turn_status", before.turn_status != summary.turn_status);
    head.active_run = active_key;
    session.summary = summary;
    changed
}

#[cfg(test)]
mod tests;
