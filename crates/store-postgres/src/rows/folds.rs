//! Rows of `events`, `runs` and `sessions` that folds look at or change. All but the candidates are
//! read under the head's lock (rules R1).

use async_trait::async_trait;
use sqlx::PgConnection;
use tapedeck_domain::fold::Fold;
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::time::Timestamp;
use tapedeck_store::rows::{FoldCandidate, FoldRows, Rows, RunSpan};

use crate::encode::{At, integer};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::PostgresTx;

/// The first number of the fold that a number lies strictly inside of: the next row would cover it.
pub(crate) async fn over(
    conn: &mut PgConnection,
    session: SessionId,
    seq: u64,
) -> Rows<Option<u64>> {
    let next = sqlx::query_scalar!(
        "SELECT folded_from FROM events
         WHERE session_key = (SELECT session_key FROM sessions WHERE session_id = $1)
           AND session_seq > $2
         ORDER BY session_seq
         LIMIT 1",
        session.uuid(),
        integer(seq),
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    let first = At::new("events", &session).maybe_number("folded_from", next.flatten())?;
    Ok(first.filter(|first| *first <= seq))
}

#[async_trait]
impl FoldRows for PostgresTx<'_> {
    async fn foldable_runs(
        &mut self,
        before: Timestamp,
        after: (Timestamp, RunKey),
        limit: u32,
    ) -> Rows<Vec<FoldCandidate>> {
        // The first condition on the time is what walks the index from the right place.
        let rows = sqlx::query!(
            r#"SELECT run_key, run_id, settled_at AS "settled_at!" FROM runs
             WHERE settled_at IS NOT NULL AND folded_at IS NULL
               AND settled_at < $1 AND settled_at >= $2 AND (settled_at, run_key) > ($2, $3)
             ORDER BY settled_at, run_key
             LIMIT $4"#,
            before.0,
            after.0.0,
            after.1.0,
            i64::from(limit),
        )
        .fetch_all(self.conn())
        .await
        .map_err(from_sqlx)?;
        let candidates = rows.into_iter().map(|row| FoldCandidate {
            settled_at: Timestamp(row.settled_at),
            key: RunKey(row.run_key),
            run_id: RunId::new(row.run_id),
        });
        Ok(candidates.collect())
    }

    async fn foldable_span(&mut self, key: RunKey) -> Rows<Option<RunSpan>> {
        let row = sqlx::query!(
            r#"SELECT admitted_seq, settled_seq AS "settled_seq!" FROM runs
             WHERE run_key = $1 AND settled_seq IS NOT NULL AND folded_at IS NULL"#,
            key.0,
        )
        .fetch_optional(self.conn())
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
        let rows = sqlx::query_scalar!(
            r#"SELECT session_seq AS "session_seq!" FROM checkpoints
             WHERE session_key = $1 AND session_seq >= $2 AND session_seq < $3
             UNION
             SELECT forked_from_seq FROM sessions
             WHERE forked_from_session_id = (SELECT session_id FROM sessions WHERE session_key = $1)
               AND forked_from_seq >= $2 AND forked_from_seq < $3
             ORDER BY 1"#,
            session.0,
            integer(from),
            integer(to),
        )
        .fetch_all(self.conn())
        .await
        .map_err(from_sqlx)?;
        let at = At::new("checkpoints", &session.0);
        rows.into_iter()
            .map(|seq| at.number("session_seq", seq))
            .collect()
    }

    async fn apply_folds(&mut self, session: SessionKey, folds: &[Fold]) -> Rows<()> {
        let first: Vec<i64> = folds.iter().map(|fold| integer(fold.first_seq)).collect();
        let last: Vec<i64> = folds.iter().map(|fold| integer(fold.last_seq)).collect();
        let payloads: Vec<&str> = folds.iter().map(|fold| fold.payload.as_str()).collect();
        let done = sqlx::query!(
            "DELETE FROM events e
             USING unnest($2::bigint[], $3::bigint[]) AS fold (first_seq, last_seq)
             WHERE e.session_key = $1
               AND e.session_seq >= fold.first_seq
               AND e.session_seq < fold.last_seq",
            session.0,
            &first,
            &last,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        let swallowed = folds.iter().map(|fold| fold.swallowed).sum();
        expect_rows("events", done.rows_affected(), swallowed)?;
        let done = sqlx::query!(
            "UPDATE events e SET
                folded_from = fold.first_seq,
                payload = fold.payload,
                digest = NULL
             FROM unnest($2::bigint[], $3::bigint[], $4::text[])
                AS fold (first_seq, last_seq, payload)
             WHERE e.session_key = $1 AND e.session_seq = fold.last_seq",
            session.0,
            &first,
            &last,
            &payloads as &[&str],
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("events", done.rows_affected(), folds.len() as u64)?;
        let done = sqlx::query!(
            "UPDATE sessions SET folded_seq = greatest(folded_seq, $2) WHERE session_key = $1",
            session.0,
            last.into_iter().max(),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("sessions", done.rows_affected(), 1)
    }

    async fn mark_folded(&mut self, key: RunKey, at: Timestamp) -> Rows<()> {
        let done = sqlx::query!(
            "UPDATE runs SET folded_at = $1 WHERE run_key = $2 AND folded_at IS NULL",
            at.0,
            key.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("runs", done.rows_affected(), 1)
    }
}
