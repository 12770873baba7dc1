//! Rows of `message_snapshots`.

use async_trait::async_trait;
use sqlx::PgConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{RunId, RunKey, SessionKey};
use tapedeck_domain::snapshot::{MessageSnapshot, SnapshotFacts};
use tapedeck_store::rows::{Rows, SnapshotRows};
use uuid::Uuid;

use crate::encode::{At, object_text};
use crate::error::{expect_rows, from_sqlx, internal};
use crate::tx::PostgresTx;

/// A row of `message_snapshots`.
struct SnapshotRow {
    run_key: i64,
    run_id: Uuid,
    messages: String,
    metadata: String,
    attempt: i64,
    created_at: i64,
    updated_at: i64,
}

impl TryFrom<SnapshotRow> for MessageSnapshot {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: SnapshotRow) -> Rows<Self> {
        let at = At::new("message_snapshots", &row.run_key);
        Ok(Self {
            run_id: RunId::new(row.run_id),
            messages: serde_json::from_str(&row.messages).map_err(|_broken| at.bad("messages"))?,
            metadata: at.object("metadata", &row.metadata)?,
            attempt: at.number("attempt", row.attempt)?,
            created_at: Timestamp(row.created_at),
            updated_at: Timestamp(row.updated_at),
        })
    }
}

/// The snapshot of a namespace's run.
pub(crate) async fn find(
    conn: &mut PgConnection,
    namespace: &str,
    run: RunId,
) -> Rows<Option<MessageSnapshot>> {
    let row = sqlx::query_as!(
        SnapshotRow,
        "SELECT run_key, run_id, messages, metadata, attempt, created_at, updated_at
         FROM message_snapshots
         WHERE run_key = (SELECT run_key FROM runs WHERE run_id = $1 AND namespace = $2)",
        run.uuid(),
        namespace,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(MessageSnapshot::try_from).transpose()
}

#[async_trait]
impl SnapshotRows for PostgresTx<'_> {
    async fn save_snapshot(
        &mut self,
        session: SessionKey,
        run: RunKey,
        snapshot: &MessageSnapshot,
    ) -> Rows<()> {
        let messages = serde_json::to_string(&snapshot.messages).map_err(internal)?;
        let count = i64::try_from(snapshot.messages.len()).map_err(internal)?;
        let metadata = object_text(&snapshot.metadata);
        let done = sqlx::query!(
            "INSERT INTO message_snapshots (
                run_key, session_key, run_id, messages, message_count, metadata, attempt,
                created_at, updated_at
             ) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
             ON CONFLICT (run_key) DO UPDATE SET
                messages = excluded.messages, message_count = excluded.message_count,
                metadata = excluded.metadata, attempt = excluded.attempt,
                updated_at = excluded.updated_at",
            run.0,
            session.0,
            snapshot.run_id.uuid(),
            messages,
            count,
            metadata,
            i64::from(snapshot.attempt),
            snapshot.created_at.0,
            snapshot.updated_at.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("message_snapshots", done.rows_affected(), 1)
    }

    async fn snapshot_facts(&mut self, run: RunKey) -> Rows<Option<SnapshotFacts>> {
        // The row's header tells the length of a text, so that none of it is read.
        let row = sqlx::query!(
            r#"SELECT run_id, message_count, octet_length(messages)::bigint AS "bytes!"
             FROM message_snapshots WHERE run_key = $1"#,
            run.0,
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        let at = At::new("message_snapshots", &run.0);
        row.map(|row| {
            Ok(SnapshotFacts {
                run_id: RunId::new(row.run_id),
                message_count: at.number("message_count", row.message_count)?,
                bytes: at.number("messages", row.bytes)?,
            })
        })
        .transpose()
    }

    async fn snapshot(&mut self, run: RunKey) -> Rows<Option<MessageSnapshot>> {
        let row = sqlx::query_as!(
            SnapshotRow,
            "SELECT run_key, run_id, messages, metadata, attempt, created_at, updated_at
         FROM message_snapshots WHERE run_key = $1",
            run.0
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        row.map(MessageSnapshot::try_from).transpose()
    }
}
