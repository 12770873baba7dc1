//! The queue of claimable runs: whose turn it is, whom a run waits for, and why nobody may come.
//!
//! Turns are given out when a run becomes claimable, so that a claim needs no more than the first of
//! an ordered list. Each flow's runs get one turn after the other, and a flow that comes anew begins
//! right after the turn that was served last: however many runs one flow has waiting, the first of another is
//! at most one round away (start-time fair queueing).

use crate::executor::{Executor, qualifies};
use crate::session::{ExecutorTarget, RunTarget, WorkspaceKind, text_enum};
use crate::time::{LeaseInstant, Now};
use crate::timing::Timing;

/// Whose turns are counted together: the runs of a namespace that are pinned to the same executor, or
/// to none. Label sets are told apart by the queue itself, so that runs which nobody can serve use up
/// no turns of the others.
pub fn flow(namespace: &str, target: &ExecutorTarget) -> String {
    let pinned = target.executor_id.as_deref().unwrap_or_default();
    format!("{namespace}/{pinned}")
}

/// What a new turn is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Turns {
    /// The turn that was served last in the pool; 0 before the first.
    pub served: i64,
    /// The newest turn that waits in the flow.
    pub newest_of_flow: Option<i64>,
}

/// The turn of a run that becomes claimable: after the one served last, else a flow that brings one run
/// at a time would be served at the same turn again and again, before all that wait for the next.
pub fn turn(turns: Turns) -> i64 {
    turns.served.max(turns.newest_of_flow.unwrap_or(i64::MIN)) + 1
}

/// The executor that a run waits for before anybody else may take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    /// Its name.
    pub executor_id: String,
    /// From when on everybody who qualifies may take the run.
    pub opens_at: LeaseInstant,
}

/// How long a session's runs wait for the executor of the run before: what the session says, else a
/// while where the workspace or what an agent keeps beside it is that executor's own.
pub fn affinity_ms(target: &RunTarget, timing: &Timing) -> i64 {
    if let Some(seconds) = target.constraints.affinity_seconds {
        return if seconds == 0 {
            0
        } else {
            timing.seconds(seconds)
        };
    }
    match target.workspace.as_ref().map(|workspace| workspace.kind) {
        None | Some(WorkspaceKind::Scratch) => 0,
        Some(WorkspaceKind::LocalPath | WorkspaceKind::Git | WorkspaceKind::ExternalWorkerRef) => {
            timing.affinity_ms
        }
    }
}

/// Decides whether a run that became claimable at `ready_at` waits for the executor that served its
/// session last. Nobody waits for one that can't come: that is out of touch, drained, or doesn't
/// qualify any more. A pinned run waits for its pin alone.
pub fn prefer(
    target: &RunTarget,
    last: &Executor,
    ready_at: LeaseInstant,
    now: Now,
    timing: &Timing,
) -> Option<Preference> {
    let opens_at = ready_at.plus_ms(affinity_ms(target, timing));
    let in_touch = now.lease.since(last.last_seen) < timing.executor_stale_ms;
    let waits = target.executor.executor_id.is_none()
        && opens_at > now.lease
        && in_touch
        && !last.draining
        && qualifies(&last.contact, &target.executor);
    waits.then(|| Preference {
        executor_id: last.contact.executor_id.clone(),
        opens_at,
    })
}

text_enum! {
    /// Why nobody serves a run that waits.
    Unservable {
        /// No executor of its kind and pool has been heard of lately.
        NoExecutor = "no_executor",
        /// The executor that it is pinned to has not been heard of lately.
        PinOffline = "pin_offline",
        /// The executor that it is pinned to is of another kind or pool.
        PinElsewhere = "pin_elsewhere",
        /// No executor of its kind and pool carries its labels.
        Labels = "labels",
        /// Every executor that could serve it is to take no new work.
        Draining = "draining",
        /// Executors took it and were not heard of again (rules R10).
        Unacknowledged = "unacknowledged",
    }
}

impl Unservable {
    /// Why the run waits, in words for the person who waits with it.
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::NoExecutor => {
                "no executor of its kind and pool is in touch; start one with `tapedeck executor`"
            }
            Self::PinOffline => "the executor that it is pinned to is not in touch",
            Self::PinElsewhere => "the executor that it is pinned to is of another kind or pool",
            Self::Labels => "no executor carries the labels that it asks for",
            Self::Draining => "every executor that could take it is draining",
            Self::Unacknowledged => "executors took it and were not heard of again",
        }
    }
}

/// Says why none of the executors that were `seen` lately can serve a target; `None` where one can.
pub fn unservable(target: &ExecutorTarget, seen: &[Executor]) -> Option<Unservable> {
    let pinned = target.executor_id.as_ref();
    let is_named =
        |executor: &&Executor| pinned.is_none_or(|pinned| *pinned == executor.contact.executor_id);
    let named: Vec<_> = seen.iter().filter(is_named).collect();
    if named.is_empty() && pinned.is_some() {
        return Some(Unservable::PinOffline);
    }
    let in_pool = |executor: &&&Executor| {
        executor.contact.executor_kind == target.executor_kind
            && executor.contact.pool == target.pool
    };
    let in_pool: Vec<_> = named.iter().filter(in_pool).collect();
    if in_pool.is_empty() {
        return Some(match pinned {
            Some(_) => Unservable::PinElsewhere,
            None => Unservable::NoExecutor,
        });
    }
    let mut able = in_pool
        .into_iter()
        .filter(|executor| qualifies(&executor.contact, target))
        .peekable();
    if able.peek().is_none() {
        return Some(Unservable::Labels);
    }
    able.all(|executor| executor.draining)
        .then_some(Unservable::Draining)
}

/// What a waiting run's flag should be. What the sweep says of claims that nobody acknowledged stays
/// until a claim is acknowledged.
pub fn flag(
    present: Option<&str>,
    target: &ExecutorTarget,
    seen: &[Executor],
) -> Option<Unservable> {
    if present == Some(Unservable::Unacknowledged.as_str()) {
        return Some(Unservable::Unacknowledged);
    }
    unservable(target, seen)
}

#[cfg(test)]
mod tests;
