//! Rows of `checkpoints`.

use async_trait::async_trait;
use sqlx::SqliteConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::checkpoint::Checkpoint;
use tapedeck_domain::id::{CheckpointId, RunId, SessionId, SessionKey};
use tapedeck_store::PageRequest;
use tapedeck_store::rows::{CheckpointRows, Rows};

use crate::encode::{At, before, blob, integer, text};
use crate::error::{expect_rows, from_sqlx, internal};
use crate::tx::SqliteTx;

/// A row of `checkpoints`.
#[expect(dead_code, reason = "`SELECT *` is checked against all columns")]
struct CheckpointRow {
    checkpoint_key: i64,
    checkpoint_id: Vec<u8>,
    session_key: i64,
    session_id: Vec<u8>,
    label: Option<String>,
    tape_position: i64,
    session_seq: i64,
    settings: String,
    agent_state: Option<String>,
    run_id: Option<Vec<u8>>,
    snapshot_id: Option<String>,
    projection_epoch: i64,
    created_at: i64,
    superseded_at: Option<i64>,
    superseded_by_checkpoint_id: Option<Vec<u8>>,
    deleted_at: Option<i64>,
}

impl TryFrom<CheckpointRow> for Checkpoint {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: CheckpointRow) -> Rows<Self> {
        let at = At::new("checkpoints", &row.checkpoint_key);
        Ok(Self {
            checkpoint_id: at.id("checkpoint_id", &row.checkpoint_id, CheckpointId::new)?,
            session_id: at.id("session_id", &row.session_id, SessionId::new)?,
            label: row.label,
            tape_position: at.number("tape_position", row.tape_position)?,
            session_seq: at.number("session_seq", row.session_seq)?,
            settings: serde_json::from_str(&row.settings).map_err(|_broken| at.bad("settings"))?,
            agent_state: at.maybe_json("agent_state", row.agent_state.as_deref())?,
            run_id: at.maybe_id("run_id", row.run_id.as_deref(), RunId::new)?,
            snapshot_id: row.snapshot_id,
            projection_epoch: at.number("projection_epoch", row.projection_epoch)?,
            created_at: Timestamp(row.created_at),
            superseded_at: row.superseded_at.map(Timestamp),
            superseded_by_checkpoint_id: at.maybe_id(
                "superseded_by_checkpoint_id",
                row.superseded_by_checkpoint_id.as_deref(),
                CheckpointId::new,
            )?,
            deleted_at: row.deleted_at.map(Timestamp),
        })
    }
}

/// One checkpoint of a namespace.
pub(crate) async fn find(
    conn: &mut SqliteConnection,
    namespace: &str,
    id: CheckpointId,
) -> Rows<Option<Checkpoint>> {
    let id = blob(id.uuid());
    let row = sqlx::query_as!(
        CheckpointRow,
        "SELECT c.* FROM checkpoints c JOIN sessions s ON s.session_key = c.session_key
         WHERE c.checkpoint_id = ? AND s.namespace = ?",
        id,
        namespace,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Checkpoint::try_from).transpose()
}

/// The newest checkpoints of a session before an id.
pub(crate) async fn page(
    conn: &mut SqliteConnection,
    namespace: &str,
    session: SessionId,
    include_superseded: bool,
    page: PageRequest,
) -> Rows<Vec<Checkpoint>> {
    let session = blob(session.uuid());
    let before = before(page.before);
    let limit = i64::from(page.limit) + 1;
    let rows = sqlx::query_as!(
        CheckpointRow,
        "SELECT * FROM checkpoints
         WHERE session_key = (
            SELECT session_key FROM sessions WHERE session_id = ? AND namespace = ?
         ) AND checkpoint_id < ? AND (? OR (superseded_at IS NULL AND deleted_at IS NULL))
         ORDER BY checkpoint_id DESC
         LIMIT ?",
        session,
        namespace,
        before,
        include_superseded,
        limit,
    )
    .fetch_all(conn)
    .await
    .map_err(from_sqlx)?;
    rows.into_iter().map(Checkpoint::try_from).collect()
}

