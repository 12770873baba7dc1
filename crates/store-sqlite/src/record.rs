//! A run's record as columns, and a run together with what its writes need.

use sqlx::SqliteConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{CheckpointId, RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::run::{LiveRun, Recovery, Run, SettledClaim};
use tapedeck_store::rows::{LockedRun, Rows};
use tapedeck_store::{PageRequest, RunFilter};

use crate::encode::{At, before, blob};
use crate::error::from_sqlx;
use crate::live::LiveRow;
use crate::rows::heads::HeadRow;

/// A row of `runs`, as far as readers see it.
#[expect(dead_code, reason = "`SELECT *` is checked against all columns")]
struct RunRow {
    run_key: i64,
    run_id: Vec<u8>,
    session_key: i64,
    session_id: Vec<u8>,
    namespace: String,
    parent_run_id: Option<Vec<u8>>,
    status: String,
    attempt: i64,
    prompt: String,
    metadata: String,
    result: Option<String>,
    error: Option<String>,
    executor_id: Option<String>,
    requested_at: i64,
    claimed_at: Option<i64>,
    started_at: Option<i64>,
    settled_at: Option<i64>,
    recovery_reclaimable: Option<i64>,
    recovery_reason: Option<String>,
    recovered_at: Option<i64>,
    superseded_at: Option<i64>,
    superseded_by_checkpoint_id: Option<Vec<u8>>,
    admitted_seq: i64,
    settled_seq: Option<i64>,
    unservable: Option<String>,
    event_count: i64,
    settled_attempt: Option<i64>,
    settled_token_hash: Option<Vec<u8>>,
    settled_body_digest: Option<Vec<u8>>,
    ended_queued: i64,
    folded_at: Option<i64>,
}

impl TryFrom<RunRow> for Run {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: RunRow) -> Rows<Self> {
        let at = At::new("runs", &row.run_key);
        let recovery = match row.recovery_reason {
            None => None,
            Some(reason) => Some(Recovery {
                reclaimable: at.present("recovery_reclaimable", row.recovery_reclaimable)? != 0,
                reason,
                recovered_at: Timestamp(at.present("recovered_at", row.recovered_at)?),
            }),
        };
        Ok(Self {
            key: RunKey(row.run_key),
            run_id: at.id("run_id", &row.run_id, RunId::new)?,
            session_key: SessionKey(row.session_key),
            session_id: at.id("session_id", &row.session_id, SessionId::new)?,
            parent_run_id: at.maybe_id(
                "parent_run_id",
                row.parent_run_id.as_deref(),
                RunId::new,
            )?,
            status: at.word("status", &row.status)?,
            attempt: at.number("attempt", row.attempt)?,
            prompt: row.prompt,
            metadata: at.object("metadata", &row.metadata)?,
            result: at.maybe_json("result", row.result.as_deref())?,
            error: row.error,
            executor_id: row.executor_id,
            requested_at: Timestamp(row.requested_at),
            claimed_at: row.claimed_at.map(Timestamp),
            started_at: row.started_at.map(Timestamp),
            settled_at: row.settled_at.map(Timestamp),
            recovery,
            superseded_at: row.superseded_at.map(Timestamp),
            superseded_by_checkpoint_id: at.maybe_id(
                "superseded_by_checkpoint_id",
                row.superseded_by_checkpoint_id.as_deref(),
                CheckpointId::new,
            )?,
            admitted_seq: at.number("admitted_seq", row.admitted_seq)?,
            settled_seq: at.maybe_number("settled_seq", row.settled_seq)?,
            unservable: row.unservable,
        })
    }
}

