//! Rows of `checkpoints`.

use async_trait::async_trait;
use sqlx::PgConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::checkpoint::Checkpoint;
use tapedeck_domain::id::{CheckpointId, RunId, SessionId, SessionKey};
use tapedeck_store::PageRequest;
use tapedeck_store::rows::{CheckpointRows, Rows};
use uuid::Uuid;

use crate::encode::{At, before, integer, text};
use crate::error::{expect_rows, from_sqlx, internal};
use crate::tx::PostgresTx;

/// Checkpoints, with what follows the table's name in the statement.
macro_rules! checkpoint_rows {
    ($tail:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            CheckpointRow,
            "SELECT c.checkpoint_key, c.checkpoint_id, c.session_id, c.label, c.tape_position,
                    c.session_seq, c.settings, c.agent_state, c.run_id, c.snapshot_id,
                    c.projection_epoch, c.created_at, c.superseded_at,
                    c.superseded_by_checkpoint_id, c.deleted_at
             FROM checkpoints c " + $tail
            $(, $argument)*
        )
    };
}

/// A row of `checkpoints`.
struct CheckpointRow {
    checkpoint_key: i64,
    checkpoint_id: Uuid,
    session_id: Uuid,
    label: Option<String>,
    tape_position: i64,
    session_seq: i64,
    settings: String,
    agent_state: Option<String>,
    run_id: Option<Uuid>,
    snapshot_id: Option<String>,
    projection_epoch: i64,
    created_at: i64,
    superseded_at: Option<i64>,
    superseded_by_checkpoint_id: Option<Uuid>,
    deleted_at: Option<i64>,
}

impl TryFrom<CheckpointRow> for Checkpoint {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: CheckpointRow) -> Rows<Self> {
        let at = At::new("checkpoints", &row.checkpoint_key);
        Ok(Self {
            checkpoint_id: CheckpointId::new(row.checkpoint_id),
            session_id: SessionId::new(row.session_id),
            label: row.label,
            tape_position: at.number("tape_position", row.tape_position)?,
            session_seq: at.number("session_seq", row.session_seq)?,
            settings: serde_json::from_str(&row.settings).map_err(|_broken| at.bad("settings"))?,
            agent_state: at.maybe_json("agent_state", row.agent_state.as_deref())?,
            run_id: row.run_id.map(RunId::new),
            snapshot_id: row.snapshot_id,
            projection_epoch: at.number("projection_epoch", row.projection_epoch)?,
            created_at: Timestamp(row.created_at),
            superseded_at: row.superseded_at.map(Timestamp),
            superseded_by_checkpoint_id: row.superseded_by_checkpoint_id.map(CheckpointId::new),
            deleted_at: row.deleted_at.map(Timestamp),
        })
    }
}

/// One checkpoint of a namespace.
pub(crate) async fn find(
    conn: &mut PgConnection,
    namespace: &str,
    id: CheckpointId,
) -> Rows<Option<Checkpoint>> {
    let row = checkpoint_rows!(
        "JOIN sessions s ON s.session_key = c.session_key
         WHERE c.checkpoint_id = $1 AND s.namespace = $2",
        id.uuid(),
        namespace,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Checkpoint::try_from).transpose()
}

/// The newest checkpoints of a session before an id.
pub(crate) async fn page(
    conn: &mut PgConnection,
    namespace: &str,
    session: SessionId,
    include_superseded: bool,
    page: PageRequest,
) -> Rows<Vec<Checkpoint>> {
    let rows = checkpoint_rows!(
        "WHERE c.session_key = (
            SELECT session_key FROM sessions WHERE session_id = $1 AND namespace = $2
         ) AND c.checkpoint_id < $3
           AND ($4 OR (c.superseded_at IS NULL AND c.deleted_at IS NULL))
         ORDER BY c.checkpoint_id DESC
         LIMIT $5",
        session.uuid(),
        namespace,
        before(page.before),
        include_superseded,
        i64::from(page.limit) + 1,
    )
    .fetch_all(conn)
    .await
    .map_err(from_sqlx)?;
    rows.into_iter().map(Checkpoint::try_from).collect()
}

#[async_trait]
impl CheckpointRows for PostgresTx<'_> {
    async fn insert_checkpoint(
        &mut self,
        session: SessionKey,
        checkpoint: &Checkpoint,
    ) -> Rows<()> {
        let by = checkpoint.superseded_by_checkpoint_id;
        let done = sqlx::query!(
            "INSERT INTO checkpoints (
                checkpoint_id, session_key, session_id, label, tape_position, session_seq, settings,
                agent_state, run_id, snapshot_id, projection_epoch, created_at, superseded_at,
                superseded_by_checkpoint_id, deleted_at
             ) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
            checkpoint.checkpoint_id.uuid(),
            session.0,
            checkpoint.session_id.uuid(),
            checkpoint.label,
            integer(checkpoint.tape_position),
            integer(checkpoint.session_seq),
            serde_json::to_string(&checkpoint.settings).map_err(internal)?,
            checkpoint.agent_state.as_ref().map(text),
            checkpoint.run_id.map(RunId::uuid),
            checkpoint.snapshot_id,
            integer(checkpoint.projection_epoch),
            checkpoint.created_at.0,
            checkpoint.superseded_at.map(|at| at.0),
            by.map(CheckpointId::uuid),
            checkpoint.deleted_at.map(|at| at.0),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("checkpoints", done.rows_affected(), 1)
    }

    async fn checkpoint(
        &mut self,
        session: SessionKey,
        id: CheckpointId,
    ) -> Rows<Option<Checkpoint>> {
        let row = checkpoint_rows!(
            "WHERE c.session_key = $1 AND c.checkpoint_id = $2",
            session.0,
            id.uuid(),
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        row.map(Checkpoint::try_from).transpose()
    }

    async fn latest_checkpoint(&mut self, session: SessionKey) -> Rows<Option<Checkpoint>> {
        let row = checkpoint_rows!(
            "WHERE c.session_key = $1 AND c.superseded_at IS NULL AND c.deleted_at IS NULL
             ORDER BY c.session_seq DESC, c.checkpoint_key DESC
             LIMIT 1",
            session.0,
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        row.map(Checkpoint::try_from).transpose()
    }

    async fn active_checkpoint_count(&mut self, session: SessionKey) -> Rows<u32> {
        let count = sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM checkpoints
               WHERE session_key = $1 AND superseded_at IS NULL AND deleted_at IS NULL"#,
            session.0,
        )
        .fetch_one(self.conn())
        .await
        .map_err(from_sqlx)?;
        At::new("checkpoints", &session.0).number("checkpoint_key", count)
    }

    async fn mark_checkpoint_deleted(&mut self, id: CheckpointId, at: Timestamp) -> Rows<()> {
        let done = sqlx::query!(
            "UPDATE checkpoints SET deleted_at = $1
             WHERE checkpoint_id = $2 AND deleted_at IS NULL",
            at.0,
            id.uuid(),
        )
        .execute(self.conn())
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
        let done = sqlx::query!(
            "UPDATE checkpoints SET superseded_at = $1, superseded_by_checkpoint_id = $2
             WHERE session_key = $3 AND session_seq > $4
               AND superseded_at IS NULL AND deleted_at IS NULL",
            at.0,
            by.uuid(),
            session.0,
            integer(session_seq),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }
}
