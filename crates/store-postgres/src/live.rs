//! A live run as columns: the state's own data lies in nullable columns, and each state says which
//! of them it has.

use tapedeck_domain::claim::Claim;
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::run::{Attempts, LiveRun, RunState, RunStatus};
use tapedeck_domain::time::LeaseInstant;
use tapedeck_store::rows::Rows;
use uuid::Uuid;

use crate::encode::{At, bytes, integer};

/// Live rows, with what follows the table's name in the statement.
macro_rules! live_rows {
    ($tail:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            $crate::live::LiveRow,
            "SELECT run_key, run_id, session_key, session_id, status, ready_at, attempt,
                    attempts_used, unacknowledged, max_attempts, place, event_count, has_output,
                    pending_interactions, claim_attempt, token_hash, executor_id, instance_id,
                    request_hash, acknowledged, replayed, lease_expires_at, lease_ms,
                    cancel_deadline, turn, run_deadline
             FROM run_heads " + $tail
            $(, $argument)*
        )
    };
}
pub(crate) use live_rows;

/// A row of `run_heads`.
#[derive(Clone)]
pub(crate) struct LiveRow {
    pub(crate) run_key: i64,
    pub(crate) run_id: Uuid,
    pub(crate) session_key: i64,
    pub(crate) session_id: Uuid,
    pub(crate) status: String,
    pub(crate) ready_at: Option<i64>,
    pub(crate) attempt: i64,
    pub(crate) attempts_used: i64,
    pub(crate) unacknowledged: i64,
    pub(crate) max_attempts: i64,
    pub(crate) place: i64,
    pub(crate) event_count: i64,
    pub(crate) has_output: bool,
    pub(crate) pending_interactions: i64,
    pub(crate) claim_attempt: Option<i64>,
    pub(crate) token_hash: Option<Vec<u8>>,
    pub(crate) executor_id: Option<String>,
    pub(crate) instance_id: Option<String>,
    pub(crate) request_hash: Option<Vec<u8>>,
    pub(crate) acknowledged: Option<bool>,
    pub(crate) replayed: Option<bool>,
    pub(crate) lease_expires_at: Option<i64>,
    pub(crate) lease_ms: Option<i64>,
    pub(crate) cancel_deadline: Option<i64>,
    pub(crate) turn: Option<i64>,
    pub(crate) run_deadline: Option<i64>,
}

impl TryFrom<LiveRow> for LiveRun {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: LiveRow) -> Rows<Self> {
        let at = At::new("run_heads", &row.run_key);
        Ok(Self {
            key: RunKey(row.run_key),
            run_id: RunId::new(row.run_id),
            session_key: SessionKey(row.session_key),
            session_id: SessionId::new(row.session_id),
            attempts: Attempts {
                attempt: at.number("attempt", row.attempt)?,
                used: at.number("attempts_used", row.attempts_used)?,
                unacknowledged: at.number("unacknowledged", row.unacknowledged)?,
                max: at.number("max_attempts", row.max_attempts)?,
            },
            place: row.place,
            event_count: at.number("event_count", row.event_count)?,
            has_output: row.has_output,
            pending_interactions: at.number("pending_interactions", row.pending_interactions)?,
            turn: row.turn,
            deadline: row.run_deadline.map(LeaseInstant),
            state: state(&row)?,
        })
    }
}

fn state(row: &LiveRow) -> Rows<RunState> {
    let at = At::new("run_heads", &row.run_key);
    let instant = |column, value| at.present(column, value).map(LeaseInstant);
    Ok(match at.word("status", &row.status)? {
        RunStatus::Queued => RunState::Queued,
        RunStatus::Requested => RunState::Requested {
            ready_at: instant("ready_at", row.ready_at)?,
        },
        RunStatus::Claimed => RunState::Claimed(claim(row)?),
        RunStatus::Running => RunState::Running(claim(row)?),
        RunStatus::Cancelling => RunState::Cancelling {
            claim: claim(row)?,
            deadline: instant("cancel_deadline", row.cancel_deadline)?,
        },
        RunStatus::Completed
        | RunStatus::Failed
        | RunStatus::Cancelled
        | RunStatus::Interrupted => return Err(at.bad("status")),
    })
}

fn claim(row: &LiveRow) -> Rows<Claim> {
    let at = At::new("run_heads", &row.run_key);
    let token_hash = at.present("token_hash", row.token_hash.as_deref())?;
    let request_hash = at.present("request_hash", row.request_hash.as_deref())?;
    let attempt = at.present("claim_attempt", row.claim_attempt)?;
    let expires_at = at.present("lease_expires_at", row.lease_expires_at)?;
    Ok(Claim {
        attempt: at.number("claim_attempt", attempt)?,
        token_hash: at.digest("token_hash", token_hash)?,
        executor_id: at.present("executor_id", row.executor_id.clone())?,
        instance_id: row.instance_id.clone(),
        request_hash: at.digest("request_hash", request_hash)?,
        acknowledged: at.present("acknowledged", row.acknowledged)?,
        replayed: at.present("replayed", row.replayed)?,
        expires_at: LeaseInstant(expires_at),
        lease_ms: at.present("lease_ms", row.lease_ms)?,
    })
}

impl From<&LiveRun> for LiveRow {
    fn from(run: &LiveRun) -> Self {
        let claim = run.state.claim();
        let (ready_at, cancel_deadline) = match &run.state {
            RunState::Requested { ready_at } => (Some(ready_at.0), None),
            RunState::Cancelling { deadline, .. } => (None, Some(deadline.0)),
            RunState::Queued | RunState::Claimed(_) | RunState::Running(_) => (None, None),
        };
        Self {
            run_key: run.key.0,
            run_id: run.run_id.uuid(),
            session_key: run.session_key.0,
            session_id: run.session_id.uuid(),
            status: run.status().as_str().to_owned(),
            ready_at,
            attempt: run.attempts.attempt.into(),
            attempts_used: run.attempts.used.into(),
            unacknowledged: run.attempts.unacknowledged.into(),
            max_attempts: run.attempts.max.into(),
            place: run.place,
            event_count: integer(run.event_count),
            has_output: run.has_output,
            pending_interactions: run.pending_interactions.into(),
            claim_attempt: claim.map(|claim| claim.attempt.into()),
            token_hash: claim.map(|claim| bytes(&claim.token_hash)),
            executor_id: claim.map(|claim| claim.executor_id.clone()),
            instance_id: claim.and_then(|claim| claim.instance_id.clone()),
            request_hash: claim.map(|claim| bytes(&claim.request_hash)),
            acknowledged: claim.map(|claim| claim.acknowledged),
            replayed: claim.map(|claim| claim.replayed),
            lease_expires_at: claim.map(|claim| claim.expires_at.0),
            lease_ms: claim.map(|claim| claim.lease_ms),
            cancel_deadline,
            turn: run.turn,
            run_deadline: run.deadline.map(|at| at.0),
        }
    }
}
