//! Rows of `tape_entries` and `tape_states`.

use async_trait::async_trait;
use serde_json::json;
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{RunId, SessionKey, TapeEntryId};
use tapedeck_domain::tape::{NewEntry, TapeEntry, TapeState};
use tapedeck_store::rows::{Rows, TapeRows};

use crate::encode::{At, hex_id, integer};
use crate::error::{from_sqlx, internal};
use crate::tx::SqliteTx;

struct TapeRow {
    entry_key: i64,
    position: i64,
    entry_id: Vec<u8>,
    kind: String,
    payload: String,
    anchor_type: Option<String>,
    run_id: Vec<u8>,
    first_seq: i64,
    created_at: i64,
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
        })
    }
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
                ])
            })
            .collect();
        let rows = json!(rows).to_string();
        sqlx::query!(
            "INSERT INTO tape_entries (
                session_key, position, entry_id, kind, payload, anchor_type, run_id, first_seq,
                created_at
             )
             SELECT ?1, value ->> 0, unhex(value ->> 1), value ->> 2, value ->> 3, value ->> 4,
                    unhex(value ->> 5), value ->> 6, value ->> 7
             FROM json_each(?2)
             WHERE true
             ON CONFLICT (session_key, run_id, first_seq, kind) DO NOTHING",
            session.0,
            rows,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(())
    }

    async fn tape_tail(&mut self, session: SessionKey, limit: u32) -> Rows<Vec<TapeEntry>> {
        let rows = sqlx::query_as!(
            TapeRow,
            "SELECT entry_key, position, entry_id, kind, payload, anchor_type, run_id, first_seq,
                    created_at
             FROM tape_entries
             WHERE session_key = ? AND superseded_by_checkpoint_id IS NULL
             ORDER BY position DESC
             LIMIT ?",
            session.0,
            limit,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter().rev().map(TapeEntry::try_from).collect()
    }
}
