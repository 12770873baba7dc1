//! The use cases, one file a command, written once over the store's row traits; and what follows
//! from them: the feed, followers, held requests and the sweep. No SQL, no HTTP, and no rule that
//! `domain` could hold.

#![deny(clippy::wildcard_enum_match_arm)]

mod checkpoints;
pub mod commands;
mod context;
mod cursor;
pub mod error;
mod execute;
pub mod feed;
pub mod follow;
pub mod follow_all;
pub mod ids;
pub mod lifecycle;
mod projection;
pub mod queries;
pub mod retention;
mod rules;
mod settling;
pub mod sweep;
pub mod tokens;
mod uploads;
mod waits;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use parking_lot::Mutex;
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::interaction::{Answer, Interaction};
use tapedeck_domain::owner::{Authority, Owner};
use tapedeck_domain::resume::Resume;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::{InteractionId, LeaseInstant, RunId, SessionId, TapeEntryId, TapeId, Timing};
use tapedeck_store::Heard;
use tapedeck_store::Store;
pub use tapedeck_store::read::{InteractionFilter, RuleFilter};
pub use tapedeck_store::{
    EventFilter, Page, PageRequest, RunFilter, SessionView, StoreError, StoreHealth, TapeFilter,
    Target,
};

use commands::acquire_owner::AcquireOwner;
use commands::cancel_run::{CancelRun, CancelTarget, Cancelled};
use commands::close_session::CloseSession;
use commands::configure_session::{ConfigureSession, SettingsPatch};
use commands::continue_queue::ContinueQueue;
use commands::create_session::CreateSession;
use commands::delete_session::DeleteSession;
use commands::expire_claim::ExpireClaim;
use commands::project_tape::{ProjectTape, TapeOf};
use commands::prompt::{AdmitPrompt, Admitted};
use commands::release_owner::ReleaseOwner;
use commands::renew_owner::RenewOwner;
use commands::resolve_interaction::{QuestionTarget, ResolveInteraction};
use commands::resume::ResumeSession;
pub use error::{CursorError, Error, Outcome};
use execute::Executor;
use feed::Feed;
pub use feed::Hints;
pub use follow::{FollowRequest, Followed, Follower, Start};
use ids::IdSource;
pub use lifecycle::Lifecycle;

/// Followed sessions whose heads are read in one statement.
const HEADS_A_READ: usize = 500;

/// What a control plane is made of.
#[derive(Debug)]
pub struct Options {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Who writes: the deployment, or a local process.
    pub authority: Authority,
    /// All times.
    pub timing: Timing,
    /// New identifiers.
    pub ids: Arc<dyn IdSource>,
    /// Tasks and shutdown.
    pub lifecycle: Lifecycle,
    /// Events kept per followed session (stores §6); tests use 2.
    pub ring_events: usize,
    /// Bytes kept per followed session.
    pub ring_bytes: usize,
    /// Whether commits wake those who wait.
    pub hints: Hints,
}

/// A cheap handle to the use cases.
#[derive(Debug, Clone)]
pub struct ControlPlane {
    pub(crate) inner: Arc<Executor>,
    pub(crate) known_runs: Arc<Mutex<HashMap<RunId, SessionId>>>,
    contacts: Arc<Mutex<HashMap<String, LeaseInstant>>>,
    /// Access tokens that were looked up lately.
    tokens: Arc<tokens::Known>,
    /// Up to which key the sweep has looked at runs that wait.
    pub(crate) flagged_through: Arc<AtomicI64>,
}

impl ControlPlane {
    /// Puts the parts together. [`Self::start`] must follow before the first request.
    pub fn new(options: Options) -> Self {
        Self {
            inner: Arc::new(Executor {
                store: options.store,
                feed: Feed::new(options.ring_events, options.ring_bytes),
                authority: options.authority,
                timing: options.timing,
                ids: options.ids,
                lifecycle: options.lifecycle,
                hints: options.hints,
                alive_at: AtomicI64::new(i64::MIN),
            }),
            known_runs: Arc::default(),
            contacts: Arc::default(),
            tokens: Arc::default(),
            flagged_through: Arc::default(),
        }
    }

    /// Credits an outage, sweeps once, and starts the loops (rules R6, R8).
    pub async fn start(&self) -> Outcome<()> {
        // A full disk must not keep what can still be read from being served; every command
        // credits the outage first, whether this did or not.
        match sweep::step(self).await {
            Err(Error::Store(StoreError::StorageFull)) => tracing::warn!("sweep.storage_full"),
            swept => drop(swept?),
        }
        let control = self.clone();
        self.inner.lifecycle.spawn(sweep::run(control));
        self.watch();
        Ok(())
    }

