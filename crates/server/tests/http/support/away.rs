//! A store that fails in one given way, for what the server says when it can't do anything.

use std::sync::Arc;

use async_trait::async_trait;
use tapedeck_domain::artifact::Artifact;
use tapedeck_domain::checkpoint::Checkpoint;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::executor::Executor;
use tapedeck_domain::interaction::Interaction;
use tapedeck_domain::rule::ApprovalRule;
use tapedeck_domain::run::Run;
use tapedeck_domain::snapshot::MessageSnapshot;
use tapedeck_domain::tape::TapeEntry;
use tapedeck_domain::token::AccessToken;
use tapedeck_domain::{
    CheckpointId, DeploymentId, InteractionId, LeaseInstant, LogId, Now, RuleId, RunId, SessionId,
    Timestamp, TokenId,
};
use tapedeck_store::read::{
    FeedFilter, FeedPosition, FeedSlice, Identity, InteractionFilter, RuleFilter,
};
use tapedeck_store::{
    EventFilter, EventSlice, Failure, Heard, Hint, Lane, Page, PageRequest, Reader, RunFilter,
    SessionView, Store, StoreError, StoreHealth, TapeFilter, Work,
};

#[derive(Debug, Clone, Copy)]
enum Fails {
    Busy,
    Away,
    Full,
    Unknown,
    Panics,
    Hangs,
}

/// The store.
#[derive(Debug)]
pub(crate) struct Away(Fails);

impl Away {
    pub(crate) fn store() -> Arc<dyn Store> {
        Arc::new(Self(Fails::Busy))
    }

    pub(crate) fn away() -> Arc<dyn Store> {
        Arc::new(Self(Fails::Away))
    }

    pub(crate) fn full() -> Arc<dyn Store> {
        Arc::new(Self(Fails::Full))
    }

    pub(crate) fn unknown() -> Arc<dyn Store> {
        Arc::new(Self(Fails::Unknown))
    }

    pub(crate) fn panicking() -> Arc<dyn Store> {
        Arc::new(Self(Fails::Panics))
    }

    pub(crate) fn hanging() -> Arc<dyn Store> {
        Arc::new(Self(Fails::Hangs))
    }

    async fn fail<T>(&self) -> Result<T, StoreError> {
        let reason = "the queue is full".to_owned();
        match self.0 {
            Fails::Busy => Err(StoreError::Overloaded { reason }),
            Fails::Away => Err(StoreError::Unavailable { reason }),
            Fails::Full => Err(StoreError::StorageFull),
            Fails::Unknown => Err(StoreError::OutcomeUnknown { reason }),
            Fails::Panics => panic!("a secret reason"),
            Fails::Hangs => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Store for Away {
    async fn transact(
        &self,
        _: Lane,
        _: Option<SessionId>,
        _: Box<dyn Work>,
    ) -> Result<(), Failure> {
        Ok(self.fail().await?)
    }

    fn reader(&self) -> &dyn Reader {
        self
    }

    fn announce(&self, _: Vec<Hint>) {}

    async fn hear(&self) -> Result<Heard, StoreError> {
        self.fail().await
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            engine: "sqlite",
            durability: "full",
            queued: 0,
            writable: false,
        }
    }

    async fn close(&self) {}
}

#[async_trait]
impl Reader for Away {
    async fn now(&self) -> Result<Now, StoreError> {
        Ok(Now {
            wall: Timestamp(0),
            lease: LeaseInstant(0),
            judged: LeaseInstant(0),
        })
    }

    fn identity(&self) -> Identity {
        Identity {
            deployment_id: DeploymentId::new(super::ID.parse().unwrap()),
            log_id: LogId::new(super::ID.parse().unwrap()),
        }
    }

    async fn session(&self, _: &str, _: SessionId) -> Result<Option<SessionView>, StoreError> {
        self.fail().await
    }

    async fn sessions(&self, _: &str, _: PageRequest) -> Result<Page<SessionView>, StoreError> {
        self.fail().await
    }

    async fn run(&self, _: &str, _: RunId) -> Result<Option<Run>, StoreError> {
        self.fail().await
    }

    async fn runs(&self, _: &str, _: RunFilter, _: PageRequest) -> Result<Page<Run>, StoreError> {
        self.fail().await
    }

    async fn latest_settled_run(&self, _: &str, _: SessionId) -> Result<Option<Run>, StoreError> {
        self.fail().await
    }

    async fn snapshot(&self, _: &str, _: RunId) -> Result<Option<MessageSnapshot>, StoreError> {
        self.fail().await
    }

    async fn artifact(
        &self,
        _: &str,
        _: SessionId,
        _: Option<RunId>,
        _: &str,
    ) -> Result<Option<Artifact>, StoreError> {
        self.fail().await
    }

    async fn tape(&self, _: &TapeFilter) -> Result<Vec<TapeEntry>, StoreError> {
        self.fail().await
    }

    async fn checkpoints(
        &self,
        _: &str,
        _: SessionId,
        _: bool,
        _: PageRequest,
    ) -> Result<Page<Checkpoint>, StoreError> {
        self.fail().await
    }

    async fn checkpoint(&self, _: &str, _: CheckpointId) -> Result<Option<Checkpoint>, StoreError> {
        self.fail().await
    }

    async fn head_seqs(&self, _: &[SessionId]) -> Result<Vec<(SessionId, u64)>, StoreError> {
        self.fail().await
    }

    async fn head_seq(&self, _: SessionId) -> Result<Option<u64>, StoreError> {
        self.fail().await
    }

    async fn events(&self, _: &EventFilter) -> Result<EventSlice, StoreError> {
        self.fail().await
    }

    async fn fold_over(&self, _: SessionId, _: u64) -> Result<Option<u64>, StoreError> {
        self.fail().await
    }

    async fn feed(&self, _: &FeedFilter) -> Result<FeedSlice, StoreError> {
        self.fail().await
    }

    async fn feed_end(&self) -> Result<FeedPosition, StoreError> {
        self.fail().await
    }

    async fn interaction(
        &self,
        _: &str,
        _: InteractionId,
    ) -> Result<Option<Interaction>, StoreError> {
        self.fail().await
    }

    async fn interactions(
        &self,
        _: &str,
        _: &InteractionFilter,
        _: PageRequest,
    ) -> Result<Page<Interaction>, StoreError> {
        self.fail().await
    }

    async fn rule(&self, _: &str, _: RuleId) -> Result<Option<ApprovalRule>, StoreError> {
        self.fail().await
    }

    async fn rules(
        &self,
        _: &str,
        _: RuleFilter,
        _: PageRequest,
    ) -> Result<Page<ApprovalRule>, StoreError> {
        self.fail().await
    }

    async fn token(&self, _: TokenId) -> Result<Option<AccessToken>, StoreError> {
        self.fail().await
    }

    async fn token_of_digest(&self, _: &Digest) -> Result<Option<AccessToken>, StoreError> {
        self.fail().await
    }

    async fn any_live_token(&self, _: Timestamp) -> Result<bool, StoreError> {
        self.fail().await
    }

    async fn tokens(&self, _: bool, _: PageRequest) -> Result<Page<AccessToken>, StoreError> {
        self.fail().await
    }

    async fn executors(&self, _: Option<&str>, _: u32) -> Result<Vec<Executor>, StoreError> {
        self.fail().await
    }

    async fn executor(&self, _: &str) -> Result<Option<Executor>, StoreError> {
        self.fail().await
    }

    async fn live_run_count(&self) -> Result<u64, StoreError> {
        self.fail().await
    }
}
