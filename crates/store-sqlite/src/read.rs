//! Reads outside the writer's transactions, over a small pool of connections that can't write. Each
//! is one short statement, or two, so that the write-ahead log can be reset behind them.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqlitePool};
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
use uuid::Uuid;

use crate::clock::Clock;
use crate::encode::{At, blob};
use crate::error::from_sqlx;
use crate::record;
use crate::rows::{
    artifacts, checkpoints, events, executors, folds, heads, interactions, rules, sessions,
    snapshots, tape, tokens,
};

/// The readers.
#[derive(Debug)]
pub(crate) struct SqliteReader {
    pool: SqlitePool,
    clock: Clock,
    identity: Identity,
    statements: AtomicU64,
}

impl SqliteReader {
    pub(crate) fn new(pool: SqlitePool, clock: Clock, identity: Identity) -> Self {
        Self {
            pool,
            clock,
            identity,
            statements: AtomicU64::new(0),
        }
    }

    /// How many statements have been run.
    pub(crate) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }

    /// A connection for `statements` statements.
    async fn connection(&self, statements: u64) -> Result<PoolConnection<Sqlite>, StoreError> {
        self.statements.fetch_add(statements, Ordering::Relaxed);
        self.pool.acquire().await.map_err(from_sqlx)
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
impl Reader for SqliteReader {
    async fn now(&self) -> Result<Now, StoreError> {
        Ok(self.clock.now(self.clock.lease()))
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    async fn session(
        &self,
        namespace: &str,
        id: SessionId,
    ) -> Result<Option<SessionView>, StoreError> {
        sessions::find(&mut *self.connection(1).await?, namespace, id).await
    }

    async fn sessions(
        &self,
        namespace: &str,
        page: PageRequest,
    ) -> Result<Page<SessionView>, StoreError> {
        let items = sessions::page(&mut *self.connection(1).await?, namespace, page).await?;
        Ok(paged(items, page.limit, |view| {
            view.session.session_id.uuid()
        }))
    }

    async fn run(&self, namespace: &str, id: RunId) -> Result<Option<Run>, StoreError> {
        record::find(&mut *self.connection(1).await?, namespace, id).await
    }

    async fn runs(
        &self,
        namespace: &str,
        filter: RunFilter,
        page: PageRequest,
    ) -> Result<Page<Run>, StoreError> {
        let mut conn = self.connection(1).await?;
        let items = record::page(&mut conn, namespace, filter, page).await?;
        Ok(paged(items, page.limit, |run| run.run_id.uuid()))
    }

    async fn latest_settled_run(
        &self,
        namespace: &str,
        session: SessionId,
    ) -> Result<Option<Run>, StoreError> {
        record::latest_settled_of(&mut *self.connection(1).await?, namespace, session).await
    }

    async fn snapshot(
        &self,
        namespace: &str,
        run: RunId,
    ) -> Result<Option<MessageSnapshot>, StoreError> {
        snapshots::find(&mut *self.connection(1).await?, namespace, run).await
    }

    async fn artifact(
        &self,
        namespace: &str,
        session: SessionId,
        run: Option<RunId>,
        name: &str,
    ) -> Result<Option<Artifact>, StoreError> {
        let mut conn = self.connection(1).await?;
        match run {
            Some(run) => artifacts::of_run(&mut conn, namespace, (session, run), name).await,
            None => artifacts::newest(&mut conn, namespace, session, name).await,
        }
    }

    async fn tape(&self, filter: &TapeFilter) -> Result<Vec<TapeEntry>, StoreError> {
        tape::filtered(&mut *self.connection(1).await?, filter).await
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
            checkpoints::page(&mut conn, namespace, session, include_superseded, page).await?;
        Ok(paged(items, page.limit, |item| item.checkpoint_id.uuid()))
    }

    async fn checkpoint(
        &self,
        namespace: &str,
        id: CheckpointId,
    ) -> Result<Option<Checkpoint>, StoreError> {
        checkpoints::find(&mut *self.connection(1).await?, namespace, id).await
    }

    async fn head_seqs(&self, sessions: &[SessionId]) -> Result<Vec<(SessionId, u64)>, StoreError> {
        heads::seqs(&mut *self.connection(1).await?, sessions).await
    }

    async fn head_seq(&self, session: SessionId) -> Result<Option<u64>, StoreError> {
        let id = blob(session.uuid());
        let head_seq = sqlx::query_scalar!(
            "SELECT h.head_seq FROM sessions s
             JOIN session_heads h ON h.session_key = s.session_key
             WHERE s.session_id = ?",
            id,
        )
        .fetch_optional(&mut *self.connection(1).await?)
        .await
        .map_err(from_sqlx)?;
        let at = At::new("session_heads", &session);
        at.maybe_number("head_seq", head_seq)
    }

    async fn events(&self, filter: &EventFilter) -> Result<EventSlice, StoreError> {
        events::filtered(&mut *self.connection(1).await?, filter).await
    }

    async fn fold_over(&self, session: SessionId, seq: u64) -> Result<Option<u64>, StoreError> {
        folds::over(&mut *self.connection(1).await?, session, seq).await
    }

    async fn feed(&self, filter: &FeedFilter) -> Result<FeedSlice, StoreError> {
        events::feed(&mut *self.connection(1).await?, filter).await
    }

    async fn feed_end(&self) -> Result<FeedPosition, StoreError> {
        events::feed_end(&mut *self.connection(1).await?).await
    }

    async fn interaction(
        &self,
        namespace: &str,
        id: InteractionId,
    ) -> Result<Option<Interaction>, StoreError> {
        interactions::find(&mut *self.connection(1).await?, namespace, id).await
    }

    async fn interactions(
        &self,
        namespace: &str,
        filter: &InteractionFilter,
        page: PageRequest,
    ) -> Result<Page<Interaction>, StoreError> {
        let mut conn = self.connection(1).await?;
        let items = interactions::page(&mut conn, namespace, filter, page).await?;
        Ok(paged(items, page.limit, |item| item.interaction_id.uuid()))
    }

    async fn rule(&self, namespace: &str, id: RuleId) -> Result<Option<ApprovalRule>, StoreError> {
        rules::find(&mut *self.connection(1).await?, namespace, id).await
    }

    async fn rules(
        &self,
        namespace: &str,
        filter: RuleFilter,
        page: PageRequest,
    ) -> Result<Page<ApprovalRule>, StoreError> {
        let mut conn = self.connection(1).await?;
        let items = rules::page(&mut conn, namespace, filter, page).await?;
        Ok(paged(items, page.limit, |item| item.rule_id.uuid()))
    }

    async fn token(&self, id: TokenId) -> Result<Option<AccessToken>, StoreError> {
        tokens::find(&mut *self.connection(1).await?, id).await
    }

    async fn token_of_digest(&self, digest: &Digest) -> Result<Option<AccessToken>, StoreError> {
        tokens::of_digest(&mut *self.connection(1).await?, digest).await
    }

    async fn any_live_token(&self, at: Timestamp) -> Result<bool, StoreError> {
        tokens::any_live(&mut *self.connection(1).await?, at).await
    }

    async fn tokens(&self, all: bool, page: PageRequest) -> Result<Page<AccessToken>, StoreError> {
        let mut conn = self.connection(1).await?;
        let items = tokens::page(&mut conn, all, page).await?;
        Ok(paged(items, page.limit, |item| item.token_id.uuid()))
    }

    async fn executors(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Executor>, StoreError> {
        let mut conn = self.connection(2).await?;
        let from = after.unwrap_or_default();
        let mut page = executors::page(&mut conn, from, after.is_none(), limit).await?;
        executors::add_live_claims(&mut conn, &mut page).await?;
        Ok(page)
    }

    async fn executor(&self, executor_id: &str) -> Result<Option<Executor>, StoreError> {
        let mut conn = self.connection(2).await?;
        let mut page = executors::page(&mut conn, executor_id, true, 1).await?;
        page.retain(|executor| executor.contact.executor_id == executor_id);
        executors::add_live_claims(&mut conn, &mut page).await?;
        Ok(page.pop())
    }

    async fn live_run_count(&self) -> Result<u64, StoreError> {
        let count = sqlx::query_scalar!("SELECT count(*) FROM run_heads")
            .fetch_one(&mut *self.connection(1).await?)
            .await
            .map_err(from_sqlx)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Executor as _;
    use tempfile::TempDir;

    use crate::{Mode, Options, SqliteStore};

    /// Fault 20: only the writer writes, so no reader's transaction can ever turn into a writing one.
    #[tokio::test]
    async fn readers_cannot_write() {
        let dir = TempDir::new().unwrap();
        let store = SqliteStore::open(Options::new(dir.path(), Mode::Server)).await;
        let store = store.unwrap();
        let mut conn = store.reader.connection(1).await.unwrap();
        for statement in [
            "DELETE FROM sessions",
            "CREATE TABLE t (a)",
            "UPDATE deployment SET alive_at = 0",
        ] {
            let refused = conn.execute(statement).await.unwrap_err();
            assert!(refused.to_string().contains("readonly"), "{refused}");
        }
        drop(conn);
        tapedeck_store::Store::close(&store).await;
    }
}
