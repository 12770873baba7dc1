//! Reads. Each is one indexed statement, or a fixed number of them, whatever the history.

use async_trait::async_trait;
use tapedeck_domain::artifact::Artifact;
use tapedeck_domain::checkpoint::Checkpoint;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::executor::Executor;
use tapedeck_domain::id::{DeploymentId, LogId};
use tapedeck_domain::interaction::{Interaction, InteractionStatus};
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::rule::ApprovalRule;
use tapedeck_domain::run::Run;
use tapedeck_domain::session::Session;
use tapedeck_domain::snapshot::MessageSnapshot;
use tapedeck_domain::tape::TapeEntry;
use tapedeck_domain::token::AccessToken;
use tapedeck_domain::{
    CheckpointId, InteractionId, Now, RuleId, RunId, SessionId, Timestamp, TokenId,
};

use crate::error::StoreError;
use crate::page::{Page, PageRequest};

/// A session with its head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// The session.
    pub session: Session,
    /// Its head.
    pub head: SessionHead,
}

/// Which events of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventFilter {
    /// The session.
    pub session_id: SessionId,
    /// Only later ones.
    pub after: u64,
    /// At most this many rows.
    pub limit: u32,
    /// No further row once their payloads have this many bytes.
    pub max_bytes: usize,
    /// Only those of this run.
    pub run_id: Option<RunId>,
    /// Only these kinds; empty is all.
    pub kinds: Vec<String>,
}

/// Events in order, as far as the filter's bounds reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSlice {
    /// The events.
    pub events: Vec<EventRecord>,
    /// Whether a bound ended the slice, so that more may follow; else it reaches the head.
    pub bounded: bool,
}

/// Which runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunFilter {
    /// Only of this session.
    pub session_id: Option<SessionId>,
    /// Also those that a restore has put aside.
    pub include_superseded: bool,
    /// Only those that wait and that nobody can serve.
    pub unservable: bool,
}

/// Which entries of a session's tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapeFilter {
    /// The session.
    pub session_id: SessionId,
    /// Only later positions.
    pub after: u64,
    /// At most this many rows.
    pub limit: u32,
    /// No further row once their payloads have this many bytes.
    pub max_bytes: usize,
    /// Also those that a restore has put aside or an executor's own entries have replaced.
    pub include_superseded: bool,
}

/// A place in the log over all sessions; what its numbers mean is the store's own (rules R22).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FeedPosition {
    /// The transaction, where the store orders by it; else 0.
    pub transaction: u64,
    /// The row.
    pub row: i64,
}

/// Which part of the log over all sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedFilter {
    /// Only sessions of this namespace.
    pub namespace: String,
    /// Only later places.
    pub after: FeedPosition,
    /// At most this many rows are looked at, whether they pass or not.
    pub limit: u32,
    /// No further row once the payloads that passed have this many bytes.
    pub max_bytes: usize,
    /// Only these kinds; empty is all.
    pub kinds: Vec<String>,
}

/// A part of the log over all sessions, in an order that no later commit can slip into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedSlice {
    /// What passed the filter, each with its place.
    pub events: Vec<(FeedPosition, EventRecord)>,
    /// The last place that was looked at: from there the next part continues.
    pub through: FeedPosition,
    /// Whether a bound ended the part, so that more may follow at once.
    pub bounded: bool,
}

/// Which interactions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InteractionFilter {
    /// Only this status.
    pub status: Option<InteractionStatus>,
    /// Only of this session.
    pub session_id: Option<SessionId>,
    /// Only of this run.
    pub run_id: Option<RunId>,
}

/// Which approval rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleFilter {
    /// Only of this session.
    pub session_id: Option<SessionId>,
    /// Also those that were revoked.
    pub include_revoked: bool,
}

/// Identity of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The deployment.
    pub deployment_id: DeploymentId,
    /// The log.
    pub log_id: LogId,
}

