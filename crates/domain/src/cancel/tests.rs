use super::*;
use crate::fixture::{RUN, TIMING, after, at, live};
use crate::run::RunStatus;

fn asked(run: LiveRun, now: Now) -> (LiveRun, Draft) {
    match cancel(run, "person", now, &TIMING) {
        Cancel::Ask(run, draft) => (run, draft),
        Cancel::Settle(_) | Cancel::Asked => panic!("nobody was asked"),
    }
}

#[test]
fn a_run_that_nobody_holds_is_settled_at_once_and_without_an_error() {
    for status in [RunStatus::Queued, RunStatus::Requested] {
        let end = RunEnd {
            ending: Ending::Cancelled,
            result: None,
            error: None,
            recovery_reason: None,
            body_digest: None,
        };
        let decided = cancel(live(status), "person", after(0), &TIMING);
        assert_eq!(decided, Cancel::Settle(end), "{status}");
    }
}

#[test]
fn the_executor_gets_thirty_seconds_however_long_its_lease() {
    let (run, event) = asked(live(RunStatus::Running), after(1_000));
    let RunState::Cancelling { claim, deadline } = run.state else {
        panic!("not cancelling")
    };
    assert_eq!((deadline, claim.expires_at), (at(31_000), at(31_000)));
    assert_eq!(event.kind, "TurnCancelling");
    assert_eq!(
        event.payload.value(),
        json!({"turn_id": RUN, "requested_by": "person"})
    );
    assert_eq!(event.run, Some((run.key, RUN)));
}

#[test]
fn a_claim_that_was_never_acknowledged_keeps_its_short_lease() {
    let (run, _) = asked(live(RunStatus::Claimed), after(1_000));
    assert_eq!(run.state.claim().unwrap().expires_at, at(15_000));
}

#[test]
fn a_second_cancel_does_not_move_the_deadline() {
    let decided = cancel(
        live(RunStatus::Cancelling),
        "person",
        after(20_000),
        &TIMING,
    );
    assert_eq!(decided, Cancel::Asked);
}
