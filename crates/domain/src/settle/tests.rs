use proptest::prelude::*;

use super::*;
use crate::fixture::{RUN, after, at, cases, live, run_id, token};

fn end(ending: Ending, error: Option<&str>) -> RunEnd {
    RunEnd {
        ending,
        result: Some(json!({"answer": 42})),
        error: error.map(str::to_owned),
        recovery_reason: None,
        body_digest: Some(Digest::of_bytes(b"body")),
    }
}

#[test]
fn why_the_agent_stopped_is_told_with_the_end() {
    let long = "x".repeat(201);
    for (result, told) in [
        (
            Some(json!({"stop_reason": "max_tokens"})),
            json!("max_tokens"),
        ),
        (Some(json!({"stop_reason": long})), json!(null)),
        (Some(json!({"stop_reason": 4})), json!(null)),
        (Some(json!("end_turn")), json!(null)),
        (None, json!(null)),
    ] {
        let end = RunEnd {
            result,
            ..end(Ending::Completed, None)
        };
        let settled = settle(&live(RunStatus::Running), end, after(5));
        assert_eq!(settled.turn_end.payload.value()["stop_reason"], told);
    }
}

#[test]
fn each_ending_has_its_status_error_and_completion_status() {
    let unsaid = "the run failed without saying why";
    let interrupted = "the run was interrupted";
    let cases = [
        (Ending::Completed, None, None, "completed"),
        (Ending::Completed, Some("ignored"), None, "completed"),
        (
            Ending::Failed,
            Some(" it broke\n"),
            Some("it broke"),
            "error",
        ),
        (Ending::Failed, Some(" \n"), Some(unsaid), "error"),
        (Ending::Failed, None, Some(unsaid), "error"),
        (Ending::Cancelled, None, None, "blocked"),
        (Ending::Cancelled, Some(""), None, "blocked"),
        (
            Ending::Cancelled,
            Some("by hand"),
            Some("by hand"),
            "blocked",
        ),
        (Ending::Interrupted, None, Some(interrupted), "blocked"),
        (Ending::Interrupted, Some(""), Some(interrupted), "blocked"),
    ];
    for (ending, given, error, completion_status) in cases {
        let settled = settle(&live(RunStatus::Running), end(ending, given), after(5));
        assert_eq!(settled.status, ending.status(), "{ending}");
        assert_eq!(settled.error.as_deref(), error, "{ending} {given:?}");
        assert_eq!(settled.result, Some(json!({"answer": 42})));
        let payload = settled.turn_end.payload.value();
        assert_eq!(settled.turn_end.kind, "TurnEnd");
        assert_eq!(payload["turn_id"], json!(RUN));
        assert_eq!(
            payload["completion_status"],
            json!(completion_status),
            "{ending}"
        );
        assert_eq!(payload["run_status"], json!(ending.status()));
        assert_eq!(payload["error"], json!(error));
    }
}

#[test]
fn an_interruption_says_whether_why_and_when() {
    let handed_back = settle(
        &live(RunStatus::Running),
        end(Ending::Interrupted, None),
        after(5),
    );
    let expected = Recovery {
        reclaimable: true,
        reason: "handed_back".to_owned(),
        recovered_at: after(5).wall,
    };
    assert_eq!(handed_back.recovery, Some(expected.clone()));
    let swept = RunEnd::by_server(Ending::Interrupted, "lease_expired", "lost");
    let swept = settle(&live(RunStatus::Running), swept, after(5));
    assert_eq!(
        swept.recovery,
        Some(Recovery {
            reason: "lease_expired".to_owned(),
            ..expected
        })
    );
    for ending in [Ending::Completed, Ending::Failed, Ending::Cancelled] {
        let settled = settle(&live(RunStatus::Running), end(ending, None), after(5));
        assert_eq!(settled.recovery, None, "{ending}");
    }
}

