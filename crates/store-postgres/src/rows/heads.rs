//! Rows of `session_heads`: the one mutex of a session. A head is locked by a statement that does
//! nothing else; who waits for it must see, in later statements, what the one before has done (R1).

use async_trait::async_trait;
use sqlx::PgConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{RunKey, SessionId, SessionKey};
use tapedeck_domain::owner::{Epoch, Owner, SessionHead};
use tapedeck_domain::time::LeaseInstant;
use tapedeck_store::rows::{HeadRows, Rows};
use uuid::Uuid;

use crate::encode::{At, integer};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::PostgresTx;

/// A head, by itself or joined to its session.
pub(crate) struct HeadRow {
    pub(crate) session_key: i64,
    pub(crate) session_id: Uuid,
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
            session_id: SessionId::new(row.session_id),
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
    conn: &mut PgConnection,
    sessions: &[SessionId],
) -> Rows<Vec<(SessionId, u64)>> {
    let ids: Vec<_> = sessions.iter().map(|id| id.uuid()).collect();
    let rows = sqlx::query!(
        "SELECT h.session_key, h.session_id, h.head_seq FROM sessions s
         JOIN session_heads h ON h.session_key = s.session_key
         WHERE s.session_id = ANY($1)",
        &ids,
    )
    .fetch_all(conn)
    .await
    .map_err(from_sqlx)?;
    rows.into_iter()
        .map(|row| {
            let at = At::new("session_heads", &row.session_key);
            let head_seq = at.number("head_seq", row.head_seq)?;
            Ok((SessionId::new(row.session_id), head_seq))
        })
        .collect()
}

/// Locks the head of a session for the rest of the transaction, and waits for it. The statement does
/// nothing else: what is read beside the head must come from a later one.
pub(crate) async fn lock(conn: &mut PgConnection, key: SessionKey) -> Rows<()> {
    sqlx::query!(
        "SELECT FROM session_heads WHERE session_key = $1 FOR UPDATE",
        key.0,
    )
    .execute(conn)
    .await
    .map_err(from_sqlx)?;
    Ok(())
}

#[async_trait]
impl HeadRows for PostgresTx<'_> {
    async fn insert_head(&mut self, head: &SessionHead) -> Rows<()> {
        let owner = head.owner.as_ref();
        let done = sqlx::query!(
            "INSERT INTO session_heads (
                session_key, session_id, head_seq, projection_epoch,
                owner_id, owner_epoch, owner_expires_at, active_run_key, last_activity_at
             ) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            head.session_key.0,
            head.session_id.uuid(),
            integer(head.head_seq),
            integer(head.projection_epoch),
            owner.map(|owner| owner.owner_id.as_str()),
            owner.map(|owner| owner.epoch.0),
            owner.and_then(|owner| owner.expires_at).map(|at| at.0),
            head.active_run.map(|key| key.0),
            head.last_activity_at.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("session_heads", done.rows_affected(), 1)
    }

    async fn save_head(&mut self, head: &SessionHead) -> Rows<()> {
        let owner = head.owner.as_ref();
        let done = sqlx::query!(
            "UPDATE session_heads SET
                head_seq = $1, projection_epoch = $2, owner_id = $3, owner_epoch = $4,
                owner_expires_at = $5, active_run_key = $6, last_activity_at = $7
             WHERE session_key = $8",
            integer(head.head_seq),
            integer(head.projection_epoch),
            owner.map(|owner| owner.owner_id.as_str()),
            owner.map(|owner| owner.epoch.0),
            owner.and_then(|owner| owner.expires_at).map(|at| at.0),
            head.active_run.map(|key| key.0),
            head.last_activity_at.0,
            head.session_key.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("session_heads", done.rows_affected(), 1)
    }

    /// Heads that a command holds now are left out, so that this never waits, in whatever order: that
    /// command renews the lease itself where it writes (rules R5), and the next sweep comes before the
    /// lease ends. All that is decided on are columns of the locked rows (R1).
    async fn renew_active_heads(
        &mut self,
        owner_id: &str,
        now: LeaseInstant,
        expires_at: LeaseInstant,
    ) -> Rows<u64> {
        let done = sqlx::query!(
            "WITH free AS MATERIALIZED (
                SELECT session_key FROM session_heads
                WHERE owner_id = $1 AND active_run_key IS NOT NULL AND owner_expires_at > $2
                  AND owner_expires_at < $3
                FOR UPDATE SKIP LOCKED
             )
             UPDATE session_heads h SET owner_expires_at = $3
             FROM free WHERE h.session_key = free.session_key",
            owner_id,
            now.0,
            expires_at.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }

    /// Heads that a command holds now are not idle, and are left out (rules R2).
    async fn release_idle_heads(
        &mut self,
        owner_id: &str,
        idle_since: Timestamp,
        limit: u32,
    ) -> Rows<u64> {
        let done = sqlx::query!(
            "WITH idle AS MATERIALIZED (
                SELECT session_key FROM session_heads
                WHERE owner_id = $1 AND active_run_key IS NULL AND NOT released
                  AND active_minute <= $2::bigint / 60000 AND last_activity_at < $2
                ORDER BY active_minute
                LIMIT $3
                FOR UPDATE SKIP LOCKED
             )
             UPDATE session_heads h SET owner_expires_at = NULL
             FROM idle WHERE h.session_key = idle.session_key",
            owner_id,
            idle_since.0,
            i64::from(limit),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }
}
