use serde_json::Value;

use super::*;
use crate::fixture::{RUN, TIMING, after, at, delayed, live};
use crate::run::{Attempts, RunStatus};

fn unacknowledged(before: u32) -> LiveRun {
    let mut run = live(RunStatus::Claimed);
    run.attempts.unacknowledged = before;
    run
}

fn settled(expiry: Expiry) -> (Option<Draft>, RunEnd) {
    match expiry {
        Expiry::Settle { event, end } => (event, end),
        Expiry::Nothing | Expiry::Cancel | Expiry::Requeue { .. } => {
            panic!("not settled: {expiry:?}")
        }
    }
}

fn requeued(expiry: Expiry) -> (LiveRun, Value, Option<&'static str>) {
    match expiry {
        Expiry::Requeue {
            run,
            event,
            unservable,
        } => {
            assert_eq!(event.kind, "RunLeaseExpired");
            assert_eq!((event.run, event.attempt), (Some((run.key, RUN)), Some(1)));
            (run, event.payload.value(), unservable)
        }
        Expiry::Nothing | Expiry::Cancel | Expiry::Settle { .. } => {
            panic!("not requeued: {expiry:?}")
        }
    }
}

#[test]
fn a_claim_that_nobody_acknowledged_goes_back_to_its_place_and_uses_no_attempt() {
    let expiry = expire(unacknowledged(0), true, after(15_000), &TIMING);
    let (run, payload, unservable) = requeued(expiry);
    assert_eq!(
        run.attempts,
        Attempts {
            attempt: 1,
            used: 0,
            unacknowledged: 1,
            max: 1
        }
    );
    assert_eq!((run.place, unservable), (5, None));
    assert_eq!(
        payload,
        json!({"executor_id": "executor-1", "attempt": 1, "acknowledged": false, "requeued": true})
    );
}

#[test]
fn each_claim_in_a_row_that_nobody_acknowledged_lengthens_the_back_off() {
    for before in 0..5 {
        let expiry = expire(unacknowledged(before), false, after(20_000), &TIMING);
        let (run, _, _) = requeued(expiry);
        let ready_at = at(20_000 + i64::from(before + 1) * TIMING.requeue_backoff_ms);
        assert_eq!(run.state, RunState::Requested { ready_at }, "{before}");
    }
}

#[test]
fn three_claims_by_instances_that_are_known_to_be_well_or_dead_poison_a_run() {
    let (event, end) = settled(expire(unacknowledged(2), true, after(15_000), &TIMING));
    assert_eq!(
        (end.ending, end.recovery_reason),
        (Ending::Failed, Some("claim_poison"))
    );
    assert!(end.error.unwrap().starts_with("claim_poison"));
    assert_eq!(event.unwrap().payload.value()["requeued"], json!(false));
}

#[test]
fn three_claims_by_instances_that_may_be_cut_off_flag_the_run_and_keep_it() {
    for before in [2, 3, 50] {
        let expiry = expire(unacknowledged(before), false, after(15_000), &TIMING);
        let (run, payload, unservable) = requeued(expiry);
        assert_eq!(run.attempts.unacknowledged, before + 1);
        assert_eq!(unservable, Some("unacknowledged"));
        assert_eq!(payload["requeued"], json!(true));
    }
}

#[test]
fn acknowledged_attempts_are_compared_with_the_bound_and_the_rest_is_not() {
    // (used, max, goes back)
    for (used, max, goes_back) in [(1, 1, false), (1, 2, true), (2, 2, false), (2, 5, true)] {
        let mut run = live(RunStatus::Running);
        run.attempts = Attempts {
            attempt: 9,
            used,
            unacknowledged: 0,
            max,
        };
        let expiry = expire(run, false, after(60_000), &TIMING);
        if goes_back {
            let (run, payload, unservable) = requeued(expiry);
            assert_eq!(
                run.state,
                RunState::Requested {
                    ready_at: at(60_000)
                }
            );
            assert_eq!(
                run.attempts,
                Attempts {
                    attempt: 9,
                    used,
                    unacknowledged: 0,
                    max
                }
            );
            assert_eq!(
                (payload["acknowledged"].clone(), unservable),
                (json!(true), None)
            );
        } else {
            let (event, end) = settled(expiry);
            assert_eq!(end.ending, Ending::Interrupted);
            assert_eq!(end.recovery_reason, Some("lease_expired"));
            assert!(end.error.unwrap().contains("`executor-1`"));
            assert_eq!(event.unwrap().payload.value()["requeued"], json!(false));
        }
    }
    let mut run = unacknowledged(0);
    run.attempts.used = 1;
    let (run, _, _) = requeued(expire(run, true, after(15_000), &TIMING));
    assert_eq!(run.attempts.used, 1);
}

