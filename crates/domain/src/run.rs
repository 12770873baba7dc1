//! A run and its state machine (design §4.3). A live run is small and hot ([`LiveRun`]); the
//! record of a run ([`Run`]) is wide history.

use serde_json::{Map, Value};

use crate::claim::Claim;
use crate::digest::Digest;
use crate::id::{CheckpointId, RunId, RunKey, SessionId, SessionKey};
use crate::session::text_enum;
use crate::time::{LeaseInstant, Timestamp};

text_enum! {
    /// The status of a run.
    RunStatus {
        /// Waits for an executor.
        Requested = "requested",
        /// Waits behind the session's active run.
        Queued = "queued",
        /// An executor holds it and has not been heard of since.
        Claimed = "claimed",
        /// An executor works on it.
        Running = "running",
        /// A cancel is under way.
        Cancelling = "cancelling",
        /// Ended well.
        Completed = "completed",
        /// Ended with an error.
        Failed = "failed",
        /// Ended by a cancel.
        Cancelled = "cancelled",
        /// Ended because its executor or owner was lost, or handed it back.
        Interrupted = "interrupted",
    }
}

impl RunStatus {
    /// Whether nothing can follow.
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled | Self::Interrupted => true,
            Self::Requested | Self::Queued | Self::Claimed | Self::Running | Self::Cancelling => {
                false
            }
        }
    }

    /// Whether the run is the session's active one (rules R16): queued runs only wait.
    pub const fn is_active(self) -> bool {
        !self.is_terminal() && !matches!(self, Self::Queued)
    }
}

/// A run that is not settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRun {
    /// The store's row number.
    pub key: RunKey,
    /// The identifier.
    pub run_id: RunId,
    /// The session's row number.
    pub session_key: SessionKey,
    /// The session.
    pub session_id: SessionId,
    /// Where it is.
    pub state: RunState,
    /// The three counters of R10.
    pub attempts: Attempts,
    /// Its place in the queue of the session and of the pool; a requeued run keeps it.
    pub place: i64,
    /// Executor events recorded under the present or last claim (R11).
    pub event_count: u64,
    /// Whether the present attempt's agent has put out anything; then it can't be released.
    pub has_output: bool,
    /// Open questions of the run.
    pub pending_interactions: u32,
    /// The turn it had in the queue when it was claimed, which it gets again should it come back.
    pub turn: Option<i64>,
    /// When the present claim's work has gone on for longer than its session allows; the sweep cancels
    /// the run then, whatever its executor does.
    pub deadline: Option<LeaseInstant>,
}

/// Where a live run is, with what that state knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// Behind the active run; no claim can see it.
    Queued,
    /// Claimable from `ready_at` on.
    Requested {
        /// Back-off after a claim that nobody acknowledged.
        ready_at: LeaseInstant,
    },
    /// Held by an executor; `Claim::acknowledged` is a column of its own (R10).
    Claimed(Claim),
    /// Worked on.
    Running(Claim),
    /// A cancel was asked for while an executor held it.
    Cancelling {
        /// The claim that is asked to stop.
        claim: Claim,
        /// When the sweep settles it whatever the executor does (R14).
        deadline: LeaseInstant,
    },
}

impl RunState {
    /// The status of that name.
    pub const fn status(&self) -> RunStatus {
        match self {
            Self::Queued => RunStatus::Queued,
            Self::Requested { .. } => RunStatus::Requested,
            Self::Claimed(_) => RunStatus::Claimed,
            Self::Running(_) => RunStatus::Running,
            Self::Cancelling { .. } => RunStatus::Cancelling,
        }
    }

    /// The claim, where there is one.
    pub const fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Queued | Self::Requested { .. } => None,
            Self::Claimed(claim) | Self::Running(claim) | Self::Cancelling { claim, .. } => {
                Some(claim)
            }
        }
    }

    /// Whether a cancel is under way.
    pub const fn is_cancelling(&self) -> bool {
        matches!(self, Self::Cancelling { .. })
    }
}

