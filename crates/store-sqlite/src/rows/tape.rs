//! Rows of `tape_entries` and `tape_states`.

use async_trait::async_trait;
use futures::TryStreamExt as _;
use serde_json::json;
use sqlx::SqliteConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{CheckpointId, RunId, SessionId, SessionKey, TapeEntryId};
use tapedeck_domain::tape::upload::KnownEntry;
use tapedeck_domain::tape::{NewEntry, TapeEntry, TapeState};
use tapedeck_store::TapeFilter;
use tapedeck_store::rows::{Rows, TapeRows};

use crate::encode::{At, blob, hex_id, integer};
use crate::error::{from_sqlx, internal};
use crate::tx::SqliteTx;

/// An entry with the id of its session.
struct TapeRow {
    session_id: Vec<u8>,
    entry_key: i64,
    position: i64,
    entry_id: Vec<u8>,
    kind: String,
    payload: String,
    meta: Option<String>,
    anchor_type: Option<String>,
    run_id: Vec<u8>,
    first_seq: i64,
    source: String,
    created_at: i64,
    superseded_by_checkpoint_id: Option<Vec<u8>>,
}

impl TryFrom<TapeRow> for TapeEntry {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: TapeRow) -> Rows<Self> {
        let at = At::new("tape_entries", &row.entry_key);
        let run_id = (!row.run_id.is_empty()).then_some(row.run_id.as_slice());
        Ok(Self {
            position: at.number("position", row.position)?,
            entry_id: at.id("entry_id", &row.entry_id, TapeEntryId::new)?,
            kind: at.word("kind", &row.kind)?,
            payload: at.json("payload", &row.payload)?,
            anchor_type: row.anchor_type,
            run_id: at.maybe_id("run_id", run_id, RunId::new)?,
            first_seq: at.number("first_seq", row.first_seq)?,
            created_at: Timestamp(row.created_at),
            source: at.word("source", &row.source)?,
            meta: at.maybe_json("meta", row.meta.as_deref())?,
            superseded_by_checkpoint_id: at.maybe_id(
                "superseded_by_checkpoint_id",
                row.superseded_by_checkpoint_id.as_deref(),
                CheckpointId::new,
            )?,
        })
    }
}

/// A statement that reads entries: what follows its tables, and its values.
macro_rules! tape_rows {
    ($rest:literal, $($value:expr),+ $(,)?) => {
        sqlx::query_as!(
            TapeRow,
            "SELECT s.session_id, e.entry_key, e.position, e.entry_id, e.kind, e.payload, e.meta,
                    e.anchor_type, e.run_id, e.first_seq, e.source, e.created_at,
                    e.superseded_by_checkpoint_id
             FROM tape_entries e JOIN sessions s ON s.session_key = e.session_key "
                + $rest,
            $($value),+
        )
    };
}

