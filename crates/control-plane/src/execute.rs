//! Runs commands: the only caller of [`Store::transact`]. A command's transaction, its idempotency
//! key, and what its commit wakes are handled here and nowhere else.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use tapedeck_domain::idempotency::{self, IdempotencyKey};
use tapedeck_domain::owner::Authority;
use tapedeck_domain::{SessionId, Timing};
use tapedeck_store::{Failure, Lane, Store, StoreError, Tx, Work};

use crate::commands::mark_alive::{Alive, MarkAlive};
use crate::commands::project_tape::{ProjectTape, TapeOf};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::feed::{Effects, Feed, Hints};
use crate::ids::IdSource;
use crate::lifecycle::Lifecycle;

/// A command: a value that is applied inside one transaction. It may be applied again after a
/// failure of the store, so it has no effect outside the context.
#[async_trait]
pub(crate) trait Command: sealed::Listed + Debug + Send + Sync + 'static {
    /// What it gives.
    type Output: Send + 'static;

    /// Which queue it waits in.
    const LANE: Lane;

    /// The session whose order it keeps, where it is known beforehand.
    fn session(&self) -> Option<SessionId> {
        None
    }

    /// The key under which its result is stored (rules R17).
    fn idempotency(&self) -> Option<&IdempotencyKey> {
        None
    }

    /// The result as it is stored: identifiers and status.
    fn stored(&self, _output: &Self::Output) -> Value {
        Value::Null
    }

    /// The output that a stored result stands for; `None` if it is unreadable.
    fn restored(&self, _stored: &Value) -> Option<Self::Output> {
        None
    }

    /// Rough size of what it writes, in bytes.
    fn weight(&self) -> usize {
        512
    }

    /// Loads, lets the domain decide, writes.
    async fn apply(&self, context: &mut Context<'_>) -> Result<Self::Output, Failure>;
}

/// Only commands in the one list (`commands/mod.rs`) can be run, so that every one is under the
/// tests that walk the list.
pub(crate) mod sealed {
    /// Implemented by the list's macro.
    pub(crate) trait Listed {
        /// The command's name in the list.
        const NAME: &'static str;
    }
}

/// What commands share.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) feed: Feed,
    pub(crate) authority: Authority,
    pub(crate) timing: Timing,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) hints: Hints,
    /// The lease clock at the last sign of life of this deployment, as far as this process knows;
    /// `i64::MIN` before the first (rules R6).
    pub(crate) alive_at: AtomicI64,
}

impl Executor {
    /// Runs a command and publishes what it changed after its commit, even if the caller goes away
    /// meanwhile.
    pub(crate) async fn execute<C: Command>(self: &Arc<Self>, command: C) -> Outcome<C::Output> {
        self.note_outage().await?;
        let this = Arc::clone(self);
        let task = self
            .lifecycle
            .spawn(async move { this.transact(command).await });
        match task.await {
            Ok(outcome) => outcome,
            Err(error) => Err(Error::Store(StoreError::Internal(Box::new(error)))),
        }
    }

    /// Before any command that comes after a gap in which nobody could renew, the gap is credited
    /// to the leases that were live (rules R6).
    async fn note_outage(self: &Arc<Self>) -> Outcome<()> {
        let now = self.store.reader().now().await?.lease.0;
        if now.saturating_sub(self.alive_at.load(Ordering::Acquire)) > 2 * self.timing.sweep_ms {
            self.mark_alive().await?;
        }
        Ok(())
    }

    /// Marks the deployment alive, and says so where that credits an outage.
    pub(crate) async fn mark_alive(self: &Arc<Self>) -> Outcome<Alive> {
        let this = Arc::clone(self);
        let task = self
            .lifecycle
            .spawn(async move { this.transact(MarkAlive).await });
        let alive = task
            .await
            .map_err(|error| StoreError::Internal(Box::new(error)))??;
        if alive.credited_ms != 0 {
            tracing::info!(
                gap_ms = alive.credited_ms,
                claims = alive.claims,
                "sweep.outage_credited"
            );
        }
        Ok(alive)
    }

