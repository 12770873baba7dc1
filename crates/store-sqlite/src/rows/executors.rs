//! Rows of `executors`.

use std::collections::HashMap;

use async_trait::async_trait;
use serde_json::json;
use sqlx::SqliteConnection;
use tapedeck_domain::executor::{Contact, Executor, LastRun, LiveClaim, Report, Standing};
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::time::{LeaseInstant, Now, Timestamp};
use tapedeck_store::rows::{ExecutorRows, Rows};

use crate::encode::{At, text};
use crate::error::{expect_rows, from_sqlx, internal};
use crate::rows::runs::FoundRun;
use crate::tx::SqliteTx;

/// An executor with the newest run it ever claimed.
struct ExecutorRow {
    executor_id: String,
    instance_id: Option<String>,
    executor_kind: String,
    pool: String,
    labels: String,
    process_id: Option<i64>,
    version: Option<String>,
    capabilities: Option<String>,
    workspace: Option<String>,
    max_runs: Option<i64>,
    draining: i64,
    last_seen_at: i64,
    last_seen: i64,
    last_run_id: Option<Vec<u8>>,
    last_session_id: Option<Vec<u8>>,
    last_namespace: Option<String>,
}

impl TryFrom<ExecutorRow> for Executor {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: ExecutorRow) -> Rows<Self> {
        let at = At::new("executors", &row.executor_id);
        let last_run = at.maybe_id("run_id", row.last_run_id.as_deref(), RunId::new)?;
        let last_session =
            at.maybe_id("session_id", row.last_session_id.as_deref(), SessionId::new)?;
        Ok(Self {
            draining: row.draining != 0,
            last_seen_at: Timestamp(row.last_seen_at),
            last_seen: LeaseInstant(row.last_seen),
            live_runs: Vec::new(),
            last_run: last_run.zip(last_session).zip(row.last_namespace).map(
                |((run_id, session_id), namespace)| LastRun {
                    run_id,
                    session_id,
                    namespace,
                },
            ),
            contact: Contact {
                labels: serde_json::from_str(&row.labels).map_err(|_broken| at.bad("labels"))?,
                capabilities: at.maybe_json("capabilities", row.capabilities.as_deref())?,
                workspace: at.maybe_json("workspace", row.workspace.as_deref())?,
                max_runs: at.maybe_number("max_runs", row.max_runs)?,
                executor_id: row.executor_id,
                instance_id: row.instance_id,
                executor_kind: row.executor_kind,
                pool: row.pool,
                process_id: row.process_id,
                version: row.version,
            },
        })
    }
}

/// Executors by name from `from` on, without their live claims.
pub(crate) async fn page(
    conn: &mut SqliteConnection,
    from: &str,
    including: bool,
    limit: u32,
) -> Rows<Vec<Executor>> {
    let rows = sqlx::query_file_as!(
        ExecutorRow,
        "queries/executors_page.sql",
        from,
        including,
        limit
    )
    .fetch_all(conn)
    .await
    .map_err(from_sqlx)?;
    rows.into_iter().map(Executor::try_from).collect()
}

/// Adds the live claims of all executors of a page, newest first.
pub(crate) async fn add_live_claims(
    conn: &mut SqliteConnection,
    executors: &mut [Executor],
) -> Rows<()> {
    let names: Vec<_> = executors
        .iter()
        .map(|executor| executor.contact.executor_id.as_str())
        .collect();
    let names = json!(names).to_string();
    let rows = sqlx::query!(
        r#"SELECT h.executor_id AS "executor_id!", h.run_id, h.session_id, s.namespace,
                h.lease_expires_at AS "lease_expires_at!"
         FROM run_heads h
         JOIN sessions s ON s.session_key = h.session_key
         WHERE h.executor_id IN (SELECT value FROM json_each(?)) AND h.lease_expires_at IS NOT NULL
         ORDER BY h.run_id DESC"#,
        names,
    )
    .fetch_all(conn)
    .await
    .map_err(from_sqlx)?;
    let mut claims: HashMap<String, Vec<LiveClaim>> = HashMap::new();
    for row in rows {
        let at = At::new("run_heads", &row.executor_id);
        let claim = LiveClaim {
            run_id: at.id("run_id", &row.run_id, RunId::new)?,
            session_id: at.id("session_id", &row.session_id, SessionId::new)?,
            namespace: row.namespace,
            expires_at: LeaseInstant(row.lease_expires_at),
        };
        claims.entry(row.executor_id).or_default().push(claim);
    }
    for executor in executors {
        if let Some(claims) = claims.remove(&executor.contact.executor_id) {
            executor.live_runs = claims;
        }
    }
    Ok(())
}

