use serde_json::json;

use super::*;
use crate::fixture::{RUN, TIMING, after, at, delayed, live, request, run_id, token};
use crate::run::RunStatus;

fn expires_at(run: &LiveRun) -> LeaseInstant {
    run.state.claim().unwrap().expires_at
}

#[test]
fn a_claim_starts_a_new_attempt_under_the_short_lease() {
    let mut waiting = live(RunStatus::Requested);
    waiting.attempts = Attempts {
        attempt: 4,
        used: 1,
        unacknowledged: 2,
        max: 3,
    };
    waiting.has_output = true;
    waiting.event_count = 12;
    let Claimed { run, token, event } = take(waiting, &request(), after(10), &TIMING).unwrap();
    assert_eq!(
        run.attempts,
        Attempts {
            attempt: 5,
            used: 1,
            unacknowledged: 2,
            max: 3
        }
    );
    assert_eq!((run.has_output, run.event_count, run.place), (false, 0, 5));
    let expected = Claim {
        attempt: 5,
        token_hash: token.hash(),
        executor_id: "executor-1".to_owned(),
        instance_id: Some("instance-1".to_owned()),
        request_hash: Digest::of_bytes(b"request-1"),
        acknowledged: false,
        replayed: false,
        expires_at: at(15_010),
        lease_ms: 60_000,
    };
    assert_eq!(run.state, RunState::Claimed(expected));
    assert_eq!(event.kind, "RunClaimed");
    assert_eq!(event.run, Some((run.key, run.run_id)));
    assert_eq!(
        (event.attempt, event.executor_id.as_deref()),
        (Some(5), Some("executor-1"))
    );
    let payload =
        json!({"executor_id": "executor-1", "worker_instance_id": "instance-1", "attempt": 5});
    assert_eq!(event.payload.value(), payload);
}

#[test]
fn a_lease_shorter_than_the_short_one_holds_from_the_beginning() {
    let short = ClaimRequest {
        lease_ms: 5_000,
        ..request()
    };
    let claimed = take(live(RunStatus::Requested), &short, after(0), &TIMING).unwrap();
    assert_eq!(expires_at(&claimed.run), at(5_000));
}

#[test]
fn a_run_in_back_off_is_claimable_from_its_moment_on() {
    let mut run = live(RunStatus::Requested);
    run.state = RunState::Requested {
        ready_at: at(1_000),
    };
    let early = take(run.clone(), &request(), after(999), &TIMING);
    assert_eq!(early, Err(Rejection::NoRunAvailable));
    assert!(take(run, &request(), after(1_000), &TIMING).is_ok());
}

#[test]
fn a_token_is_found_again_by_its_request_alone() {
    let token = ClaimToken::derive("request-1", RUN, 1);
    assert_eq!(token, ClaimToken::derive("request-1", RUN, 1));
    for other in [
        ClaimToken::derive("request-2", RUN, 1),
        ClaimToken::derive("request-1", run_id(2), 1),
        ClaimToken::derive("request-1", RUN, 2),
    ] {
        assert_ne!(token.secret(), other.secret());
        assert!(!token.hash().matches(&other.hash()));
    }
    assert_eq!(
        ClaimToken::presented(token.secret().to_owned()).hash(),
        token.hash()
    );
}

#[test]
fn a_token_names_its_attempt_and_is_never_shown() {
    let cases = [
        (ClaimToken::derive("request-1", RUN, 12), Some(12)),
        (ClaimToken::presented("7.abc".to_owned()), Some(7)),
        (ClaimToken::presented("7".to_owned()), None),
        (ClaimToken::presented("-1.abc".to_owned()), None),
        (ClaimToken::presented("x.abc".to_owned()), None),
        (ClaimToken::presented(String::new()), None),
    ];
    for (token, attempt) in cases {
        assert_eq!(token.attempt(), attempt, "{}", token.secret());
        assert_eq!(format!("{token:?}"), "ClaimToken(…)");
    }
}

#[test]
fn a_replay_gives_the_same_token_and_starts_the_short_lease_again() {
    let run = live(RunStatus::Claimed);
    let (run, replayed) = replay(run, &request(), after(14_000), &TIMING).unwrap();
    assert_eq!(replayed, token());
    assert_eq!(expires_at(&run), at(29_000));
    assert_eq!(run.status(), RunStatus::Claimed);
    assert_eq!(run.attempts, live(RunStatus::Claimed).attempts);
}

