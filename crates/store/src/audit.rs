//! What must hold in every database, as a closed list of named checks. Each is one statement of the
//! store, which gives the rows that break it; what to do about them is nobody's decision here.

use async_trait::async_trait;
use tapedeck_domain::{RunId, SessionId};

use crate::error::StoreError;

macro_rules! checks {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal: $scope:ident,)*) => {
        /// One thing that must hold.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Check { $($(#[doc = $doc])+ $variant,)* }

        impl Check {
            /// Every check, in the order in which they are run.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What must hold, in a sentence.
            pub const fn sentence(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii_start(),)* }
            }

            /// What it looks at.
            pub const fn scope(self) -> Scope {
                match self { $(Self::$variant => Scope::$scope,)* }
            }
        }
    };
}

/// What a check looks at, and so what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Live rows only: it costs the same whatever the history.
    Live,
    /// Everything. What it finds contradicts other rows.
    History,
    /// Live rows whose time is up: nothing contradicts them, but somebody should have acted.
    Overdue,
}

checks! {
    /// The file, or each index, is sound.
    FileIsSound = "file_is_sound": History,
    /// Every row can be read, and JSON is JSON.
    Readable = "readable": History,
    /// Every row that a row refers to is there.
    References = "references": History,
    /// Every session has a head.
    Heads = "heads": History,
    /// What a row repeats of another for faster reads is the same as there (I8).
    Copies = "copies": History,
    /// Every number from 1 to the head is covered by exactly one event (I2, R20).
    LogNumbers = "log_numbers": History,
    /// The head stands at the newest event (I2).
    HeadSeq = "head_seq": History,
    /// A settled run has one terminal event, and a live run none (I3).
    TerminalEvents = "terminal_events": History,
    /// A settled run names its terminal event (I3).
    SettledSeq = "settled_seq": History,
    /// No event of a run comes after its terminal one (I21).
    AfterTheEnd = "after_the_end": History,
    /// A run names the event that admitted it (R16).
    Admissions = "admissions": History,
    /// The events of a run are in its session's log (I8).
    EventRuns = "event_runs": History,
    /// Ids with the prefix `srv:` are the server's, and it gives no others (R11).
    ServerEvents = "server_events": History,
    /// Only events of settled runs are folded, and their session says up to where (R20).
    Folds = "folds": History,
    /// A session has at most one active run (I5).
    OneActiveRun = "one_active_run": Live,
    /// The head and the session name the active run, and only that (I5).
    ActiveRun = "active_run": Live,
    /// A live run and its record agree.
    LiveRuns = "live_runs": Live,
    /// A run without an end has its live part.
    UnsettledRuns = "unsettled_runs": History,
    /// A live run holds what its state has, and nothing else (R10).
    RunStates = "run_states": Live,
    /// Exactly the requested runs can be claimed (R16).
    Queue = "queue": Live,
    /// A claimable run is offered to the executors that its session names.
    QueueTargets = "queue_targets": Live,
    /// A held run has the claim of its attempt (I4).
    Claims = "claims": Live,
    /// A run's claims are its attempts, one each, so that the newest alone can live (I4, R10).
    ClaimHistory = "claim_history": History,
    /// A lease that has ended is noticed by the next sweeps (I18).
    OverdueClaims = "overdue_claims": Overdue,
    /// A question whose time is up is ended by the next sweeps.
    OverdueQuestions = "overdue_questions": Overdue,
    /// A question is open only under the claim that asked it (R15).
    OpenQuestions = "open_questions": Live,
    /// Open questions are as many as the run and its session say.
    QuestionCounts = "question_counts": Live,
    /// A question has one final state, or is open (I14).
    Answers = "answers": History,
    /// A session's summary names its newest runs.
    SummaryRuns = "summary_runs": History,
    /// A session's summary counts its queue, and a queue that nothing is in front of is held (R16).
    SummaryQueue = "summary_queue": History,
    /// A session's status is the one that its runs and questions give.
    SummaryStatus = "summary_status": History,
    /// A session's summary counts its checkpoints and names the newest.
    SummaryCheckpoints = "summary_checkpoints": History,
    /// A checkpoint lies within the log and the tape.
    Checkpoints = "checkpoints": History,
    /// What a restore put aside names a checkpoint of its own session (I15).
    SupersededBy = "superseded_by": History,
    /// A run and its entries on the tape are put aside together (I15).
    SupersededRuns = "superseded_runs": History,
    /// A restore puts aside only what lies after its checkpoint (I15).
    RestoredTape = "restored_tape": History,
    /// An owner has an epoch, and a session with an active run has an owner (I9).
    Owners = "owners": History,
    /// Positions on the tape were given out by it (R19).
    TapePositions = "tape_positions": History,
    /// The active tape has as many entries as its state says (R19).
    TapeCount = "tape_count": History,
    /// The tape is not ahead of the log (R19).
    TapeSeq = "tape_seq": History,
    /// A tool call on the tape has its result (fault 12).
    ToolResults = "tool_results": History,
    /// A message snapshot holds as many messages as it says.
    Snapshots = "snapshots": History,
    /// The artifacts of a run are within their bounds, and written down in a way that is known.
    Artifacts = "artifacts": History,
    /// A resumed run continues an earlier, settled run of its session (I16).
    Lineage = "lineage": History,
    /// A stored result is an object of ids and status (R17).
    Results = "results": History,
    /// Of tokens, claim requests and bodies there are digests only (I24).
    Digests = "digests": History,
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl Check {
    /// The checks whose cost doesn't grow with the history.
    pub fn live() -> Vec<Self> {
        let live = |check: &Self| check.scope() == Scope::Live;
        Self::ALL.iter().copied().filter(live).collect()
    }
}

/// What is asked of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRequest {
    /// The checks to run.
    pub checks: Vec<Check>,
    /// Findings of a check at most.
    pub most: u32,
    /// How long after its end the deployment's last sign of life may find a lease before that is
    /// [`Scope::Overdue`], in milliseconds. Leases that ran out while nobody was alive never are.
    pub patience_ms: i64,
}

