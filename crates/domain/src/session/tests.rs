use super::*;
use crate::fixture::RUN;

fn summary(last: Option<RunStatus>, pending: u32, queued: u32) -> SessionSummary {
    SessionSummary {
        last_run_id: last.map(|_| RUN),
        last_run_status: last,
        pending_interactions: pending,
        queued_runs: queued,
        ..SessionSummary::empty()
    }
}

fn derived(mut summary: SessionSummary, active: Option<RunStatus>, closed: bool) -> String {
    summary.derive(active, closed);
    format!("{} {}", summary.status, summary.turn_status)
}

#[test]
fn an_active_run_decides_the_status() {
    for (active, pending, expected) in [
        (RunStatus::Requested, 0, "running queued"),
        (RunStatus::Claimed, 0, "running running"),
        (RunStatus::Running, 0, "running running"),
        (RunStatus::Running, 1, "waiting_approval waiting_approval"),
        (RunStatus::Cancelling, 0, "running cancelling"),
        (RunStatus::Cancelling, 2, "running cancelling"),
    ] {
        for last in [None, Some(RunStatus::Failed), Some(active)] {
            for queued in [0, 3] {
                let got = derived(summary(last, pending, queued), Some(active), false);
                assert_eq!(got, expected, "{active} with {pending} open questions");
            }
        }
    }
}

#[test]
fn without_an_active_run_the_newest_settled_one_decides() {
    for (last, queued, closed, expected) in [
        (None, 0, false, "created idle"),
        (None, 0, true, "closed idle"),
        (Some(RunStatus::Completed), 0, false, "completed idle"),
        (Some(RunStatus::Failed), 0, false, "failed idle"),
        (Some(RunStatus::Cancelled), 0, false, "cancelled idle"),
        (Some(RunStatus::Interrupted), 0, false, "interrupted idle"),
        (Some(RunStatus::Interrupted), 2, false, "interrupted queued"),
        (Some(RunStatus::Completed), 0, true, "closed idle"),
    ] {
        let got = derived(summary(last, 0, queued), None, closed);
        assert_eq!(got, expected, "{last:?}, {queued} queued, closed {closed}");
    }
}

#[test]
fn a_session_is_resumable_at_rest_after_a_first_run_until_it_is_closed() {
    let mut summary = SessionSummary::empty();
    assert!(!summary.resumable(), "without a run");
    summary.last_run_id = Some(RUN);
    summary.last_run_status = Some(RunStatus::Interrupted);
    summary.derive(None, false);
    assert!(summary.resumable());
    summary.active_run_id = Some(RUN);
    assert!(!summary.resumable(), "while one is active");
    summary.active_run_id = None;
    summary.derive(None, true);
    assert!(!summary.resumable(), "once closed");
}

#[test]
fn a_run_target_survives_storage_and_reads_what_is_missing_as_its_default() {
    let mut target = RunTarget {
        workspace: Some(Workspace::local_path("/srv/code")),
        ..RunTarget::default()
    };
    target
        .executor
        .labels
        .insert("gpu".to_owned(), "yes".to_owned());
    target.constraints.max_attempts = Some(3);
    let text = serde_json::to_string(&target).unwrap();
    assert_eq!(serde_json::from_str::<RunTarget>(&text).unwrap(), target);
    assert_eq!(
        serde_json::from_str::<RunTarget>("{}").unwrap(),
        RunTarget::default()
    );
    let partial = r#"{"executor": {"pool": "gpu"}}"#;
    let partial = serde_json::from_str::<RunTarget>(partial).unwrap();
    assert_eq!(
        (
            partial.executor.pool.as_str(),
            partial.executor.executor_kind.as_str()
        ),
        ("gpu", "local_cli")
    );
}
