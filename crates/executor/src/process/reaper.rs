//! The end of dead children. A subreaper inherits what its descendants leave behind, and nobody else
//! can take these from the process table. It owns which children are somebody's to wait for; it must
//! never take the end of one of those.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::io;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpgrp, getsid};
use parking_lot::Mutex;
use tokio::process::{Child, Command};
use tokio::time::{MissedTickBehavior, interval};

use super::record::{Identity, Record, State, children_of};

/// How often an executor looks at its dead children.
const EVERY: Duration = Duration::from_secs(1);

/// Whoever waits for a child does so long before.
const UNWANTED_AFTER: Duration = Duration::from_secs(2);

/// Children that are waited for. It is held while one starts and while the dead are reaped, so that
/// none is taken before it is entered.
static AWAITED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// As long as this lives, nobody reaps the child but who waits for it.
#[derive(Debug)]
pub(crate) struct Awaited(i32);

impl Awaited {
    /// Starts a child whose end is waited for.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<(Child, Self)> {
        let mut awaited = AWAITED.lock();
        let child = command.spawn()?;
        let pid = child.id().unwrap_or_default().cast_signed();
        awaited.insert(pid);
        Ok((child, Self(pid)))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        AWAITED.lock().remove(&self.0);
    }
}

/// Reaps our dead children that nobody waits for, of those that `is_meant`.
fn reap(children: impl IntoIterator<Item = i32>, mut is_meant: impl FnMut(&Record) -> bool) {
    let own = std::process::id().cast_signed();
    let awaited = AWAITED.lock();
    for pid in children {
        let dead = Record::of(pid)
            .filter(|record| record.state == State::Zombie && record.parent == own)
            .filter(|record| !awaited.contains(&pid) && is_meant(record));
        if dead.is_some() {
            // Losing the race against another waiter is no harm.
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// Reaps those of these processes that are dead and have become our children.
pub(super) fn reap_these(dead: &[Identity]) {
    let pids = dead.iter().map(|identity| identity.pid);
    reap(pids, |record| dead.contains(&record.identity));
}

/// Reaps all that is dead. Only for a process whose own children are all [`Awaited`].
pub(crate) fn reap_orphans() {
    reap(children_of(std::process::id().cast_signed()), |_| true);
}

/// The same, once nobody waits for any child. `false` if one lives: what the system itself says of
/// this can't be outrun by a process that goes on in ever new ones.
pub(crate) fn reap_all() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(nix::sys::wait::WaitStatus::StillAlive) => return false,
            Err(Errno::ECHILD) => return true,
            // Of an end that has no name here, too, nothing is left.
            Ok(_) | Err(_) => {}
        }
    }
}

/// Reaps what this process has inherited, as long as it is polled.
pub(crate) async fn keep_reaping() -> Infallible {
    let mut strays = Strays::default();
    let mut every = interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        strays.reap(UNWANTED_AFTER);
    }
}

/// Dead children of a process that has others of its own, which it waits for.
#[derive(Debug, Default)]
struct Strays {
    since: HashMap<Identity, Instant>,
}

impl Strays {
    /// Reaps the inherited that have been dead for a while.
    fn reap(&mut self, unwanted_after: Duration) {
        let now = Instant::now();
        let mut seen = HashMap::new();
        reap(children_of(std::process::id().cast_signed()), |record| {
            if !is_inherited(record) {
                return false;
            }
            let since = self.since.get(&record.identity).copied().unwrap_or(now);
            seen.insert(record.identity, since);
            now.duration_since(since) >= unwanted_after
        });
        self.since = seen;
    }
}

/// What we start is in our session, and in our group or the leader of one. Guards lead a session, but
/// they are awaited.
fn is_inherited(record: &Record) -> bool {
    let is_elsewhere = getsid(None).is_ok_and(|own| own.as_raw() != record.session);
    let follows_another = record.group != record.identity.pid && record.group != getpgrp().as_raw();
    is_elsewhere || follows_another
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// Dead, with nobody who has waited for it.
    fn is_zombie(pid: i32) -> bool {
        Record::of(pid).is_some_and(|record| record.state == State::Zombie)
    }

    fn until(what: &str, condition: impl Fn() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn only_the_inherited_are_reaped_and_only_after_a_while() {
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        // Its child is ours as soon as it has ended itself.
        let script = "setsid sleep 0.1 </dev/null >/dev/null 2>&1 & echo $!";
        let mut parent = std::process::Command::new("sh");
        parent.args(["-c", script]).stderr(Stdio::null());
        let output = parent.output().unwrap();
        let orphan: i32 = String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let mut own = std::process::Command::new("true").spawn().unwrap();
        let pid = own.id().cast_signed();
        until("both are dead", || is_zombie(orphan) && is_zombie(pid));

        let mut strays = Strays::default();
        strays.reap(Duration::from_mins(1));
        assert!(is_zombie(orphan), "somebody may still wait for it");
        strays.reap(Duration::ZERO);
        assert!(!is_zombie(orphan));
        assert!(own.wait().unwrap().success());
    }

    #[tokio::test]
    async fn a_child_that_is_waited_for_is_never_reaped_by_others() {
        let (mut child, awaited) = Awaited::spawn(Command::new("setsid").arg("true")).unwrap();
        let pid = awaited.pid();
        until("it is dead", || is_zombie(pid));
        Strays::default().reap(Duration::ZERO);
        reap_these(&[Identity::of(pid).unwrap()]);
        assert!(is_zombie(pid));
        assert!(child.wait().await.unwrap().success());
    }
}
