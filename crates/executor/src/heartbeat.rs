//! What keeps a claim alive: plain heartbeats at every third of the lease, a held one beside them
//! that hears of a cancel at once, and the clock that ends the run before the lease does. Nothing
//! in here may wait for an agent, an upload or a busy worker thread.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use tapedeck_client::{Client, Error};
use tapedeck_protocol::executor::{HeartbeatRequest, HeartbeatResponse};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::held::{Held, Sent, Stop};
use crate::verdict::{Pauses, Verdict, told, within};

/// A held heartbeat that comes back sooner than this with no news was not held.
const HELD_AT_LEAST: Duration = Duration::from_millis(50);

/// For the answer of a held heartbeat after its wait.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Heartbeats of one claim.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    pub(crate) held: Arc<Held>,
    pub(crate) client: Client,
    pub(crate) instance_id: String,
    pub(crate) process_id: i64,
    /// The lease that was asked for, in seconds.
    pub(crate) lease_seconds: u32,
    /// How long the claim holds without an acknowledgement.
    pub(crate) short_lease: Duration,
}

impl Heartbeat {
    /// Goes on until `done`, the claim's loss or its lapse.
    pub(crate) async fn run(self, done: CancellationToken) {
        tokio::select! {
            biased;
            () = done.cancelled() => {}
            () = self.beat() => {}
        }
    }

    async fn beat(&self) {
        if !self.acknowledge().await {
            return;
        }
        tokio::select! {
            () = self.lapse() => {}
            () = self.renew() => {}
            () = async { self.listen().await; pending::<()>().await } => {}
        }
    }

    /// The first heartbeat. Without an answer in time the server offers the run to others.
    async fn acknowledge(&self) -> bool {
        let until = Instant::now() + self.short_lease;
        let mut pauses = Pauses::up_to(Duration::from_secs(1));
        loop {
            let limit = until.saturating_duration_since(Instant::now());
            let Err(error) = self.send(None, limit.min(ANSWER_LIMIT)).await else {
                return true;
            };
            let pause = match Verdict::of(&error) {
                Verdict::Retry { after } => pauses.next(after),
                Verdict::Lost | Verdict::Never => Duration::MAX,
            };
            if Instant::now()
                .checked_add(pause)
                .is_none_or(|then| then >= until)
            {
                let text = format!("the claim could not be acknowledged: {}", told(&error));
                self.held.stop(Stop::Lost(text));
                return false;
            }
            sleep(pause).await;
        }
    }

    /// Plain heartbeats; returns when the claim is lost.
    async fn renew(&self) {
        let third = || self.held.lease_length() / 3;
        let mut pauses = Pauses::up_to(third() / 40);
        let mut next = Instant::now() + third();
        let mut failing = false;
        loop {
            sleep_until(next).await;
            let sent = Instant::now();
            match self.send(None, third().min(ANSWER_LIMIT)).await {
                Ok(_) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!(run.id = %self.held.run_id, "heartbeats are answered again");
                    }
                    pauses.reset();
                    next = sent + third();
                }
                Err(error) if self.lost(&error) => return,
                Err(error) => {
                    // One line for an outage, however many tries it takes.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(run.id = %self.held.run_id, error = told(&error), "heartbeats fail; trying again");
                    }
                    // A server that asks for patience is not asked to let the lease end.
                    next = Instant::now() + pauses.next(None);
                }
            }
        }
    }

    /// Held heartbeats; returns when a cancel is known or the claim is lost.
    async fn listen(&self) {
        let wait = (self.lease_seconds / 3).clamp(1, 60);
        let limit = Duration::from_secs(wait.into()) + ANSWER_LIMIT;
        let mut pauses = Pauses::up_to(Duration::from_secs(5));
        let mut hurried = 0_u32;
        loop {
            let sent = Instant::now();
            match self.send(Some(wait), limit).await {
                Ok(answer) if answer.cancel_requested => {
                    // The cancel may have shortened the lease; a fresh answer says by how much.
                    let fresh = self.send(None, ANSWER_LIMIT).await;
                    if let Err(error) = fresh {
                        self.lost(&error);
                    }
                    return;
                }
                Ok(_) => {
                    pauses.reset();
                    // It returns early for an answer to a question; a server that doesn't hold at
                    // all is asked less and less often.
                    if sent.elapsed() >= HELD_AT_LEAST {
                        hurried = 0;
                    } else {
                        sleep(HELD_AT_LEAST * 2_u32.pow(hurried.min(5))).await;
                        hurried += 1;
                    }
                }
                Err(error) if self.lost(&error) => return,
                Err(error) => {
                    let after = match Verdict::of(&error) {
                        Verdict::Retry { after } => after,
                        Verdict::Lost | Verdict::Never => None,
                    };
                    sleep(pauses.next(after)).await;
                }
            }
        }
    }

    /// Returns once the lease has not been renewed in time.
    async fn lapse(&self) {
        let mut deadline = self.held.deadline();
        loop {
            let until = *deadline.borrow_and_update();
            if until <= Instant::now() {
                self.held.stop(Stop::Lapsed);
                return;
            }
            tokio::select! {
                () = sleep_until(until) => {}
                _ = deadline.changed() => {}
            }
        }
    }

    async fn send(
        &self,
        wait_seconds: Option<u32>,
        limit: Duration,
    ) -> Result<HeartbeatResponse, Error> {
        let request = HeartbeatRequest {
            executor_id: Some(self.held.executor_id.clone()),
            claim_token: Some(self.held.token.expose().to_owned()),
            wait_seconds,
            worker_instance_id: Some(self.instance_id.clone()),
            process_id: Some(self.process_id),
            ..HeartbeatRequest::default()
        };
        let sent = Sent::now();
        let answer = within(limit, self.client.heartbeat(self.held.run_id, &request)).await?;
        let ttl = Duration::from_millis(u64::try_from(answer.lease_ttl_ms).unwrap_or(0));
        self.held.renewed(sent, ttl, answer.cancel_requested);
        Ok(answer)
    }

    fn lost(&self, error: &Error) -> bool {
        let lost = Verdict::of(error) == Verdict::Lost;
        if lost {
            self.held.stop(Stop::Lost(told(error)));
        }
        lost
    }
}

/// A thread of its own for the heartbeats of all runs: blocked or busy workers elsewhere don't
/// delay them. Whatever sends from it must keep its connections to it.
#[derive(Debug)]
pub(crate) struct HeartbeatThread {
    handle: Handle,
    end: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl HeartbeatThread {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let end = CancellationToken::new();
        let ended = end.clone();
        let (made, handle) = channel();
        // The runtime is made where it may end: one in an asynchronous place must not be dropped.
        let thread = std::thread::Builder::new()
            .name("heartbeats".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let handle = runtime.as_ref().map(|runtime| runtime.handle().clone());
                // Only a start that panics does not wait for it.
                let _ = made.send(handle.map_err(|error| io::Error::from(error.kind())));
                if let Ok(runtime) = runtime {
                    runtime.block_on(ended.cancelled());
                }
            })?;
        let handle = handle.recv().map_err(io::Error::other)??;
        Ok(Self {
            handle,
            end,
            thread: Some(thread),
        })
    }

    /// Where heartbeats are spawned.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for HeartbeatThread {
    fn drop(&mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take() {
            // It only panics if a heartbeat does, which is logged where it happens.
            drop(thread.join());
        }
    }
}
