//! The deployment's one row, and the outage credit over all leases (rules R6).

use async_trait::async_trait;
use sqlx::SqliteConnection;
use tapedeck_domain::id::{DeploymentId, LogId};
use tapedeck_domain::time::LeaseInstant;
use tapedeck_store::read::Identity;
use tapedeck_store::rows::{Deployment, DeploymentRows, Rows};
use uuid::Builder;

use crate::clock::Clock;
use crate::encode::{At, blob};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::SqliteTx;

/// The database's identity; made where it has none yet.
pub(crate) async fn identity(conn: &mut SqliteConnection, clock: &Clock) -> Rows<Identity> {
    let deployment_id = blob(Builder::from_random_bytes(rand::random()).into_uuid());
    let log_id = blob(Builder::from_random_bytes(rand::random()).into_uuid());
    let boot_id = clock.boot_id();
    let created_at = clock.wall().0;
    sqlx::query!(
        "INSERT INTO deployment (id, deployment_id, log_id, boot_id, created_at)
         VALUES (1, ?, ?, ?, ?)
         ON CONFLICT (id) DO NOTHING",
        deployment_id,
        log_id,
        boot_id,
        created_at,
    )
    .execute(&mut *conn)
    .await
    .map_err(from_sqlx)?;
    let row = sqlx::query!("SELECT deployment_id, log_id FROM deployment WHERE id = 1")
        .fetch_one(conn)
        .await
        .map_err(from_sqlx)?;
    let at = At::new("deployment", &1);
    Ok(Identity {
        deployment_id: at.id("deployment_id", &row.deployment_id, DeploymentId::new)?,
        log_id: at.id("log_id", &row.log_id, LogId::new)?,
    })
}

/// What had ended at `alive_at` stays ended on a clock that is behind, where its end would else be
/// yet to come.
async fn keep_ended(conn: &mut SqliteConnection, alive_at: i64, now: i64) -> Rows<()> {
    sqlx::query!(
        "UPDATE session_heads SET owner_expires_at = ?2
         WHERE owner_expires_at > ?2 AND owner_expires_at <= ?1 AND session_key IN (
            SELECT session_key FROM session_heads WHERE active_run_key IS NOT NULL
            UNION ALL
            SELECT session_key FROM session_heads
            WHERE active_run_key IS NULL AND owner_expires_at IS NOT NULL
         )",
        alive_at,
        now,
    )
    .execute(&mut *conn)
    .await
    .map_err(from_sqlx)?;
    sqlx::query!(
        "UPDATE run_heads
         SET lease_expires_at = ?2, cancel_deadline = min(cancel_deadline, ?2)
         WHERE lease_expires_at > ?2 AND lease_expires_at <= ?1",
        alive_at,
        now,
    )
    .execute(&mut *conn)
    .await
    .map_err(from_sqlx)?;
    sqlx::query!(
        "UPDATE interactions SET deadline = ?2
         WHERE status = 'pending' AND deadline > ?2 AND deadline <= ?1",
        alive_at,
        now,
    )
    .execute(&mut *conn)
    .await
    .map_err(from_sqlx)?;
    Ok(())
}

#[async_trait]
impl DeploymentRows for SqliteTx<'_> {
    async fn deployment(&mut self) -> Rows<Deployment> {
        let row = sqlx::query!("SELECT boot_id, alive_at FROM deployment WHERE id = 1")
            .fetch_one(self.read())
            .await
            .map_err(from_sqlx)?;
        Ok(Deployment {
            alive_at: row.alive_at.map(LeaseInstant),
            boot_changed: row.boot_id != self.boot_id(),
        })
    }

    async fn set_alive(&mut self, at: LeaseInstant) -> Rows<()> {
        let boot_id = self.boot_id();
        let done = sqlx::query!(
            "UPDATE deployment SET alive_at = ?, boot_id = ? WHERE id = 1",
            at.0,
            boot_id,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("deployment", done.rows_affected(), 1)
    }

    /// Every lease moment is kept in step: what was live at `alive_at` is moved by the gap, and so is
    /// when executors were last seen and when live claims were made, which after a reboot were read
    /// on another clock. A back-off, or a wait for an executor, ends with the gap: a run that came while a sweep was late must
    /// not be put off.
    async fn shift_leases(&mut self, alive_at: LeaseInstant, gap_ms: i64) -> Rows<u64> {
        let (alive_at, gap) = (alive_at.0, gap_ms);
        let now = alive_at + gap;
        let conn = self.write().await?;
        if now < alive_at {
            keep_ended(conn, alive_at, now).await?;
        }
        sqlx::query!(
            // Two partial indexes hold every head with a lease that may live.
            "UPDATE session_heads SET owner_expires_at = owner_expires_at + ?2
             WHERE owner_expires_at > ?1 AND session_key IN (
                SELECT session_key FROM session_heads WHERE active_run_key IS NOT NULL
                UNION ALL
                SELECT session_key FROM session_heads
                WHERE active_run_key IS NULL AND owner_expires_at IS NOT NULL
             )",
            alive_at,
            gap,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!(
            "UPDATE claims SET claimed_at = claimed_at + ?
             WHERE run_key IN (SELECT run_key FROM run_heads)",
            gap,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        let claims = sqlx::query!(
            "UPDATE run_heads SET
                lease_expires_at = lease_expires_at + ?2,
                cancel_deadline = cancel_deadline + ?2,
                run_deadline = run_deadline + ?2
             WHERE lease_expires_at > ?1",
            alive_at,
            gap,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!(
            "UPDATE run_heads SET ready_at = ?1 WHERE ready_at > ?1",
            now,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!(
            "UPDATE run_queue SET ready_at = ?1 WHERE ready_at > ?1",
            now,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!(
            "UPDATE run_queue SET opens_at = ?1 WHERE opens_at > ?1",
            now,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!(
            "UPDATE interactions SET deadline = deadline + ?2
             WHERE status = 'pending' AND deadline > ?1",
            alive_at,
            gap,
        )
        .execute(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        sqlx::query!("UPDATE executors SET last_seen = last_seen + ?", gap)
            .execute(&mut *conn)
            .await
            .map_err(from_sqlx)?;
        Ok(claims.rows_affected())
    }
}