impl AuditRequest {
    /// These checks, with few findings each and sweeps of the standard length.
    pub fn of(checks: &[Check]) -> Self {
        Self {
            checks: checks.to_vec(),
            most: 20,
            patience_ms: 15_000,
        }
    }
}

/// A row that breaks a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The session, where the row belongs to one.
    pub session_id: Option<SessionId>,
    /// The run, where the row belongs to one.
    pub run_id: Option<RunId>,
    /// What is wrong with it, without anything that people or agents wrote.
    pub detail: String,
}

impl Finding {
    /// A row that can't be read.
    pub fn of(error: &StoreError) -> Self {
        Self {
            session_id: None,
            run_id: None,
            detail: error.to_string(),
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The check.
    pub check: Check,
    /// At most as many findings as were asked for.
    pub findings: Vec<Finding>,
    /// Whether there are more.
    pub more: bool,
}

impl Checked {
    /// A check that stopped at something which can't be read.
    pub fn stopped(check: Check, why: &StoreError) -> Self {
        Self::new(check, vec![Finding::of(why)], 1)
    }

    /// What a check found, where one finding more than `most` was looked for.
    pub fn new(check: Check, mut findings: Vec<Finding>, most: u32) -> Self {
        let more = findings.len() > most as usize;
        findings.truncate(most as usize);
        Self {
            check,
            findings,
            more,
        }
    }
}

/// A database that can be looked at as a whole.
#[async_trait]
pub trait Audit: Send + Sync {
    /// Runs checks on one moment of the database. Nothing is written, and nobody else waits.
    async fn audit(&self, request: &AuditRequest) -> Result<Vec<Checked>, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_check_has_a_name_of_its_own_and_a_sentence() {
        let names: BTreeSet<_> = Check::ALL.iter().map(|check| check.as_str()).collect();
        assert_eq!(names.len(), Check::ALL.len());
        for check in Check::ALL {
            assert!(check.sentence().ends_with('.'), "{check}");
            assert!(!check.sentence().starts_with(' '), "{check}");
        }
        assert!(Check::live().len() > 5);
    }

    #[test]
    fn a_check_says_whether_there_is_more() {
        let finding = |number: u32| Finding {
            session_id: None,
            run_id: None,
            detail: number.to_string(),
        };
        let found = Checked::new(Check::Queue, (0..3).map(finding).collect(), 2);
        assert!(found.more && found.findings.len() == 2);
        assert!(!Checked::new(Check::Queue, (0..2).map(finding).collect(), 2).more);
    }
}
