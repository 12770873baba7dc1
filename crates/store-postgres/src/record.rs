//! A run's record as columns, and a run together with what its writes need. A head is locked by a
//! statement of its own, and the run is read by a later one: the other order would decide on rows
//! that are older than the lock (rules R1).

use sqlx::PgConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::id::{CheckpointId, RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::owner::SessionHead;
use tapedeck_domain::run::{LiveRun, Recovery, Run, SettledClaim};
use tapedeck_store::rows::{LockedRun, Rows};
use tapedeck_store::{PageRequest, RunFilter};
use uuid::Uuid;

use crate::encode::{At, before};
use crate::error::from_sqlx;
use crate::live::LiveRow;
use crate::rows::heads::HeadRow;

/// Records of runs, with what follows the table's name in the statement.
macro_rules! run_rows {
    ($tail:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            RunRow,
            "SELECT run_key, run_id, session_key, session_id, parent_run_id, status, attempt,
                    prompt, metadata, result, error, executor_id, requested_at, claimed_at,
                    started_at, settled_at, recovery_reclaimable, recovery_reason, recovered_at,
                    superseded_at, superseded_by_checkpoint_id, admitted_seq, settled_seq,
                    unservable
             FROM runs " + $tail
            $(, $argument)*
        )
    };
}

/// A row of `runs`, as far as readers see it.
struct RunRow {
    run_key: i64,
    run_id: Uuid,
    session_key: i64,
    session_id: Uuid,
    parent_run_id: Option<Uuid>,
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
    recovery_reclaimable: Option<bool>,
    recovery_reason: Option<String>,
    recovered_at: Option<i64>,
    superseded_at: Option<i64>,
    superseded_by_checkpoint_id: Option<Uuid>,
    admitted_seq: i64,
    settled_seq: Option<i64>,
    unservable: Option<String>,
}

impl TryFrom<RunRow> for Run {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: RunRow) -> Rows<Self> {
        let at = At::new("runs", &row.run_key);
        let recovery = match row.recovery_reason {
            None => None,
            Some(reason) => Some(Recovery {
                reclaimable: at.present("recovery_reclaimable", row.recovery_reclaimable)?,
                reason,
                recovered_at: Timestamp(at.present("recovered_at", row.recovered_at)?),
            }),
        };
        Ok(Self {
            key: RunKey(row.run_key),
            run_id: RunId::new(row.run_id),
            session_key: SessionKey(row.session_key),
            session_id: SessionId::new(row.session_id),
            parent_run_id: row.parent_run_id.map(RunId::new),
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
            superseded_by_checkpoint_id: row.superseded_by_checkpoint_id.map(CheckpointId::new),
            admitted_seq: at.number("admitted_seq", row.admitted_seq)?,
            settled_seq: at.maybe_number("settled_seq", row.settled_seq)?,
            unservable: row.unservable,
        })
    }
}

/// A run with its live row (`queries/locked_run.sql`).
struct LockRow {
    run_key: i64,
    run_status: String,
    settled_attempt: Option<i64>,
    settled_token_hash: Option<Vec<u8>>,
    settled_body_digest: Option<Vec<u8>>,
    status: Option<String>,
    ready_at: Option<i64>,
    attempt: Option<i64>,
    attempts_used: Option<i64>,
    unacknowledged: Option<i64>,
    max_attempts: Option<i64>,
    place: Option<i64>,
    event_count: Option<i64>,
    has_output: Option<bool>,
    pending_interactions: Option<i64>,
    claim_attempt: Option<i64>,
    token_hash: Option<Vec<u8>>,
    executor_id: Option<String>,
    instance_id: Option<String>,
    request_hash: Option<Vec<u8>>,
    acknowledged: Option<bool>,
    replayed: Option<bool>,
    lease_expires_at: Option<i64>,
    lease_ms: Option<i64>,
    cancel_deadline: Option<i64>,
    turn: Option<i64>,
    run_deadline: Option<i64>,
}

impl LockRow {
    fn locked(self, run_id: RunId, head: SessionHead) -> Rows<LockedRun> {
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
        let live = self.live(run_id, &head)?;
        Ok(LockedRun {
            head,
            key: RunKey(key),
            run_id,
            status,
            live,
            settled,
        })
    }

