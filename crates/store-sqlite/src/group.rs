//! One group of commands in one transaction, and what happens when it fails (rules R3). A command
//! is answered only after the commit that holds it has returned.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt as _;
use sqlx::{Executor as _, SqliteConnection};
use tapedeck_store::{Failure, StoreError};

use crate::error::{from_sqlx, internal, is_failed_sync, is_io};
use crate::queue::Command;
use crate::tx::{Savepoint, Shared, SqliteTx, is_refusal, unavailable};

/// The only connection that writes.
pub(crate) struct WriteConnection {
    conn: SqliteConnection,
    /// Whether a transaction is open. SQLite itself clears it when it gives one up.
    open: Arc<AtomicBool>,
}

/// Why the process must not go on writing.
#[derive(Debug)]
pub(crate) struct Untrustworthy(pub(crate) String);

type Answer = Result<(), Failure>;

/// How a group's transaction ended.
enum Ended {
    /// Each command's answer, in order.
    Committed(Vec<Answer>),
    /// Nothing was written; the error is every command's if it comes again.
    RolledBack(StoreError),
    /// Nothing was written, and none of the commands was to blame.
    NotBegun(StoreError),
    /// Nobody knows what the disk holds.
    Unknown(String),
}

impl WriteConnection {
    pub(crate) async fn new(mut conn: SqliteConnection) -> Result<Self, StoreError> {
        let open = Arc::new(AtomicBool::new(false));
        let given_up = Arc::clone(&open);
        conn.lock_handle()
            .await
            .map_err(from_sqlx)?
            .set_rollback_hook(move || given_up.store(false, Ordering::SeqCst));
        Ok(Self { conn, open })
    }

    pub(crate) fn raw(&mut self) -> &mut SqliteConnection {
        &mut self.conn
    }

    pub(crate) fn into_raw(self) -> SqliteConnection {
        self.conn
    }

    /// Runs a group and answers its commands.
    pub(crate) async fn run(
        &mut self,
        mut group: Vec<Command>,
        shared: &Shared<'_>,
    ) -> Result<(), Untrustworthy> {
        match self.attempt(&mut group, shared).await {
            Ended::Committed(answers) => {
                answer_each(group, answers);
                Ok(())
            }
            Ended::RolledBack(error) if group.len() > 1 && !is_failed_sync(&error) => {
                tracing::debug!(error = %error, commands = group.len(), "a group of commands is run one by one");
                self.run_alone(group, shared).await
            }
            Ended::RolledBack(error) | Ended::NotBegun(error) => {
                let untrustworthy =
                    is_failed_sync(&error).then(|| Untrustworthy(error.to_string()));
                answer_all(group, error);
                untrustworthy.map_or(Ok(()), Err)
            }
            Ended::Unknown(reason) => {
                answer_all(
                    group,
                    StoreError::OutcomeUnknown {
                        reason: reason.clone(),
                    },
                );
                Err(Untrustworthy(reason))
            }
        }
    }

    async fn run_alone(
        &mut self,
        group: Vec<Command>,
        shared: &Shared<'_>,
    ) -> Result<(), Untrustworthy> {
        let mut commands = group.into_iter();
        while let Some(command) = commands.next() {
            if let Err(untrustworthy) = Box::pin(self.run(vec![command], shared)).await {
                for command in commands {
                    let _gone = command.reply.send(Err(unavailable("the store has failed")));
                }
                return Err(untrustworthy);
            }
        }
        Ok(())
    }

    async fn attempt(&mut self, group: &mut [Command], shared: &Shared<'_>) -> Ended {
        if let Err(error) = self.begin().await {
            return Ended::NotBegun(error);
        }
        let mut savepoint = if group.len() > 1 {
            Savepoint::Absent
        } else {
            Savepoint::Unneeded
        };
        let mut answers = Vec::with_capacity(group.len());
        for command in group {
            if !self.open.load(Ordering::SeqCst) {
                return Ended::RolledBack(internal("the transaction ended before a command"));
            }
            match self.apply(command, &mut savepoint, shared).await {
                Ok(answer) => answers.push(answer),
                Err(error) => {
                    return match self.roll_back().await {
                        Ok(()) => Ended::RolledBack(error),
                        Err(reason) => Ended::Unknown(reason),
                    };
                }
            }
        }
        // A command alone that was refused has its whole transaction undone.
        if savepoint == Savepoint::Unneeded && answers.iter().any(Result::is_err) {
            return match self.roll_back().await {
                Ok(()) => Ended::Committed(answers),
                Err(reason) => Ended::Unknown(reason),
            };
        }
        self.commit(answers).await
    }

