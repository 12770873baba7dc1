//! Rows of `executors`. A contact is written while its command holds a session's head, although
//! executors come first in the order of locks (rules R2): so it never waits for a row, and skips one
//! that another transaction holds. That a contact goes unrecorded harms nothing, the next one is near.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::PgConnection;
use tapedeck_domain::executor::{Contact, Executor, LastRun, LiveClaim, Report, Standing};
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::time::{LeaseInstant, Now, Timestamp};
use tapedeck_store::StoreError;
use tapedeck_store::rows::{ExecutorRows, Rows};
use uuid::Uuid;

use crate::encode::{At, text};
use crate::error::{expect_rows, from_sqlx, internal};
use crate::tx::PostgresTx;

/// A name whose row is being deleted or made by somebody else is looked for again.
const LOCK_TRIES: u32 = 3;

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
    draining: bool,
    last_seen_at: i64,
    last_seen: i64,
    last_run_id: Option<Uuid>,
    last_session_id: Option<Uuid>,
    last_namespace: Option<String>,
}

impl TryFrom<ExecutorRow> for Executor {
    type Error = StoreError;

    fn try_from(row: ExecutorRow) -> Rows<Self> {
        let at = At::new("executors", &row.executor_id);
        let last_run = row.last_run_id.map(RunId::new);
        let last_session = row.last_session_id.map(SessionId::new);
        Ok(Self {
            draining: row.draining,
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

/// Executors by name from `from` on, with their live claims.
pub(crate) async fn page(
    conn: &mut PgConnection,
    from: &str,
    including: bool,
    limit: u32,
) -> Rows<Vec<Executor>> {
    let rows = sqlx::query_file_as!(
        ExecutorRow,
        "queries/executors_page.sql",
        from,
        including,
        i64::from(limit),
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(from_sqlx)?;
    let page: Rows<Vec<_>> = rows.into_iter().map(Executor::try_from).collect();
    let mut page = page?;
    add_live_claims(conn, &mut page).await?;
    Ok(page)
}

/// Adds the live claims of all executors of a page, newest first.
async fn add_live_claims(conn: &mut PgConnection, executors: &mut [Executor]) -> Rows<()> {
    let names: Vec<_> = executors
        .iter()
        .map(|executor| executor.contact.executor_id.clone())
        .collect();
    let rows = sqlx::query!(
        r#"SELECT h.executor_id AS "executor_id!", h.run_id, h.session_id, s.namespace,
                h.lease_expires_at AS "lease_expires_at!"
         FROM run_heads h
         JOIN sessions s ON s.session_key = h.session_key
         WHERE h.executor_id = ANY($1) AND h.lease_expires_at IS NOT NULL
         ORDER BY h.run_id DESC"#,
        &names,
    )
    .fetch_all(conn)
    .await
    .map_err(from_sqlx)?;
    let mut claims: HashMap<String, Vec<LiveClaim>> = HashMap::new();
    for row in rows {
        let claim = LiveClaim {
            run_id: RunId::new(row.run_id),
            session_id: SessionId::new(row.session_id),
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
impl ExecutorRows for PostgresTx<'_> {
    async fn save_contact(&mut self, contact: &Contact, now: Now) -> Rows<()> {
        sqlx::query_file!(
            "queries/save_contact.sql",
            contact.executor_id,
            contact.instance_id,
            contact.executor_kind,
            contact.pool,
            serde_json::to_string(&contact.labels).map_err(internal)?,
            contact.process_id,
            contact.version,
            contact.capabilities.as_ref().map(text),
            contact.workspace.as_ref().map(text),
            contact.max_runs.map(i64::from),
            now.wall.0,
            now.lease.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(())
    }

    /// An executor that never said who it is has no row to touch.
    async fn touch_executor(&mut self, executor_id: &str, report: &Report, now: Now) -> Rows<()> {
        sqlx::query!(
            "WITH free AS MATERIALIZED (
                SELECT executor_id FROM executors WHERE executor_id = $7 FOR UPDATE SKIP LOCKED
             )
             UPDATE executors e SET
                instance_id = coalesce($1, e.instance_id),
                process_id = coalesce($2, e.process_id),
                capabilities = coalesce($3, e.capabilities),
                workspace = coalesce($4, e.workspace),
                last_seen_at = $5, last_seen = $6
             FROM free WHERE e.executor_id = free.executor_id",
            report.instance_id,
            report.process_id,
            report.capabilities.as_ref().map(text),
            report.workspace.as_ref().map(text),
            now.wall.0,
            now.lease.0,
            executor_id,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(())
    }

    async fn is_draining(&mut self, executor_id: &str) -> Rows<bool> {
        let draining = sqlx::query_scalar!(
            "SELECT draining FROM executors WHERE executor_id = $1",
            executor_id
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(draining.unwrap_or_default())
    }

    /// The lock is a statement of its own, and what is counted under it a later one (rules R1). A name
    /// that never said anything gets its row first, so that there is something to lock.
    async fn lock_executor(&mut self, contact: &Contact, now: Now) -> Rows<Standing> {
        for _ in 0..LOCK_TRIES {
            let row = sqlx::query!(
                "SELECT draining, max_runs FROM executors WHERE executor_id = $1 FOR UPDATE",
                contact.executor_id,
            )
            .fetch_optional(self.conn())
            .await
            .map_err(from_sqlx)?;
            let Some(row) = row else {
                self.save_contact(contact, now).await?;
                continue;
            };
            let live_runs = sqlx::query_scalar!(
                r#"SELECT count(*) AS "count!" FROM run_heads
                 WHERE executor_id = $1 AND instance_id IS NOT DISTINCT FROM $2
                   AND lease_expires_at > $3"#,
                contact.executor_id,
                contact.instance_id,
                now.lease.0,
            )
            .fetch_one(self.conn())
            .await
            .map_err(from_sqlx)?;
            let at = At::new("executors", &contact.executor_id);
            return Ok(Standing {
                draining: row.draining,
                max_runs: at.maybe_number("max_runs", row.max_runs)?,
                live_runs: at.number("live_runs", live_runs)?,
            });
        }
        Err(StoreError::Unavailable {
            reason: "the executor's row comes and goes".to_owned(),
        })
    }

    /// A name that never said anything holds nothing.
    async fn standing(&mut self, contact: &Contact, now: Now) -> Rows<Standing> {
        let row = sqlx::query!(
            r#"SELECT e.draining, e.max_runs, (
                SELECT count(*) FROM run_heads l
                WHERE l.executor_id = e.executor_id AND l.instance_id IS NOT DISTINCT FROM $2
                  AND l.lease_expires_at > $3
             ) AS "live_runs!"
             FROM executors e WHERE e.executor_id = $1"#,
            contact.executor_id,
            contact.instance_id,
            now.lease.0,
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        let Some(row) = row else {
            return Ok(Standing::default());
        };
        let at = At::new("executors", &contact.executor_id);
        Ok(Standing {
            draining: row.draining,
            max_runs: at.maybe_number("max_runs", row.max_runs)?,
            live_runs: at.number("live_runs", row.live_runs)?,
        })
    }

    async fn known_executor(&mut self, executor_id: &str) -> Rows<Option<Executor>> {
        sqlx::query!(
            "SELECT executor_id FROM executors WHERE executor_id = $1 FOR UPDATE",
            executor_id
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        let mut found = page(self.conn(), executor_id, true, 1).await?;
        found.retain(|executor| executor.contact.executor_id == executor_id);
        Ok(found.pop())
    }

    async fn last_executor(&mut self, session: SessionKey) -> Rows<Option<Executor>> {
        sqlx::query_file_as!(ExecutorRow, "queries/last_executor.sql", session.0)
            .fetch_optional(self.conn())
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
        let rows = sqlx::query!(
            "SELECT run_key, run_id FROM run_heads
             WHERE run_deadline <= $1 AND run_key > $2
             ORDER BY run_key
             LIMIT $3",
            at.0,
            after.0,
            i64::from(limit),
        )
        .fetch_all(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(rows
            .into_iter()
            .map(|row| (RunKey(row.run_key), RunId::new(row.run_id)))
            .collect())
    }

    async fn executors_seen(&mut self, since: LeaseInstant) -> Rows<Vec<Executor>> {
        let rows = sqlx::query_file_as!(ExecutorRow, "queries/executors_seen.sql", since.0)
            .fetch_all(self.conn())
            .await
            .map_err(from_sqlx)?;
        rows.into_iter().map(Executor::try_from).collect()
    }

    async fn set_draining(&mut self, executor_id: &str, draining: bool) -> Rows<bool> {
        let done = sqlx::query!(
            "UPDATE executors SET draining = $1 WHERE executor_id = $2",
            draining,
            executor_id,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected() == 1)
    }

    async fn delete_executor(&mut self, executor_id: &str) -> Rows<()> {
        let done = sqlx::query!("DELETE FROM executors WHERE executor_id = $1", executor_id)
            .execute(self.conn())
            .await
            .map_err(from_sqlx)?;
        expect_rows("executors", done.rows_affected(), 1)
    }
}
