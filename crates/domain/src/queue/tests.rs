use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::executor::Contact;
use crate::fixture::{TIMING, after, at};
use crate::session::Workspace;
use crate::time::Timestamp;

fn executor(executor_id: &str, labels: &[(&str, &str)]) -> Executor {
    Executor {
        contact: Contact {
            executor_id: executor_id.to_owned(),
            instance_id: None,
            executor_kind: "local_cli".to_owned(),
            pool: "default".to_owned(),
            labels: labels
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            process_id: None,
            version: None,
            capabilities: None,
            workspace: None,
            max_runs: None,
        },
        draining: false,
        last_seen_at: Timestamp(0),
        last_seen: at(0),
        live_runs: Vec::new(),
        last_run: None,
    }
}

fn labelled(labels: &[(&str, &str)]) -> ExecutorTarget {
    ExecutorTarget {
        labels: executor("any", labels).contact.labels,
        ..ExecutorTarget::default()
    }
}

fn pinned(executor_id: &str) -> ExecutorTarget {
    ExecutorTarget {
        executor_id: Some(executor_id.to_owned()),
        ..ExecutorTarget::default()
    }
}

#[test]
fn a_flow_is_a_namespace_and_a_pin() {
    let free = ExecutorTarget::default();
    assert_eq!(flow("a", &free), flow("a", &labelled(&[("gpu", "yes")])));
    assert_ne!(flow("a", &free), flow("b", &free));
    assert_ne!(flow("a", &free), flow("a", &pinned("e1")));
}

/// A queue of one label set, as the stores keep it.
#[derive(Default)]
struct Queue {
    served: i64,
    waiting: Vec<(i64, u64, u16)>,
    next_key: u64,
}

impl Queue {
    fn enqueue(&mut self, flow: u16) {
        let of_flow = self.waiting.iter().filter(|(_, _, of)| *of == flow);
        let turn = turn(Turns {
            served: self.served,
            newest_of_flow: of_flow.map(|(turn, _, _)| *turn).max(),
        });
        self.waiting.push((turn, self.next_key, flow));
        self.next_key += 1;
    }

    fn serve(&mut self) -> Option<u16> {
        let first = self.waiting.iter().min().copied()?;
        self.waiting.retain(|entry| *entry != first);
        self.served = self.served.max(first.0);
        Some(first.2)
    }
}

#[test]
fn a_flood_does_not_keep_another_flow_waiting() {
    let mut queue = Queue::default();
    for _ in 0..1_000 {
        queue.enqueue(1);
    }
    for _ in 0..300 {
        assert_eq!(queue.serve(), Some(1));
    }
    // Two that come late share with the flood from then on, and owe it nothing.
    for _ in 0..10 {
        queue.enqueue(2);
        queue.enqueue(3);
    }
    let served: Vec<_> = (0..33).filter_map(|_| queue.serve()).collect();
    for flow in [2, 3] {
        let of_flow = served.iter().filter(|of| **of == flow).count();
        assert!((9..=10).contains(&of_flow), "{served:?}");
    }
    assert!(served.iter().filter(|of| **of == 1).count() >= 10);
    assert!(
        served[..3].contains(&2) || served[..3].contains(&3),
        "{served:?}"
    );
}

proptest! {
    /// While a flow has runs waiting, every other is served at most twice before it.
    #[test]
    fn nobody_is_passed_again_and_again_by_the_same_flow(
        steps in prop::collection::vec((0_u16..4, any::<bool>()), 1..400)
    ) {
        let mut queue = Queue::default();
        // For each pair: how often the second was served since the first has been waiting unserved.
        let mut passed: BTreeMap<(u16, u16), u32> = BTreeMap::new();
        for (flow, serves) in steps {
            if !serves {
                queue.enqueue(flow);
                continue;
            }
            let Some(served) = queue.serve() else { continue };
            for waiting in 0..4 {
                let waits = queue.waiting.iter().any(|(_, _, of)| *of == waiting);
                if waiting == served || !waits {
                    for other in 0..4 {
                        passed.remove(&(waiting, other));
                    }
                } else {
                    let times = passed.entry((waiting, served)).or_default();
                    *times += 1;
                    prop_assert!(*times <= 2, "{waiting} was passed {times} times by {served}");
                }
            }
        }
    }

    /// The order within a flow is that in which its runs became claimable.
    #[test]
    fn a_flow_keeps_its_order(steps in prop::collection::vec((0_u16..3, any::<bool>()), 1..200)) {
        let mut queue = Queue::default();
        let mut newest: BTreeMap<u16, u64> = BTreeMap::new();
        for (flow, serves) in steps {
            if !serves {
                queue.enqueue(flow);
                continue;
            }
            let first = queue.waiting.iter().min().copied();
            let Some((_, key, of)) = first else { continue };
            queue.serve();
            let last = newest.insert(of, key);
            prop_assert!(last.is_none_or(|last| last < key));
        }
    }
}

fn target(kind: Option<WorkspaceKind>, affinity_seconds: Option<u32>) -> RunTarget {
    let mut target = RunTarget {
        workspace: kind.map(|kind| Workspace {
            kind,
            ..Workspace::local_path("/srv")
        }),
        ..RunTarget::default()
    };
    target.constraints.affinity_seconds = affinity_seconds;
    target
}

