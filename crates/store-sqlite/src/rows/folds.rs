//! Rows of `events`, `runs` and `sessions` that folds look at or change.

use async_trait::async_trait;
use serde_json::json;
use sqlx::SqliteConnection;
use tapedeck_domain::fold::Fold;
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::time::Timestamp;
use tapedeck_store::rows::{FoldCandidate, FoldRows, Rows, RunSpan};

use crate::encode::{At, blob, integer};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::SqliteTx;

/// The first number of the fold that a number lies strictly inside of: the next row would cover it.
pub(crate) async fn over(
    conn: &mut SqliteConnection,
    session: SessionId,
    seq: u64,
) -> Rows<Option<u64>> {
    let id = blob(session.uuid());
    let after = integer(seq);
    let next = sqlx::query_scalar!(
        "SELECT folded_from FROM events
         WHERE session_key = (SELECT session_key FROM sessions WHERE session_id = ?)
           AND session_seq > ?
         ORDER BY session_seq
         LIMIT 1",
        id,
        after,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    let first = At::new("events", &session).maybe_number("folded_from", next.flatten())?;
    Ok(first.filter(|first| *first <= seq))
}

#[async_trait]
impl FoldRows for SqliteTx<'_> {
    async fn foldable_runs(
        &mut self,
        before: Timestamp,
        after: (Timestamp, RunKey),
        limit: u32,
    ) -> Rows<Vec<FoldCandidate>> {
        let (after_at, after_key) = (after.0.0, after.1.0);
        let rows = sqlx::query!(
            r#"SELECT run_key, run_id, settled_at AS "settled_at!" FROM runs
             WHERE settled_at IS NOT NULL AND folded_at IS NULL
               AND settled_at < ? AND (settled_at, run_key) > (?, ?)
             ORDER BY settled_at, run_key
             LIMIT ?"#,
            before.0,
            after_at,
            after_key,
            limit,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter()
            .map(|row| {
                let at = At::new("runs", &row.run_key);
                Ok(FoldCandidate {
                    settled_at: Timestamp(row.settled_at),
                    key: RunKey(row.run_key),
                    run_id: at.id("run_id", &row.run_id, RunId::new)?,
                })
            })
            .collect()
    }

    async fn foldable_span(&mut self, key: RunKey) -> Rows<Option<RunSpan>> {
        let row = sqlx::query!(
            r#"SELECT admitted_seq, settled_seq AS "settled_seq!" FROM runs
             WHERE run_key = ? AND settled_seq IS NOT NULL AND folded_at IS NULL"#,
            key.0,
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        row.map(|row| {
            let at = At::new("runs", &key.0);
            Ok(RunSpan {
                admitted_seq: at.number("admitted_seq", row.admitted_seq)?,
                settled_seq: at.number("settled_seq", row.settled_seq)?,
            })
        })
        .transpose()
    }

    async fn cuts(&mut self, session: SessionKey, from: u64, to: u64) -> Rows<Vec<u64>> {
        let (from, to) = (integer(from), integer(to));
        let rows = sqlx::query_scalar!(
            r#"SELECT session_seq AS "session_seq!: i64" FROM checkpoints
             WHERE session_key = ?1 AND session_seq >= ?2 AND session_seq < ?3
             UNION
             SELECT forked_from_seq FROM sessions
             WHERE forked_from_session_id = (SELECT session_id FROM sessions WHERE session_key = ?1)
               AND forked_from_seq >= ?2 AND forked_from_seq < ?3
             ORDER BY 1"#,
            session.0,
            from,
            to,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        let at = At::new("checkpoints", &session.0);
        rows.into_iter()
            .map(|seq| at.number("session_seq", seq))
            .collect()
    }

    async fn apply_folds(&mut self, session: SessionKey, folds: &[Fold]) -> Rows<()> {
        let rows: Vec<_> = folds
            .iter()
            .map(|fold| {
                let (first, last) = (integer(fold.first_seq), integer(fold.last_seq));
                json!([first, last, fold.payload.as_str()])
            })
            .collect();
        let rows = json!(rows).to_string();
        let done = sqlx::query!(
            "DELETE FROM events WHERE event_key IN (
                SELECT e.event_key
                FROM json_each(?2) AS fold
                CROSS JOIN events AS e
                WHERE e.session_key = ?1
                  AND e.session_seq >= fold.value ->> 0
                  AND e.session_seq < fold.value ->> 1
             )",
            session.0,
            rows,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        let swallowed = folds.iter().map(|fold| fold.swallowed).sum();
        expect_rows("events", done.rows_affected(), swallowed)?;
        let done = sqlx::query!(
            "UPDATE events SET
                folded_from = fold.value ->> 0,
                payload = fold.value ->> 2,
                digest = NULL
             FROM json_each(?2) AS fold
             WHERE session_key = ?1 AND session_seq = fold.value ->> 1",
            session.0,
            rows,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("events", done.rows_affected(), folds.len() as u64)?;
        let last = folds.iter().map(|fold| integer(fold.last_seq)).max();
        let done = sqlx::query!(
            "UPDATE sessions SET folded_seq = max(coalesce(folded_seq, 0), ?2)
             WHERE session_key = ?1",
            session.0,
            last,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("sessions", done.rows_affected(), 1)
    }

    async fn mark_folded(&mut self, key: RunKey, at: Timestamp) -> Rows<()> {
        let done = sqlx::query!(
            "UPDATE runs SET folded_at = ? WHERE run_key = ? AND folded_at IS NULL",
            at.0,
            key.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("runs", done.rows_affected(), 1)
    }
}
