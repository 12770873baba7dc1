//! Rows of `session_heads`. The writer is alone in its transaction, so reading a head locks it.

use async_trait::async_trait;
use serde_json::json;
use sqlx::SqliteConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{RunKey, SessionId, SessionKey};
use tapedeck_domain::owner::{Epoch, Owner, SessionHead};
use tapedeck_domain::time::LeaseInstant;
use tapedeck_store::rows::{HeadRows, Rows};

use crate::encode::{At, blob, hex_id, integer};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::SqliteTx;

/// A head, by itself or joined to its session.
pub(crate) struct HeadRow {
    pub(crate) session_key: i64,
    pub(crate) session_id: Vec<u8>,
    pub(crate) head_seq: i64,
    pub(crate) projection_epoch: i64,
    pub(crate) owner_id: Option<String>,
    pub(crate) owner_epoch: Option<i64>,
    pub(crate) owner_expires_at: Option<i64>,
    pub(crate) active_run_key: Option<i64>,
    pub(crate) last_activity_at: i64,
}

impl TryFrom<HeadRow> for SessionHead {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: HeadRow) -> Rows<Self> {
        let at = At::new("session_heads", &row.session_key);
        let owner = match row.owner_id {
            None => None,
            Some(owner_id) => Some(Owner {
                owner_id,
                epoch: Epoch(at.present("owner_epoch", row.owner_epoch)?),
                expires_at: row.owner_expires_at.map(LeaseInstant),
            }),
        };
        Ok(Self {
            session_key: SessionKey(row.session_key),
            session_id: at.id("session_id", &row.session_id, SessionId::new)?,
            head_seq: at.number("head_seq", row.head_seq)?,
            projection_epoch: at.number("projection_epoch", row.projection_epoch)?,
            owner,
            active_run: row.active_run_key.map(RunKey),
            last_activity_at: Timestamp(row.last_activity_at),
        })
    }
}

/// The newest numbers of sessions that are there.
pub(crate) async fn seqs(
    conn: &mut SqliteConnection,
    sessions: &[SessionId],
) -> Rows<Vec<(SessionId, u64)>> {
    let ids: Vec<_> = sessions.iter().map(|id| hex_id(id.uuid())).collect();
    let ids = json!(ids).to_string();
    let rows = sqlx::query!(
        "SELECT h.session_key, h.session_id, h.head_seq FROM sessions s
         JOIN session_heads h ON h.session_key = s.session_key
         WHERE s.session_id IN (SELECT unhex(value) FROM json_each(?))",
        ids,
    )
    .fetch_all(conn)
    .await
    .map_err(from_sqlx)?;
    rows.into_iter()
        .map(|row| {
            let at = At::new("session_heads", &row.session_key);
            Ok((
                at.id("session_id", &row.session_id, SessionId::new)?,
                at.number("head_seq", row.head_seq)?,
            ))
        })
        .collect()
}

#[async_trait]
impl HeadRows for SqliteTx<'_> {
    async fn insert_head(&mut self, head: &SessionHead) -> Rows<()> {
        let owner = head.owner.as_ref();
        let session_id = blob(head.session_id.uuid());
        let (head_seq, projection_epoch) = (integer(head.head_seq), integer(head.projection_epoch));
        let owner_id = owner.map(|owner| owner.owner_id.as_str());
        let owner_epoch = owner.map(|owner| owner.epoch.0);
        let expires_at = owner.and_then(|owner| owner.expires_at).map(|at| at.0);
        let active = head.active_run.map(|key| key.0);
        let done = sqlx::query!(
            "INSERT INTO session_heads (
                session_key, session_id, head_seq, projection_epoch,
                owner_id, owner_epoch, owner_expires_at, active_run_key, last_activity_at
             ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            head.session_key.0,
            session_id,
            head_seq,
            projection_epoch,
            owner_id,
            owner_epoch,
            expires_at,
            active,
            head.last_activity_at.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("session_heads", done.rows_affected(), 1)
    }

    async fn save_head(&mut self, head: &SessionHead) -> Rows<()> {
        let owner = head.owner.as_ref();
        let (head_seq, projection_epoch) = (integer(head.head_seq), integer(head.projection_epoch));
        let owner_id = owner.map(|owner| owner.owner_id.as_str());
        let owner_epoch = owner.map(|owner| owner.epoch.0);
        let expires_at = owner.and_then(|owner| owner.expires_at).map(|at| at.0);
        let active = head.active_run.map(|key| key.0);
        let done = sqlx::query!(
            "UPDATE session_heads SET
                head_seq = ?, projection_epoch = ?, owner_id = ?, owner_epoch = ?,
                owner_expires_at = ?, active_run_key = ?, last_activity_at = ?
             WHERE session_key = ?",
            head_seq,
            projection_epoch,
            owner_id,
            owner_epoch,
            expires_at,
            active,
            head.last_activity_at.0,
            head.session_key.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("session_heads", done.rows_affected(), 1)
    }

    async fn renew_active_heads(
        &mut self,
        owner_id: &str,
        now: LeaseInstant,
        expires_at: LeaseInstant,
    ) -> Rows<u64> {
        let done = sqlx::query!(
            "UPDATE session_heads SET owner_expires_at = max(owner_expires_at, ?3)
             WHERE owner_id = ?1 AND active_run_key IS NOT NULL AND owner_expires_at > ?2",
            owner_id,
            now.0,
            expires_at.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }

    async fn release_idle_heads(
        &mut self,
        owner_id: &str,
        idle_since: Timestamp,
        limit: u32,
    ) -> Rows<u64> {
        let done = sqlx::query!(
            "UPDATE session_heads SET owner_expires_at = NULL
             WHERE session_key IN (
                SELECT session_key FROM session_heads
                WHERE owner_id = ? AND active_run_key IS NULL
                  AND owner_expires_at IS NOT NULL AND last_activity_at < ?
                ORDER BY last_activity_at
                LIMIT ?
             )",
            owner_id,
            idle_since.0,
            limit,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }
}
