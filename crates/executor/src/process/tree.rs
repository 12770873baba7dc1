//! The processes of an agent, found in `/proc` by descent and by the mark in their environment:
//! agents put tool commands in sessions of their own, so a process group is not enough. It owns which
//! processes are meant and what is done to them; it must never signal a process that is neither marked
//! nor descended from one of ours. All functions block and belong where nothing else waits.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::environment::{EXECUTOR_MARK, RUN_MARK};
use super::hunt::Hunt;
use super::reaper::reap_these;
pub(crate) use super::record::Identity;
use super::record::Record;

/// How many passes in a row must be sure that nobody is left.
const SURE_PASSES: u32 = 2;

/// A machine where processes come and go all the time lets no pass be sure; after that long without
/// a find nobody is left.
const UNSURE_LIMIT: Duration = Duration::from_secs(1);

/// A mark in the environment of our processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mark {
    Run(String),
    Executor(String),
}

impl Mark {
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Run(id) => format!("{RUN_MARK}={id}").into_bytes(),
            Self::Executor(id) => format!("{EXECUTOR_MARK}={id}").into_bytes(),
        }
    }
}

/// Which processes are meant: the descendants of `root` (not itself), the marked, and theirs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    pub(crate) root: Option<Identity>,
    pub(crate) marks: Vec<Mark>,
}

/// Processes were still there after the time allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("processes {0:?} did not die")]
pub(crate) struct Remaining(pub(crate) Vec<i32>);

impl Scope {
    /// Stops all before it kills the first, because a process that lives on may fork while the others
    /// are being killed, and one that forks and ends is never the same when it is looked for again.
    /// Goes on until nobody can be left.
    pub(crate) fn kill_all(&self, limit: Duration) -> Result<(), Remaining> {
        let until = Instant::now() + limit;
        let mut hunt = Hunt::new(self);
        let mut sure = 0;
        let mut last_found = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let is_sure = hunt.stop_all();
            let found: Vec<i32> = hunt.found().map(|found| found.pid).collect();
            hunt.signal_all(Signal::SIGKILL);
            reap_these(&hunt.take_dead());
            if found.is_empty() {
                sure = if is_sure { sure + 1 } else { 0 };
                if sure >= SURE_PASSES || last_found.elapsed() >= UNSURE_LIMIT {
                    return Ok(());
                }
                continue;
            }
            (sure, last_found) = (0, Instant::now());
            if last_found >= until {
                return Err(Remaining(found));
            }
            if hunt.found().next().is_some() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
    }

    /// Signals the members that are in one process group.
    pub(crate) fn signal_group(&self, group: i32, signal: Signal) {
        for record in self.members().iter().filter(|record| record.group == group) {
            record.identity.signal(signal);
        }
    }

    fn members(&self) -> Vec<Record> {
        let mut hunt = Hunt::new(self);
        hunt.pass(|_| {});
        hunt.found().filter_map(Identity::record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::ancestors;
    use super::*;

    #[test]
    fn our_own_process_and_its_ancestors_are_never_members() {
        let first = Identity::of(1).unwrap();
        let scope = Scope {
            root: Some(first),
            ..Scope::default()
        };
        let own = std::process::id().cast_signed();
        let protected = ancestors(own);
        assert!(scope.members().iter().all(|record| {
            record.identity.pid != own && !protected.contains(&record.identity.pid)
        }));
    }
}