#[test]
fn a_workspace_of_an_executors_own_is_worth_waiting_for() {
    for (kind, said, expected) in [
        (None, None, 0),
        (Some(WorkspaceKind::Scratch), None, 0),
        (Some(WorkspaceKind::LocalPath), None, TIMING.affinity_ms),
        (Some(WorkspaceKind::Git), None, TIMING.affinity_ms),
        (
            Some(WorkspaceKind::ExternalWorkerRef),
            None,
            TIMING.affinity_ms,
        ),
        (Some(WorkspaceKind::LocalPath), Some(0), 0),
        (Some(WorkspaceKind::Scratch), Some(7), TIMING.seconds(7)),
        (None, Some(7), TIMING.seconds(7)),
    ] {
        assert_eq!(
            affinity_ms(&target(kind, said), &TIMING),
            expected,
            "{kind:?} {said:?}"
        );
    }
}

#[test]
fn nobody_waits_for_an_executor_that_can_not_come() {
    let local = target(Some(WorkspaceKind::LocalPath), None);
    let known = executor("e1", &[]);
    let now = after(1_000);
    let decide = |target: &RunTarget, last: &Executor, ready_at| {
        prefer(target, last, at(ready_at), now, &TIMING)
    };
    assert_eq!(
        decide(&local, &known, 1_000),
        Some(Preference {
            executor_id: "e1".to_owned(),
            opens_at: at(1_000 + TIMING.affinity_ms),
        })
    );
    // The wait counts from when the run became claimable, and may be over.
    assert_eq!(decide(&local, &known, 1_000 - TIMING.affinity_ms), None);
    let draining = Executor {
        draining: true,
        ..known.clone()
    };
    assert_eq!(decide(&local, &draining, 1_000), None);
    let silent = Executor {
        last_seen: at(1_000 - TIMING.executor_stale_ms),
        ..known.clone()
    };
    assert_eq!(decide(&local, &silent, 1_000), None);
    let mut elsewhere = local.clone();
    "other".clone_into(&mut elsewhere.executor.pool);
    assert_eq!(decide(&elsewhere, &known, 1_000), None);
    let mut to_another = local.clone();
    to_another.executor.executor_id = Some("e1".to_owned());
    assert_eq!(decide(&to_another, &known, 1_000), None);
    assert_eq!(decide(&target(None, None), &known, 1_000), None);
}

#[test]
fn why_nobody_serves_a_run() {
    use Unservable::{Draining, Labels, NoExecutor, PinElsewhere, PinOffline};
    let seen = [
        executor("e1", &[("gpu", "yes"), ("os", "linux")]),
        executor("e2", &[]),
    ];
    let free = ExecutorTarget::default();
    let gpu = labelled(&[("gpu", "yes")]);
    let mut elsewhere = free.clone();
    "other".clone_into(&mut elsewhere.pool);
    let mut pinned_elsewhere = pinned("e1");
    "other".clone_into(&mut pinned_elsewhere.executor_kind);
    let mut pinned_with_label = pinned("e2");
    pinned_with_label.labels = gpu.labels.clone();
    for (target, seen, expected) in [
        (&free, &seen[..], None),
        (&free, &[], Some(NoExecutor)),
        (&elsewhere, &seen, Some(NoExecutor)),
        (&gpu, &seen, None),
        (&gpu, &seen[1..], Some(Labels)),
        (&pinned("e1"), &seen, None),
        (&pinned("e1"), &seen[1..], Some(PinOffline)),
        (&pinned_elsewhere, &seen, Some(PinElsewhere)),
        (&pinned_with_label, &seen, Some(Labels)),
    ] {
        assert_eq!(unservable(target, seen), expected, "{target:?}");
    }
    let mut drained = seen.clone();
    drained[0].draining = true;
    assert_eq!(unservable(&gpu, &drained), Some(Draining));
    assert_eq!(unservable(&free, &drained), None);
}

#[test]
fn what_was_said_of_unacknowledged_claims_stays() {
    let free = ExecutorTarget::default();
    let seen = [executor("e1", &[])];
    assert_eq!(
        flag(Some("unacknowledged"), &free, &seen),
        Some(Unservable::Unacknowledged)
    );
    assert_eq!(flag(Some("no_executor"), &free, &seen), None);
    assert_eq!(flag(None, &free, &[]), Some(Unservable::NoExecutor));
}

proptest! {
    /// A run is flagged exactly where no executor both qualifies and takes new work.
    #[test]
    fn a_run_is_unservable_exactly_where_nobody_can_claim_it(
        labels in prop::collection::btree_map("[ab]", "[xy]", 0..3),
        pin in prop::option::of("e[0-2]"),
        pool in "[pq]",
        executors in prop::collection::vec(
            ("[pq]", prop::collection::btree_map("[ab]", "[xy]", 0..3), any::<bool>()), 0..3
        ),
    ) {
        let target = ExecutorTarget { labels, pool, executor_id: pin, ..ExecutorTarget::default() };
        let seen: Vec<_> = executors
            .into_iter()
            .enumerate()
            .map(|(number, (pool, labels, draining))| {
                let mut known = executor(&format!("e{number}"), &[]);
                known.contact.pool = pool;
                known.contact.labels = labels;
                Executor { draining, ..known }
            })
            .collect();
        let served = seen.iter().any(|known| !known.draining && qualifies(&known.contact, &target));
        prop_assert_eq!(unservable(&target, &seen).is_none(), served);
    }
}
