//! The processes of an agent, found in `/proc` by descent and by the mark in their environment:
//! agents put tool commands in sessions of their own, so a process group is not enough. It owns
//! finding, signalling and reaping them; it must never signal a process that is neither marked nor
//! descended from one of ours. All functions block and belong on a blocking thread.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

use super::environment::{EXECUTOR_MARK, RUN_MARK};

/// A process, told apart from a later one with the same number by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    start: u64,
}

impl Identity {
    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        read_record(pid).map(|record| record.identity)
    }

    /// Signals this process if it still exists. The descriptor is opened before the start time is
    /// compared, so the number cannot pass to another process in between.
    pub(crate) fn signal(self, signal: Signal) {
        let Some(pid) = rustix::process::Pid::from_raw(self.pid) else {
            return;
        };
        let descriptor = pidfd_open(pid, PidfdFlags::empty());
        if Self::of(self.pid) != Some(self) {
            return;
        }
        match (
            descriptor,
            rustix::process::Signal::from_named_raw(signal as i32),
        ) {
            // A process that is gone needs no signal, and its parent may reap it at any moment.
            (Ok(descriptor), Some(named)) => drop(pidfd_send_signal(descriptor, named)),
            (Err(rustix::io::Errno::SRCH), _) => {}
            // Kernels without pid descriptors.
            (Ok(_) | Err(_), _) => drop(kill(Pid::from_raw(self.pid), signal)),
        }
    }
}

/// A mark in the environment of our processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mark {
    Run(String),
    Executor(String),
}

impl Mark {
    fn bytes(&self) -> Vec<u8> {
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
    /// A direct child that somebody else waits for, so it is not reaped here.
    pub(crate) awaited: Option<i32>,
}

/// Processes were still there after the time allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("processes {0:?} did not die")]
pub(crate) struct Remaining(pub(crate) Vec<i32>);

#[derive(Debug, Clone, Copy)]
struct Record {
    identity: Identity,
    parent: i32,
    group: i32,
    zombie: bool,
}

impl Scope {
    /// Kills again and again until no process is left, because a process may fork while the others
    /// are being killed.
    pub(crate) fn kill_all(&self, limit: Duration) -> Result<(), Remaining> {
        let begun = Instant::now();
        let mut killed = HashSet::new();
        let mut pause = Duration::from_millis(1);
        loop {
            let members = self.members();
            for record in &members {
                record.identity.signal(Signal::SIGKILL);
                killed.insert(record.identity);
            }
            self.reap(&killed);
            if members.is_empty() {
                return Ok(());
            }
            if begun.elapsed() >= limit {
                return Err(Remaining(
                    members.iter().map(|record| record.identity.pid).collect(),
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Signals the members that are in one process group.
    pub(crate) fn signal_group(&self, group: i32, signal: Signal) {
        for record in self.members().iter().filter(|record| record.group == group) {
            record.identity.signal(signal);
        }
    }

    fn members(&self) -> Vec<Record> {
        let records = all_records();
        let own = std::process::id().cast_signed();
        let protected = ancestors(own, &records);
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for record in records.values() {
            children
                .entry(record.parent)
                .or_default()
                .push(record.identity.pid);
        }
        let root = self
            .root
            .filter(|root| {
                records
                    .get(&root.pid)
                    .is_some_and(|found| found.identity == *root)
            })
            .map(|root| root.pid);
        let marks: Vec<_> = self.marks.iter().map(Mark::bytes).collect();
        let mut frontier: Vec<i32> = root.into_iter().collect();
        frontier.extend(records.keys().copied().filter(|pid| {
            *pid != own && !protected.contains(pid) && !marks.is_empty() && carries(*pid, &marks)
        }));
        let mut found = HashSet::new();
        while let Some(pid) = frontier.pop() {
            if found.insert(pid) {
                let below = children.get(&pid).into_iter().flatten().copied();
                frontier.extend(below.filter(|child| *child != own && !protected.contains(child)));
            }
        }
        found
            .into_iter()
            .filter(|pid| Some(*pid) != root)
            .filter_map(|pid| records.get(&pid).copied())
            .filter(|record| !record.zombie)
            .collect()
    }

    /// Orphans of the killed have become our children; the awaited one is left to its waiter.
    fn reap(&self, killed: &HashSet<Identity>) {
        let own = std::process::id().cast_signed();
        let root = self.root.map(|root| root.pid);
        for identity in killed {
            let pid = identity.pid;
            let ours = read_record(pid)
                .is_some_and(|now| now.identity == *identity && now.zombie && now.parent == own);
            if ours && Some(pid) != self.awaited && Some(pid) != root {
                // Losing the race against another waiter is no harm.
                let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            }
        }
    }
}

/// Reaps dead children that this process did not start but inherited as subreaper. Only for a
/// process whose own children are all named in `awaited`.
pub(crate) fn reap_adopted(awaited: i32) {
    let own = std::process::id().cast_signed();
    for record in all_records().values() {
        if record.zombie && record.parent == own && record.identity.pid != awaited {
            let _ = waitpid(
                Pid::from_raw(record.identity.pid),
                Some(WaitPidFlag::WNOHANG),
            );
        }
    }
}

fn ancestors(own: i32, records: &HashMap<i32, Record>) -> HashSet<i32> {
    let mut found = HashSet::new();
    let mut pid = own;
    while let Some(record) = records.get(&pid) {
        pid = record.parent;
        if !found.insert(pid) {
            break;
        }
    }
    found
}

fn all_records() -> HashMap<i32, Record> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return HashMap::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, read_record(pid)?)))
        .collect()
}

fn read_record(pid: i32) -> Option<Record> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(pid, &String::from_utf8_lossy(&stat))
}

/// The command's name stands in parentheses and may hold spaces and parentheses itself, so the
/// fields are counted from the last one.
fn parse_stat(pid: i32, stat: &str) -> Option<Record> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    Some(Record {
        identity: Identity {
            pid,
            start: fields.get(19)?.parse().ok()?,
        },
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
    })
}

fn carries(pid: i32, marks: &[Vec<u8>]) -> bool {
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
        environment
            .split(|byte| *byte == 0)
            .any(|pair| marks.iter().any(|mark| mark == pair))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c)) Z 3 5 6 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 9876 1 2";
        let record = parse_stat(7, stat).unwrap();
        assert_eq!(
            record.identity,
            Identity {
                pid: 7,
                start: 9876
            }
        );
        assert_eq!((record.parent, record.group, record.zombie), (3, 5, true));
    }

    #[test]
    fn our_own_process_and_its_ancestors_are_never_members() {
        let first = Identity::of(1).unwrap();
        let scope = Scope {
            root: Some(first),
            ..Scope::default()
        };
        let own = std::process::id().cast_signed();
        let protected = ancestors(own, &all_records());
        assert!(scope.members().iter().all(|record| {
            record.identity.pid != own && !protected.contains(&record.identity.pid)
        }));
    }

    #[test]
    fn a_process_with_another_start_time_is_not_signalled() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let real = Identity::of(child.id().cast_signed()).unwrap();
        Identity {
            start: real.start + 1,
            ..real
        }
        .signal(Signal::SIGKILL);
        assert_eq!(Identity::of(real.pid), Some(real));
        assert!(child.try_wait().unwrap().is_none());
        real.signal(Signal::SIGKILL);
        assert!(!child.wait().unwrap().success());
    }
}
