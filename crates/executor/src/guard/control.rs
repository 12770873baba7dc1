//! What executor and guard tell each other over two named pipes. It owns the wire shapes and the
//! clock they share; it must never carry a prompt or a secret, the spec is visible in `ps`.

use std::path::PathBuf;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// How a guard is to run one agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardSpec {
    /// The run, as in the mark of its processes.
    pub run_id: String,
    /// The pipe on which deadlines come. Its end means that the executor died.
    pub control: PathBuf,
    /// The pipe on which the guard reports.
    pub status: PathBuf,
    /// The lock file of the workspace. Without one it is no agent that is guarded but a program
    /// beside one, whose own tree is all that the guard may kill.
    pub lock: Option<PathBuf>,
    /// How long to wait for that lock.
    pub lock_wait_ms: u64,
    /// Until when the agent may live if no other deadline comes: milliseconds since the boot of
    /// the machine, suspended time included.
    pub deadline: u64,
}

/// One line from the guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardStatus {
    /// The workspace is in use; the guard waits.
    Waiting,
    /// The agent runs as this process, leader of its own group.
    Started {
        /// Its process id.
        pid: i32,
    },
    /// The agent rests and the workspace is free for others.
    Parked,
    /// The agent's workspace is its own again.
    Resumed,
    /// The workspace stayed in use.
    Busy {
        /// The run that holds it, where known.
        holder: Option<String>,
    },
    /// The agent could not be started.
    SpawnFailed {
        /// The system's reason.
        message: String,
    },
    /// The agent ended by itself or by the executor's signals.
    Exited {
        /// Its exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
    },
    /// The guard killed the agent.
    Killed {
        /// Why.
        reason: KillReason,
    },
}

/// Why a guard kills its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillReason {
    /// The executor did not push a later deadline.
    DeadlinePassed,
    /// The executor's end of the control pipe closed.
    ExecutorGone,
    /// The guard itself was told to end.
    Terminated,
    /// Another agent got the workspace while this one rested.
    WorkspaceTaken,
}

/// Lets the agent rest: its guard frees the workspace and goes on watching.
pub(crate) const PARK_LINE: &str = "park\n";

/// The agent goes on, if its workspace is still free.
pub(crate) const RESUME_LINE: &str = "resume\n";

/// What the executor tells the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Deadline(u64),
    Park,
    Resume,
}

/// A deadline as one line of the control pipe.
pub(crate) fn deadline_line(deadline: u64) -> String {
    format!("deadline {deadline}\n")
}

/// Reads a line of the control pipe; unknown ones are of a later version and mean nothing here.
pub(super) fn parse_order(line: &str) -> Option<Order> {
    match line.split_once(' ') {
        Some(("deadline", number)) => number.trim().parse().ok().map(Order::Deadline),
        None if line == PARK_LINE.trim_end() => Some(Order::Park),
        None if line == RESUME_LINE.trim_end() => Some(Order::Resume),
        Some(_) | None => None,
    }
}

/// Milliseconds since the machine's boot, suspended time included. Both processes read the same
/// clock, so a deadline stays true however late it is read, and a machine that wakes up knows at
/// once that a lease ended in its sleep.
pub(crate) fn boot_clock_ms() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(u64::MAX, |now| {
        let millis = now
            .tv_sec()
            .saturating_mul(1000)
            .saturating_add(now.tv_nsec() / 1_000_000);
        u64::try_from(millis).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_their_lines_and_other_lines_are_ignored() {
        let order = |line: &str| parse_order(line.trim_end());
        assert_eq!(order(&deadline_line(42)), Some(Order::Deadline(42)));
        assert_eq!(order(PARK_LINE), Some(Order::Park));
        assert_eq!(order(RESUME_LINE), Some(Order::Resume));
        for other in ["pause 42", "deadline soon", "park 1", ""] {
            assert_eq!(order(other), None, "{other}");
        }
    }
}