#[async_trait]
impl CheckpointRows for SqliteTx<'_> {
    async fn insert_checkpoint(
        &mut self,
        session: SessionKey,
        checkpoint: &Checkpoint,
    ) -> Rows<()> {
        let id = blob(checkpoint.checkpoint_id.uuid());
        let session_id = blob(checkpoint.session_id.uuid());
        let position = integer(checkpoint.tape_position);
        let seq = integer(checkpoint.session_seq);
        let settings = serde_json::to_string(&checkpoint.settings).map_err(internal)?;
        let agent_state = checkpoint.agent_state.as_ref().map(text);
        let run_id = checkpoint.run_id.map(|id| blob(id.uuid()));
        let epoch = integer(checkpoint.projection_epoch);
        let superseded_at = checkpoint.superseded_at.map(|at| at.0);
        let by = checkpoint
            .superseded_by_checkpoint_id
            .map(|id| blob(id.uuid()));
        let deleted_at = checkpoint.deleted_at.map(|at| at.0);
        let done = sqlx::query!(
            "INSERT INTO checkpoints (
                checkpoint_id, session_key, session_id, label, tape_position, session_seq, settings,
                agent_state, run_id, snapshot_id, projection_epoch, created_at, superseded_at,
                superseded_by_checkpoint_id, deleted_at
             ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            id,
            session.0,
            session_id,
            checkpoint.label,
            position,
            seq,
            settings,
            agent_state,
            run_id,
            checkpoint.snapshot_id,
            epoch,
            checkpoint.created_at.0,
            superseded_at,
            by,
            deleted_at,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("checkpoints", done.rows_affected(), 1)
    }

    async fn checkpoint(
        &mut self,
        session: SessionKey,
        id: CheckpointId,
    ) -> Rows<Option<Checkpoint>> {
        let id = blob(id.uuid());
        let row = sqlx::query_as!(
            CheckpointRow,
            "SELECT * FROM checkpoints WHERE session_key = ? AND checkpoint_id = ?",
            session.0,
            id,
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        row.map(Checkpoint::try_from).transpose()
    }

    async fn latest_checkpoint(&mut self, session: SessionKey) -> Rows<Option<Checkpoint>> {
        let row = sqlx::query_as!(
            CheckpointRow,
            "SELECT * FROM checkpoints
             WHERE session_key = ? AND superseded_at IS NULL AND deleted_at IS NULL
             ORDER BY session_seq DESC, checkpoint_key DESC
             LIMIT 1",
            session.0,
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        row.map(Checkpoint::try_from).transpose()
    }

    async fn active_checkpoint_count(&mut self, session: SessionKey) -> Rows<u32> {
        let count = sqlx::query_scalar!(
            "SELECT count(*) FROM checkpoints
             WHERE session_key = ? AND superseded_at IS NULL AND deleted_at IS NULL",
            session.0,
        )
        .fetch_one(self.read())
        .await
        .map_err(from_sqlx)?;
        At::new("checkpoints", &session.0).number("checkpoint_key", count)
    }

    async fn mark_checkpoint_deleted(&mut self, id: CheckpointId, at: Timestamp) -> Rows<()> {
        let id = blob(id.uuid());
        let done = sqlx::query!(
            "UPDATE checkpoints SET deleted_at = ? WHERE checkpoint_id = ? AND deleted_at IS NULL",
            at.0,
            id,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("checkpoints", done.rows_affected(), 1)
    }

    async fn supersede_checkpoints(
        &mut self,
        session: SessionKey,
        session_seq: u64,
        by: CheckpointId,
        at: Timestamp,
    ) -> Rows<u64> {
        let (seq, by) = (integer(session_seq), blob(by.uuid()));
        let done = sqlx::query!(
            "UPDATE checkpoints SET superseded_at = ?, superseded_by_checkpoint_id = ?
             WHERE session_key = ? AND session_seq > ?
               AND superseded_at IS NULL AND deleted_at IS NULL",
            at.0,
            by,
            session.0,
            seq,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }
}
