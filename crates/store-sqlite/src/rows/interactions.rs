//! Rows of `interactions`.

use async_trait::async_trait;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{InteractionId, RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::interaction::Interaction;
use tapedeck_domain::time::LeaseInstant;
use tapedeck_store::PageRequest;
use tapedeck_store::read::InteractionFilter;
use tapedeck_store::rows::{InteractionRows, Rows};

use crate::encode::{At, before, blob, bytes, text};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::SqliteTx;

/// A row of `interactions`.
#[derive(sqlx::FromRow)]
#[expect(dead_code, reason = "`SELECT *` is checked against all columns")]
struct InteractionRow {
    interaction_id: Vec<u8>,
    namespace: String,
    session_key: i64,
    session_id: Vec<u8>,
    run_key: i64,
    run_id: Vec<u8>,
    attempt: i64,
    request_id: String,
    request_digest: Vec<u8>,
    kind: String,
    status: String,
    request: String,
    response: Option<String>,
    created_at: i64,
    expires_at: i64,
    deadline: i64,
    resolved_at: Option<i64>,
    resolved_by: Option<String>,
}

impl TryFrom<InteractionRow> for Interaction {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: InteractionRow) -> Rows<Self> {
        let named = format!("{} of run {}", row.request_id, row.run_key);
        let at = At::new("interactions", &named);
        Ok(Self {
            interaction_id: at.id("interaction_id", &row.interaction_id, InteractionId::new)?,
            run_key: RunKey(row.run_key),
            run_id: at.id("run_id", &row.run_id, RunId::new)?,
            session_id: at.id("session_id", &row.session_id, SessionId::new)?,
            attempt: at.number("attempt", row.attempt)?,
            request_id: row.request_id,
            request_digest: at.digest("request_digest", &row.request_digest)?,
            kind: at.word("kind", &row.kind)?,
            status: at.word("status", &row.status)?,
            request: at.json("request", &row.request)?,
            response: at.maybe_json("response", row.response.as_deref())?,
            created_at: Timestamp(row.created_at),
            expires_at: Timestamp(row.expires_at),
            deadline: LeaseInstant(row.deadline),
            resolved_at: row.resolved_at.map(Timestamp),
            resolved_by: row.resolved_by,
        })
    }
}

/// One interaction of a namespace.
pub(crate) async fn find(
    conn: &mut SqliteConnection,
    namespace: &str,
    id: InteractionId,
) -> Rows<Option<Interaction>> {
    let id = blob(id.uuid());
    let row = sqlx::query_as!(
        InteractionRow,
        "SELECT * FROM interactions WHERE interaction_id = ? AND namespace = ?",
        id,
        namespace,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Interaction::try_from).transpose()
}

/// The newest interactions that pass a filter, before an id.
pub(crate) async fn page(
    conn: &mut SqliteConnection,
    namespace: &str,
    filter: &InteractionFilter,
    page: PageRequest,
) -> Rows<Vec<Interaction>> {
    let rows: Vec<InteractionRow> = page_query(namespace, filter, page)
        .build_query_as()
        .fetch_all(conn)
        .await
        .map_err(from_sqlx)?;
    rows.into_iter().map(Interaction::try_from).collect()
}

/// The one list with a dynamic statement: each of its filters has an index of its own, which one
/// statement with optional parameters could not use.
fn page_query(
    namespace: &str,
    filter: &InteractionFilter,
    page: PageRequest,
) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT * FROM interactions WHERE interaction_id < ");
    query.push_bind(before(page.before));
    query
        .push(" AND namespace = ")
        .push_bind(namespace.to_owned());
    if let Some(status) = filter.status {
        query.push(" AND status = ").push_bind(status.as_str());
    }
    if let Some(session) = filter.session_id {
        query
            .push(" AND session_id = ")
            .push_bind(blob(session.uuid()));
    }
    if let Some(run) = filter.run_id {
        query.push(" AND run_id = ").push_bind(blob(run.uuid()));
    }
    query
        .push(" ORDER BY interaction_id DESC LIMIT ")
        .push_bind(i64::from(page.limit) + 1);
    query
}

