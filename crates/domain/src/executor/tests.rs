use super::*;
use crate::fixture::{RUN, SESSION, TIMING, after, at};

fn contact() -> Contact {
    Contact {
        executor_id: "executor-1".to_owned(),
        instance_id: Some("instance-1".to_owned()),
        executor_kind: "local_cli".to_owned(),
        pool: "default".to_owned(),
        labels: labels(&[("gpu", "yes"), ("os", "linux")]),
        process_id: Some(42),
        version: None,
        capabilities: None,
        workspace: None,
        max_runs: Some(2),
    }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn whoever_leaves_is_offline_at_once_unless_another_process_of_its_name_has_come() {
    let now = after(60_000);
    let executor = Executor {
        contact: contact(),
        draining: false,
        last_seen_at: now.wall,
        last_seen: now.lease,
        live_runs: Vec::new(),
        last_run: None,
    };
    assert_eq!(leave(&executor, Some("instance-2"), now, &TIMING), None);
    assert_eq!(leave(&executor, None, now, &TIMING), None);
    let seen = leave(&executor, Some("instance-1"), now, &TIMING).unwrap();
    assert_eq!(seen.wall, now.wall);
    let left = Executor {
        last_seen: seen.lease,
        ..executor
    };
    assert_eq!(left.status(now, &TIMING), ExecutorStatus::Offline);
}

#[test]
fn the_status_comes_from_last_contact_and_live_claims() {
    let working = Some(1_000_000);
    for (silent_ms, draining, lease_ms, expected) in [
        (0, false, None, ExecutorStatus::Idle),
        (29_999, false, None, ExecutorStatus::Idle),
        (30_000, false, None, ExecutorStatus::Stale),
        (119_999, false, None, ExecutorStatus::Stale),
        (120_000, false, None, ExecutorStatus::Offline),
        (0, false, working, ExecutorStatus::Running),
        (60_000, false, working, ExecutorStatus::Running),
        (200_000, false, working, ExecutorStatus::Running),
        (60_000, false, Some(60_000), ExecutorStatus::Stale),
        (0, true, None, ExecutorStatus::Draining),
        (0, true, working, ExecutorStatus::Draining),
        (30_000, true, None, ExecutorStatus::Stale),
        (120_000, true, None, ExecutorStatus::Offline),
    ] {
        let claim = |ms| LiveClaim {
            run_id: RUN,
            session_id: SESSION,
            namespace: "default".to_owned(),
            expires_at: at(ms),
        };
        let executor = Executor {
            contact: contact(),
            draining,
            last_seen_at: after(0).wall,
            last_seen: at(0),
            live_runs: lease_ms.map(claim).into_iter().collect(),
            last_run: None,
        };
        let status = executor.status(after(silent_ms), &TIMING);
        assert_eq!(
            status, expected,
            "{silent_ms} ms, draining {draining}, lease {lease_ms:?}"
        );
    }
}

#[test]
fn an_executor_qualifies_by_kind_pool_pin_and_every_label() {
    let target = ExecutorTarget::default;
    for (name, target, expected) in [
        ("defaults", target(), true),
        (
            "another kind",
            ExecutorTarget {
                executor_kind: "docker".to_owned(),
                ..target()
            },
            false,
        ),
        (
            "another pool",
            ExecutorTarget {
                pool: "gpu".to_owned(),
                ..target()
            },
            false,
        ),
        (
            "pinned here",
            ExecutorTarget {
                executor_id: Some("executor-1".to_owned()),
                ..target()
            },
            true,
        ),
        (
            "pinned elsewhere",
            ExecutorTarget {
                executor_id: Some("executor-2".to_owned()),
                ..target()
            },
            false,
        ),
        (
            "one label",
            ExecutorTarget {
                labels: labels(&[("gpu", "yes")]),
                ..target()
            },
            true,
        ),
        (
            "all labels",
            ExecutorTarget {
                labels: labels(&[("gpu", "yes"), ("os", "linux")]),
                ..target()
            },
            true,
        ),
        (
            "another value",
            ExecutorTarget {
                labels: labels(&[("gpu", "no")]),
                ..target()
            },
            false,
        ),
        (
            "an unknown label",
            ExecutorTarget {
                labels: labels(&[("gpu", "yes"), ("arch", "arm")]),
                ..target()
            },
            false,
        ),
    ] {
        assert_eq!(qualifies(&contact(), &target), expected, "{name}");
    }
}
