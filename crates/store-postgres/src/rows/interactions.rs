//! Rows of `interactions`.

use async_trait::async_trait;
use sqlx::{PgConnection, Postgres, QueryBuilder};
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{InteractionId, RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::interaction::Interaction;
use tapedeck_domain::time::LeaseInstant;
use tapedeck_store::PageRequest;
use tapedeck_store::read::InteractionFilter;
use tapedeck_store::rows::{InteractionRows, Rows};
use uuid::Uuid;

use crate::encode::{At, before, bytes, text};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::PostgresTx;

/// Interactions, with what follows the table's name in the statement.
macro_rules! interaction_rows {
    ($tail:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            InteractionRow,
            "SELECT interaction_id, session_id, run_key, run_id, attempt, request_id,
                    request_digest, kind, status, request, response, created_at, expires_at,
                    deadline, resolved_at, resolved_by
             FROM interactions " + $tail
            $(, $argument)*
        )
    };
}

/// A row of `interactions`.
#[derive(sqlx::FromRow)]
struct InteractionRow {
    interaction_id: Uuid,
    session_id: Uuid,
    run_key: i64,
    run_id: Uuid,
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
            interaction_id: InteractionId::new(row.interaction_id),
            run_key: RunKey(row.run_key),
            run_id: RunId::new(row.run_id),
            session_id: SessionId::new(row.session_id),
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
    conn: &mut PgConnection,
    namespace: &str,
    id: InteractionId,
) -> Rows<Option<Interaction>> {
    let row = interaction_rows!(
        "WHERE interaction_id = $1 AND namespace = $2",
        id.uuid(),
        namespace,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Interaction::try_from).transpose()
}

/// The newest interactions that pass a filter, before an id.
pub(crate) async fn page(
    conn: &mut PgConnection,
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
) -> QueryBuilder<Postgres> {
    let mut query = QueryBuilder::new(
        "SELECT interaction_id, session_id, run_key, run_id, attempt, request_id, request_digest,
                kind, status, request, response, created_at, expires_at, deadline, resolved_at,
                resolved_by
         FROM interactions WHERE interaction_id < ",
    );
    query.push_bind(before(page.before));
    query
        .push(" AND namespace = ")
        .push_bind(namespace.to_owned());
    if let Some(status) = filter.status {
        query.push(" AND status = ").push_bind(status.as_str());
    }
    if let Some(session) = filter.session_id {
        query.push(" AND session_id = ").push_bind(session.uuid());
    }
    if let Some(run) = filter.run_id {
        query.push(" AND run_id = ").push_bind(run.uuid());
    }
    query
        .push(" ORDER BY interaction_id DESC LIMIT ")
        .push_bind(i64::from(page.limit) + 1);
    query
}

#[async_trait]
impl InteractionRows for PostgresTx<'_> {
    async fn interaction(&mut self, id: InteractionId) -> Rows<Option<Interaction>> {
        let row = interaction_rows!("WHERE interaction_id = $1", id.uuid(),)
            .fetch_optional(self.conn())
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
        let row = interaction_rows!(
            "WHERE run_key = $1 AND attempt = $2 AND request_id = $3",
            run.0,
            i64::from(attempt),
            request_id,
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        row.map(Interaction::try_from).transpose()
    }

    async fn interaction_in_session(
        &mut self,
        session: SessionKey,
        request_id: &str,
    ) -> Rows<Option<Interaction>> {
        let row = interaction_rows!(
            "WHERE session_key = $1 AND request_id = $2
             ORDER BY interaction_id DESC LIMIT 1",
            session.0,
            request_id,
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        row.map(Interaction::try_from).transpose()
    }

    async fn insert_interaction(
        &mut self,
        session: SessionKey,
        interaction: &Interaction,
    ) -> Rows<()> {
        let response = interaction.response.as_ref().map(text);
        let done = sqlx::query!(
            "INSERT INTO interactions (
                interaction_id, namespace, session_key, session_id, run_key, run_id, attempt,
                request_id, request_digest, kind, status, request, response, created_at, expires_at,
                deadline, resolved_at, resolved_by
             )
             SELECT $2, namespace, session_key, session_id, $3, $4, $5, $6, $7, $8, $9, $10, $11,
                    $12, $13, $14, $15, $16
             FROM sessions WHERE session_key = $1",
            session.0,
            interaction.interaction_id.uuid(),
            interaction.run_key.0,
            interaction.run_id.uuid(),
            i64::from(interaction.attempt),
            interaction.request_id,
            bytes(&interaction.request_digest),
            interaction.kind.as_str(),
            interaction.status.as_str(),
            text(&interaction.request),
            response,
            interaction.created_at.0,
            interaction.expires_at.0,
            interaction.deadline.0,
            interaction.resolved_at.map(|at| at.0),
            interaction.resolved_by,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("interactions", done.rows_affected(), 1)
    }

    async fn save_interaction(&mut self, interaction: &Interaction) -> Rows<()> {
        let response = interaction.response.as_ref().map(text);
        let done = sqlx::query!(
            "UPDATE interactions SET
                status = $1, response = $2, resolved_at = $3, resolved_by = $4
             WHERE interaction_id = $5",
            interaction.status.as_str(),
            response,
            interaction.resolved_at.map(|at| at.0),
            interaction.resolved_by,
            interaction.interaction_id.uuid(),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("interactions", done.rows_affected(), 1)
    }

    async fn pending_interactions(&mut self, run: RunKey) -> Rows<Vec<Interaction>> {
        let rows = interaction_rows!(
            "WHERE run_key = $1 AND status = 'pending'
             ORDER BY interaction_id",
            run.0,
        )
        .fetch_all(self.conn())
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
        let after = after.map_or(Uuid::nil(), InteractionId::uuid);
        // What is due is few; a page along the table's own key would walk its history instead.
        let rows = sqlx::query_scalar!(
            r#"WITH due AS MATERIALIZED (
                SELECT interaction_id FROM interactions
                WHERE status = 'pending' AND deadline <= $1
             )
             SELECT interaction_id AS "interaction_id!" FROM due
             WHERE interaction_id > $2
             ORDER BY interaction_id
             LIMIT $3"#,
            at.0,
            after,
            i64::from(limit),
        )
        .fetch_all(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(rows.into_iter().map(InteractionId::new).collect())
    }
}