    async fn transact<C: Command>(self: &Arc<Self>, command: C) -> Outcome<C::Output> {
        let session = command.session();
        tracing::trace!(command = <C as sealed::Listed>::NAME, "command.execute");
        let slot = Arc::new(Mutex::new(None));
        let job = Job {
            command,
            executor: Arc::clone(self),
            slot: Arc::clone(&slot),
        };
        self.store.transact(C::LANE, session, Box::new(job)).await?;
        let done = slot.lock().take();
        let Some((output, effects)) = done else {
            return Err(Error::Store(StoreError::Internal(
                "the command left no output".into(),
            )));
        };
        self.publish(effects);
        Ok(output)
    }

    fn publish(self: &Arc<Self>, effects: Effects) {
        if let Some(alive_at) = effects.alive_at {
            self.alive_at.fetch_max(alive_at.0, Ordering::AcqRel);
        }
        for later in &effects.queue_later {
            let (this, key, delay) = (Arc::clone(self), later.key.clone(), later.delay);
            self.lifecycle.spawn(async move {
                tokio::select! {
                    () = tokio::time::sleep(delay) => this.feed.queue_moved(&key),
                    () = this.lifecycle.soft().cancelled() => return,
                }
                if this.hints == Hints::Sent {
                    this.store.announce(vec![key.hint()]);
                }
            });
        }
        for (namespace, session_id) in &effects.project {
            let step = ProjectTape {
                target: TapeOf::Session(namespace.clone(), *session_id),
            };
            self.lifecycle.spawn(Arc::clone(self).catch_up(step));
        }
        if self.hints == Hints::Dropped {
            return;
        }
        self.store.announce(effects.hints());
        self.feed.publish(effects);
    }

    /// Moves a tape that a settle left behind, step by step. Whoever needs it caught up sooner does
    /// the same (rules R19), so a failure here only delays.
    fn catch_up(self: Arc<Self>, step: ProjectTape) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            while !self.lifecycle.is_draining() {
                match self.transact(step.clone()).await {
                    Ok(false) => {}
                    Ok(true) => return,
                    Err(error) => {
                        tracing::warn!(%error, target = ?step.target, "tape.catch_up_failed");
                        return;
                    }
                }
            }
        })
    }
}

/// A command on its way through the store.
struct Job<C: Command> {
    command: C,
    executor: Arc<Executor>,
    slot: Slot<C::Output>,
}

/// Where a command's output waits until its commit has returned.
type Slot<T> = Arc<Mutex<Option<(T, Effects)>>>;

#[async_trait]
impl<C: Command> Work for Job<C> {
    async fn run(&mut self, tx: &mut dyn Tx) -> Result<(), Failure> {
        *self.slot.lock() = None;
        let mut context = Context::new(tx, &self.executor);
        if let Some(key) = self.command.idempotency()
            && let Some(stored) = context.tx.stored_result(key).await?
        {
            let result = idempotency::replay(key, stored)?;
            let output =
                self.command
                    .restored(&result)
                    .ok_or_else(|| StoreError::Inconsistent {
                        table: "idempotency_keys",
                        column: "result",
                        row: key.operation.clone(),
                    })?;
            *self.slot.lock() = Some((output, Effects::default()));
            return Ok(());
        }
        let output = self.command.apply(&mut context).await?;
        if let Some(key) = self.command.idempotency() {
            let result = self.command.stored(&output);
            context
                .tx
                .insert_result(key, &result, context.now.wall)
                .await?;
        }
        let effects = context.into_effects();
        *self.slot.lock() = Some((output, effects));
        Ok(())
    }

    fn weight(&self) -> usize {
        self.command.weight()
    }

    fn name(&self) -> &'static str {
        <C as sealed::Listed>::NAME
    }
}
