//! Rows of `run_queue`, and the candidates of a claim. What a claim looks at is bounded by the
//! label sets in use and the runs it may take, never by history or by blocked work.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::id::{RunId, RunKey};
use tapedeck_domain::queue::Turns;
use tapedeck_domain::session::ExecutorTarget;
use tapedeck_domain::time::LeaseInstant;
use tapedeck_store::Tx as _;
use tapedeck_store::rows::{
    Candidate, ClaimFilter, ClaimOfRequest, QueueEntry, QueueRows, Rows, WaitingRun,
};

use crate::encode::{At, blob, bytes};
use crate::error::{expect_rows, from_sqlx, internal};
use crate::tx::SqliteTx;

type Labels = BTreeMap<String, String>;

/// Required labels as one comparable text: the map is sorted.
fn label_key(labels: &Labels) -> Rows<String> {
    serde_json::to_string(labels).map_err(internal)
}

/// Whether an executor carries every label that a key requires.
fn satisfies(executor: &Labels, required: &Labels) -> bool {
    required
        .iter()
        .all(|(name, value)| executor.get(name) == Some(value))
}

impl SqliteTx<'_> {
    /// Those label keys of the pool's queue that the executor satisfies, as JSON.
    async fn satisfied_keys(&mut self, filter: &ClaimFilter) -> Rows<String> {
        let keys =
            sqlx::query_file_scalar!("queries/label_keys.sql", filter.pool, filter.executor_kind)
                .fetch_all(self.read())
                .await
                .map_err(from_sqlx)?;
        let mut satisfied = Vec::new();
        for key in keys {
            let required: Labels = serde_json::from_str(&key)
                .map_err(|_broken| At::new("run_queue", &key).bad("label_key"))?;
            if satisfies(&filter.labels, &required) {
                satisfied.push(key);
            }
        }
        Ok(serde_json::Value::from(satisfied).to_string())
    }
}