#[async_trait]
impl InteractionRows for SqliteTx<'_> {
    async fn interaction(&mut self, id: InteractionId) -> Rows<Option<Interaction>> {
        let id = blob(id.uuid());
        let row = sqlx::query_as!(
            InteractionRow,
            "SELECT * FROM interactions WHERE interaction_id = ?",
            id,
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        row.map(Interaction::try_from).transpose()
    }

    async fn interaction_of_request(
        &mut self,
        run: RunKey,
        attempt: u32,
        request_id: &str,
    ) -> Rows<Option<Interaction>> {
        let row = sqlx::query_as!(
            InteractionRow,
            "SELECT * FROM interactions WHERE run_key = ? AND attempt = ? AND request_id = ?",
            run.0,
            attempt,
            request_id,
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        row.map(Interaction::try_from).transpose()
    }

    async fn interaction_in_session(
        &mut self,
        session: SessionKey,
        request_id: &str,
    ) -> Rows<Option<Interaction>> {
        let row = sqlx::query_as!(
            InteractionRow,
            "SELECT * FROM interactions WHERE session_key = ? AND request_id = ?
             ORDER BY interaction_id DESC LIMIT 1",
            session.0,
            request_id,
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        row.map(Interaction::try_from).transpose()
    }

    async fn insert_interaction(
        &mut self,
        session: SessionKey,
        interaction: &Interaction,
    ) -> Rows<()> {
        let id = blob(interaction.interaction_id.uuid());
        let run_id = blob(interaction.run_id.uuid());
        let digest = bytes(&interaction.request_digest);
        let (kind, status) = (interaction.kind.as_str(), interaction.status.as_str());
        let request = text(&interaction.request);
        let response = interaction.response.as_ref().map(text);
        let resolved_at = interaction.resolved_at.map(|at| at.0);
        let done = sqlx::query!(
            "INSERT INTO interactions (
                interaction_id, namespace, session_key, session_id, run_key, run_id, attempt,
                request_id, request_digest, kind, status, request, response, created_at, expires_at,
                deadline, resolved_at, resolved_by
             )
             SELECT ?2, namespace, session_key, session_id, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
                    ?12, ?13, ?14, ?15, ?16
             FROM sessions WHERE session_key = ?1",
            session.0,
            id,
            interaction.run_key.0,
            run_id,
            interaction.attempt,
            interaction.request_id,
            digest,
            kind,
            status,
            request,
            response,
            interaction.created_at.0,
            interaction.expires_at.0,
            interaction.deadline.0,
            resolved_at,
            interaction.resolved_by,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("interactions", done.rows_affected(), 1)
    }

    async fn save_interaction(&mut self, interaction: &Interaction) -> Rows<()> {
        let id = blob(interaction.interaction_id.uuid());
        let status = interaction.status.as_str();
        let response = interaction.response.as_ref().map(text);
        let resolved_at = interaction.resolved_at.map(|at| at.0);
        let done = sqlx::query!(
            "UPDATE interactions SET status = ?, response = ?, resolved_at = ?, resolved_by = ?
             WHERE interaction_id = ?",
            status,
            response,
            resolved_at,
            interaction.resolved_by,
            id,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("interactions", done.rows_affected(), 1)
    }

    async fn pending_interactions(&mut self, run: RunKey) -> Rows<Vec<Interaction>> {
        let rows = sqlx::query_as!(
            InteractionRow,
            "SELECT * FROM interactions WHERE run_key = ? AND status = 'pending'
             ORDER BY interaction_id",
            run.0,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter().map(Interaction::try_from).collect()
    }

    async fn overdue_interactions(
        &mut self,
        at: LeaseInstant,
        after: Option<InteractionId>,
        limit: u32,
    ) -> Rows<Vec<InteractionId>> {
        let after = after.map(|id| blob(id.uuid())).unwrap_or_default();
        let rows = sqlx::query_scalar!(
            "SELECT interaction_id FROM interactions INDEXED BY interactions_due
             WHERE status = 'pending' AND deadline <= ? AND interaction_id > ?
             ORDER BY interaction_id
             LIMIT ?",
            at.0,
            after,
            limit,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        let at = At::new("interactions", &"overdue");
        rows.iter()
            .map(|id| at.id("interaction_id", id, InteractionId::new))
            .collect()
    }
}