    /// Applies one command. The outer error ends the group.
    async fn apply(
        &mut self,
        command: &mut Command,
        savepoint: &mut Savepoint,
        shared: &Shared<'_>,
    ) -> Result<Answer, StoreError> {
        let now = shared.clock.now(command.arrived);
        let mut tx = SqliteTx::new(&mut self.conn, savepoint, now, shared);
        let run = AssertUnwindSafe(command.work.run(&mut tx)).catch_unwind();
        let answer = run
            .await
            .unwrap_or_else(|_panic| Err(Failure::Store(internal("a command panicked"))));
        if !self.open.load(Ordering::SeqCst) {
            return Err(match answer {
                Err(Failure::Store(error)) => error,
                Ok(()) | Err(_) => internal("SQLite gave up the transaction"),
            });
        }
        let tx = SqliteTx::new(&mut self.conn, savepoint, now, shared);
        match answer {
            Ok(()) => {
                tx.keep();
                Ok(Ok(()))
            }
            Err(failure) if is_refusal(&failure) => match tx.undo().await {
                Ok(()) => Ok(Err(failure)),
                Err(error) => Err(error),
            },
            Err(Failure::Store(error)) => Err(error),
            Err(failure) => Ok(Err(failure)),
        }
    }

    async fn begin(&mut self) -> Result<(), StoreError> {
        // A transaction that is still open here is a leftover that nobody was answered for.
        if self.open.load(Ordering::SeqCst) {
            self.roll_back().await.map_err(internal)?;
        }
        self.conn
            .execute("BEGIN IMMEDIATE")
            .await
            .map_err(from_sqlx)?;
        self.open.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn commit(&mut self, answers: Vec<Answer>) -> Ended {
        match self.conn.execute("COMMIT").await {
            Ok(_) => {
                self.open.store(false, Ordering::SeqCst);
                Ended::Committed(answers)
            }
            Err(error) if is_io(&error) || error.as_database_error().is_none() => {
                Ended::Unknown(format!("a commit failed: {error}"))
            }
            Err(error) => match self.roll_back().await {
                Ok(()) => Ended::RolledBack(from_sqlx(error)),
                Err(reason) => Ended::Unknown(reason),
            },
        }
    }

    async fn roll_back(&mut self) -> Result<(), String> {
        if !self.open.load(Ordering::SeqCst) {
            return Ok(());
        }
        match self.conn.execute("ROLLBACK").await {
            Ok(_) => {
                self.open.store(false, Ordering::SeqCst);
                Ok(())
            }
            Err(error) => Err(format!("a rollback failed: {error}")),
        }
    }
}

fn answer_each(group: Vec<Command>, answers: Vec<Answer>) {
    for (command, answer) in group.into_iter().zip(answers) {
        let _gone = command.reply.send(answer);
    }
}

/// Gives every command the same error; only one of them can have its source.
fn answer_all(group: Vec<Command>, error: StoreError) {
    let mut first = Some(error);
    let shown = first.as_ref().map(ToString::to_string).unwrap_or_default();
    for command in group {
        let error = first
            .take()
            .map_or_else(|| unavailable(&shown), Failure::Store);
        first = again(&error);
        let _gone = command.reply.send(Err(error));
    }
}

/// The same error once more, where it has no source.
fn again(failure: &Failure) -> Option<StoreError> {
    match failure {
        Failure::Store(StoreError::StorageFull) => Some(StoreError::StorageFull),
        Failure::Store(StoreError::Unavailable { reason }) => Some(StoreError::Unavailable {
            reason: reason.clone(),
        }),
        Failure::Store(StoreError::Overloaded { reason }) => Some(StoreError::Overloaded {
            reason: reason.clone(),
        }),
        Failure::Store(StoreError::OutcomeUnknown { reason }) => Some(StoreError::OutcomeUnknown {
            reason: reason.clone(),
        }),
        Failure::Store(_) | Failure::Rejected(_) | Failure::NotFound(_) => None,
    }
}
