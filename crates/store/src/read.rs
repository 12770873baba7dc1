//! Reads. Each is one indexed statement, or a fixed number of them, whatever the history.

use async_trait::async_trait;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::executor::Executor;
use tapedeck_domain::id::{DeploymentId, LogId};
use tapedeck_domain::interaction::{Interaction, InteractionStatus};
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::run::Run;
use tapedeck_domain::session::Session;
use tapedeck_domain::{InteractionId, Now, RunId, SessionId};

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
    /// A page of runs, newest first; of one session or of all.
    async fn runs(
        &self,
        namespace: &str,
        session: Option<SessionId>,
        page: PageRequest,
    ) -> Result<Page<Run>, StoreError>;
    /// The number of the newest event; `None` where there is no such session.
    async fn head_seq(&self, session: SessionId) -> Result<Option<u64>, StoreError>;
    /// Events in order.
    async fn events(&self, filter: &EventFilter) -> Result<EventSlice, StoreError>;
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
    /// Executors by name, after `after`.
    async fn executors(&self, after: Option<&str>, limit: u32)
    -> Result<Vec<Executor>, StoreError>;
    /// One executor.
    async fn executor(&self, executor_id: &str) -> Result<Option<Executor>, StoreError>;
    /// Whether a session has runs that wait for a claim or hold one; for tests and `/readyz`.
    async fn live_run_count(&self) -> Result<u64, StoreError>;
}
