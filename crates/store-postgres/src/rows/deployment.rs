//! The deployment's one row, and the outage credit over all leases (rules R6).

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{DeploymentId, LogId};
use tapedeck_domain::time::LeaseInstant;
use tapedeck_store::read::Identity;
use tapedeck_store::rows::{Deployment, DeploymentRows, Rows};
use uuid::Builder;

use crate::error::{expect_rows, from_sqlx};
use crate::tx::PostgresTx;

/// The database's identity; made where it has none yet.
pub(crate) async fn identity(conn: &mut PgConnection, created_at: Timestamp) -> Rows<Identity> {
    sqlx::query!(
        "INSERT INTO deployment (id, deployment_id, log_id, created_at)
         VALUES (1, $1, $2, $3)
         ON CONFLICT (id) DO NOTHING",
        Builder::from_random_bytes(rand::random()).into_uuid(),
        Builder::from_random_bytes(rand::random()).into_uuid(),
        created_at.0,
    )
    .execute(&mut *conn)
    .await
    .map_err(from_sqlx)?;
    let row = sqlx::query!("SELECT d.deployment_id, d.log_id FROM deployment d WHERE d.id = 1")
        .fetch_one(conn)
        .await
        .map_err(from_sqlx)?;
    Ok(Identity {
        deployment_id: DeploymentId::new(row.deployment_id),
        log_id: LogId::new(row.log_id),
    })
}

/// A dump that was restored on another server brings events of transactions that this server has yet
/// to come to, and the feed would hide them until then, with all that follow in their sessions (rules
/// R22). They become events of one transaction of this server, in the order of their keys. Cursors
/// name transactions, so it is another log.
#[expect(
    clippy::disallowed_methods,
    reason = "it writes every event on purpose, once after a restore, so it is none of the statements \
              whose plans are looked at"
)]
pub(crate) async fn adopt_feed(conn: &mut PgConnection) -> Rows<()> {
    const IS_FOREIGN: &str = "SELECT coalesce(
            (SELECT xid FROM events ORDER BY xid DESC, event_key DESC LIMIT 1)
                >= pg_snapshot_xmax(pg_current_snapshot()),
            false
        )";
    let is_foreign = sqlx::query_scalar(IS_FOREIGN).fetch_one(&mut *conn).await;
    let is_foreign: bool = is_foreign.map_err(from_sqlx)?;
    if !is_foreign {
        return Ok(());
    }
    let mut tx = conn.begin().await.map_err(from_sqlx)?;
    sqlx::query("SELECT FROM deployment WHERE id = 1 FOR UPDATE")
        .execute(&mut *tx)
        .await
        .map_err(from_sqlx)?;
    // Another instance may have been first.
    let is_foreign = sqlx::query_scalar(IS_FOREIGN).fetch_one(&mut *tx).await;
    let is_foreign: bool = is_foreign.map_err(from_sqlx)?;
    if is_foreign {
        sqlx::query("UPDATE events SET xid = pg_current_xact_id()")
            .execute(&mut *tx)
            .await
            .map_err(from_sqlx)?;
        sqlx::query("UPDATE deployment SET log_id = $1 WHERE id = 1")
            .bind(Builder::from_random_bytes(rand::random()).into_uuid())
            .execute(&mut *tx)
            .await
            .map_err(from_sqlx)?;
        tracing::warn!("the database was restored from another server: it begins a new log");
    }
    tx.commit().await.map_err(from_sqlx)
}

#[async_trait]
impl DeploymentRows for PostgresTx<'_> {
    /// The row stays locked, before everything else that the transaction locks: of several instances
    /// that come back from one outage, each must see what the one before has credited.
    async fn deployment(&mut self) -> Rows<Deployment> {
        let alive_at =
            sqlx::query_scalar!("SELECT alive_at FROM deployment WHERE id = 1 FOR UPDATE")
                .fetch_one(self.conn())
                .await
                .map_err(from_sqlx)?;
        Ok(Deployment {
            alive_at: alive_at.map(LeaseInstant),
            boot_changed: false,
        })
    }

    async fn set_alive(&mut self, at: LeaseInstant) -> Rows<()> {
        let done = sqlx::query!("UPDATE deployment SET alive_at = $1 WHERE id = 1", at.0)
            .execute(self.conn())
            .await
            .map_err(from_sqlx)?;
        expect_rows("deployment", done.rows_affected(), 1)
    }

    /// Every lease moment is kept in step: what was live at `alive_at` is moved by the gap, and so is
    /// when executors were last seen and when live claims were made. A back-off, or a wait for an executor, ends with the gap: a
    /// run that came while a sweep was late must not be put off. Executors are locked first, then
    /// every head with a lease that may live, each in the order of their keys (rules R2); the rest
    /// belongs to these heads.
    async fn shift_leases(&mut self, alive_at: LeaseInstant, gap_ms: i64) -> Rows<u64> {
        let (alive_at, gap) = (alive_at.0, gap_ms);
        self.lock_leases().await?;
        let conn = self.conn();
        sqlx::query!("UPDATE executors SET last_seen = last_seen + $1", gap)
            .execute(&mut *conn)
            .await
            .map_err(from_sqlx)?;
        sqlx::query!(
            // Two partial indexes hold every head with a lease that may live.
            "UPDATE session_heads SET owner_expires_at = owner_expires_at + $2
             WHERE owner_expires_at > $1 AND session_key IN (
                SELECT session_key FROM session_heads WHERE active_run_key IS NOT NULL
                UNION ALL
                SELECT session_key FROM session_heads
                WHERE active_run_key IS NULL AND NOT released
             )",
            alive_at,
            gap,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        let claims = sqlx::query!(
            "UPDATE run_heads SET
                lease_expires_at = lease_expires_at + $2,
                cancel_deadline = cancel_deadline + $2,
                run_deadline = run_deadline + $2
             WHERE lease_expires_at > $1",
            alive_at,
            gap,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!(
            "UPDATE run_heads SET ready_at = $1 WHERE ready_at > $1",
            alive_at + gap,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!(
            "UPDATE run_queue SET ready_at = $1 WHERE ready_at > $1",
            alive_at + gap,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!(
            "UPDATE run_queue SET opens_at = $1 WHERE opens_at > $1",
            alive_at + gap,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!(
            "UPDATE interactions SET deadline = deadline + $2
             WHERE status = 'pending' AND deadline > $1",
            alive_at,
            gap,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!(
            "UPDATE claims SET claimed_at = claimed_at + $1
             WHERE run_key IN (SELECT run_key FROM run_heads)",
            gap,
        )
        .execute(conn)
        .await
        .map_err(from_sqlx)?;
        Ok(claims.rows_affected())
    }
}

impl PostgresTx<'_> {
    /// Locks whatever the credit for an outage moves, in statements that do nothing else (rules R1).
    async fn lock_leases(&mut self) -> Rows<()> {
        sqlx::query!("SELECT FROM executors ORDER BY executor_id FOR UPDATE")
            .execute(self.conn())
            .await
            .map_err(from_sqlx)?;
        sqlx::query!(
            "SELECT FROM session_heads
             WHERE session_key IN (
                SELECT session_key FROM session_heads WHERE active_run_key IS NOT NULL
                UNION ALL
                SELECT session_key FROM session_heads
                WHERE active_run_key IS NULL AND NOT released
             )
             ORDER BY session_key
             FOR UPDATE"
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(())
    }
}
