//! What `/proc` says of one process. It owns reading that and telling a process from a later one with
//! the same number; what is to become of a process is not decided here.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::LazyLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

/// Of the kernel's own threads, which have no environment (`PF_KTHREAD`).
const KERNEL_FLAG: u64 = 0x0020_0000;

/// Kernels may be built without these lists.
static LISTS_CHILDREN: LazyLock<bool> =
    LazyLock::new(|| Path::new("/proc/thread-self/children").exists());

/// A process, told apart from a later one with the same number by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    start: u64,
}

impl Identity {
    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Record::of(pid).map(|record| record.identity)
    }

    /// What is known of it, if it still exists.
    pub(super) fn record(self) -> Option<Record> {
        Record::of(self.pid).filter(|record| record.identity == self)
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

/// How far a process is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// It can't do anything until it is continued or killed.
    Stopped,
    /// It waits to be reaped.
    Zombie,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) identity: Identity,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    pub(super) state: State,
    pub(super) is_of_kernel: bool,
}

impl Record {
    pub(super) fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &String::from_utf8_lossy(&stat))
    }

    /// The command's name stands in parentheses and may hold spaces and parentheses itself, so the
    /// fields are counted from the last one.
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let id = |at: usize| fields.get(at)?.parse::<i32>().ok();
        let state = match *fields.first()? {
            // A first thread that has ended leaves the others at work.
            "Z" | "X" if number(17)? <= 1 => State::Zombie,
            "T" | "t" => State::Stopped,
            _ => State::Running,
        };
        Some(Self {
            identity: Identity {
                pid,
                start: number(19)?,
            },
            parent: id(1)?,
            group: id(2)?,
            session: id(3)?,
            state,
            is_of_kernel: number(6)? & KERNEL_FLAG != 0,
        })
    }
}

/// The processes there are, the newest numbers first.
pub(super) fn all_pids() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<i32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids
}

/// The children of a process, the dead that nobody has reaped among them.
pub(super) fn children_of(pid: i32) -> Vec<i32> {
    if !*LISTS_CHILDREN {
        let of = |child: &i32| Record::of(*child).is_some_and(|record| record.parent == pid);
        return all_pids().into_iter().filter(of).collect();
    }
    // Each thread has those that it started itself.
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let mut children = Vec::new();
    for list in lists {
        children.extend(list.split_ascii_whitespace().filter_map(parsed));
    }
    children
}

fn parsed(number: &str) -> Option<i32> {
    number.parse().ok()
}

/// The processes above one, whatever their owner.
pub(super) fn ancestors(of: i32) -> HashSet<i32> {
    let mut found = HashSet::new();
    let mut pid = of;
    while let Some(record) = Record::of(pid) {
        pid = record.parent;
        if !found.insert(pid) {
            break;
        }
    }
    found
}

/// The records of some processes, without those that are gone.
pub(super) fn records_of(pids: impl IntoIterator<Item = i32>) -> HashMap<i32, Record> {
    let records = pids.into_iter().filter_map(Record::of);
    records
        .map(|record| (record.identity.pid, record))
        .collect()
}

/// What the environment of a process says of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carries {
    Yes,
    No,
    /// It is gone, or has no environment just now: it may be about to run another program.
    Unclear,
}

/// Whether a process carries one of these marks.
pub(super) fn carries(pid: i32, marks: &[Vec<u8>]) -> Carries {
    match std::fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) if environment.is_empty() => Carries::Unclear,
        Ok(environment) => {
            let mut pairs = environment.split(|byte| *byte == 0);
            if pairs.any(|pair| marks.iter().any(|mark| mark == pair)) {
                Carries::Yes
            } else {
                Carries::No
            }
        }
        // Another user's.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Carries::No,
        Err(_) => Carries::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c)) Z 3 5 6 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 9876 1 2";
        let record = Record::parse(7, stat).unwrap();
        let identity = Identity {
            pid: 7,
            start: 9876,
        };
        assert_eq!(record.identity, identity);
        assert_eq!((record.parent, record.group, record.session), (3, 5, 6));
        assert_eq!(record.state, State::Zombie);
        assert!(!record.is_of_kernel);
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_not_dead() {
        let stat = "7 (a) Z 3 5 6 0 -1 4 0 0 0 0 0 0 0 0 20 0 2 0 9876 1 2";
        assert_eq!(Record::parse(7, stat).unwrap().state, State::Running);
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

    #[test]
    fn children_are_listed_whichever_thread_started_them() {
        let started = std::thread::spawn(|| {
            let child = std::process::Command::new("sleep").arg("60").spawn();
            child.unwrap()
        });
        // The thread is gone, and its child another's.
        let mut child = started.join().unwrap();
        let own = std::process::id().cast_signed();
        assert!(children_of(own).contains(&child.id().cast_signed()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