#[async_trait]
impl ExecutorRows for SqliteTx<'_> {
    async fn save_contact(&mut self, contact: &Contact, now: Now) -> Rows<()> {
        let labels = serde_json::to_string(&contact.labels).map_err(internal)?;
        let capabilities = contact.capabilities.as_ref().map(text);
        let workspace = contact.workspace.as_ref().map(text);
        let done = sqlx::query_file!(
            "queries/save_contact.sql",
            contact.executor_id,
            contact.instance_id,
            contact.executor_kind,
            contact.pool,
            labels,
            contact.process_id,
            contact.version,
            capabilities,
            workspace,
            contact.max_runs,
            now.wall.0,
            now.lease.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("executors", done.rows_affected(), 1)
    }

    /// An executor that never said who it is has no row to touch.
    async fn touch_executor(&mut self, executor_id: &str, report: &Report, now: Now) -> Rows<()> {
        let capabilities = report.capabilities.as_ref().map(text);
        let workspace = report.workspace.as_ref().map(text);
        sqlx::query!(
            "UPDATE executors SET
                instance_id = coalesce(?, instance_id), process_id = coalesce(?, process_id),
                capabilities = coalesce(?, capabilities), workspace = coalesce(?, workspace),
                last_seen_at = ?, last_seen = ?
             WHERE executor_id = ?",
            report.instance_id,
            report.process_id,
            capabilities,
            workspace,
            now.wall.0,
            now.lease.0,
            executor_id,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(())
    }

    async fn is_draining(&mut self, executor_id: &str) -> Rows<bool> {
        let draining = sqlx::query_scalar!(
            "SELECT draining FROM executors WHERE executor_id = ?",
            executor_id
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        Ok(draining.is_some_and(|draining| draining != 0))
    }

    /// Every command has the whole database to itself: nothing has to be locked.
    async fn lock_executor(&mut self, contact: &Contact, now: Now) -> Rows<Standing> {
        self.standing(contact, now).await
    }

    /// A name that never said anything holds nothing.
    async fn standing(&mut self, contact: &Contact, now: Now) -> Rows<Standing> {
        let row = sqlx::query!(
            r#"SELECT e.draining, e.max_runs, (
                SELECT count(*) FROM run_heads l
                WHERE l.executor_id = e.executor_id AND l.instance_id IS ?2
                  AND l.lease_expires_at > ?3
             ) AS "live_runs!: i64"
             FROM executors e WHERE e.executor_id = ?1"#,
            contact.executor_id,
            contact.instance_id,
            now.lease.0,
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        let Some(row) = row else {
            return Ok(Standing::default());
        };
        let at = At::new("executors", &contact.executor_id);
        Ok(Standing {
            draining: row.draining != 0,
            max_runs: at.maybe_number("max_runs", row.max_runs)?,
            live_runs: at.number("live_runs", row.live_runs)?,
        })
    }

    async fn known_executor(&mut self, executor_id: &str) -> Rows<Option<Executor>> {
        let mut found = page(self.read(), executor_id, true, 1).await?;
        found.retain(|executor| executor.contact.executor_id == executor_id);
        add_live_claims(self.read(), &mut found).await?;
        Ok(found.pop())
    }

    async fn last_executor(&mut self, session: SessionKey) -> Rows<Option<Executor>> {
        sqlx::query_file_as!(ExecutorRow, "queries/last_executor.sql", session.0)
            .fetch_optional(self.read())
            .await
            .map_err(from_sqlx)?
            .map(Executor::try_from)
            .transpose()
    }

    async fn overrun_runs(
        &mut self,
        at: LeaseInstant,
        after: RunKey,
        limit: u32,
    ) -> Rows<Vec<(RunKey, RunId)>> {
        let rows = sqlx::query_as!(
            FoundRun,
            "SELECT run_key, run_id FROM run_heads INDEXED BY run_heads_by_deadline
             WHERE run_deadline <= ? AND run_key > ?
             ORDER BY run_key
             LIMIT ?",
            at.0,
            after.0,
            limit,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter().map(FoundRun::ids).collect()
    }

    async fn executors_seen(&mut self, since: LeaseInstant) -> Rows<Vec<Executor>> {
        let rows = sqlx::query_file_as!(ExecutorRow, "queries/executors_seen.sql", since.0)
            .fetch_all(self.read())
            .await
            .map_err(from_sqlx)?;
        rows.into_iter().map(Executor::try_from).collect()
    }

    async fn set_draining(&mut self, executor_id: &str, draining: bool) -> Rows<bool> {
        let done = sqlx::query!(
            "UPDATE executors SET draining = ? WHERE executor_id = ?",
            draining,
            executor_id,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected() == 1)
    }

    async fn delete_executor(&mut self, executor_id: &str) -> Rows<()> {
        let done = sqlx::query!("DELETE FROM executors WHERE executor_id = ?", executor_id)
            .execute(self.write().await?)
            .await
            .map_err(from_sqlx)?;
        expect_rows("executors", done.rows_affected(), 1)
    }
}