    fn live(self, run_id: RunId, head: &SessionHead) -> Rows<Option<LiveRun>> {
        let Some(status) = self.status else {
            return Ok(None);
        };
        let at = At::new("run_heads", &self.run_key);
        let row = LiveRow {
            run_key: self.run_key,
            run_id: run_id.uuid(),
            session_key: head.session_key.0,
            session_id: head.session_id.uuid(),
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

/// A run with what its writes need, once its session's head is ours.
pub(crate) async fn lock(conn: &mut PgConnection, id: RunId) -> Rows<Option<LockedRun>> {
    let head = sqlx::query_file_as!(HeadRow, "queries/lock_run.sql", id.uuid())
        .fetch_optional(&mut *conn)
        .await
        .map_err(from_sqlx)?;
    under_lock(conn, id, head).await
}

/// The same, unless somebody else holds the head now.
pub(crate) async fn lock_if_free(conn: &mut PgConnection, id: RunId) -> Rows<Option<LockedRun>> {
    let head = sqlx::query_file_as!(HeadRow, "queries/lock_run_if_free.sql", id.uuid())
        .fetch_optional(&mut *conn)
        .await
        .map_err(from_sqlx)?;
    under_lock(conn, id, head).await
}

/// Reads the run in a statement that began after the lock was granted.
async fn under_lock(
    conn: &mut PgConnection,
    id: RunId,
    head: Option<HeadRow>,
) -> Rows<Option<LockedRun>> {
    let Some(head) = head else { return Ok(None) };
    let head = head.try_into()?;
    let row = sqlx::query_file_as!(LockRow, "queries/locked_run.sql", id.uuid())
        .fetch_optional(conn)
        .await
        .map_err(from_sqlx)?;
    row.map(|row| row.locked(id, head)).transpose()
}

/// A run that is there.
pub(crate) async fn get(conn: &mut PgConnection, key: RunKey) -> Rows<Run> {
    run_rows!("WHERE run_key = $1", key.0)
        .fetch_one(conn)
        .await
        .map_err(from_sqlx)?
        .try_into()
}

/// The newest settled run that counts for a resume.
pub(crate) async fn latest_settled(
    conn: &mut PgConnection,
    session: SessionKey,
) -> Rows<Option<Run>> {
    let row = run_rows!(
        "WHERE session_key = $1 AND settled_seq IS NOT NULL AND superseded_at IS NULL
           AND NOT ended_queued
         ORDER BY settled_seq DESC LIMIT 1",
        session.0,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Run::try_from).transpose()
}

/// One run of a namespace.
pub(crate) async fn find(conn: &mut PgConnection, namespace: &str, id: RunId) -> Rows<Option<Run>> {
    let row = run_rows!("WHERE run_id = $1 AND namespace = $2", id.uuid(), namespace,)
        .fetch_optional(conn)
        .await
        .map_err(from_sqlx)?;
    row.map(Run::try_from).transpose()
}

/// The newest settled run of a namespace's session that counts for a resume.
pub(crate) async fn latest_settled_of(
    conn: &mut PgConnection,
    namespace: &str,
    session: SessionId,
) -> Rows<Option<Run>> {
    let row = run_rows!(
        "WHERE session_key = (
            SELECT session_key FROM sessions WHERE session_id = $1 AND namespace = $2
         ) AND settled_seq IS NOT NULL AND superseded_at IS NULL AND NOT ended_queued
         ORDER BY settled_seq DESC LIMIT 1",
        session.uuid(),
        namespace,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Run::try_from).transpose()
}

/// The newest runs before an id, of one session or of a whole namespace.
pub(crate) async fn page(
    conn: &mut PgConnection,
    namespace: &str,
    filter: RunFilter,
    page: PageRequest,
) -> Rows<Vec<Run>> {
    let before = before(page.before);
    let limit = i64::from(page.limit) + 1;
    if filter.unservable {
        let rows = run_rows!(
            "WHERE namespace = $1 AND unservable IS NOT NULL AND run_id < $2
               AND ($3::uuid IS NULL OR session_id = $3)
             ORDER BY run_id DESC
             LIMIT $4",
            namespace,
            before,
            filter.session_id.map(SessionId::uuid),
            limit,
        )
        .fetch_all(conn)
        .await
        .map_err(from_sqlx)?;
        return rows.into_iter().map(Run::try_from).collect();
    }
    let rows = match filter.session_id {
        Some(session) => run_rows!(
            "WHERE session_key = (
                SELECT session_key FROM sessions WHERE session_id = $1 AND namespace = $2
             ) AND run_id < $3 AND ($4 OR superseded_at IS NULL)
             ORDER BY run_id DESC
             LIMIT $5",
            session.uuid(),
            namespace,
            before,
            filter.include_superseded,
            limit,
        )
        .fetch_all(conn)
        .await
        .map_err(from_sqlx)?,
        None => run_rows!(
            "WHERE namespace = $1 AND run_id < $2 AND ($3 OR superseded_at IS NULL)
             ORDER BY run_id DESC
             LIMIT $4",
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
