//! The tape as it should be: whole entries made of a session's log, those of an executor that sends
//! its own, and what restores have put aside.

use std::collections::BTreeSet;

use super::expected::Ev;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    position: u64,
    pub(super) kind: &'static str,
    run: Option<usize>,
    /// Sent by the executor.
    own: bool,
    /// Copied from another session.
    inherited: bool,
    gone: bool,
}

#[derive(Debug, Clone)]
struct OpenCall {
    call: u8,
    run: Option<usize>,
    answered: bool,
    ended: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Tape {
    seen: usize,
    pub(super) position: u64,
    entries: Vec<Entry>,
    /// The run whose message is still growing.
    text: Option<usize>,
    calls: Vec<OpenCall>,
    /// Calls of the present attempt that have their entry: nothing of them makes another.
    closed: BTreeSet<u8>,
    /// Runs whose executors send their own entries.
    left_to_executor: BTreeSet<usize>,
}

impl Tape {
    pub(super) fn active(&self) -> Vec<&'static str> {
        let active = self.entries.iter().filter(|entry| !entry.gone);
        active.map(|entry| entry.kind).collect()
    }

    fn push(&mut self, kind: &'static str, run: Option<usize>, own: bool) {
        self.position += 1;
        self.entries.push(Entry {
            position: self.position,
            kind,
            run,
            own,
            inherited: false,
            gone: false,
        });
    }

    pub(super) fn catch_up(&mut self, log: &[Ev]) {
        for ev in &log[self.seen..] {
            self.take(ev);
        }
        self.seen = log.len();
    }

    fn take(&mut self, ev: &Ev) {
        match (ev.kind, ev.call) {
            ("RunRequested", _) => {
                self.close_text();
                self.closed.clear();
                self.push("user_message", ev.run, false);
            }
            ("TurnEnd", _) => {
                self.close_run(ev.run);
                ev.run.map(|run| self.left_to_executor.remove(&run));
                if !ev.never {
                    self.push("run_end", ev.run, false);
                }
            }
            ("RunLeaseExpired" | "RunReleased", _) => {
                self.close_run(ev.run);
                self.closed.clear();
                ev.run.map(|run| self.left_to_executor.remove(&run));
            }
            _ if ev
                .run
                .is_some_and(|run| self.left_to_executor.contains(&run)) => {}
            ("StreamDelta", _) => {
                if self.text != ev.run {
                    self.close_text();
                    self.close_calls(|open| open.ended);
                }
                self.text = ev.run;
            }
            ("ToolCallDelta", Some(call)) => {
                self.close_text();
                self.open(call, ev.run);
            }
            ("ToolResultDelta", Some(call)) => {
                self.open(call, ev.run);
                for open in self.calls.iter_mut().filter(|open| open.call == call) {
                    open.answered = true;
                }
            }
            ("ToolCallEnd", Some(call)) => {
                self.close_text();
                for open in self.calls.iter_mut().filter(|open| open.call == call) {
                    open.ended = true;
                }
                self.close_calls(|open| open.call == call && open.answered);
            }
            ("Plan", _) => {
                self.close_text();
                self.close_calls(|open| open.ended);
                self.push("plan", ev.run, false);
            }
            _ => {}
        }
    }

    fn open(&mut self, call: u8, run: Option<usize>) {
        if !self.calls.iter().any(|open| open.call == call) && !self.closed.contains(&call) {
            self.calls.push(OpenCall {
                call,
                run,
                answered: false,
                ended: false,
            });
        }
    }

    fn close_text(&mut self) {
        if let Some(run) = self.text.take() {
            self.push("assistant_message", Some(run), false);
        }
    }

    fn close_calls(&mut self, which: impl Fn(&OpenCall) -> bool) {
        let calls = std::mem::take(&mut self.calls);
        let (closed, open): (Vec<_>, Vec<_>) = calls.into_iter().partition(|open| which(open));
        self.calls = open;
        for open in closed {
            self.closed.insert(open.call);
            self.push("tool_call", open.run, false);
        }
    }

    fn close_run(&mut self, run: Option<usize>) {
        if self.text == run {
            self.close_text();
        }
        self.close_calls(|open| open.run == run);
    }

    pub(super) fn write_anchor(&mut self, run: usize) {
        self.push("anchor", Some(run), false);
    }

    /// An entry of the executor's own; from the first one on its uploads count for nothing.
    pub(super) fn write_own(&mut self, run: usize) {
        self.leave_to_executor(run);
        self.push("assistant_message", Some(run), true);
    }

    /// Entries that are stored already say as much as new ones.
    pub(super) fn leave_to_executor(&mut self, run: usize) {
        if self.left_to_executor.insert(run) {
            if self.text == Some(run) {
                self.text = None;
            }
            self.calls.retain(|open| open.run != Some(run));
            let replaced = ["assistant_message", "tool_call", "plan"];
            for entry in &mut self.entries {
                entry.gone |= entry.run == Some(run)
                    && !entry.own
                    && !entry.inherited
                    && replaced.contains(&entry.kind);
            }
        }
    }

    pub(super) fn supersede(&mut self, after: u64) {
        for entry in &mut self.entries {
            entry.gone |= entry.position > after;
        }
    }

    /// Where the newest run ends that has settled.
    pub(super) fn settled_position(&self) -> u64 {
        let ends = |entry: &&Entry| !entry.gone && entry.kind == "run_end";
        let ends = || self.entries.iter().rev().filter(ends);
        let own = ends().find(|entry| !entry.inherited);
        own.or_else(|| ends().next())
            .map_or(0, |entry| entry.position)
    }

    /// The tape of a fork that begins here.
    pub(super) fn copied(&self, through: u64) -> Self {
        let kept = self.entries.iter();
        let kept = kept.filter(|entry| !entry.gone && entry.position <= through);
        let copy = |entry: &Entry| Entry {
            inherited: true,
            own: false,
            ..entry.clone()
        };
        Self {
            position: through,
            entries: kept.map(copy).collect(),
            ..Self::default()
        }
    }
}
