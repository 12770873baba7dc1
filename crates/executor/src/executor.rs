//! The executor itself: claims while there is a free slot, one task a run, and the way out. It owns
//! the tasks of its runs; it must never return while one of them still has an agent.

use std::sync::Arc;
use std::time::Duration;

use tapedeck_protocol::executor::LeaveRequest;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::claim::{Claims, Step};
use crate::config::{ExecutorError, Options};
use crate::heartbeat::HeartbeatThread;
use crate::instance::Instance;
use crate::process::reaper::keep_reaping;
use crate::recovery::report_runs;
use crate::run::{Ended, Shared, execute};
use crate::upkeep::keep_tidy;
use crate::verdict::{single_tries, told, within};
use crate::workspace::Workspaces;

/// For the agents' end and the hand-back after the grace period.
const HAND_BACK_LIMIT: Duration = Duration::from_secs(20);

/// For the server to hear that the executor ends; without that it finds out by the silence.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// How an executor is told to end.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Take no new runs, let the present ones finish within the grace period.
    pub drain: CancellationToken,
    /// Hand runs back now.
    pub now: CancellationToken,
}

/// What became of the runs that were under way when the shutdown began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Finished in time.
    pub settled: usize,
    /// Released or interrupted.
    pub handed_back: usize,
    /// No longer ours, or the server did not answer in time.
    pub lost: usize,
}

/// Claims runs and executes them.
#[derive(Debug)]
pub struct Executor {
    options: Options,
    workspaces: Workspaces,
}

type Runs = JoinSet<Ended>;

impl Executor {
    /// Checks the options. Nothing is started or sent before [`Self::run`].
    pub fn new(options: Options) -> Result<Self, ExecutorError> {
        options.check()?;
        let (roots, git) = (&options.workspace_roots, options.git.clone());
        let workspaces = Workspaces::new(roots, &options.state_dir, git)?;
        Ok(Self {
            options,
            workspaces,
        })
    }

    /// Works until it is told to end. An error means that the server will never take its claims;
    /// runs that were under way have ended then, too.
    pub async fn run(self, shutdown: Shutdown) -> Result<Drained, ExecutorError> {
        let thread = HeartbeatThread::start().map_err(ExecutorError::Thread)?;
        let heartbeats = thread.handle().clone();
        self.run_with(heartbeats, shutdown).await
    }

    /// Works with the heartbeats on a runtime of the caller's.
    pub(crate) async fn run_with(
        self,
        heartbeats: tokio::runtime::Handle,
        shutdown: Shutdown,
    ) -> Result<Drained, ExecutorError> {
        let Self {
            options,
            workspaces,
        } = self;
        let entered = Instance::enter(&options.state_dir, &options.instance_id).await;
        let (instance, dead) = entered.map_err(|source| ExecutorError::State {
            path: options.state_dir.clone(),
            source,
        })?;
        let shared = Arc::new(Shared {
            client: single_tries(options.client.clone()),
            heartbeat_client: single_tries(options.heartbeat_client.clone()),
            workspaces,
            spool_folder: instance.spool_folder().to_owned(),
            heartbeats,
            hand_back: CancellationToken::new(),
            deployment: OnceCell::new(),
            options,
        });
        let mut background = JoinSet::new();
        // Guards bury what is theirs; what a killed one left is ours.
        background.spawn(async { match keep_reaping().await {} });
        for dead in dead {
            background.spawn(report_runs(dead, shared.client.clone()));
        }
        let mut runs = Runs::new();
        let claimed = tokio::select! {
            biased;
            () = shutdown.now.cancelled() => Ok(()),
            () = shutdown.drain.cancelled() => Ok(()),
            refused = claim_runs(&shared, &mut runs) => Err(refused),
            never = keep_tidy(&shared.client, &shared.workspaces, shared.options.git.check_every) => {
                match never {}
            }
        };
        // What rests for a next run has none to come; what still runs will not stay.
        let backends = Arc::clone(&shared.options.backends);
        let (drained, ()) = tokio::join!(drain(&shared, runs, &shutdown.now), backends.close());
        claimed?;
        leave(&shared).await;
        Ok(drained)
    }
}

/// Claims as long as there are free slots; returns only if the server refuses.
async fn claim_runs(shared: &Arc<Shared>, runs: &mut Runs) -> ExecutorError {
    let mut claims = Claims::new(shared.client.clone(), shared.options.claim_request());
    let slots = Arc::new(Semaphore::new(shared.options.max_runs as usize));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return ExecutorError::Refused("the slots are closed".to_owned());
        };
        while let Some(ended) = runs.try_join_next() {
            note_fault(&ended);
        }
        match claims.step().await {
            Step::Claimed(claim) => {
                let shared = Arc::clone(shared);
                runs.spawn(async move {
                    let ended = execute(shared, *claim).await;
                    drop(slot);
                    ended
                });
            }
            Step::Idle => {}
            Step::Away(pause) => sleep(pause).await,
            Step::Refused(text) => return ExecutorError::Refused(text),
        }
    }
}

/// Lets runs finish for a while, then has them handed back.
async fn drain(shared: &Shared, mut runs: Runs, now: &CancellationToken) -> Drained {
    while let Some(ended) = runs.try_join_next() {
        note_fault(&ended);
    }
    let under_way = runs.len();
    if under_way > 0 {
        // A run that is queued behind one of these must not wait for who takes none.
        leave(shared).await;
        let grace_seconds = shared.options.drain_grace.as_secs();
        tracing::info!(
            runs = under_way,
            grace_seconds,
            "waiting for runs to finish"
        );
    }
    let mut drained = Drained::default();
    tokio::select! {
        () = collect(&mut runs, &mut drained) => {}
        () = sleep(shared.options.drain_grace) => {}
        () = now.cancelled() => {}
    }
    shared.hand_back.cancel();
    if timeout(HAND_BACK_LIMIT, collect(&mut runs, &mut drained))
        .await
        .is_err()
    {
        tracing::warn!(runs = runs.len(), "runs could not be handed back in time");
        runs.shutdown().await;
    }
    drained.lost = under_way - drained.settled - drained.handed_back;
    drained
}

/// Says that no claim of this process comes any more.
async fn leave(shared: &Shared) {
    let request = LeaveRequest {
        executor_id: Some(shared.options.executor_id.clone()),
        worker_instance_id: Some(shared.options.instance_id.clone()),
        ..LeaveRequest::default()
    };
    if let Err(error) = within(LEAVE_LIMIT, shared.client.leave(&request)).await {
        tracing::debug!(
            error = told(&error),
            "the server doesn't know that the executor leaves"
        );
    }
}

async fn collect(runs: &mut Runs, drained: &mut Drained) {
    while let Some(ended) = runs.join_next().await {
        note_fault(&ended);
        match ended {
            Ok(Ended::Settled) => drained.settled += 1,
            Ok(Ended::HandedBack) => drained.handed_back += 1,
            Ok(Ended::Lost) | Err(_) => {}
        }
    }
}

fn note_fault(ended: &Result<Ended, JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a run's task failed; its lease will end the run");
    }
}
