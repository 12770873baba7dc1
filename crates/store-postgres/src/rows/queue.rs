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
use uuid::Uuid;

use crate::encode::{At, bytes};
use crate::error::{expect_rows, from_sqlx, internal};
use crate::tx::PostgresTx;

type Labels = BTreeMap<String, String>;

/// Required labels as one text, and its digest. The map is sorted, so equal sets are equal texts.
fn label_set(labels: &Labels) -> Rows<(String, Vec<u8>)> {
    let text = serde_json::to_string(labels).map_err(internal)?;
    let key = bytes(&Digest::of_bytes(text.as_bytes()));
    Ok((text, key))
}

/// Whether an executor carries every label that a run requires.
fn satisfies(executor: &Labels, required: &Labels) -> bool {
    required
        .iter()
        .all(|(name, value)| executor.get(name) == Some(value))
}

impl PostgresTx<'_> {
    /// The keys of those label sets of the pool's queue that the executor satisfies.
    async fn satisfied_keys(&mut self, filter: &ClaimFilter) -> Rows<Vec<Vec<u8>>> {
        let sets = sqlx::query_file!("queries/label_sets.sql", filter.pool, filter.executor_kind)
            .fetch_all(self.conn())
            .await
            .map_err(from_sqlx)?;
        let mut satisfied = Vec::new();
        for set in sets {
            let required = serde_json::from_str(&set.labels)
                .map_err(|_broken| At::new("run_queue", &set.labels).bad("labels"))?;
            if satisfies(&filter.labels, &required) {
                satisfied.push(set.label_key);
            }
        }
        Ok(satisfied)
    }
}

#[async_trait]
impl QueueRows for PostgresTx<'_> {
    async fn enqueue(&mut self, entry: &QueueEntry) -> Rows<()> {
        let (labels, label_key) = label_set(&entry.target.labels)?;
        let done = sqlx::query!(
            "INSERT INTO run_queue (
                run_key, session_key, pool, executor_kind, labels, label_key, pinned_executor,
                audience, opens_at, flow, turn, ready_at
             ) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            entry.run_key.0,
            entry.session_key.0,
            entry.target.pool,
            entry.target.executor_kind,
            labels,
            label_key,
            entry.target.executor_id,
            entry.audience(),
            entry.preference.as_ref().map(|wait| wait.opens_at.0),
            entry.flow,
            entry.turn,
            entry.ready_at.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("run_queue", done.rows_affected(), 1)
    }

    async fn turns(&mut self, target: &ExecutorTarget, flow: &str) -> Rows<Turns> {
        let (_, label_key) = label_set(&target.labels)?;
        let row = sqlx::query!(
            "SELECT
                (SELECT turn FROM queue_turns WHERE pool = $1 AND executor_kind = $2) AS served,
                (SELECT max(turn) FROM run_queue
                 WHERE pool = $1 AND executor_kind = $2 AND label_key = $3 AND flow = $4)
                    AS newest_of_flow",
            target.pool,
            target.executor_kind,
            label_key,
            flow,
        )
        .fetch_one(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(Turns {
            served: row.served.unwrap_or(0),
            newest_of_flow: row.newest_of_flow,
        })
    }

    async fn dequeue(&mut self, run: RunKey) -> Rows<Option<i64>> {
        sqlx::query_scalar!(
            "DELETE FROM run_queue WHERE run_key = $1 RETURNING turn",
            run.0
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)
    }

    async fn serve_turn(&mut self, executor_kind: &str, pool: &str, turn: i64) -> Rows<()> {
        sqlx::query_file!("queries/serve_turn.sql", pool, executor_kind, turn)
            .execute(self.conn())
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
        let now = self.now().judged.0;
        let rows = sqlx::query_file!(
            "queries/waiting_runs.sql",
            after.0,
            ready_before.0,
            owner_id,
            now,
            i64::from(limit),
        )
        .fetch_all(self.conn())
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
                        labels: serde_json::from_str(&row.labels)
                            .map_err(|_broken| at.bad("labels"))?,
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
        let done = sqlx::query_file!("queries/flag_runs.sql", unservable, &keys)
            .execute(self.conn())
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
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let rows = match filter.session_id {
            None => sqlx::query_file_as!(
                CandidateRow,
                "queries/candidates.sql",
                filter.pool,
                filter.executor_kind,
                &keys,
                filter.executor_id,
                at.0,
                filter.owner_id,
                i64::from(limit),
            )
            .fetch_all(self.conn())
            .await
            .map_err(from_sqlx)?,
            Some(session) => sqlx::query_file_as!(
                CandidateRow,
                "queries/candidates_of_session.sql",
                filter.pool,
                filter.executor_kind,
                &keys,
                filter.executor_id,
                at.0,
                filter.owner_id,
                session.uuid(),
            )
            .fetch_all(self.conn())
            .await
            .map_err(from_sqlx)?,
        };
        Ok(rows.into_iter().map(Candidate::from).collect())
    }

    async fn claim_of_request(&mut self, request_hash: &Digest) -> Rows<Option<ClaimOfRequest>> {
        let row = sqlx::query!(
            "SELECT c.run_key, c.attempt, r.run_id
             FROM claims c JOIN runs r ON r.run_key = c.run_key
             WHERE c.request_hash = $1",
            bytes(request_hash),
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        row.map(|row| {
            let at = At::new("claims", &row.run_key);
            Ok(ClaimOfRequest {
                run_id: RunId::new(row.run_id),
                attempt: at.number("attempt", row.attempt)?,
            })
        })
        .transpose()
    }
}

struct CandidateRow {
    run_key: i64,
    run_id: Uuid,
}

impl From<CandidateRow> for Candidate {
    fn from(row: CandidateRow) -> Self {
        Self {
            run_key: RunKey(row.run_key),
            run_id: RunId::new(row.run_id),
        }
    }
}
