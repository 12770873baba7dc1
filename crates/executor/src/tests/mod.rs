//! Whole runs against the server in memory, with the clock under control.

mod changes;
mod claims;
mod outages;
mod restarts;
mod runs;
mod shutdown;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::backend::{Backend, Outcome, OutcomeStatus, TurnIo};
use crate::config::{EveryRun, ExecutorError, Options};
use crate::executor::{Drained, Executor, Shutdown};
use crate::testing::{FakeServer, claim, outcome};

const LEASE: Duration = Duration::from_mins(1);

struct Running {
    dir: tempfile::TempDir,
    server: FakeServer,
    shutdown: Shutdown,
    task: JoinHandle<Result<Drained, ExecutorError>>,
}

/// An executor with one run waiting for it; its heartbeats share the test's clock.
fn start(server: &FakeServer, agent: Arc<dyn Backend>) -> Running {
    start_with(server, agent, |_| {})
}

fn start_with(
    server: &FakeServer,
    agent: Arc<dyn Backend>,
    change: impl FnOnce(&mut Options),
) -> Running {
    server.offer(claim(1));
    start_idle(server, agent, change)
}

fn start_idle(
    server: &FakeServer,
    agent: Arc<dyn Backend>,
    change: impl FnOnce(&mut Options),
) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let backends = Arc::new(EveryRun(agent));
    let mut options = Options::new(server.client(), "box", dir.path(), backends);
    change(&mut options);
    let shutdown = Shutdown::default();
    let executor = Executor::new(options).unwrap();
    let run = executor.run_with(Handle::current(), shutdown.clone());
    Running {
        dir,
        server: server.clone(),
        shutdown,
        task: Handle::current().spawn(run),
    }
}

impl Running {
    /// Ends the executor, which is idle by then, and gives all that it sent.
    async fn stop(self) -> Drained {
        self.shutdown.drain.cancel();
        let drained = self.task.await.unwrap().unwrap();
        let spools = std::fs::read_dir(self.dir.path().join("spool")).unwrap();
        assert_eq!(spools.count(), 0, "nothing is left in the spool");
        drained
    }

    /// The contents of the recorded deltas, joined.
    fn text(&self) -> String {
        let deltas = self.server.events().into_iter();
        deltas
            .filter_map(|(_, event)| event["data"]["content"].as_str().map(str::to_owned))
            .collect()
    }
}

/// Works until it is stopped; says how.
async fn until_stopped(io: &TurnIo) -> Outcome {
    tokio::select! {
        biased;
        () = io.kill.cancelled() => {}
        () = io.cancel.cancelled() => {}
    }
    outcome(OutcomeStatus::Cancelled)
}

fn kinds(events: &[(String, Value)]) -> Vec<&str> {
    events
        .iter()
        .map(|(_, event)| event["event"].as_str().unwrap())
        .collect()
}