/// A run with its session's head and its live row (`queries/lock_run.sql`).
struct LockRow {
    run_key: i64,
    run_status: String,
    settled_attempt: Option<i64>,
    settled_token_hash: Option<Vec<u8>>,
    settled_body_digest: Option<Vec<u8>>,
    session_key: i64,
    session_id: Vec<u8>,
    head_seq: i64,
    projection_epoch: i64,
    owner_id: Option<String>,
    owner_epoch: Option<i64>,
    owner_expires_at: Option<i64>,
    active_run_key: Option<i64>,
    last_activity_at: i64,
    status: Option<String>,
    ready_at: Option<i64>,
    attempt: Option<i64>,
    attempts_used: Option<i64>,
    unacknowledged: Option<i64>,
    max_attempts: Option<i64>,
    place: Option<i64>,
    event_count: Option<i64>,
    has_output: Option<i64>,
    pending_interactions: Option<i64>,
    claim_attempt: Option<i64>,
    token_hash: Option<Vec<u8>>,
    executor_id: Option<String>,
    instance_id: Option<String>,
    request_hash: Option<Vec<u8>>,
    acknowledged: Option<i64>,
    replayed: Option<i64>,
    lease_expires_at: Option<i64>,
    lease_ms: Option<i64>,
    cancel_deadline: Option<i64>,
    turn: Option<i64>,
    run_deadline: Option<i64>,
}

impl LockRow {
    fn locked(self, run_id: RunId) -> Rows<LockedRun> {
        let key = self.run_key;
        let at = At::new("runs", &key);
        let settled = match self.settled_attempt {
            None => None,
            Some(attempt) => Some(SettledClaim {
                attempt: at.number("settled_attempt", attempt)?,
                token_hash: at
                    .maybe_digest("settled_token_hash", self.settled_token_hash.as_deref())?,
                body_digest: at
                    .maybe_digest("settled_body_digest", self.settled_body_digest.as_deref())?,
            }),
        };
        let status = at.word("status", &self.run_status)?;
        let head = HeadRow {
            session_key: self.session_key,
            session_id: self.session_id.clone(),
            head_seq: self.head_seq,
            projection_epoch: self.projection_epoch,
            owner_id: self.owner_id.clone(),
            owner_epoch: self.owner_epoch,
            owner_expires_at: self.owner_expires_at,
            active_run_key: self.active_run_key,
            last_activity_at: self.last_activity_at,
        };
        Ok(LockedRun {
            head: head.try_into()?,
            key: RunKey(key),
            run_id,
            status,
            live: self.live(run_id)?,
            settled,
        })
    }

    fn live(self, run_id: RunId) -> Rows<Option<LiveRun>> {
        let Some(status) = self.status else {
            return Ok(None);
        };
        let at = At::new("run_heads", &self.run_key);
        let row = LiveRow {
            run_key: self.run_key,
            run_id: blob(run_id.uuid()),
            session_key: self.session_key,
            session_id: self.session_id,
            status,
            ready_at: self.ready_at,
            attempt: at.present("attempt", self.attempt)?,
            attempts_used: at.present("attempts_used", self.attempts_used)?,
            unacknowledged: at.present("unacknowledged", self.unacknowledged)?,
            max_attempts: at.present("max_attempts", self.max_attempts)?,
            place: at.present("place", self.place)?,
            event_count: at.present("event_count", self.event_count)?,
            has_output: at.present("has_output", self.has_output)?,
            pending_interactions: at.present("pending_interactions", self.pending_interactions)?,
            claim_attempt: self.claim_attempt,
            token_hash: self.token_hash,
            executor_id: self.executor_id,
            instance_id: self.instance_id,
            request_hash: self.request_hash,
            acknowledged: self.acknowledged,
            replayed: self.replayed,
            lease_expires_at: self.lease_expires_at,
            lease_ms: self.lease_ms,
            cancel_deadline: self.cancel_deadline,
            turn: self.turn,
            run_deadline: self.run_deadline,
        };
        row.try_into().map(Some)
    }
}

/// A run with what its writes need.
pub(crate) async fn lock(conn: &mut SqliteConnection, id: RunId) -> Rows<Option<LockedRun>> {
    let run_id = blob(id.uuid());
    let row = sqlx::query_file_as!(LockRow, "queries/lock_run.sql", run_id)
        .fetch_optional(conn)
        .await
        .map_err(from_sqlx)?;
    row.map(|row| row.locked(id)).transpose()
}

