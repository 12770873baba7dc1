use crate::cancel::{Cancel, cancel};
use crate::claim::{ClaimFacts, prove, release, renew, replay, take};
use crate::expire::{Expiry, POISON_CLAIMS, expire};
use crate::fixture::{TIMING, after, live, request, token};
use crate::rejection::Rejection;
use crate::run::{LiveRun, RunStatus};
use crate::settle::{Ending, RunEnd, settle};
use crate::time::Now;

const LIVE: [RunStatus; 5] = [
    RunStatus::Queued,
    RunStatus::Requested,
    RunStatus::Claimed,
    RunStatus::Running,
    RunStatus::Cancelling,
];

fn proved(run: LiveRun, now: Now) -> Result<LiveRun, Rejection> {
    let facts = ClaimFacts {
        live: Some(&run),
        settled: None,
        earlier_hash: None,
    };
    prove(&facts, &token(), "executor-1", now).map(|_| run)
}

fn moved(run: Result<LiveRun, Rejection>) -> String {
    match run {
        Ok(run) => run.status().to_string(),
        Err(why) => refused(&why),
    }
}

fn refused(why: &Rejection) -> String {
    let name = format!("{why:?}");
    format!("refused {}", name.split([' ', '(']).next().unwrap())
}

fn ended(run: &LiveRun, end: RunEnd, now: Now) -> String {
    format!("settled {}", settle(run, end, now).status)
}

fn completed(run: LiveRun, ending: Ending, now: Now) -> String {
    let end = RunEnd {
        ending,
        result: None,
        error: None,
        recovery_reason: None,
        body_digest: None,
    };
    match proved(run, now) {
        Ok(run) => ended(&run, end, now),
        Err(why) => refused(&why),
    }
}

fn cancelled(run: &LiveRun) -> String {
    match cancel(run.clone(), "person", after(1), &TIMING) {
        Cancel::Settle(end) => ended(run, end, after(1)),
        Cancel::Ask(run, _) => run.status().to_string(),
        Cancel::Asked => "unchanged".to_owned(),
    }
}

fn expired(run: &LiveRun, after_ms: i64) -> String {
    match expire(run.clone(), true, after(after_ms), &TIMING) {
        Expiry::Nothing => "unchanged".to_owned(),
        Expiry::Cancel => "asked to stop".to_owned(),
        Expiry::Requeue { run, .. } => run.status().to_string(),
        Expiry::Settle { end, .. } => ended(run, end, after(after_ms)),
    }
}

fn with_output(mut run: LiveRun) -> LiveRun {
    run.has_output = true;
    run
}

fn with_attempts_left(mut run: LiveRun) -> LiveRun {
    run.attempts.max = 2;
    run
}

fn twice_unacknowledged(mut run: LiveRun) -> LiveRun {
    run.attempts.unacknowledged = POISON_CLAIMS - 1;
    run
}

fn taken_over(run: &LiveRun) -> String {
    let end = RunEnd::by_server(
        Ending::Interrupted,
        "owner_takeover",
        "another owner took over",
    );
    ended(run, end, after(1))
}

type Event = (&'static str, fn(LiveRun) -> String, [&'static str; 5]);