/// Entries of a session that pass a filter, in order.
pub(crate) async fn filtered(
    conn: &mut SqliteConnection,
    filter: &TapeFilter,
) -> Rows<Vec<TapeEntry>> {
    let session = blob(filter.session_id.uuid());
    let after = integer(filter.after);
    let mut rows = if filter.include_superseded {
        tape_rows!(
            "WHERE s.session_id = ? AND e.position > ? ORDER BY e.position LIMIT ?",
            session,
            after,
            filter.limit,
        )
        .fetch(conn)
    } else {
        tape_rows!(
            "WHERE s.session_id = ? AND e.position > ?
               AND e.superseded_by_checkpoint_id IS NULL AND e.replaced = 0
             ORDER BY e.position
             LIMIT ?",
            session,
            after,
            filter.limit,
        )
        .fetch(conn)
    };
    let (mut entries, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.try_next().await.map_err(from_sqlx)? {
        bytes += row.payload.len();
        entries.push(TapeEntry::try_from(row)?);
        if bytes >= filter.max_bytes {
            break;
        }
    }
    Ok(entries)
}

#[async_trait]
impl TapeRows for SqliteTx<'_> {
    async fn tape_state(&mut self, session: SessionKey) -> Rows<TapeState> {
        let state = sqlx::query_scalar!(
            "SELECT state FROM tape_states WHERE session_key = ?",
            session.0
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        match state {
            None => Ok(TapeState::default()),
            Some(state) => serde_json::from_str(&state)
                .map_err(|_broken| At::new("tape_states", &session.0).bad("state")),
        }
    }

    async fn save_tape_state(&mut self, session: SessionKey, state: &TapeState) -> Rows<()> {
        let state = serde_json::to_string(state).map_err(internal)?;
        sqlx::query!(
            "INSERT INTO tape_states (session_key, state) VALUES (?, ?)
             ON CONFLICT (session_key) DO UPDATE SET state = excluded.state",
            session.0,
            state,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(())
    }

    async fn insert_tape_entries(
        &mut self,
        session: SessionKey,
        entries: &[(u64, TapeEntryId, NewEntry)],
    ) -> Rows<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = entries
            .iter()
            .map(|(position, entry_id, entry)| {
                json!([
                    integer(*position),
                    hex_id(entry_id.uuid()),
                    entry.kind.as_str(),
                    entry.payload.to_string(),
                    entry.anchor_type,
                    entry.run_id.map(|id| hex_id(id.uuid())).unwrap_or_default(),
                    integer(entry.first_seq),
                    entry.created_at.0,
                    entry.source.as_str(),
                    entry.meta.as_ref().map(ToString::to_string),
                ])
            })
            .collect();
        let rows = json!(rows).to_string();
        sqlx::query!(
            "INSERT INTO tape_entries (
                session_key, position, entry_id, kind, payload, anchor_type, run_id, first_seq,
                created_at, source, meta
             )
             SELECT ?1, value ->> 0, unhex(value ->> 1), value ->> 2, value ->> 3, value ->> 4,
                    unhex(value ->> 5), value ->> 6, value ->> 7, value ->> 8, value ->> 9
             FROM json_each(?2)
             WHERE true
             ON CONFLICT (session_key, run_id, first_seq, kind) WHERE source = 'projection'
             DO NOTHING",
            session.0,
            rows,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(())
    }

    async fn tape_tail(&mut self, session: SessionKey, limit: u32) -> Rows<Vec<TapeEntry>> {
        let rows = tape_rows!(
            "WHERE e.session_key = ? AND e.superseded_by_checkpoint_id IS NULL AND e.replaced = 0
             ORDER BY e.position DESC
             LIMIT ?",
            session.0,
            limit,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter().rev().map(TapeEntry::try_from).collect()
    }

    async fn known_tape_entries(&mut self, ids: &[TapeEntryId]) -> Rows<Vec<KnownEntry>> {
        let ids: Vec<_> = ids.iter().map(|id| hex_id(id.uuid())).collect();
        let ids = json!(ids).to_string();
        let rows = tape_rows!(
            "WHERE e.entry_id IN (SELECT unhex(value) FROM json_each(?))",
            ids,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter()
            .map(|row| {
                let at = At::new("sessions", &row.entry_key);
                Ok(KnownEntry {
                    session_id: at.id("session_id", &row.session_id, SessionId::new)?,
                    entry: row.try_into()?,
                })
            })
            .collect()
    }

    async fn replace_projected(&mut self, session: SessionKey, run: RunId) -> Rows<u64> {
        let run = blob(run.uuid());
        let done = sqlx::query!(
            "UPDATE tape_entries SET replaced = 1
             WHERE session_key = ? AND run_id = ? AND source = 'projection'
               AND kind NOT IN ('user_message', 'run_end', 'anchor')
               AND superseded_by_checkpoint_id IS NULL AND replaced = 0",
            session.0,
            run,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }

    async fn supersede_tape(
        &mut self,
        session: SessionKey,
        after_position: u64,
        by: CheckpointId,
    ) -> Rows<u64> {
        let (after, by) = (integer(after_position), blob(by.uuid()));
        let done = sqlx::query!(
            "UPDATE tape_entries SET superseded_by_checkpoint_id = ?
             WHERE session_key = ? AND position > ?
               AND superseded_by_checkpoint_id IS NULL AND replaced = 0",
            by,
            session.0,
            after,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }

    /// A run ends at the entry of its terminal event. Inherited entries carry the numbers of another
    /// log and no run of this session; they precede all of its own.
    async fn settled_position(&mut self, session: SessionKey, session_seq: u64) -> Rows<u64> {
        let seq = integer(session_seq);
        let own = sqlx::query_scalar!(
            "SELECT e.position FROM runs r
             CROSS JOIN tape_entries e ON e.session_key = r.session_key AND e.run_id = r.run_id
                AND e.first_seq = r.settled_seq AND e.kind = 'run_end'
             WHERE r.session_key = ? AND r.settled_seq <= ? AND r.settled_seq IS NOT NULL
               AND r.superseded_at IS NULL AND r.ended_queued = 0
               AND e.source = 'projection' AND e.superseded_by_checkpoint_id IS NULL
             ORDER BY r.settled_seq DESC
             LIMIT 1",
            session.0,
            seq,
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        let position = match own {
            Some(position) => Some(position),
            None => inherited_end(self.read(), session).await?,
        };
        let at = At::new("tape_entries", &session.0);
        Ok(at.maybe_number("position", position)?.unwrap_or(0))
    }

    async fn copy_tape(
        &mut self,
        from: SessionKey,
        to: SessionKey,
        through_position: u64,
    ) -> Rows<u64> {
        let through = integer(through_position);
        let done = sqlx::query_file!("queries/copy_tape.sql", from.0, to.0, through)
            .execute(self.write().await?)
            .await
            .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }
}

/// Where the newest run ends that a fork was made with; none where the session is no fork.
async fn inherited_end(conn: &mut SqliteConnection, session: SessionKey) -> Rows<Option<i64>> {
    sqlx::query_scalar!(
        "SELECT e.position FROM sessions s
         CROSS JOIN tape_entries e ON e.session_key = s.session_key
         WHERE s.session_key = ? AND s.forked_from_session_id IS NOT NULL
           AND e.kind = 'run_end' AND e.superseded_by_checkpoint_id IS NULL AND e.replaced = 0
           AND NOT EXISTS (
                SELECT 1 FROM runs r
                WHERE r.run_id = e.run_id AND r.session_key = e.session_key
           )
         ORDER BY e.position DESC
         LIMIT 1",
        session.0,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)
}