#[async_trait]
impl QueueRows for SqliteTx<'_> {
    async fn enqueue(&mut self, entry: &QueueEntry) -> Rows<()> {
        let label_key = label_key(&entry.target.labels)?;
        let opens_at = entry.preference.as_ref().map(|wait| wait.opens_at.0);
        let audience = entry.audience();
        let done = sqlx::query!(
            "INSERT INTO run_queue (
                run_key, session_key, pool, executor_kind, label_key, pinned_executor, audience,
                opens_at, flow, turn, ready_at
             ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            entry.run_key.0,
            entry.session_key.0,
            entry.target.pool,
            entry.target.executor_kind,
            label_key,
            entry.target.executor_id,
            audience,
            opens_at,
            entry.flow,
            entry.turn,
            entry.ready_at.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("run_queue", done.rows_affected(), 1)
    }

    async fn turns(&mut self, target: &ExecutorTarget, flow: &str) -> Rows<Turns> {
        let label_key = label_key(&target.labels)?;
        let row = sqlx::query!(
            r#"SELECT
                (SELECT turn FROM queue_turns WHERE pool = ?1 AND executor_kind = ?2)
                    AS "served: i64",
                (SELECT max(turn) FROM run_queue
                 WHERE pool = ?1 AND executor_kind = ?2 AND label_key = ?3 AND flow = ?4)
                    AS "newest_of_flow: i64""#,
            target.pool,
            target.executor_kind,
            label_key,
            flow,
        )
        .fetch_one(self.read())
        .await
        .map_err(from_sqlx)?;
        Ok(Turns {
            served: row.served.unwrap_or(0),
            newest_of_flow: row.newest_of_flow,
        })
    }

    async fn dequeue(&mut self, run: RunKey) -> Rows<Option<i64>> {
        sqlx::query_scalar!(
            "DELETE FROM run_queue WHERE run_key = ? RETURNING turn",
            run.0
        )
        .fetch_optional(self.write().await?)
        .await
        .map_err(from_sqlx)
    }

    async fn serve_turn(&mut self, executor_kind: &str, pool: &str, turn: i64) -> Rows<()> {
        sqlx::query!(
            "INSERT INTO queue_turns (pool, executor_kind, turn) VALUES (?, ?, ?)
             ON CONFLICT (pool, executor_kind) DO UPDATE SET turn = excluded.turn
             WHERE excluded.turn > turn",
            pool,
            executor_kind,
            turn,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(())
    }

    async fn waiting_runs(
        &mut self,
        owner_id: &str,
        ready_before: LeaseInstant,
        after: RunKey,
        limit: u32,
    ) -> Rows<Vec<WaitingRun>> {
        let (now, living) = (self.now().judged.0, self.living_owners());
        let rows = sqlx::query_file!(
            "queries/waiting_runs.sql",
            after.0,
            ready_before.0,
            owner_id,
            now,
            living,
            limit,
        )
        .fetch_all(self.read())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter()
            .map(|row| {
                let at = At::new("run_queue", &row.run_key);
                Ok(WaitingRun {
                    run_key: RunKey(row.run_key),
                    target: ExecutorTarget {
                        executor_kind: row.executor_kind,
                        pool: row.pool,
                        labels: serde_json::from_str(&row.label_key)
                            .map_err(|_broken| at.bad("label_key"))?,
                        executor_id: row.pinned_executor,
                        ..ExecutorTarget::default()
                    },
                    unservable: row.unservable,
                })
            })
            .collect()
    }

    async fn flag_runs(&mut self, runs: &[RunKey], unservable: Option<&str>) -> Rows<u64> {
        let keys: Vec<_> = runs.iter().map(|key| key.0).collect();
        let keys = serde_json::Value::from(keys).to_string();
        let done = sqlx::query!(
            "UPDATE runs SET unservable = ?
             WHERE run_key IN (SELECT value FROM json_each(?)) AND status = 'requested'",
            unservable,
            keys,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }

    async fn candidates(
        &mut self,
        filter: &ClaimFilter,
        at: LeaseInstant,
        limit: u32,
    ) -> Rows<Vec<Candidate>> {
        let keys = self.satisfied_keys(filter).await?;
        let living = self.living_owners();
        let session = filter.session_id.map(|id| blob(id.uuid()));
        let rows = match session {
            None => sqlx::query_file_as!(
                CandidateRow,
                "queries/candidates.sql",
                filter.pool,
                filter.executor_kind,
                keys,
                filter.executor_id,
                at.0,
                filter.owner_id,
                living,
                limit,
            )
            .fetch_all(self.read())
            .await
            .map_err(from_sqlx)?,
            Some(session) => sqlx::query_file_as!(
                CandidateRow,
                "queries/candidates_of_session.sql",
                filter.pool,
                filter.executor_kind,
                keys,
                filter.executor_id,
                at.0,
                filter.owner_id,
                living,
                session,
            )
            .fetch_all(self.read())
            .await
            .map_err(from_sqlx)?,
        };
        rows.into_iter().map(Candidate::try_from).collect()
    }

    async fn claim_of_request(&mut self, request_hash: &Digest) -> Rows<Option<ClaimOfRequest>> {
        let hash = bytes(request_hash);
        let row = sqlx::query!(
            "SELECT c.run_key, c.attempt, r.run_id
             FROM claims c JOIN runs r ON r.run_key = c.run_key
             WHERE c.request_hash = ?",
            hash,
        )
        .fetch_optional(self.read())
        .await
        .map_err(from_sqlx)?;
        row.map(|row| {
            let at = At::new("claims", &row.run_key);
            Ok(ClaimOfRequest {
                run_id: at.id("run_id", &row.run_id, RunId::new)?,
                attempt: at.number("attempt", row.attempt)?,
            })
        })
        .transpose()
    }
}

struct CandidateRow {
    run_key: i64,
    run_id: Vec<u8>,
}

impl TryFrom<CandidateRow> for Candidate {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: CandidateRow) -> Rows<Self> {
        let at = At::new("run_heads", &row.run_key);
        Ok(Self {
            run_key: RunKey(row.run_key),
            run_id: at.id("run_id", &row.run_id, RunId::new)?,
        })
    }
}