/// Reads without a transaction. A namespace is part of every look-up: what another namespace holds
/// isn't there.
#[async_trait]
pub trait Reader: Send + Sync {
    /// The store's clocks.
    async fn now(&self) -> Result<Now, StoreError>;
    /// Who this database is.
    fn identity(&self) -> Identity;
    /// One session.
    async fn session(
        &self,
        namespace: &str,
        id: SessionId,
    ) -> Result<Option<SessionView>, StoreError>;
    /// A page of sessions, newest first.
    async fn sessions(
        &self,
        namespace: &str,
        page: PageRequest,
    ) -> Result<Page<SessionView>, StoreError>;
    /// One run.
    async fn run(&self, namespace: &str, id: RunId) -> Result<Option<Run>, StoreError>;
    /// A page of runs, newest first.
    async fn runs(
        &self,
        namespace: &str,
        filter: RunFilter,
        page: PageRequest,
    ) -> Result<Page<Run>, StoreError>;
    /// The newest settled run of a session that is not superseded.
    async fn latest_settled_run(
        &self,
        namespace: &str,
        session: SessionId,
    ) -> Result<Option<Run>, StoreError>;
    /// A run's message snapshot.
    async fn snapshot(
        &self,
        namespace: &str,
        run: RunId,
    ) -> Result<Option<MessageSnapshot>, StoreError>;
    /// The artifact of a name: a run's own, or of the run that sent the newest one among those that
    /// are not superseded.
    async fn artifact(
        &self,
        namespace: &str,
        session: SessionId,
        run: Option<RunId>,
        name: &str,
    ) -> Result<Option<Artifact>, StoreError>;
    /// Tape entries in order.
    async fn tape(&self, filter: &TapeFilter) -> Result<Vec<TapeEntry>, StoreError>;
    /// A page of a session's checkpoints, newest first.
    async fn checkpoints(
        &self,
        namespace: &str,
        session: SessionId,
        include_superseded: bool,
        page: PageRequest,
    ) -> Result<Page<Checkpoint>, StoreError>;
    /// One checkpoint, active or not.
    async fn checkpoint(
        &self,
        namespace: &str,
        id: CheckpointId,
    ) -> Result<Option<Checkpoint>, StoreError>;
    /// The number of the newest event; `None` where there is no such session.
    async fn head_seq(&self, session: SessionId) -> Result<Option<u64>, StoreError>;
    /// The newest numbers of these sessions, in one statement; a session that is gone is left out.
    async fn head_seqs(&self, sessions: &[SessionId]) -> Result<Vec<(SessionId, u64)>, StoreError>;
    /// Events in order.
    async fn events(&self, filter: &EventFilter) -> Result<EventSlice, StoreError>;
    /// The first number of the fold that a number lies strictly inside of (rules R20); `None` where
    /// it lies in none.
    async fn fold_over(&self, session: SessionId, seq: u64) -> Result<Option<u64>, StoreError>;
    /// A part of the log over all sessions (rules R22).
    async fn feed(&self, filter: &FeedFilter) -> Result<FeedSlice, StoreError>;
    /// The place after everything that [`Self::feed`] would give now.
    async fn feed_end(&self) -> Result<FeedPosition, StoreError>;
    /// One interaction.
    async fn interaction(
        &self,
        namespace: &str,
        id: InteractionId,
    ) -> Result<Option<Interaction>, StoreError>;
    /// A page of interactions, newest first.
    async fn interactions(
        &self,
        namespace: &str,
        filter: &InteractionFilter,
        page: PageRequest,
    ) -> Result<Page<Interaction>, StoreError>;
    /// One approval rule, revoked or not.
    async fn rule(&self, namespace: &str, id: RuleId) -> Result<Option<ApprovalRule>, StoreError>;
    /// A page of approval rules, newest first.
    async fn rules(
        &self,
        namespace: &str,
        filter: RuleFilter,
        page: PageRequest,
    ) -> Result<Page<ApprovalRule>, StoreError>;
    /// One access token, revoked or not.
    async fn token(&self, id: TokenId) -> Result<Option<AccessToken>, StoreError>;
    /// The access token of a secret with this digest, revoked or not.
    async fn token_of_digest(&self, digest: &Digest) -> Result<Option<AccessToken>, StoreError>;
    /// Whether any access token is neither revoked nor over at this time.
    async fn any_live_token(&self, at: Timestamp) -> Result<bool, StoreError>;
    /// A page of access tokens of all namespaces, newest first; with `all` also those that are revoked.
    async fn tokens(&self, all: bool, page: PageRequest) -> Result<Page<AccessToken>, StoreError>;
    /// Executors by name, after `after`.
    async fn executors(&self, after: Option<&str>, limit: u32)
    -> Result<Vec<Executor>, StoreError>;
    /// One executor.
    async fn executor(&self, executor_id: &str) -> Result<Option<Executor>, StoreError>;
    /// Whether a session has runs that wait for a claim or hold one; for tests and `/readyz`.
    async fn live_run_count(&self) -> Result<u64, StoreError>;
}