    /// Begins to hear of other processes' writes. [`Self::start`] does it, too.
    pub fn watch(&self) {
        let control = self.clone();
        self.inner
            .lifecycle
            .spawn(async move { control.watch_store().await });
    }

    /// Hears of other processes' writes and makes those who wait for them read again (rules R8,
    /// R18). Heads of followed sessions are read in one statement, so that only those that moved wake.
    async fn watch_store(&self) {
        let soft = self.inner.lifecycle.soft();
        loop {
            let heard = tokio::select! {
                heard = self.inner.store.hear() => heard,
                () = soft.cancelled() => return,
            };
            let read = match heard {
                Ok(Heard::Hints(hints)) => {
                    for hint in hints {
                        self.inner.feed.heard(hint);
                    }
                    Ok(())
                }
                Ok(Heard::ReadAgain) => self.read_heads().await,
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                tracing::warn!(%error, "store.watch_failed");
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(200)) => {}
                    () = soft.cancelled() => return,
                }
            }
        }
    }

    async fn read_heads(&self) -> Result<(), StoreError> {
        self.inner.feed.wake_held();
        let followed = self.inner.feed.followed();
        for sessions in followed.chunks(HEADS_A_READ) {
            let heads = self.inner.store.reader().head_seqs(sessions).await?;
            let heads: HashMap<_, _> = heads.into_iter().collect();
            for session in sessions {
                let head_seq = heads.get(session).copied();
                self.inner.feed.observe(*session, head_seq);
            }
        }
        Ok(())
    }

    /// All times.
    pub fn timing(&self) -> &Timing {
        &self.inner.timing
    }

    /// Tasks and shutdown.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.inner.lifecycle
    }

    /// Who writes.
    pub fn authority(&self) -> &Authority {
        &self.inner.authority
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// A new id.
    pub fn new_id(&self) -> uuid::Uuid {
        self.inner.ids.next()
    }

    /// Creates a session.
    pub async fn create_session(
        &self,
        namespace: &str,
        settings: SessionSettings,
        key: Option<IdempotencyKey>,
    ) -> Outcome<SessionView> {
        let command = CreateSession {
            namespace: namespace.to_owned(),
            session_id: SessionId::new(self.new_id()),
            tape_id: TapeId::new(self.new_id()),
            settings,
            key,
        };
        let session_id = self.inner.execute(command).await?;
        self.session(namespace, session_id).await
    }

    /// Changes settings.
    pub async fn configure_session(
        &self,
        namespace: &str,
        session_id: SessionId,
        patch: SettingsPatch,
    ) -> Outcome<SessionView> {
        self.inner
            .execute(ConfigureSession {
                namespace: namespace.to_owned(),
                session_id,
                patch,
            })
            .await?;
        self.session(namespace, session_id).await
    }

    /// Closes a session.
    pub async fn close_session(
        &self,
        namespace: &str,
        session_id: SessionId,
    ) -> Outcome<SessionView> {
        self.inner
            .execute(CloseSession {
                namespace: namespace.to_owned(),
                session_id,
            })
            .await?;
        self.session(namespace, session_id).await
    }

    /// Deletes a session.
    pub async fn delete_session(
        &self,
        namespace: &str,
        session_id: SessionId,
        force: bool,
    ) -> Outcome<()> {
        self.inner
            .execute(DeleteSession {
                namespace: namespace.to_owned(),
                session_id,
                force,
            })
            .await
    }

    /// Admits a prompt.
    pub async fn prompt(&self, command: AdmitPrompt) -> Outcome<Admitted> {
        tapedeck_domain::admit::check_text(&command.prompt.text)?;
        self.inner.execute(command).await
    }

    /// Resumes a session. The tape catches up first, outside the resume's transaction (rules R19).
    pub async fn resume(
        &self,
        namespace: &str,
        session_id: SessionId,
        request: ResumeRequest,
    ) -> Outcome<Admitted> {
        if let Some(text) = &request.text {
            tapedeck_domain::admit::check_text(text)?;
        }
        self.ready_session(namespace, session_id).await?;
        let resume = Resume {
            run_id: RunId::new(self.new_id()),
            text: request.text,
            reason: request.reason,
            metadata: request.metadata,
            anchor_id: TapeEntryId::new(self.new_id()),
        };
        let command = ResumeSession {
            namespace: namespace.to_owned(),
            session_id,
            resume,
            key: request.key,
        };
        self.inner.execute(command).await
    }

    /// Projects until the tape has caught up with the log.
    pub async fn catch_up_tape(&self, namespace: &str, session_id: SessionId) -> Outcome<()> {
        self.catch_up(TapeOf::Session(namespace.to_owned(), session_id))
            .await
    }

    /// Lets the tape catch up before a command that needs it so. Whatever refuses that is left to the
    /// command, which looks for its idempotency key before anything else (rules R17).
    pub(crate) async fn ready_session(
        &self,
        namespace: &str,
        session_id: SessionId,
    ) -> Outcome<()> {
        match self.catch_up_tape(namespace, session_id).await {
            Err(Error::Rejected(_) | Error::NotFound(_)) => Ok(()),
            outcome => outcome,
        }
    }

    pub(crate) async fn catch_up(&self, target: TapeOf) -> Outcome<()> {
        let step = ProjectTape { target };
        while !self.inner.execute(step.clone()).await? {}
        Ok(())
    }

    /// Cancels what is active in a session.
    pub async fn cancel_session(
        &self,
        namespace: &str,
        session_id: SessionId,
        by: &str,
    ) -> Outcome<Cancelled> {
        let target = CancelTarget::Active(session_id);
        self.inner
            .execute(CancelRun {
                namespace: namespace.to_owned(),
                target,
                by: by.to_owned(),
            })
            .await
    }

    /// Cancels one run.
    pub async fn cancel_run(&self, namespace: &str, run_id: RunId, by: &str) -> Outcome<Cancelled> {
        let session_id = self.run(namespace, run_id).await?.session_id;
        let target = CancelTarget::Run { session_id, run_id };
        self.inner
            .execute(CancelRun {
                namespace: namespace.to_owned(),
                target,
                by: by.to_owned(),
            })
            .await
    }

    /// Lets a held queue go on.
    pub async fn continue_queue(
        &self,
        namespace: &str,
        session_id: SessionId,
    ) -> Outcome<SessionView> {
        self.inner
            .execute(ContinueQueue {
                namespace: namespace.to_owned(),
                session_id,
            })
            .await?;
        self.session(namespace, session_id).await
    }

    /// Answers a question.
    pub async fn resolve(
        &self,
        namespace: &str,
        id: InteractionId,
        answer: Answer,
        by: &str,
    ) -> Outcome<Interaction> {
        let session_id = self.interaction(namespace, id).await?.session_id;
        let target = QuestionTarget::Interaction {
            session_id,
            interaction_id: id,
        };
        self.resolve_target(namespace, target, answer, by).await
    }

    /// Answers a question by the executor's id of it (older clients).
    pub async fn resolve_request(
        &self,
        namespace: &str,
        session_id: SessionId,
        request_id: String,
        answer: Answer,
        by: &str,
    ) -> Outcome<Interaction> {
        let target = QuestionTarget::Request {
            session_id,
            request_id,
        };
        self.resolve_target(namespace, target, answer, by).await
    }

    async fn resolve_target(
        &self,
        namespace: &str,
        target: QuestionTarget,
        answer: Answer,
        by: &str,
    ) -> Outcome<Interaction> {
        let command = ResolveInteraction {
            namespace: namespace.to_owned(),
            target,
            answer,
            by: by.to_owned(),
        };
        let interaction = self.inner.execute(command).await?;
        Ok(interaction)
    }

    /// Acquires a session for this owner.
    pub async fn acquire_owner(
        &self,
        namespace: &str,
        session_id: SessionId,
    ) -> Outcome<Option<Owner>> {
        self.inner
            .execute(AcquireOwner {
                namespace: namespace.to_owned(),
                session_id,
            })
            .await
    }

    /// Renews this owner's lease on a session.
    pub async fn renew_owner(&self, namespace: &str, session_id: SessionId) -> Outcome<Owner> {
        self.inner
            .execute(RenewOwner {
                namespace: namespace.to_owned(),
                session_id,
            })
            .await
    }

    /// Releases a session.
    pub async fn release_owner(&self, namespace: &str, session_id: SessionId) -> Outcome<()> {
        self.inner
            .execute(ReleaseOwner {
                namespace: namespace.to_owned(),
                session_id,
            })
            .await
    }

    /// Decides again what becomes of a run whose claim may have expired, as the sweep does for each
    /// of its candidates. Gives whether anything changed.
    pub async fn recover_run(&self, run_id: RunId) -> Outcome<bool> {
        self.inner.execute(ExpireClaim { run_id }).await
    }

    /// Opens a follower.
    pub async fn follow(&self, request: FollowRequest) -> Outcome<Follower> {
        Follower::open(self.clone(), request).await
    }

    /// Maps an absent row to an error.
    pub(crate) fn found<T>(row: Option<T>, target: Target) -> Outcome<T> {
        row.ok_or(Error::NotFound(target))
    }
}

/// A resume as a client asks for it.
#[derive(Debug, Clone, Default)]
pub struct ResumeRequest {
    /// What the person asks; `None` continues.
    pub text: Option<String>,
    /// One word.
    pub reason: String,
    /// The client's notes.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The client's key.
    pub key: Option<IdempotencyKey>,
}
