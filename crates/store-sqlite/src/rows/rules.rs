//! Rows of `approval_rules`. A rule's session is looked up by its key, so that nothing is kept twice.

use async_trait::async_trait;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{InteractionId, RuleId, SessionId, SessionKey};
use tapedeck_domain::rule::{ApprovalRule, RuleTerms};
use tapedeck_store::PageRequest;
use tapedeck_store::read::RuleFilter;
use tapedeck_store::rows::{Rows, RuleRows};

use crate::encode::{At, before, blob};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::SqliteTx;

/// Rules, with what follows their tables in the statement.
macro_rules! rule_rows {
    ($tail:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            RuleRow,
            r#"SELECT r.rule_id, r.namespace, s.session_id AS "session_id?", r.tool_name,
                    r.arguments, r.decision, r.created_by, r.made_by, r.created_at,
                    r.revoked_at, r.revoked_by
             FROM approval_rules r
             LEFT JOIN sessions s ON s.session_key = r.session_key "# + $tail
            $(, $argument)*
        )
    };
}

/// A row of `approval_rules`.
#[derive(sqlx::FromRow)]
struct RuleRow {
    rule_id: Vec<u8>,
    namespace: String,
    session_id: Option<Vec<u8>>,
    tool_name: String,
    arguments: Option<String>,
    decision: String,
    created_by: Option<Vec<u8>>,
    made_by: Option<String>,
    created_at: i64,
    revoked_at: Option<i64>,
    revoked_by: Option<String>,
}

impl TryFrom<RuleRow> for ApprovalRule {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: RuleRow) -> Rows<Self> {
        let at = At::new("approval_rules", &row.tool_name);
        let arguments = at.maybe_json("arguments", row.arguments.as_deref())?;
        let arguments = arguments.map(serde_json::from_value).transpose();
        let terms = RuleTerms {
            tool_name: row.tool_name.clone(),
            arguments: arguments.map_err(|_broken| at.bad("arguments"))?,
            decision: at.word("decision", &row.decision)?,
        };
        Ok(Self {
            rule_id: at.id("rule_id", &row.rule_id, RuleId::new)?,
            session_id: at.maybe_id("session_id", row.session_id.as_deref(), SessionId::new)?,
            interaction_id: at.maybe_id(
                "created_by",
                row.created_by.as_deref(),
                InteractionId::new,
            )?,
            namespace: row.namespace,
            terms,
            created_by: row.made_by,
            created_at: Timestamp(row.created_at),
            revoked_at: row.revoked_at.map(Timestamp),
            revoked_by: row.revoked_by,
        })
    }
}

/// One rule of a namespace.
pub(crate) async fn find(
    conn: &mut SqliteConnection,
    namespace: &str,
    id: RuleId,
) -> Rows<Option<ApprovalRule>> {
    let id = blob(id.uuid());
    let row = rule_rows!("WHERE r.rule_id = ?1 AND r.namespace = ?2", id, namespace,)
        .fetch_optional(conn)
        .await
        .map_err(from_sqlx)?;
    row.map(ApprovalRule::try_from).transpose()
}

/// The newest rules that pass a filter, before an id.
pub(crate) async fn page(
    conn: &mut SqliteConnection,
    namespace: &str,
    filter: RuleFilter,
    page: PageRequest,
) -> Rows<Vec<ApprovalRule>> {
    let rows: Vec<RuleRow> = page_query(namespace, filter, page)
        .build_query_as()
        .fetch_all(conn)
        .await
        .map_err(from_sqlx)?;
    rows.into_iter().map(ApprovalRule::try_from).collect()
}

/// A dynamic statement, because a session's rules have an index of their own.
fn page_query(namespace: &str, filter: RuleFilter, page: PageRequest) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(
        "SELECT r.rule_id, r.namespace, s.session_id, r.tool_name, r.arguments, r.decision,
                r.created_by, r.made_by, r.created_at, r.revoked_at, r.revoked_by
         FROM approval_rules r
         LEFT JOIN sessions s ON s.session_key = r.session_key
         WHERE r.rule_id < ",
    );
    query.push_bind(before(page.before));
    query
        .push(" AND r.namespace = ")
        .push_bind(namespace.to_owned());
    if let Some(session) = filter.session_id {
        query
            .push(" AND r.session_key = (SELECT session_key FROM sessions WHERE session_id = ")
            .push_bind(blob(session.uuid()))
            .push(")");
    }
    if !filter.include_revoked {
        query.push(" AND r.revoked_at IS NULL");
    }
    query
        .push(" ORDER BY r.rule_id DESC LIMIT ")
        .push_bind(i64::from(page.limit) + 1);
    query
}

#[async_trait]
impl RuleRows for SqliteTx<'_> {
    async fn rule(&mut self, namespace: &str, id: RuleId) -> Rows<Option<ApprovalRule>> {
        find(self.read(), namespace, id).await
    }

    async fn session_rules(&mut self, session: SessionKey) -> Rows<Vec<ApprovalRule>> {
        let rows = rule_rows!(
            "WHERE r.session_key = ?1 AND r.revoked_at IS NULL ORDER BY r.rule_id",
            session.0,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter().map(ApprovalRule::try_from).collect()
    }

    async fn namespace_rules(&mut self, namespace: &str) -> Rows<Vec<ApprovalRule>> {
        let rows = rule_rows!(
            "WHERE r.namespace = ?1 AND r.session_key IS NULL AND r.revoked_at IS NULL
             ORDER BY r.rule_id",
            namespace,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter().map(ApprovalRule::try_from).collect()
    }

    async fn insert_rule(&mut self, session: Option<SessionKey>, rule: &ApprovalRule) -> Rows<()> {
        let session = session.map(|key| key.0);
        let id = blob(rule.rule_id.uuid());
        let interaction = rule.interaction_id.map(|id| blob(id.uuid()));
        let arguments = rule.terms.arguments.as_ref();
        let arguments = arguments.and_then(|pattern| serde_json::to_string(pattern).ok());
        let decision = rule.terms.decision.as_str();
        let done = sqlx::query!(
            "INSERT INTO approval_rules (
                rule_id, namespace, session_key, tool_name, arguments, decision, created_by,
                made_by, created_at
             ) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            id,
            rule.namespace,
            session,
            rule.terms.tool_name,
            arguments,
            decision,
            interaction,
            rule.created_by,
            rule.created_at.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("approval_rules", done.rows_affected(), 1)
    }

    async fn revoke_rule(&mut self, id: RuleId, by: &str, at: Timestamp) -> Rows<()> {
        let id = blob(id.uuid());
        let done = sqlx::query!(
            "UPDATE approval_rules SET revoked_at = ?1, revoked_by = ?2 WHERE rule_id = ?3",
            at.0,
            by,
            id,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("approval_rules", done.rows_affected(), 1)
    }
}
