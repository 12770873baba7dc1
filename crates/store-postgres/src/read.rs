//! Reads outside transactions: plain statements, each of which sees one moment, over a share of the
//! connections that commands never use. A read may be given up at any point; its connection is then
//! closed, and never used by anybody again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
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
    CheckpointId, InteractionId, Now, RuleId, RunId, SessionId, Timestamp, TokenId,
};
use tapedeck_store::read::{EventFilter, Identity, InteractionFilter, RuleFilter};
use tapedeck_store::{
    EventSlice, FeedFilter, FeedPosition, FeedSlice, Page, PageRequest, Reader, RunFilter,
    SessionView, StoreError, TapeFilter,
};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use uuid::Uuid;

use crate::clock::Clock;
use crate::error::{from_sqlx, internal, overloaded, unavailable};
use crate::record;
use crate::rows::{
    artifacts, checkpoints, events, executors, folds, heads, interactions, rules, sessions,
    snapshots, tape, tokens,
};

/// The readers.
#[derive(Debug)]
pub(crate) struct PostgresReader {
    pool: PgPool,
    share: Semaphore,
    patience: Duration,
    clock: Clock,
    identity: Identity,
    statements: AtomicU64,
}

impl PostgresReader {
    pub(crate) fn new(
        pool: PgPool,
        share: usize,
        patience: Duration,
        clock: Clock,
        identity: Identity,
    ) -> Self {
        Self {
            pool,
            share: Semaphore::new(share),
            patience,
            clock,
            identity,
            statements: AtomicU64::new(0),
        }
    }

    /// How many statements have been run.
    pub(crate) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// A connection for `statements` statements.
    async fn connection(&self, statements: u64) -> Result<Reading<'_>, StoreError> {
        self.statements.fetch_add(statements, Ordering::Relaxed);
        let permit = timeout(self.patience, self.share.acquire())
            .await
            .map_err(|_elapsed| overloaded("too many reads wait for the database"))?
            .map_err(|_closed| unavailable("the store is closed"))?;
        let conn = self.pool.acquire().await.map_err(from_sqlx)?;
        Ok(Reading {
            conn: Some(conn),
            _permit: permit,
        })
    }
}

/// A connection in use by a read. It is closed where the read is given up before its end.
struct Reading<'a> {
    conn: Option<PoolConnection<Postgres>>,
    _permit: SemaphorePermit<'a>,
}

impl Reading<'_> {
    fn get(&mut self) -> Result<&mut PgConnection, StoreError> {
        match &mut self.conn {
            Some(conn) => Ok(conn),
            None => Err(internal("a connection was used after its end")),
        }
    }

    /// Gives the connection back: the read has come to its end, good or bad.
    fn end<T>(mut self, outcome: T) -> T {
        drop(self.conn.take());
        outcome
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Some(conn) = &mut self.conn {
            conn.close_on_drop();
        }
    }
}

/// Cuts the one row that was read too many, and says where the next page continues.
fn paged<T>(mut items: Vec<T>, limit: u32, id: impl Fn(&T) -> Uuid) -> Page<T> {
    let limit = limit as usize;
    let more = items.len() > limit;
    items.truncate(limit);
    let next = if more { items.last().map(id) } else { None };
    Page { items, next }
}

#[async_trait]
impl Reader for PostgresReader {
    async fn now(&self) -> Result<Now, StoreError> {
        if let Some(now) = self.clock.told() {
            return Ok(now);
        }
        let mut conn = self.connection(1).await?;
        let now = self.clock.read(conn.get()?).await;
        conn.end(now)
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    async fn session(
        &self,
        namespace: &str,
        id: SessionId,
    ) -> Result<Option<SessionView>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = sessions::find(conn.get()?, namespace, id).await;
        conn.end(found)
    }

    async fn sessions(
        &self,
        namespace: &str,
        page: PageRequest,
    ) -> Result<Page<SessionView>, StoreError> {
        let mut conn = self.connection(1).await?;
        let items = sessions::page(conn.get()?, namespace, page).await;
        let items = conn.end(items)?;
        Ok(paged(items, page.limit, |view| {
            view.session.session_id.uuid()
        }))
    }

