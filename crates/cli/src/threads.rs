//! Whether this process gets the threads that it needs. The runtime panics or waits for ever where the
//! system refuses it one, so the system is asked before.

use std::num::NonZero;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{io, thread};

use anyhow::Context as _;

/// Besides the workers: the heartbeats' thread, what resolves its names, and some for files.
const BESIDE: usize = 4;

/// For threads to go that are not needed any more.
const GONE_LIMIT: Duration = Duration::from_millis(200);

/// Fails if a runtime could not start its threads now.
pub(crate) fn check() -> anyhow::Result<()> {
    let before = count();
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    hold(workers + BESIDE).context("no threads can be started")?;
    // A thread counts a little longer than somebody can wait for it.
    let begun = Instant::now();
    while count() > before && begun.elapsed() < GONE_LIMIT {
        thread::yield_now();
    }
    Ok(())
}

/// Starts threads that live at the same time, and ends them.
fn hold(threads: usize) -> io::Result<()> {
    let until_all_live = Mutex::new(());
    thread::scope(|scope| {
        // A poisoned lock ends them as well.
        let held = until_all_live.lock();
        let started = (0..threads).try_for_each(|_| {
            let wait = || drop(until_all_live.lock());
            thread::Builder::new().spawn_scoped(scope, wait).map(drop)
        });
        drop(held);
        started
    })
}

/// How many threads this process has.
fn count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_gets_threads_may_start() {
        check().unwrap();
    }
}