#[test]
fn a_replay_of_an_acknowledged_claim_leaves_it_as_it_is() {
    for status in [RunStatus::Running, RunStatus::Cancelling] {
        let (run, replayed) = replay(live(status), &request(), after(20_000), &TIMING).unwrap();
        assert_eq!((run, replayed), (live(status), token()), "{status}");
    }
}

#[test]
fn a_replay_is_refused_unless_it_is_the_live_claims_own_request() {
    let other_executor = ClaimRequest {
        executor_id: "executor-2".to_owned(),
        ..request()
    };
    let other_request = ClaimRequest {
        claim_request_id: "request-2".to_owned(),
        ..request()
    };
    for (name, request, now) in [
        ("lease over", request(), after(15_000)),
        ("another executor", other_executor, after(1)),
        ("another request", other_request, after(1)),
    ] {
        let answer = replay(live(RunStatus::Claimed), &request, now, &TIMING);
        assert_eq!(answer, Err(Rejection::ClaimLost), "{name}");
    }
}

#[test]
fn a_replay_never_carries_a_cancelling_claim_beyond_its_deadline() {
    let mut run = live(RunStatus::Claimed);
    let mut claim = run.state.claim().unwrap().clone();
    claim.expires_at = at(29_000);
    run.state = RunState::Cancelling {
        claim,
        deadline: at(30_000),
    };
    let (run, _) = replay(run, &request(), after(28_000), &TIMING).unwrap();
    assert_eq!(expires_at(&run), at(30_000));
}

#[test]
fn the_first_renewal_acknowledges_and_later_ones_only_extend() {
    let mut run = live(RunStatus::Claimed);
    run.attempts.unacknowledged = 2;
    let first = renew(run, None, after(1_000));
    assert_eq!(
        first.run.attempts,
        Attempts {
            attempt: 1,
            used: 1,
            unacknowledged: 0,
            max: 1
        }
    );
    assert!(first.run.state.claim().unwrap().acknowledged);
    assert_eq!(expires_at(&first.run), at(61_000));
    let started = first.started.unwrap();
    assert_eq!(started.kind, "RunStarted");
    assert_eq!(
        started.payload.value(),
        json!({"executor_id": "executor-1", "attempt": 1})
    );
    assert_eq!(
        (started.run, started.attempt),
        (Some((first.run.key, RUN)), Some(1))
    );

    let attempts = first.run.attempts;
    let second = renew(first.run, None, after(30_000));
    assert_eq!(second.started, None);
    assert_eq!(second.run.attempts, attempts);
    assert_eq!(expires_at(&second.run), at(90_000));
}

#[test]
fn a_renewal_never_shortens_a_lease_and_takes_a_new_duration() {
    let shorter = renew(live(RunStatus::Running), Some(5_000), after(1_000)).run;
    assert_eq!(expires_at(&shorter), at(60_000));
    assert_eq!(shorter.state.claim().unwrap().lease_ms, 5_000);
    let next = renew(shorter, None, after(58_000)).run;
    assert_eq!(expires_at(&next), at(63_000));
    let longer = renew(next, Some(300_000), after(59_000)).run;
    assert_eq!(expires_at(&longer), at(359_000));
}

#[test]
fn a_renewal_never_carries_a_cancelling_claim_beyond_its_deadline() {
    let run = renew(live(RunStatus::Cancelling), Some(300_000), after(29_000)).run;
    assert_eq!(expires_at(&run), at(30_000));
    assert_eq!(run.status(), RunStatus::Cancelling);
}

#[test]
fn the_first_sign_of_life_counts_also_while_cancelling() {
    let mut run = live(RunStatus::Claimed);
    let claim = run.state.claim().unwrap().clone();
    run.state = RunState::Cancelling {
        claim,
        deadline: at(30_000),
    };
    let renewed = renew(run, None, after(1_000));
    assert_eq!(renewed.run.attempts.used, 1);
    assert_eq!(renewed.started.unwrap().kind, "RunStarted");
    assert_eq!(expires_at(&renewed.run), at(30_000));
}

