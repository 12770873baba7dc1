//! Rows of `runs`, `run_heads`, `run_materials` and `claims`.

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::admit::QueuePlaces;
use tapedeck_domain::claim::Claim;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::id::{CheckpointId, RunId, RunKey, SessionKey};
use tapedeck_domain::run::{LiveRun, NewRun, Run};
use tapedeck_domain::time::{LeaseInstant, Timestamp};
use tapedeck_store::rows::{LockedRun, Rows, RunProgress, RunRows, SettledRun};

use crate::encode::{At, bytes, integer, object_text, text};
use crate::error::{expect_rows, from_sqlx};
use crate::live::{LiveRow, live_rows};
use crate::record;
use crate::tx::PostgresTx;

#[async_trait]
impl RunRows for PostgresTx<'_> {
    async fn insert_run(&mut self, session: SessionKey, run: &NewRun) -> Rows<RunKey> {
        let parent = run.parent_run_id.map(RunId::uuid);
        let metadata = object_text(&run.metadata);
        let key = sqlx::query_scalar!(
            "INSERT INTO runs (
                run_id, session_key, session_id, namespace, parent_run_id, status, prompt, metadata,
                requested_at, admitted_seq
             )
             SELECT $1, session_key, session_id, namespace, $3, $4, $5, $6, $7, $8
             FROM sessions WHERE session_key = $2
             RETURNING run_key",
            run.run_id.uuid(),
            session.0,
            parent,
            run.status.as_str(),
            run.prompt,
            metadata,
            run.requested_at.0,
            integer(run.admitted_seq),
        )
        .fetch_one(self.conn())
        .await
        .map_err(from_sqlx)?;
        if let Some(context) = &run.resume_context {
            let done = sqlx::query!(
                "INSERT INTO run_materials (run_key, resume_context) VALUES ($1, $2)",
                key,
                text(context),
            )
            .execute(self.conn())
            .await
            .map_err(from_sqlx)?;
            expect_rows("run_materials", done.rows_affected(), 1)?;
        }
        Ok(RunKey(key))
    }

    async fn insert_live_run(&mut self, run: &LiveRun) -> Rows<()> {
        let row = LiveRow::from(run);
        let done = sqlx::query_file!(
            "queries/insert_live_run.sql",
            row.run_key,
            row.run_id,
            row.session_key,
            row.session_id,
            row.status,
            row.ready_at,
            row.attempt,
            row.attempts_used,
            row.unacknowledged,
            row.max_attempts,
            row.place,
            row.event_count,
            row.has_output,
            row.pending_interactions,
            row.claim_attempt,
            row.token_hash,
            row.executor_id,
            row.instance_id,
            row.request_hash,
            row.acknowledged,
            row.replayed,
            row.lease_expires_at,
            row.lease_ms,
            row.cancel_deadline,
            row.turn,
            row.run_deadline,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("run_heads", done.rows_affected(), 1)
    }

    async fn save_live_run(&mut self, run: &LiveRun) -> Rows<()> {
        let row = LiveRow::from(run);
        let done = sqlx::query_file!(
            "queries/save_live_run.sql",
            row.status,
            row.ready_at,
            row.attempt,
            row.attempts_used,
            row.unacknowledged,
            row.max_attempts,
            row.place,
            row.event_count,
            row.has_output,
            row.pending_interactions,
            row.claim_attempt,
            row.token_hash,
            row.executor_id,
            row.instance_id,
            row.request_hash,
            row.acknowledged,
            row.replayed,
            row.lease_expires_at,
            row.lease_ms,
            row.cancel_deadline,
            row.turn,
            row.run_deadline,
            row.run_key,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("run_heads", done.rows_affected(), 1)
    }

    async fn delete_live_run(&mut self, key: RunKey) -> Rows<()> {
        let done = sqlx::query!("DELETE FROM run_heads WHERE run_key = $1", key.0)
            .execute(self.conn())
            .await
            .map_err(from_sqlx)?;
        expect_rows("run_heads", done.rows_affected(), 1)
    }

    async fn lock_run(&mut self, id: RunId) -> Rows<Option<LockedRun>> {
        let locked = record::lock(self.conn(), id).await?;
        Ok(self.noted(locked))
    }

    async fn lock_run_if_free(&mut self, id: RunId) -> Rows<Option<LockedRun>> {
        let locked = record::lock_if_free(self.conn(), id).await?;
        Ok(self.noted(locked))
    }

    async fn live_run(&mut self, key: RunKey) -> Rows<Option<LiveRun>> {
        let row = live_rows!("WHERE run_key = $1", key.0)
            .fetch_optional(self.conn())
            .await
            .map_err(from_sqlx)?;
        row.map(LiveRun::try_from).transpose()
    }

    async fn run(&mut self, key: RunKey) -> Rows<Run> {
        record::get(self.conn(), key).await
    }

    async fn queue_places(&mut self, session: SessionKey) -> Rows<QueuePlaces> {
        let row = sqlx::query!(
            "SELECT min(place) AS first, max(place) AS last FROM run_heads
             WHERE session_key = $1 AND status = 'queued'",
            session.0,
        )
        .fetch_one(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(QueuePlaces {
            first: row.first,
            last: row.last,
        })
    }

    async fn first_queued_run(&mut self, session: SessionKey) -> Rows<Option<(LiveRun, String)>> {
        let row = live_rows!(
            "WHERE session_key = $1 AND status = 'queued' ORDER BY place LIMIT 1",
            session.0,
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        let Some(row) = row else { return Ok(None) };
        let prompt = sqlx::query_scalar!("SELECT prompt FROM runs WHERE run_key = $1", row.run_key)
            .fetch_one(self.conn())
            .await
            .map_err(from_sqlx)?;
        Ok(Some((row.try_into()?, prompt)))
    }

    async fn queued_runs(&mut self, session: SessionKey) -> Rows<Vec<LiveRun>> {
        let rows = live_rows!(
            "WHERE session_key = $1 AND status = 'queued' ORDER BY place",
            session.0,
        )
        .fetch_all(self.conn())
        .await
        .map_err(from_sqlx)?;
        rows.into_iter().map(LiveRun::try_from).collect()
    }

    async fn live_runs(&mut self, session: SessionKey) -> Rows<Vec<LiveRun>> {
        let rows = live_rows!("WHERE session_key = $1 ORDER BY place, run_key", session.0,)
            .fetch_all(self.conn())
            .await
            .map_err(from_sqlx)?;
        rows.into_iter().map(LiveRun::try_from).collect()
    }

    async fn save_progress(&mut self, key: RunKey, progress: &RunProgress) -> Rows<()> {
        let claimed_at = progress.claimed_at.map(|at| at.0);
        let started_at = progress.started_at.map(|at| at.0);
        let done = sqlx::query!(
            "UPDATE runs SET
                status = $1, attempt = $2,
                executor_id = coalesce($3, executor_id),
                claimed_at = coalesce($4, claimed_at),
                started_at = coalesce($5, started_at),
                unservable = $6
             WHERE run_key = $7",
            progress.status.as_str(),
            i64::from(progress.attempt),
            progress.executor_id,
            claimed_at,
            started_at,
            progress.unservable,
            key.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("runs", done.rows_affected(), 1)
    }

    async fn settle_run(&mut self, key: RunKey, settled: &SettledRun) -> Rows<()> {
        let status = settled.status.as_str();
        let result = settled.result.as_ref().map(text);
        let recovery = settled.recovery.as_ref();
        let reclaimable = recovery.map(|recovery| recovery.reclaimable);
        let reason = recovery.map(|recovery| recovery.reason.as_str());
        let recovered_at = recovery.map(|recovery| recovery.recovered_at.0);
        let token_hash = settled.claim.token_hash.as_ref().map(bytes);
        let body_digest = settled.claim.body_digest.as_ref().map(bytes);
        let (event_count, seq) = (integer(settled.event_count), integer(settled.settled_seq));
        let done = sqlx::query!(
            "UPDATE runs SET
                ended_queued = (status = 'queued' AND $1 = 'cancelled'),
                status = $1, result = $2, error = $3,
                recovery_reclaimable = $4, recovery_reason = $5, recovered_at = $6,
                settled_attempt = $7, settled_token_hash = $8, settled_body_digest = $9,
                event_count = $10, settled_at = $11, settled_seq = $12, unservable = NULL
             WHERE run_key = $13",
            status,
            result,
            settled.error,
            reclaimable,
            reason,
            recovered_at,
            i64::from(settled.claim.attempt),
            token_hash,
            body_digest,
            event_count,
            settled.settled_at.0,
            seq,
            key.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("runs", done.rows_affected(), 1)?;
        match &settled.agent_state {
            Some(state) => self.save_agent_state(key, state).await,
            None => Ok(()),
        }
    }

    async fn save_agent_state(&mut self, key: RunKey, state: &Value) -> Rows<()> {
        let done = sqlx::query!(
            "INSERT INTO run_materials (run_key, agent_state) VALUES ($1, $2)
             ON CONFLICT (run_key) DO UPDATE SET agent_state = excluded.agent_state",
            key.0,
            text(state),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("run_materials", done.rows_affected(), 1)
    }

    async fn latest_settled_run(&mut self, session: SessionKey) -> Rows<Option<Run>> {
        record::latest_settled(self.conn(), session).await
    }

    async fn latest_interrupted_run(&mut self, session: SessionKey) -> Rows<Option<RunId>> {
        let run_id = sqlx::query_scalar!(
            "SELECT run_id FROM runs
             WHERE session_key = $1 AND status = 'interrupted' AND superseded_at IS NULL
             ORDER BY settled_seq DESC LIMIT 1",
            session.0,
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(run_id.map(RunId::new))
    }

    /// One statement for each of the two indexes that hold runs by the numbers of their ends.
    async fn supersede_runs(
        &mut self,
        session: SessionKey,
        session_seq: u64,
        by: CheckpointId,
        at: Timestamp,
    ) -> Rows<u64> {
        let seq = integer(session_seq);
        let active = sqlx::query!(
            "UPDATE runs SET superseded_at = $3, superseded_by_checkpoint_id = $4
             WHERE session_key = $1 AND settled_seq > $2 AND superseded_at IS NULL
               AND NOT ended_queued",
            session.0,
            seq,
            at.0,
            by.uuid(),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        let queued = sqlx::query!(
            "UPDATE runs SET superseded_at = $3, superseded_by_checkpoint_id = $4
             WHERE session_key = $1 AND settled_seq > $2 AND superseded_at IS NULL
               AND ended_queued",
            session.0,
            seq,
            at.0,
            by.uuid(),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(active.rows_affected() + queued.rows_affected())
    }

    async fn resume_context(&mut self, key: RunKey) -> Rows<Option<Value>> {
        let row = sqlx::query_scalar!(
            "SELECT resume_context FROM run_materials WHERE run_key = $1",
            key.0
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        At::new("run_materials", &key.0).maybe_json("resume_context", row.flatten().as_deref())
    }

    async fn agent_state(&mut self, key: RunKey) -> Rows<Option<Value>> {
        let row = sqlx::query_scalar!(
            "SELECT agent_state FROM run_materials WHERE run_key = $1",
            key.0
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        At::new("run_materials", &key.0).maybe_json("agent_state", row.flatten().as_deref())
    }

    async fn insert_claim(&mut self, key: RunKey, claim: &Claim, now: LeaseInstant) -> Rows<()> {
        let (token, request) = (bytes(&claim.token_hash), bytes(&claim.request_hash));
        let done = sqlx::query!(
            "INSERT INTO claims (
                run_key, attempt, token_hash, request_hash, executor_id, instance_id, claimed_at
             ) VALUES ($1, $2, $3, $4, $5, $6, $7)",
            key.0,
            i64::from(claim.attempt),
            token,
            request,
            claim.executor_id,
            claim.instance_id,
            now.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("claims", done.rows_affected(), 1)
    }

    async fn claim_token_hash(&mut self, key: RunKey, attempt: u32) -> Rows<Option<Digest>> {
        let row = sqlx::query_scalar!(
            "SELECT token_hash FROM claims WHERE run_key = $1 AND attempt = $2",
            key.0,
            i64::from(attempt),
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        At::new("claims", &key.0).maybe_digest("token_hash", row.as_deref())
    }

    /// A later sign of life under the same name counts too where it comes from a newer process: the
    /// name is one machine's, so the process that claimed is gone.
    async fn claimants_seen(&mut self, key: RunKey, count: u32) -> Rows<bool> {
        let seen = sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM (
                SELECT executor_id, claimed_at FROM claims WHERE run_key = $1
                ORDER BY attempt DESC LIMIT $2
             ) AS newest
             JOIN executors e ON e.executor_id = newest.executor_id
             WHERE e.last_seen > newest.claimed_at"#,
            key.0,
            i64::from(count),
        )
        .fetch_one(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(seen == i64::from(count))
    }

    async fn expired_claims(
        &mut self,
        at: LeaseInstant,
        after: RunKey,
        limit: u32,
    ) -> Rows<Vec<(RunKey, RunId)>> {
        let rows = sqlx::query!(
            r#"WITH expired AS MATERIALIZED (
                SELECT run_key, run_id FROM run_heads
                WHERE lease_expires_at <= $1 AND run_key > $2
             )
             SELECT run_key AS "run_key!", run_id AS "run_id!" FROM expired
             ORDER BY run_key
             LIMIT $3"#,
            at.0,
            after.0,
            i64::from(limit),
        )
        .fetch_all(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(rows
            .into_iter()
            .map(|row| (RunKey(row.run_key), RunId::new(row.run_id)))
            .collect())
    }

    async fn orphaned_runs(
        &mut self,
        owner_id: &str,
        at: LeaseInstant,
        after: RunKey,
        limit: u32,
    ) -> Rows<Vec<(RunKey, RunId)>> {
        let rows = sqlx::query!(
            r#"SELECT l.run_key, l.run_id
             FROM session_heads h JOIN run_heads l ON l.run_key = h.active_run_key
             WHERE h.active_run_key IS NOT NULL AND h.owner_id <> $1
               AND (h.owner_expires_at IS NULL OR h.owner_expires_at <= $2)
               AND l.run_key > $3
             ORDER BY l.run_key
             LIMIT $4"#,
            owner_id,
            at.0,
            after.0,
            i64::from(limit),
        )
        .fetch_all(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(rows
            .into_iter()
            .map(|row| (RunKey(row.run_key), RunId::new(row.run_id)))
            .collect())
    }
}

impl PostgresTx<'_> {
    /// Remembers the lock, so that reading the session needs no second one.
    fn noted(&mut self, locked: Option<LockedRun>) -> Option<LockedRun> {
        if let Some(run) = &locked {
            self.note_held(run.head.session_key);
        }
        locked
    }
}
