//! Every reason to refuse a command, in one closed list; the wire's error codes map to it one by
//! one.

use std::fmt;

use crate::executor::ExecutorStatus;
use crate::id::{CheckpointId, InteractionId, RunId, TapeEntryId};
use crate::interaction::InteractionStatus;
use crate::time::Timestamp;

/// A word that is none of a closed list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be one of {}, not `{word}`", words.join(", "))]
pub struct UnknownWord {
    /// The list.
    pub words: &'static [&'static str],
    /// The word, cut to 64 characters.
    pub word: String,
}

impl UnknownWord {
    /// Names the list and the word.
    pub fn new(words: &'static [&'static str], word: &str) -> Self {
        Self {
            words,
            word: word.chars().take(64).collect(),
        }
    }
}

/// Why a field's value breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Where, e.g. `events[3].data`.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
}

impl FieldError {
    /// Names the place and the fault.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

/// The sentence about it.
impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "`{}` {}", self.path, self.message)
        }
    }
}

/// What is said about several of them in one line.
pub fn sentences(errors: &[FieldError]) -> String {
    let sentences: Vec<_> = errors.iter().map(ToString::to_string).collect();
    sentences.join("; ")
}

/// A business reason to refuse a command. A refused command has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The question has its answer, or ended without one.
    #[error("the interaction is already {status}")]
    AlreadyResolved {
        /// Which.
        interaction_id: InteractionId,
        /// The state it is in.
        status: InteractionStatus,
    },
    /// An artifact came again with another content; nothing was written.
    #[error("artifact `{name}` is stored with another content")]
    ArtifactConflict {
        /// Its name.
        name: String,
    },
    /// The checkpoint was put aside by a restore, or deleted.
    #[error("checkpoint {checkpoint_id} is no longer active")]
    CheckpointSuperseded {
        /// Which.
        checkpoint_id: CheckpointId,
    },
    /// The claim is an earlier one or its lease has ended: stop now.
    #[error("the claim is lost; stop the agent and claim again")]
    ClaimLost,
    /// The token was never this run's.
    #[error("the claim token is not one of this run")]
    ClaimTokenInvalid,
    /// A tape entry's id came again with another content, run or session; nothing was written.
    #[error("tape entry {entry_id} is stored with another content")]
    EntryIdConflict {
        /// The id.
        entry_id: TapeEntryId,
    },
    /// An event id came again with another content; nothing of the batch was written.
    #[error("event `{event_id}` is stored with another content")]
    EventIdConflict {
        /// The id.
        event_id: String,
    },
    /// Fewer events have arrived than the executor sent.
    #[error("{stored} of {expected} events have arrived; upload the rest and complete again")]
    EventsMissing {
        /// What the executor counted.
        expected: u64,
        /// What is stored.
        stored: u64,
    },
    /// The executor was told to take no new work.
    #[error("executor `{executor_id}` is draining: it takes no new work")]
    ExecutorDraining {
        /// Which.
        executor_id: String,
    },
    /// The executor holds as many runs as it says it takes.
    #[error("executor `{executor_id}` holds {live_runs} runs and takes {max_runs} at once")]
    ExecutorFull {
        /// Which.
        executor_id: String,
        /// Live claims of its process.
        live_runs: u32,
        /// What it says it takes.
        max_runs: u32,
    },
    /// Only an executor that is gone can be forgotten.
    #[error("executor `{executor_id}` is {status}; only an offline one can be forgotten")]
    ExecutorNotOffline {
        /// Which.
        executor_id: String,
        /// What it is.
        status: ExecutorStatus,
    },
    /// The idempotency key was used with another body.
    #[error("the idempotency key was used with another request body")]
    IdempotencyConflict,
    /// The input breaks a rule.
    #[error("the request breaks a rule: {}", sentences(.0))]
    Invalid(Vec<FieldError>),
    /// No run that this executor may take is waiting.
    #[error("no run is waiting for this executor")]
    NoRunAvailable,
    /// There is no settled run to go on from.
    #[error("the session has no settled run to resume")]
    NothingToResume,
    /// Another owner's lease on the session is live.
    #[error("the session is owned by `{owner_id}` until {until}")]
    OwnedElsewhere {
        /// The owner.
        owner_id: String,
        /// When its lease ends, wall time.
        until: Timestamp,
    },
    /// The lease of the presented epoch has ended.
    #[error("the owner lease has ended")]
    OwnerLeaseExpired,
    /// Too many runs wait in the session.
    #[error("the session already has {limit} queued runs")]
    QueueFull {
        /// The bound.
        limit: u32,
    },
    /// A request id came again with another question.
    #[error("request `{request_id}` was asked before with another content")]
    RequestIdConflict {
        /// The id.
        request_id: String,
    },
    /// Too many rules stand in the session or the namespace.
    #[error("{limit} approval rules stand there already; revoke some")]
    RuleLimit {
        /// The bound.
        limit: u32,
    },
    /// The run is being cancelled and can't be given back; complete it.
    #[error("the run is being cancelled; complete it as cancelled")]
    RunCancelling,
    /// The agent has put something out, so the run can't be released.
    #[error("the run has output and can't be released; complete it instead")]
    RunHasOutput,
    /// The run is settled: stop now.
    #[error("the run is settled as {status}")]
    RunSettled {
        /// How.
        status: crate::run::RunStatus,
    },
    /// A run is active.
    #[error("run {active_run_id} is active")]
    SessionBusy {
        /// Which.
        active_run_id: RunId,
    },
    /// The session takes no more runs.
    #[error("the session is closed")]
    SessionClosed,
    /// The presented epoch is not the owner's.
    #[error("the owner epoch is stale")]
    StaleEpoch,
    /// A live token is called so.
    #[error("a live token is called `{name}` already; revoke it or take another name")]
    TokenNameTaken {
        /// The name.
        name: String,
    },
}

impl Rejection {
    /// One broken rule.
    pub fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldError::new(path, message)])
    }
}
