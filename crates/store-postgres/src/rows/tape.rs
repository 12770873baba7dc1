//! Rows of `tape_entries` and `tape_states`.

use async_trait::async_trait;
use sqlx::PgConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{CheckpointId, RunId, SessionId, SessionKey, TapeEntryId};
use tapedeck_domain::tape::upload::KnownEntry;
use tapedeck_domain::tape::{NewEntry, TapeEntry, TapeState};
use tapedeck_store::TapeFilter;
use tapedeck_store::rows::{Rows, TapeRows};
use uuid::Uuid;

use crate::encode::{At, bound, integer, text};
use crate::error::{expect_rows, from_sqlx, internal};
use crate::tx::PostgresTx;

struct TapeRow {
    session_id: Uuid,
    entry_key: i64,
    position: i64,
    entry_id: Uuid,
    kind: String,
    payload: String,
    meta: Option<String>,
    anchor_type: Option<String>,
    run_id: Uuid,
    first_seq: i64,
    source: String,
    created_at: i64,
    superseded_by_checkpoint_id: Option<Uuid>,
}

impl TryFrom<TapeRow> for TapeEntry {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: TapeRow) -> Rows<Self> {
        let at = At::new("tape_entries", &row.entry_key);
        Ok(Self {
            position: at.number("position", row.position)?,
            entry_id: TapeEntryId::new(row.entry_id),
            kind: at.word("kind", &row.kind)?,
            payload: at.json("payload", &row.payload)?,
            meta: at.maybe_json("meta", row.meta.as_deref())?,
            anchor_type: row.anchor_type,
            run_id: (!row.run_id.is_nil()).then(|| RunId::new(row.run_id)),
            first_seq: at.number("first_seq", row.first_seq)?,
            source: at.word("source", &row.source)?,
            created_at: Timestamp(row.created_at),
            superseded_by_checkpoint_id: row.superseded_by_checkpoint_id.map(CheckpointId::new),
        })
    }
}

/// Entries of a session that pass a filter, in order.
pub(crate) async fn filtered(conn: &mut PgConnection, filter: &TapeFilter) -> Rows<Vec<TapeEntry>> {
    let rows = if filter.include_superseded {
        sqlx::query_file_as!(
            TapeRow,
            "queries/tape_whole.sql",
            filter.session_id.uuid(),
            integer(filter.after),
            i64::from(filter.limit),
            bound(filter.max_bytes),
        )
        .fetch_all(conn)
        .await
        .map_err(from_sqlx)?
    } else {
        sqlx::query_file_as!(
            TapeRow,
            "queries/tape_active.sql",
            filter.session_id.uuid(),
            integer(filter.after),
            i64::from(filter.limit),
            bound(filter.max_bytes),
        )
        .fetch_all(conn)
        .await
        .map_err(from_sqlx)?
    };
    rows.into_iter().map(TapeEntry::try_from).collect()
}