#[test]
fn a_settlement_by_the_sweep_names_its_reason_and_is_not_reclaimable() {
    for (ending, reason) in [
        (Ending::Cancelled, "cancel_deadline"),
        (Ending::Cancelled, "executor_lost"),
        (Ending::Failed, "claim_poison"),
    ] {
        let swept = RunEnd::by_server(ending, reason, "why");
        let settled = settle(&live(RunStatus::Cancelling), swept, after(5));
        let recovery = settled.recovery.unwrap();
        assert_eq!(
            (recovery.reclaimable, recovery.reason.as_str()),
            (false, reason)
        );
        assert_eq!(
            settled.turn_end.payload.value()["recovery_reason"],
            json!(reason)
        );
    }
}

#[test]
fn a_run_that_is_being_cancelled_never_ends_interrupted() {
    let settled = settle(
        &live(RunStatus::Cancelling),
        end(Ending::Interrupted, None),
        after(5),
    );
    assert_eq!(
        (settled.status, settled.recovery),
        (RunStatus::Cancelled, None)
    );
    assert_eq!(
        settled.turn_end.payload.value()["run_status"],
        json!("cancelled")
    );
}

#[test]
fn the_claim_that_settled_a_run_is_kept() {
    let settled = settle(
        &live(RunStatus::Running),
        end(Ending::Completed, None),
        after(5),
    );
    let expected = SettledClaim {
        attempt: 1,
        token_hash: Some(token().hash()),
        body_digest: Some(Digest::of_bytes(b"body")),
    };
    assert_eq!(settled.claim, expected);
    assert_eq!(settled.turn_end.attempt, Some(1));
    assert_eq!(settled.turn_end.executor_id.as_deref(), Some("executor-1"));
    let unclaimed = settle(
        &live(RunStatus::Requested),
        end(Ending::Cancelled, None),
        after(5),
    );
    assert_eq!(
        (unclaimed.claim.attempt, unclaimed.claim.token_hash),
        (0, None)
    );
    assert_eq!(
        (unclaimed.turn_end.attempt, unclaimed.turn_end.executor_id),
        (None, None)
    );
}

#[test]
fn the_same_complete_again_gets_the_stored_answer_and_another_is_refused() {
    let digest = Digest::of_bytes(b"body");
    let by_complete = SettledClaim {
        attempt: 1,
        token_hash: Some(token().hash()),
        body_digest: Some(digest),
    };
    let by_sweep = SettledClaim {
        body_digest: None,
        ..by_complete.clone()
    };
    let refused = Err(Rejection::RunSettled {
        status: RunStatus::Completed,
    });
    assert_eq!(repeated(&by_complete, RunStatus::Completed, digest), Ok(()));
    let other = Digest::of_bytes(b"other");
    assert_eq!(repeated(&by_complete, RunStatus::Completed, other), refused);
    assert_eq!(repeated(&by_sweep, RunStatus::Completed, digest), refused);
}

#[test]
fn a_completion_before_its_events_is_told_how_many_are_missing() {
    let mut run = live(RunStatus::Running);
    run.event_count = 3;
    assert_eq!(check_complete(&run, None), Ok(()));
    assert_eq!(check_complete(&run, Some(3)), Ok(()));
    for expected in [0, 2, 4] {
        let missing = Rejection::EventsMissing {
            expected,
            stored: 3,
        };
        assert_eq!(check_complete(&run, Some(expected)), Err(missing));
    }
}

fn summary(queued_runs: u32) -> SessionSummary {
    SessionSummary {
        active_run_id: Some(RUN),
        last_run_id: Some(RUN),
        last_run_status: Some(RunStatus::Running),
        queued_runs,
        pending_interactions: 2,
        ..SessionSummary::empty()
    }
}