/// A run that is there.
pub(crate) async fn get(conn: &mut SqliteConnection, key: RunKey) -> Rows<Run> {
    sqlx::query_as!(RunRow, "SELECT * FROM runs WHERE run_key = ?", key.0)
        .fetch_one(conn)
        .await
        .map_err(from_sqlx)?
        .try_into()
}

/// The newest settled run that counts for a resume.
pub(crate) async fn latest_settled(
    conn: &mut SqliteConnection,
    session: SessionKey,
) -> Rows<Option<Run>> {
    let row = sqlx::query_as!(
        RunRow,
        "SELECT * FROM runs
         WHERE session_key = ? AND settled_seq IS NOT NULL AND superseded_at IS NULL
           AND ended_queued = 0
         ORDER BY settled_seq DESC LIMIT 1",
        session.0,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Run::try_from).transpose()
}

/// One run of a namespace.
pub(crate) async fn find(
    conn: &mut SqliteConnection,
    namespace: &str,
    id: RunId,
) -> Rows<Option<Run>> {
    let id = blob(id.uuid());
    let row = sqlx::query_as!(
        RunRow,
        "SELECT * FROM runs WHERE run_id = ? AND namespace = ?",
        id,
        namespace,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Run::try_from).transpose()
}

/// The newest settled run of a namespace's session that counts for a resume.
pub(crate) async fn latest_settled_of(
    conn: &mut SqliteConnection,
    namespace: &str,
    session: SessionId,
) -> Rows<Option<Run>> {
    let session = blob(session.uuid());
    let row = sqlx::query_as!(
        RunRow,
        "SELECT * FROM runs
         WHERE session_key = (
            SELECT session_key FROM sessions WHERE session_id = ? AND namespace = ?
         ) AND settled_seq IS NOT NULL AND superseded_at IS NULL AND ended_queued = 0
         ORDER BY settled_seq DESC LIMIT 1",
        session,
        namespace,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Run::try_from).transpose()
}

/// The newest runs before an id, of one session or of a whole namespace.
pub(crate) async fn page(
    conn: &mut SqliteConnection,
    namespace: &str,
    filter: RunFilter,
    page: PageRequest,
) -> Rows<Vec<Run>> {
    let before = before(page.before);
    let limit = i64::from(page.limit) + 1;
    let session = filter.session_id.map(|id| blob(id.uuid()));
    if filter.unservable {
        let rows = sqlx::query_as!(
            RunRow,
            "SELECT * FROM runs
             WHERE namespace = ?1 AND unservable IS NOT NULL AND run_id < ?2
               AND (?3 IS NULL OR session_id = ?3)
             ORDER BY run_id DESC
             LIMIT ?4",
            namespace,
            before,
            session,
            limit,
        )
        .fetch_all(conn)
        .await
        .map_err(from_sqlx)?;
        return rows.into_iter().map(Run::try_from).collect();
    }
    let rows = match session {
        Some(session) => sqlx::query_as!(
            RunRow,
            "SELECT * FROM runs
             WHERE session_key = (
                SELECT session_key FROM sessions WHERE session_id = ? AND namespace = ?
             ) AND run_id < ? AND (? OR superseded_at IS NULL)
             ORDER BY run_id DESC
             LIMIT ?",
            session,
            namespace,
            before,
            filter.include_superseded,
            limit,
        )
        .fetch_all(conn)
        .await
        .map_err(from_sqlx)?,
        None => sqlx::query_as!(
            RunRow,
            "SELECT * FROM runs
             WHERE namespace = ? AND run_id < ? AND (? OR superseded_at IS NULL)
             ORDER BY run_id DESC
             LIMIT ?",
            namespace,
            before,
            filter.include_superseded,
            limit,
        )
        .fetch_all(conn)
        .await
        .map_err(from_sqlx)?,
    };
    rows.into_iter().map(Run::try_from).collect()
}