    async fn run(&self, namespace: &str, id: RunId) -> Result<Option<Run>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = record::find(conn.get()?, namespace, id).await;
        conn.end(found)
    }

    async fn runs(
        &self,
        namespace: &str,
        filter: RunFilter,
        page: PageRequest,
    ) -> Result<Page<Run>, StoreError> {
        let mut conn = self.connection(1).await?;
        let items = record::page(conn.get()?, namespace, filter, page).await;
        let items = conn.end(items)?;
        Ok(paged(items, page.limit, |run| run.run_id.uuid()))
    }

    async fn latest_settled_run(
        &self,
        namespace: &str,
        session: SessionId,
    ) -> Result<Option<Run>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = record::latest_settled_of(conn.get()?, namespace, session).await;
        conn.end(found)
    }

    async fn snapshot(
        &self,
        namespace: &str,
        run: RunId,
    ) -> Result<Option<MessageSnapshot>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = snapshots::find(conn.get()?, namespace, run).await;
        conn.end(found)
    }

    async fn artifact(
        &self,
        namespace: &str,
        session: SessionId,
        run: Option<RunId>,
        name: &str,
    ) -> Result<Option<Artifact>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = match run {
            Some(run) => artifacts::of_run(conn.get()?, namespace, (session, run), name).await,
            None => artifacts::newest(conn.get()?, namespace, session, name).await,
        };
        conn.end(found)
    }

    async fn tape(&self, filter: &TapeFilter) -> Result<Vec<TapeEntry>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = tape::filtered(conn.get()?, filter).await;
        conn.end(found)
    }

    async fn checkpoints(
        &self,
        namespace: &str,
        session: SessionId,
        include_superseded: bool,
        page: PageRequest,
    ) -> Result<Page<Checkpoint>, StoreError> {
        let mut conn = self.connection(1).await?;
        let items =
            checkpoints::page(conn.get()?, namespace, session, include_superseded, page).await;
        let items = conn.end(items)?;
        Ok(paged(items, page.limit, |item| item.checkpoint_id.uuid()))
    }

    async fn checkpoint(
        &self,
        namespace: &str,
        id: CheckpointId,
    ) -> Result<Option<Checkpoint>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = checkpoints::find(conn.get()?, namespace, id).await;
        conn.end(found)
    }

    async fn head_seqs(&self, sessions: &[SessionId]) -> Result<Vec<(SessionId, u64)>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = heads::seqs(conn.get()?, sessions).await;
        conn.end(found)
    }

    async fn head_seq(&self, session: SessionId) -> Result<Option<u64>, StoreError> {
        let found = self.head_seqs(&[session]).await?;
        Ok(found.first().map(|(_session, head_seq)| *head_seq))
    }

    async fn events(&self, filter: &EventFilter) -> Result<EventSlice, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = events::filtered(conn.get()?, filter).await;
        conn.end(found)
    }

    async fn fold_over(&self, session: SessionId, seq: u64) -> Result<Option<u64>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = folds::over(conn.get()?, session, seq).await;
        conn.end(found)
    }

    async fn feed(&self, filter: &FeedFilter) -> Result<FeedSlice, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = events::feed(conn.get()?, filter).await;
        conn.end(found)
    }

    async fn feed_end(&self) -> Result<FeedPosition, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = events::feed_end(conn.get()?).await;
        conn.end(found)
    }

    async fn interaction(
        &self,
        namespace: &str,
        id: InteractionId,
    ) -> Result<Option<Interaction>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = interactions::find(conn.get()?, namespace, id).await;
        conn.end(found)
    }

    async fn interactions(
        &self,
        namespace: &str,
        filter: &InteractionFilter,
        page: PageRequest,
    ) -> Result<Page<Interaction>, StoreError> {
        let mut conn = self.connection(1).await?;
        let items = interactions::page(conn.get()?, namespace, filter, page).await;
        let items = conn.end(items)?;
        Ok(paged(items, page.limit, |item| item.interaction_id.uuid()))
    }

    async fn rule(&self, namespace: &str, id: RuleId) -> Result<Option<ApprovalRule>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = rules::find(conn.get()?, namespace, id).await;
        conn.end(found)
    }

    async fn rules(
        &self,
        namespace: &str,
        filter: RuleFilter,
        page: PageRequest,
    ) -> Result<Page<ApprovalRule>, StoreError> {
        let mut conn = self.connection(1).await?;
        let items = rules::page(conn.get()?, namespace, filter, page).await;
        let items = conn.end(items)?;
        Ok(paged(items, page.limit, |item| item.rule_id.uuid()))
    }

    async fn token(&self, id: TokenId) -> Result<Option<AccessToken>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = tokens::find(conn.get()?, id).await;
        conn.end(found)
    }

    async fn token_of_digest(&self, digest: &Digest) -> Result<Option<AccessToken>, StoreError> {
        let mut conn = self.connection(1).await?;
        let found = tokens::of_digest(conn.get()?, digest).await;
        conn.end(found)
    }

    async fn any_live_token(&self, at: Timestamp) -> Result<bool, StoreError> {
        let mut conn = self.connection(1).await?;
        let any = tokens::any_live(conn.get()?, at).await;
        conn.end(any)
    }

    async fn tokens(&self, all: bool, page: PageRequest) -> Result<Page<AccessToken>, StoreError> {
        let mut conn = self.connection(1).await?;
        let items = tokens::page(conn.get()?, all, page).await;
        let items = conn.end(items)?;
        Ok(paged(items, page.limit, |item| item.token_id.uuid()))
    }

    async fn executors(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Executor>, StoreError> {
        let mut conn = self.connection(2).await?;
        let from = after.unwrap_or_default();
        let page = executors::page(conn.get()?, from, after.is_none(), limit).await;
        conn.end(page)
    }

    async fn executor(&self, executor_id: &str) -> Result<Option<Executor>, StoreError> {
        let mut conn = self.connection(2).await?;
        let page = executors::page(conn.get()?, executor_id, true, 1).await;
        let found = conn.end(page)?.pop();
        Ok(found.filter(|executor| executor.contact.executor_id == executor_id))
    }

    async fn live_run_count(&self) -> Result<u64, StoreError> {
        let mut conn = self.connection(1).await?;
        let count = sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM run_heads"#)
            .fetch_one(conn.get()?)
            .await;
        let count = conn.end(count).map_err(from_sqlx)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}
