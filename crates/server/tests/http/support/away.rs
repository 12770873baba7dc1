//! A store that fails in one given way, for what the server says when it can't do anything.

use std::sync::Arc;

use async_trait::async_trait;
use tapedeck_domain::executor::Executor;
use tapedeck_domain::interaction::Interaction;
use tapedeck_domain::run::Run;
use tapedeck_domain::{
    DeploymentId, InteractionId, LeaseInstant, LogId, Now, RunId, SessionId, Timestamp,
};
use tapedeck_store::read::{Identity, InteractionFilter};
use tapedeck_store::{
    EventFilter, EventSlice, Failure, Lane, Page, PageRequest, Reader, SessionView, Store,
    StoreError, StoreHealth, Work,
};

#[derive(Debug, Clone, Copy)]
enum Fails {
    Busy,
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
            Fails::Busy => Err(StoreError::Unavailable { reason }),
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

    async fn change_counter(&self) -> Result<i64, StoreError> {
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

    async fn runs(
        &self,
        _: &str,
        _: Option<SessionId>,
        _: PageRequest,
    ) -> Result<Page<Run>, StoreError> {
        self.fail().await
    }

    async fn head_seq(&self, _: SessionId) -> Result<Option<u64>, StoreError> {
        self.fail().await
    }

    async fn events(&self, _: &EventFilter) -> Result<EventSlice, StoreError> {
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