#[test]
fn a_run_that_is_given_back_is_offered_again_while_an_attempt_is_left() {
    // (status, used, max, goes back, attempts used then)
    for (status, used, max, goes_back) in [
        (RunStatus::Running, 1, 1, None),
        (RunStatus::Running, 1, 2, Some(1)),
        (RunStatus::Running, 2, 2, None),
        (RunStatus::Claimed, 0, 1, None),
        (RunStatus::Claimed, 0, 2, Some(1)),
        (RunStatus::Cancelling, 1, 5, None),
        (RunStatus::Requested, 0, 5, None),
    ] {
        let mut run = live(status);
        run.attempts = Attempts {
            attempt: 1,
            used,
            unacknowledged: 1,
            max,
        };
        let given_back = hand_back(&run, Some("it was shut down"), after(1_000));
        let told = given_back.as_ref().map(|(run, _)| run.attempts);
        let expected = goes_back.map(|used| Attempts {
            used,
            unacknowledged: 0,
            ..run.attempts
        });
        assert_eq!(told, expected, "{status} {used} of {max}");
        let Some((run, event)) = given_back else {
            continue;
        };
        let ready_at = at(1_000);
        assert_eq!(run.state, RunState::Requested { ready_at });
        assert_eq!(event.kind, "RunReleased");
        let payload = json!({"executor_id": "executor-1", "attempt": 1, "reason": "handed_back",
            "error": "it was shut down"});
        assert_eq!(event.payload.value(), payload);
    }
}

#[test]
fn a_cancel_that_runs_out_is_cancelled_and_says_why() {
    let cancelling = |acknowledged: bool, expires_ms: i64| {
        let mut run = live(RunStatus::Cancelling);
        let mut claim = run.state.claim().unwrap().clone();
        claim.acknowledged = acknowledged;
        claim.expires_at = at(expires_ms);
        run.state = RunState::Cancelling {
            claim,
            deadline: at(30_000),
        };
        run.attempts.max = 5;
        run.attempts.unacknowledged = 2;
        run
    };
    for (name, acknowledged, expires_ms, now, reason) in [
        (
            "did not stop in time",
            true,
            30_000,
            after(30_000),
            "cancel_deadline",
        ),
        (
            "lost before the deadline",
            true,
            10_000,
            after(10_000),
            "executor_lost",
        ),
        (
            "lost, looked at late",
            true,
            10_000,
            delayed(10_000, 90_000),
            "executor_lost",
        ),
        (
            "never heard of",
            false,
            15_000,
            after(15_000),
            "executor_lost",
        ),
        (
            "never heard of until the deadline",
            false,
            30_000,
            after(30_000),
            "executor_lost",
        ),
        (
            "lease carried over an outage",
            true,
            90_000,
            after(30_000),
            "cancel_deadline",
        ),
    ] {
        let expiry = expire(cancelling(acknowledged, expires_ms), true, now, &TIMING);
        let (event, end) = settled(expiry);
        assert_eq!((event, end.ending), (None, Ending::Cancelled), "{name}");
        assert_eq!(end.recovery_reason, Some(reason), "{name}");
        assert!(!end.error.unwrap().is_empty(), "{name}");
    }
    let early = expire(cancelling(true, 30_000), true, after(29_999), &TIMING);
    assert_eq!(early, Expiry::Nothing);
}

#[test]
fn a_lease_is_judged_at_the_moment_the_command_arrived() {
    let still_live = expire(
        live(RunStatus::Running),
        true,
        delayed(59_999, 5_000),
        &TIMING,
    );
    assert_eq!(still_live, Expiry::Nothing);
    settled(expire(
        live(RunStatus::Running),
        true,
        after(60_000),
        &TIMING,
    ));
}

#[test]
fn a_renewed_claim_is_left_alone_however_long_it_lives() {
    let mut run = live(RunStatus::Running);
    for beat in 1..=40 {
        let now = after(beat * 20_000);
        assert_eq!(expire(run.clone(), true, now, &TIMING), Expiry::Nothing);
        run = crate::claim::renew(run, None, now).run;
    }
}

#[test]
fn a_live_run_beyond_its_bound_is_asked_to_stop() {
    for status in [RunStatus::Claimed, RunStatus::Running] {
        let mut run = live(status);
        run.deadline = Some(at(5_000));
        let decide = |run: &LiveRun, ms| expire(run.clone(), true, after(ms), &TIMING);
        assert_eq!(decide(&run, 4_999), Expiry::Nothing);
        assert_eq!(decide(&run, 5_000), Expiry::Cancel);
        run.deadline = None;
        assert_eq!(decide(&run, 5_000), Expiry::Nothing);
    }
    // A cancel that is under way has a deadline of its own.
    let mut cancelling = live(RunStatus::Cancelling);
    cancelling.deadline = Some(at(5_000));
    assert_eq!(
        expire(cancelling, true, after(6_000), &TIMING),
        Expiry::Nothing
    );
}