/// Rows are events, columns the live states in the order of [`LIVE`].
const TABLE: &[Event] = &[
    (
        "claim",
        |run| moved(take(run, &request(), after(1), &TIMING).map(|taken| taken.run)),
        [
            "refused NoRunAvailable",
            "claimed",
            "refused NoRunAvailable",
            "refused NoRunAvailable",
            "refused NoRunAvailable",
        ],
    ),
    (
        "the same claim request again",
        |run| moved(replay(run, &request(), after(1), &TIMING).map(|(run, _)| run)),
        [
            "refused ClaimLost",
            "refused ClaimLost",
            "claimed",
            "running",
            "cancelling",
        ],
    ),
    (
        "heartbeat or event",
        |run| moved(proved(run, after(1)).map(|run| renew(run, None, after(1)).run)),
        [
            "refused ClaimTokenInvalid",
            "refused ClaimTokenInvalid",
            "running",
            "running",
            "cancelling",
        ],
    ),
    (
        "heartbeat or event after the lease",
        |run| moved(proved(run, after(60_000)).map(|run| renew(run, None, after(60_000)).run)),
        [
            "refused ClaimTokenInvalid",
            "refused ClaimTokenInvalid",
            "refused ClaimLost",
            "refused ClaimLost",
            "refused ClaimLost",
        ],
    ),
    (
        "renewal of a run that nobody holds changes nothing",
        |run| moved(Ok(renew(run, None, after(1)).run)),
        ["queued", "requested", "running", "running", "cancelling"],
    ),
    (
        "release before output",
        |run| moved(release(run, after(1)).map(|(run, _)| run)),
        [
            "refused ClaimLost",
            "refused ClaimLost",
            "requested",
            "requested",
            "refused RunCancelling",
        ],
    ),
    (
        "release after output",
        |run| moved(release(with_output(run), after(1)).map(|(run, _)| run)),
        [
            "refused ClaimLost",
            "refused ClaimLost",
            "refused RunHasOutput",
            "refused RunHasOutput",
            "refused RunCancelling",
        ],
    ),
    (
        "cancel",
        |run| cancelled(&run),
        [
            "settled cancelled",
            "settled cancelled",
            "cancelling",
            "cancelling",
            "unchanged",
        ],
    ),
    (
        "sweep while the lease runs",
        |run| expired(&run, 1),
        [
            "unchanged",
            "unchanged",
            "unchanged",
            "unchanged",
            "unchanged",
        ],
    ),
    (
        "sweep after the lease",
        |run| expired(&run, 60_000),
        [
            "unchanged",
            "unchanged",
            "requested",
            "settled interrupted",
            "settled cancelled",
        ],
    ),
    (
        "sweep after the lease with attempts left",
        |run| expired(&with_attempts_left(run), 60_000),
        [
            "unchanged",
            "unchanged",
            "requested",
            "requested",
            "settled cancelled",
        ],
    ),
    (
        "sweep after the third lease in a row",
        |run| expired(&twice_unacknowledged(run), 60_000),
        [
            "unchanged",
            "unchanged",
            "settled failed",
            "settled interrupted",
            "settled cancelled",
        ],
    ),
    (
        "complete as completed",
        |run| completed(run, Ending::Completed, after(1)),
        [
            "refused ClaimTokenInvalid",
            "refused ClaimTokenInvalid",
            "settled completed",
            "settled completed",
            "settled completed",
        ],
    ),
    (
        "complete as failed",
        |run| completed(run, Ending::Failed, after(1)),
        [
            "refused ClaimTokenInvalid",
            "refused ClaimTokenInvalid",
            "settled failed",
            "settled failed",
            "settled failed",
        ],
    ),
    (
        "complete as cancelled",
        |run| completed(run, Ending::Cancelled, after(1)),
        [
            "refused ClaimTokenInvalid",
            "refused ClaimTokenInvalid",
            "settled cancelled",
            "settled cancelled",
            "settled cancelled",
        ],
    ),
    (
        "handed back",
        |run| completed(run, Ending::Interrupted, after(1)),
        [
            "refused ClaimTokenInvalid",
            "refused ClaimTokenInvalid",
            "settled interrupted",
            "settled interrupted",
            "settled cancelled",
        ],
    ),
    (
        "complete after the lease",
        |run| completed(run, Ending::Completed, after(60_000)),
        [
            "refused ClaimTokenInvalid",
            "refused ClaimTokenInvalid",
            "refused ClaimLost",
            "refused ClaimLost",
            "refused ClaimLost",
        ],
    ),
];

#[test]
fn every_event_in_every_live_state_does_what_design_4_3_says() {
    for (event, apply, expected) in TABLE {
        for (status, expected) in LIVE.into_iter().zip(expected) {
            assert_eq!(apply(live(status)), *expected, "{event}, from {status}");
        }
    }
}

#[test]
fn a_takeover_interrupts_the_active_run_unless_its_cancel_is_under_way() {
    for (status, expected) in [
        (RunStatus::Requested, "settled interrupted"),
        (RunStatus::Claimed, "settled interrupted"),
        (RunStatus::Running, "settled interrupted"),
        (RunStatus::Cancelling, "settled cancelled"),
    ] {
        assert_eq!(taken_over(&live(status)), expected, "from {status}");
    }
}

#[test]
fn statuses_are_live_or_terminal_and_queued_ones_only_wait() {
    for status in RunStatus::ALL.iter().copied() {
        assert_eq!(status.is_terminal(), !LIVE.contains(&status), "{status}");
        let active = LIVE.contains(&status) && status != RunStatus::Queued;
        assert_eq!(status.is_active(), active, "{status}");
        assert_eq!(status.as_str().parse(), Ok(status));
    }
    for status in LIVE {
        let run = live(status);
        assert_eq!(run.status(), status);
        let held = matches!(status, RunStatus::Claimed | RunStatus::Running)
            || status == RunStatus::Cancelling;
        assert_eq!(run.state.claim().is_some(), held, "{status}");
        assert_eq!(run.state.is_cancelling(), status == RunStatus::Cancelling);
    }
    assert!("started".parse::<RunStatus>().is_err());
}