#[test]
fn the_queue_is_held_after_an_interrupted_run_only() {
    for (status, queued_runs, held) in [
        (RunStatus::Interrupted, 2, true),
        (RunStatus::Interrupted, 0, false),
        (RunStatus::Completed, 2, false),
        (RunStatus::Failed, 2, false),
        (RunStatus::Cancelled, 2, false),
    ] {
        let mut after = summary(queued_runs);
        settle_summary(&mut after, &live(RunStatus::Running), status, 12);
        let expected = SessionSummary {
            active_run_id: None,
            last_run_status: Some(status),
            last_interrupted_run_id: (status == RunStatus::Interrupted).then_some(RUN),
            resume_from_event_id: Some("srv:12".to_owned()),
            pending_interactions: 0,
            queue_held: held,
            ..summary(queued_runs)
        };
        assert_eq!(after, expected, "{status} with {queued_runs} queued");
    }
}

#[test]
fn a_queued_run_that_ends_leaves_the_active_one_alone() {
    let mut run = live(RunStatus::Queued);
    run.run_id = run_id(2);
    let mut after = summary(2);
    settle_summary(&mut after, &run, RunStatus::Cancelled, 12);
    assert_eq!(after, summary(1));
}

#[test]
fn an_empty_queue_is_not_held() {
    let mut run = live(RunStatus::Queued);
    run.run_id = run_id(2);
    let mut after = SessionSummary {
        active_run_id: None,
        queue_held: true,
        ..summary(2)
    };
    settle_summary(&mut after, &run, RunStatus::Cancelled, 12);
    assert!(after.queue_held);
    settle_summary(&mut after, &run, RunStatus::Cancelled, 13);
    assert_eq!((after.queued_runs, after.queue_held), (0, false));
}

#[test]
fn the_promoted_run_becomes_the_active_one_and_says_so() {
    let mut run = live(RunStatus::Queued);
    run.run_id = run_id(2);
    let mut after_settle = SessionSummary {
        active_run_id: None,
        queue_held: true,
        ..summary(2)
    };
    let (promoted, event) = promote(run, "Next", &mut after_settle, after(9));
    assert_eq!(promoted.state, RunState::Requested { ready_at: at(9) });
    assert_eq!((promoted.place, promoted.attempts.attempt), (5, 0));
    assert_eq!(event.kind, "RunRequested");
    assert_eq!(event.run, Some((promoted.key, run_id(2))));
    assert_eq!(
        event.payload.value(),
        json!({"status": "requested", "prompt": "Next"})
    );
    let expected = SessionSummary {
        active_run_id: Some(run_id(2)),
        last_run_id: Some(run_id(2)),
        last_run_status: Some(RunStatus::Requested),
        queue_held: false,
        ..summary(1)
    };
    assert_eq!(after_settle, expected);
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn however_a_run_ends_its_error_is_never_empty_and_its_event_agrees(
        from in prop::sample::select(vec![
            RunStatus::Queued,
            RunStatus::Requested,
            RunStatus::Claimed,
            RunStatus::Running,
            RunStatus::Cancelling,
        ]),
        ending in prop::sample::select(Ending::ALL.to_vec()),
        error in prop::option::of("[ \\t\\n]{0,3}[a-z]{0,3}[ \\n]{0,2}"),
        reason in prop::option::of(Just("lease_expired")),
    ) {
        let end = RunEnd { recovery_reason: reason, ..end(ending, error.as_deref()) };
        let settled = settle(&live(from), end, after(5));
        prop_assert!(settled.status.is_terminal());
        prop_assert!(settled.error.as_ref().is_none_or(|error| !error.trim().is_empty()));
        let needs_error = matches!(settled.status, RunStatus::Failed | RunStatus::Interrupted);
        prop_assert!(!needs_error || settled.error.is_some());
        prop_assert_eq!(settled.error.is_some() && settled.status == RunStatus::Completed, false);
        let interrupted = settled.status == RunStatus::Interrupted;
        prop_assert_eq!(settled.recovery.as_ref().is_some_and(|known| known.reclaimable), interrupted);
        let payload = settled.turn_end.payload.value();
        prop_assert_eq!(&payload["run_status"], &json!(settled.status));
        prop_assert_eq!(&payload["error"], &json!(settled.error));
    }
}
