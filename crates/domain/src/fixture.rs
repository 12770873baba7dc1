//! Values that the tests of the rules share: one session, one run in each of its live states, and a
//! clock whose wall time and lease time can't be taken for one another.

use proptest::test_runner::Config;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::claim::{Claim, ClaimRequest, ClaimToken};
use crate::digest::Digest;
use crate::event::EventRecord;
use crate::id::{RunId, RunKey, SessionId, SessionKey, TapeId};
use crate::run::{Attempts, LiveRun, Run, RunState, RunStatus};
use crate::session::{Session, SessionSettings, SessionSummary};
use crate::time::{LeaseInstant, Now, Timestamp};
use crate::timing::Timing;

pub(crate) const TIMING: Timing = Timing::STANDARD;
pub(crate) const RUN: RunId = run_id(1);
pub(crate) const SESSION: SessionId = SessionId::new(Uuid::from_u128(100));

pub(crate) const fn run_id(number: u128) -> RunId {
    RunId::new(Uuid::from_u128(number))
}

/// The lease clock, that many milliseconds after the tests' beginning.
pub(crate) const fn at(ms: i64) -> LeaseInstant {
    LeaseInstant(1_000_000 + ms)
}

/// Both clocks, that many milliseconds after the tests' beginning.
pub(crate) const fn after(ms: i64) -> Now {
    Now {
        wall: Timestamp(1_700_000_000_000 + ms),
        lease: at(ms),
        judged: at(ms),
    }
}

/// A command that arrived at `judged` and was looked at `waited` milliseconds later.
pub(crate) const fn delayed(judged: i64, waited: i64) -> Now {
    Now {
        judged: at(judged),
        ..after(judged + waited)
    }
}

pub(crate) fn cases(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    }
}

pub(crate) fn request() -> ClaimRequest {
    ClaimRequest {
        executor_id: "executor-1".to_owned(),
        instance_id: Some("instance-1".to_owned()),
        claim_request_id: "request-1".to_owned(),
        lease_ms: 60_000,
    }
}

/// The token of the claim in [`live`].
pub(crate) fn token() -> ClaimToken {
    ClaimToken::derive("request-1", RUN, 1)
}

fn claim(acknowledged: bool, expires_ms: i64) -> Claim {
    Claim {
        attempt: 1,
        token_hash: token().hash(),
        executor_id: "executor-1".to_owned(),
        instance_id: Some("instance-1".to_owned()),
        request_hash: Digest::of_bytes(b"request-1"),
        acknowledged,
        replayed: false,
        expires_at: at(expires_ms),
        lease_ms: 60_000,
    }
}

/// The run as it is at the beginning in each live state: requested just now, claimed just now (15 s
/// left), acknowledged just now (60 s left), or asked just now to stop (30 s left).
pub(crate) fn live(status: RunStatus) -> LiveRun {
    let (state, attempt, used) = match status {
        RunStatus::Queued => (RunState::Queued, 0, 0),
        RunStatus::Requested => (RunState::Requested { ready_at: at(0) }, 0, 0),
        RunStatus::Claimed => (RunState::Claimed(claim(false, 15_000)), 1, 0),
        RunStatus::Running => (RunState::Running(claim(true, 60_000)), 1, 1),
        RunStatus::Cancelling => {
            let claim = claim(true, 30_000);
            (
                RunState::Cancelling {
                    claim,
                    deadline: at(30_000),
                },
                1,
                1,
            )
        }
        RunStatus::Completed
        | RunStatus::Failed
        | RunStatus::Cancelled
        | RunStatus::Interrupted => panic!("a settled run is not live"),
    };
    LiveRun {
        key: RunKey(7),
        run_id: RUN,
        session_key: SessionKey(3),
        session_id: SESSION,
        state,
        attempts: Attempts {
            attempt,
            used,
            unacknowledged: 0,
            max: 1,
        },
        place: 5,
        event_count: 0,
        has_output: false,
        pending_interactions: 0,
        turn: None,
        deadline: None,
    }
}

pub(crate) fn session() -> Session {
    Session {
        key: SessionKey(3),
        session_id: SESSION,
        namespace: "default".to_owned(),
        settings: SessionSettings::default(),
        tape_id: TapeId::new(Uuid::from_u128(200)),
        summary: SessionSummary::empty(),
        forked_from: None,
        restored_seq: None,
        folded_seq: None,
        created_at: after(0).wall,
        updated_at: after(0).wall,
        last_activity_at: after(0).wall,
        closed_at: None,
    }
}

/// The record of a settled run.
pub(crate) fn settled(status: RunStatus) -> Run {
    Run {
        key: RunKey(7),
        run_id: RUN,
        session_key: SessionKey(3),
        session_id: SESSION,
        parent_run_id: None,
        status,
        attempt: 1,
        prompt: "Build it".to_owned(),
        metadata: Map::new(),
        result: None,
        error: None,
        executor_id: Some("executor-1".to_owned()),
        requested_at: after(0).wall,
        claimed_at: None,
        started_at: None,
        settled_at: None,
        recovery: None,
        superseded_at: None,
        superseded_by_checkpoint_id: None,
        admitted_seq: 1,
        settled_seq: None,
        unservable: None,
    }
}

/// A recorded event of the run.
pub(crate) fn event(session_seq: u64, run_id: RunId, kind: &str, payload: Value) -> EventRecord {
    EventRecord {
        event_id: format!("e{session_seq}"),
        session_id: SESSION,
        session_seq,
        run_id: Some(run_id),
        kind: kind.to_owned(),
        payload: payload.into(),
        folded_from: None,
        attempt: Some(1),
        executor_id: Some("executor-1".to_owned()),
        trace_id: None,
        created_at: after(0).wall,
        recorded_at: after(0).wall,
    }
}