impl LiveRun {
    /// The run's status.
    pub const fn status(&self) -> RunStatus {
        self.state.status()
    }

    /// Takes it from whoever holds it: claimable from `ready_at` on, at its old place.
    pub(crate) fn request_again(&mut self, ready_at: LeaseInstant) {
        self.deadline = None;
        self.state = RunState::Requested { ready_at };
    }
}

/// The three counters of rules R10 and the bound they are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempts {
    /// Rises with every claim, never falls.
    pub attempt: u32,
    /// Rises when a claim is acknowledged.
    pub used: u32,
    /// Claims in a row that nobody acknowledged.
    pub unacknowledged: u32,
    /// Acknowledged attempts allowed.
    pub max: u32,
}

impl Attempts {
    /// Nothing tried yet.
    pub const fn new(max: u32) -> Self {
        Self {
            attempt: 0,
            used: 0,
            unacknowledged: 0,
            max,
        }
    }
}

/// The whole record of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The store's row number.
    pub key: RunKey,
    /// The identifier.
    pub run_id: RunId,
    /// The session's row number.
    pub session_key: SessionKey,
    /// The session.
    pub session_id: SessionId,
    /// The run it continues.
    pub parent_run_id: Option<RunId>,
    /// The status.
    pub status: RunStatus,
    /// Claims so far.
    pub attempt: u32,
    /// What the person asked.
    pub prompt: String,
    /// The client's notes and the resume's facts (design §4.4).
    pub metadata: Map<String, Value>,
    /// What the executor reported at the end.
    pub result: Option<Value>,
    /// Why it failed; never empty.
    pub error: Option<String>,
    /// Who holds or held it.
    pub executor_id: Option<String>,
    /// When it was admitted.
    pub requested_at: Timestamp,
    /// When it was last claimed.
    pub claimed_at: Option<Timestamp>,
    /// When its executor was first heard of.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub settled_at: Option<Timestamp>,
    /// Facts about an interruption.
    pub recovery: Option<Recovery>,
    /// When a restore put it aside.
    pub superseded_at: Option<Timestamp>,
    /// By which checkpoint.
    pub superseded_by_checkpoint_id: Option<CheckpointId>,
    /// The number of the event that admitted it (`RunRequested` or `RunQueued`).
    pub admitted_seq: u64,
    /// The number of its terminal event.
    pub settled_seq: Option<u64>,
    /// Whether its work is flagged as unservable, and why (R10).
    pub unservable: Option<String>,
}

/// What is known about a run's interruption or its settlement by the sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Whether a resume makes sense.
    pub reclaimable: bool,
    /// Why, one word: `lease_expired`, `handed_back`, `owner_takeover`, `cancel_deadline`, `executor_lost`, …
    pub reason: String,
    /// When.
    pub recovered_at: Timestamp,
}

/// A run as it is admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// The identifier.
    pub run_id: RunId,
    /// The run it continues.
    pub parent_run_id: Option<RunId>,
    /// What the person asked.
    pub prompt: String,
    /// The client's notes and the resume's facts.
    pub metadata: Map<String, Value>,
    /// The structured context of a resume, handed out with the claim.
    pub resume_context: Option<Value>,
    /// `Requested` or `Queued`.
    pub status: RunStatus,
    /// The number of the event that admits it.
    pub admitted_seq: u64,
    /// When.
    pub requested_at: Timestamp,
}

/// What settling writes to a run's record, so that the same `complete` again can be answered (R11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledClaim {
    /// The run's last attempt; 0 where it was never claimed.
    pub attempt: u32,
    /// The claim's token hash.
    pub token_hash: Option<Digest>,
    /// The digest of the `complete` body.
    pub body_digest: Option<Digest>,
}

#[cfg(test)]
mod tests;