#[test]
fn a_released_run_keeps_its_place_and_has_used_no_attempt() {
    for status in [RunStatus::Claimed, RunStatus::Running] {
        let mut run = live(status);
        run.attempts.unacknowledged = 2;
        let (run, event) = release(run, after(500)).unwrap();
        assert_eq!(event.kind, "RunReleased");
        assert_eq!(
            run.state,
            RunState::Requested { ready_at: at(500) },
            "{status}"
        );
        assert_eq!(
            run.attempts,
            Attempts {
                attempt: 1,
                used: 0,
                unacknowledged: 0,
                max: 1
            }
        );
        assert_eq!(run.place, 5);
    }
}

const INVALID: Result<Proof, Rejection> = Err(Rejection::ClaimTokenInvalid);
const LOST: Result<Proof, Rejection> = Err(Rejection::ClaimLost);

fn earlier_token() -> ClaimToken {
    ClaimToken::derive("request-0", RUN, 1)
}

fn foreign_token() -> ClaimToken {
    ClaimToken::derive("request-1", run_id(2), 1)
}

#[test]
fn the_live_claims_token_proves_it_and_any_other_says_why_not() {
    let held = live(RunStatus::Running);
    let waiting = live(RunStatus::Requested);
    let earlier = Some(earlier_token().hash());
    let served_late = delayed(59_999, 9_000);
    let cases = [
        ("live", &held, None, token(), after(1), Ok(Proof::Live)),
        ("lease over", &held, None, token(), after(60_000), LOST),
        (
            "in time, served late",
            &held,
            None,
            token(),
            served_late,
            Ok(Proof::Live),
        ),
        (
            "never this run's",
            &held,
            None,
            foreign_token(),
            after(1),
            INVALID,
        ),
        (
            "an earlier attempt's",
            &held,
            earlier,
            earlier_token(),
            after(1),
            LOST,
        ),
        (
            "neither live nor earlier",
            &held,
            earlier,
            foreign_token(),
            after(1),
            INVALID,
        ),
        (
            "nobody holds the run",
            &waiting,
            None,
            token(),
            after(1),
            INVALID,
        ),
        (
            "requeued since",
            &waiting,
            earlier,
            earlier_token(),
            after(1),
            LOST,
        ),
    ];
    for (name, run, earlier_hash, token, now, expected) in cases {
        let facts = ClaimFacts {
            live: Some(run),
            settled: None,
            earlier_hash,
        };
        assert_eq!(prove(&facts, &token, "executor-1", now), expected, "{name}");
    }
    let facts = ClaimFacts {
        live: Some(&held),
        settled: None,
        earlier_hash: None,
    };
    assert_eq!(
        prove(&facts, &token(), "executor-2", after(1)),
        INVALID,
        "another's name"
    );
}

#[test]
fn only_the_token_that_settled_a_run_still_proves_it() {
    let under_claim = SettledClaim {
        attempt: 1,
        token_hash: Some(token().hash()),
        body_digest: None,
    };
    let unclaimed = SettledClaim {
        attempt: 0,
        token_hash: None,
        body_digest: None,
    };
    let earlier = Some(earlier_token().hash());
    for (name, settled, earlier_hash, token, expected) in [
        (
            "settled under it",
            &under_claim,
            None,
            token(),
            Ok(Proof::Settled),
        ),
        (
            "never this run's",
            &under_claim,
            None,
            foreign_token(),
            INVALID,
        ),
        (
            "an earlier attempt's",
            &under_claim,
            earlier,
            earlier_token(),
            LOST,
        ),
        (
            "settled without a claim",
            &unclaimed,
            None,
            token(),
            INVALID,
        ),
    ] {
        let facts = ClaimFacts {
            live: None,
            settled: Some(settled),
            earlier_hash,
        };
        assert_eq!(
            prove(&facts, &token, "executor-1", after(90_000)),
            expected,
            "{name}"
        );
    }
}

#[test]
fn a_replay_starts_the_short_lease_once_more_and_no_further() {
    let claimed = take(live(RunStatus::Requested), &request(), after(0), &TIMING).unwrap();
    let (run, _) = replay(claimed.run, &request(), after(10_000), &TIMING).unwrap();
    let restarted = expires_at(&run);
    assert_eq!(restarted, at(25_000));
    let (run, token) = replay(run, &request(), after(20_000), &TIMING).unwrap();
    assert_eq!(expires_at(&run), restarted);
    assert_eq!(token, claimed.token);
}
