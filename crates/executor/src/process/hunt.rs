//! The search for the processes of a scope, pass after pass. It owns what earlier passes have learnt,
//! which makes the later ones quick enough for processes that live for milliseconds; what is done to
//! those that are found is the caller's.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::record::{
    Carries, Identity, Record, State, all_pids, ancestors, carries, children_of, records_of,
};
use super::tree::{Mark, Scope};

/// How long a number is trusted to be that of the process that was looked at: far less than it takes
/// until all numbers have been given out.
const TRUST: Duration = Duration::from_millis(250);

/// How long a process may be without an environment until it counts as one that has none.
const BARE: Duration = Duration::from_millis(20);

/// For processes that don't stop at once. One that waits for a child to run its program stops after
/// the child, which is stopped itself.
const STOP_LIMIT: Duration = Duration::from_millis(300);

/// What a pass has come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    /// It found somebody that no pass before had found.
    pub(super) has_new: bool,
    /// Nobody got away who might have left a successor behind.
    pub(super) is_sure: bool,
}

#[derive(Debug)]
pub(super) struct Hunt<'a> {
    scope: &'a Scope,
    marks: Vec<Vec<u8>>,
    own: i32,
    protected: HashSet<i32>,
    found: HashMap<i32, Identity>,
    /// Looked at, and not meant.
    others: HashSet<i32>,
    trusted_since: Instant,
    /// Dead ones that were met.
    dead: HashSet<Identity>,
    bare: HashMap<Identity, Instant>,
}

impl<'a> Hunt<'a> {
    pub(super) fn new(scope: &'a Scope) -> Self {
        let own = std::process::id().cast_signed();
        Self {
            scope,
            marks: scope.marks.iter().map(Mark::bytes).collect(),
            own,
            protected: ancestors(own),
            found: HashMap::new(),
            others: HashSet::new(),
            trusted_since: Instant::now(),
            dead: HashSet::new(),
            bare: HashMap::new(),
        }
    }

    /// All that were found and are not known to be dead.
    pub(super) fn found(&self) -> impl Iterator<Item = Identity> + '_ {
        self.found.values().copied()
    }

    /// Looks once. Who is new is handed to `meet` at once: a little later it may have a successor.
    pub(super) fn pass(&mut self, meet: impl Fn(Identity)) -> Pass {
        if self.trusted_since.elapsed() >= TRUST {
            self.others.clear();
            self.protected = ancestors(self.own);
            self.trusted_since = Instant::now();
        }
        let mut pass = Pass {
            has_new: false,
            is_sure: true,
        };
        let root = self.scope.root.filter(|root| root.record().is_some());
        let above = root.iter().map(|root| root.pid);
        let above: Vec<i32> = above.chain(self.found.keys().copied()).collect();
        self.descend(above, &mut pass, &meet);
        if !self.marks.is_empty() {
            for pid in all_pids() {
                let is_root = root.is_some_and(|root| root.pid == pid);
                if !is_root && !self.others.contains(&pid) && self.is_marked(pid, &mut pass, &meet)
                {
                    self.descend(vec![pid], &mut pass, &meet);
                }
            }
        }
        pass
    }

    /// Everybody below these.
    fn descend(&mut self, mut above: Vec<i32>, pass: &mut Pass, meet: &impl Fn(Identity)) {
        while let Some(pid) = above.pop() {
            for child in children_of(pid) {
                if self.may_be_new(child)
                    && let Some(record) = self.living(child, pass)
                {
                    self.add(record.identity, pass, meet);
                    above.push(child);
                }
            }
        }
    }

    fn is_marked(&mut self, pid: i32, pass: &mut Pass, meet: &impl Fn(Identity)) -> bool {
        // The identity is read before the mark, so that the mark is never that of another.
        if !self.may_be_new(pid) {
            return false;
        }
        let Some(record) = self.living(pid, pass) else {
            return false;
        };
        match carries(pid, &self.marks) {
            Carries::Yes => {
                self.add(record.identity, pass, meet);
                return true;
            }
            Carries::Unclear if self.is_undecided(&record) => pass.is_sure = false,
            Carries::Unclear | Carries::No => drop(self.others.insert(pid)),
        }
        false
    }

    fn may_be_new(&self, pid: i32) -> bool {
        pid != self.own && !self.protected.contains(&pid) && !self.found.contains_key(&pid)
    }

    /// Whoever ended before it was looked at may have left a successor where we have looked already.
    fn living(&mut self, pid: i32, pass: &mut Pass) -> Option<Record> {
        let record = Record::of(pid);
        match record {
            None => pass.is_sure = false,
            Some(record) if record.state == State::Zombie => {
                pass.is_sure &= !self.dead.insert(record.identity);
                self.others.insert(pid);
            }
            Some(_) => return record,
        }
        None
    }

    fn is_undecided(&mut self, record: &Record) -> bool {
        let now = Instant::now();
        let since = *self.bare.entry(record.identity).or_insert(now);
        !record.is_of_kernel && now.duration_since(since) < BARE
    }

    fn add(&mut self, identity: Identity, pass: &mut Pass, meet: &impl Fn(Identity)) {
        meet(identity);
        self.found.insert(identity.pid, identity);
        pass.has_new = true;
    }

    /// Stops all, until a pass finds nobody new and all stand still: who stands still has no
    /// successors. The result says whether nobody can have got away.
    pub(super) fn stop_all(&mut self) -> bool {
        let until = Instant::now() + STOP_LIMIT;
        loop {
            let pass = self.pass(|found| found.signal(Signal::SIGSTOP));
            if !pass.has_new {
                if self.stand_still() {
                    return pass.is_sure;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }

    fn stand_still(&self) -> bool {
        self.found().all(|found| {
            found
                .record()
                .is_none_or(|record| record.state != State::Running)
        })
    }

    pub(super) fn signal_all(&self, signal: Signal) {
        for found in self.found() {
            found.signal(signal);
        }
    }

    /// Takes out those that have died.
    pub(super) fn take_dead(&mut self) -> Vec<Identity> {
        let records = records_of(self.found.keys().copied());
        let lives = |identity: &Identity| {
            records
                .get(&identity.pid)
                .is_some_and(|record| record.identity == *identity && record.state != State::Zombie)
        };
        let dead = self.found.extract_if(|_, identity| !lives(identity));
        let dead: Vec<Identity> = dead.map(|(_, identity)| identity).collect();
        self.dead.extend(&dead);
        dead
    }
}