#[async_trait]
impl TapeRows for PostgresTx<'_> {
    async fn tape_state(&mut self, session: SessionKey) -> Rows<TapeState> {
        let state = sqlx::query_scalar!(
            "SELECT state FROM tape_states WHERE session_key = $1",
            session.0
        )
        .fetch_optional(self.conn())
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
        let done = sqlx::query!(
            "INSERT INTO tape_states (session_key, state) VALUES ($1, $2)
             ON CONFLICT (session_key) DO UPDATE SET state = excluded.state",
            session.0,
            state,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("tape_states", done.rows_affected(), 1)
    }

    async fn insert_tape_entries(
        &mut self,
        session: SessionKey,
        entries: &[(u64, TapeEntryId, NewEntry)],
    ) -> Rows<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let columns = Columns::from(entries);
        sqlx::query_file!(
            "queries/insert_tape_entries.sql",
            session.0,
            &columns.positions,
            &columns.ids,
            &columns.kinds as &[&str],
            &columns.payloads,
            &columns.metas as &[Option<String>],
            &columns.anchor_types as &[Option<&str>],
            &columns.run_ids,
            &columns.first_seqs,
            &columns.sources as &[&str],
            &columns.created_at,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(())
    }

    async fn tape_tail(&mut self, session: SessionKey, limit: u32) -> Rows<Vec<TapeEntry>> {
        let rows = sqlx::query_file_as!(
            TapeRow,
            "queries/tape_tail.sql",
            session.0,
            i64::from(limit),
        )
        .fetch_all(self.conn())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter().rev().map(TapeEntry::try_from).collect()
    }

    async fn known_tape_entries(&mut self, ids: &[TapeEntryId]) -> Rows<Vec<KnownEntry>> {
        let ids: Vec<_> = ids.iter().map(|id| id.uuid()).collect();
        let rows = sqlx::query_file_as!(TapeRow, "queries/known_tape_entries.sql", &ids)
            .fetch_all(self.conn())
            .await
            .map_err(from_sqlx)?;
        rows.into_iter()
            .map(|row| {
                Ok(KnownEntry {
                    session_id: SessionId::new(row.session_id),
                    entry: row.try_into()?,
                })
            })
            .collect()
    }

    async fn replace_projected(&mut self, session: SessionKey, run: RunId) -> Rows<u64> {
        let done = sqlx::query!(
            "UPDATE tape_entries SET replaced = true
             WHERE session_key = $1 AND run_id = $2 AND source = 'projection'
               AND kind NOT IN ('user_message', 'run_end', 'anchor')
               AND superseded_by_checkpoint_id IS NULL AND NOT replaced",
            session.0,
            run.uuid(),
        )
        .execute(self.conn())
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
        let done = sqlx::query!(
            "UPDATE tape_entries SET superseded_by_checkpoint_id = $3
             WHERE session_key = $1 AND position > $2
               AND superseded_by_checkpoint_id IS NULL AND NOT replaced",
            session.0,
            integer(after_position),
            by.uuid(),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }

    /// A run ends at the entry of its terminal event. Inherited entries carry the numbers of another
    /// log and no run of this session; they precede all of its own.
    async fn settled_position(&mut self, session: SessionKey, session_seq: u64) -> Rows<u64> {
        let own = sqlx::query_scalar!(
            "SELECT e.position FROM runs r
             JOIN tape_entries e ON e.session_key = r.session_key AND e.run_id = r.run_id
                AND e.first_seq = r.settled_seq AND e.kind = 'run_end'
             WHERE r.session_key = $1 AND r.settled_seq <= $2 AND r.settled_seq IS NOT NULL
               AND r.superseded_at IS NULL AND NOT r.ended_queued
               AND e.source = 'projection' AND e.superseded_by_checkpoint_id IS NULL
             ORDER BY r.settled_seq DESC
             LIMIT 1",
            session.0,
            integer(session_seq),
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        let position = match own {
            Some(position) => Some(position),
            None => inherited_end(self.conn(), session).await?,
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
        let done = sqlx::query_file!(
            "queries/copy_tape.sql",
            from.0,
            to.0,
            integer(through_position),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }
}

/// Where the newest run ends that a fork was made with; none where the session is no fork.
async fn inherited_end(conn: &mut PgConnection, session: SessionKey) -> Rows<Option<i64>> {
    sqlx::query_scalar!(
        "SELECT e.position FROM sessions s
         JOIN tape_entries e ON e.session_key = s.session_key
         WHERE s.session_key = $1 AND s.forked_from_session_id IS NOT NULL
           AND e.kind = 'run_end' AND e.superseded_by_checkpoint_id IS NULL AND NOT e.replaced
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

/// Entries as one array for each column, in their order.
struct Columns<'a> {
    positions: Vec<i64>,
    ids: Vec<Uuid>,
    kinds: Vec<&'a str>,
    payloads: Vec<String>,
    metas: Vec<Option<String>>,
    anchor_types: Vec<Option<&'a str>>,
    run_ids: Vec<Uuid>,
    first_seqs: Vec<i64>,
    sources: Vec<&'a str>,
    created_at: Vec<i64>,
}

impl<'a> From<&'a [(u64, TapeEntryId, NewEntry)]> for Columns<'a> {
    fn from(entries: &'a [(u64, TapeEntryId, NewEntry)]) -> Self {
        let new = || entries.iter().map(|(_, _, entry)| entry);
        Self {
            positions: entries.iter().map(|(it, _, _)| integer(*it)).collect(),
            ids: entries.iter().map(|(_, it, _)| it.uuid()).collect(),
            kinds: new().map(|it| it.kind.as_str()).collect(),
            payloads: new().map(|it| text(&it.payload)).collect(),
            metas: new().map(|it| it.meta.as_ref().map(text)).collect(),
            anchor_types: new().map(|it| it.anchor_type.as_deref()).collect(),
            run_ids: new()
                .map(|it| it.run_id.map_or(Uuid::nil(), RunId::uuid))
                .collect(),
            first_seqs: new().map(|it| integer(it.first_seq)).collect(),
            sources: new().map(|it| it.source.as_str()).collect(),
            created_at: new().map(|it| it.created_at.0).collect(),
        }
    }
}
