//! Rows of `sessions`, always read together with their heads in one statement, which for a writer
//! comes after the one that locked the head (rules R1).

use async_trait::async_trait;
use sqlx::PgConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::checkpoint::ForkOrigin;
use tapedeck_domain::id::{CheckpointId, RunId, SessionId, SessionKey, TapeId};
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::{Session, SessionSettings, SessionSummary};
use tapedeck_store::rows::{LockedSession, Rows, SessionRows};
use tapedeck_store::{PageRequest, SessionView};
use uuid::Uuid;

use super::heads::{self, HeadRow};
use crate::encode::{At, before, integer, object_text};
use crate::error::{expect_rows, from_sqlx, internal};
use crate::tx::PostgresTx;

/// Sessions with their heads, with what follows the tables' names in the statement. Columns are
/// named, because a prepared `*` fails once another instance has added one.
macro_rules! session_rows {
    ($tail:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            SessionRow,
            "SELECT s.session_key, s.session_id, s.namespace, s.title, s.approval_policy, s.agent,
                    s.run_target, s.origin, s.metadata, s.tape_id, s.status, s.turn_status,
                    s.active_run_id, s.last_run_id, s.last_run_status, s.last_interrupted_run_id,
                    s.resume_from_event_id, s.queued_runs, s.queue_held, s.pending_interactions,
                    s.checkpoint_count, s.latest_checkpoint_id, s.latest_checkpoint_label,
                    s.created_at, s.updated_at, s.closed_at, s.forked_from_session_id,
                    s.forked_from_checkpoint_id, s.forked_from_seq, s.restored_seq, s.folded_seq,
                    h.head_seq, h.projection_epoch, h.owner_id, h.owner_epoch, h.owner_expires_at,
                    h.active_run_key, h.last_activity_at
             FROM sessions s JOIN session_heads h ON h.session_key = s.session_key " + $tail
            $(, $argument)*
        )
    };
}

/// A session and its head.
struct SessionRow {
    session_key: i64,
    session_id: Uuid,
    namespace: String,
    title: Option<String>,
    approval_policy: String,
    agent: String,
    run_target: String,
    origin: Option<String>,
    metadata: String,
    tape_id: Uuid,
    status: String,
    turn_status: String,
    active_run_id: Option<Uuid>,
    last_run_id: Option<Uuid>,
    last_run_status: Option<String>,
    last_interrupted_run_id: Option<Uuid>,
    resume_from_event_id: Option<String>,
    queued_runs: i64,
    queue_held: bool,
    pending_interactions: i64,
    checkpoint_count: i64,
    latest_checkpoint_id: Option<Uuid>,
    latest_checkpoint_label: Option<String>,
    created_at: i64,
    updated_at: i64,
    closed_at: Option<i64>,
    forked_from_session_id: Option<Uuid>,
    forked_from_checkpoint_id: Option<Uuid>,
    forked_from_seq: Option<i64>,
    restored_seq: Option<i64>,
    folded_seq: Option<i64>,
    head_seq: i64,
    projection_epoch: i64,
    owner_id: Option<String>,
    owner_epoch: Option<i64>,
    owner_expires_at: Option<i64>,
    active_run_key: Option<i64>,
    last_activity_at: i64,
}

impl TryFrom<SessionRow> for SessionView {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: SessionRow) -> Rows<Self> {
        let key = row.session_key;
        let at = At::new("sessions", &key);
        let forked_from = forked_from(&row)?;
        let summary = SessionSummary {
            status: at.word("status", &row.status)?,
            turn_status: at.word("turn_status", &row.turn_status)?,
            active_run_id: row.active_run_id.map(RunId::new),
            last_run_id: row.last_run_id.map(RunId::new),
            last_run_status: row
                .last_run_status
                .map(|word| at.word("last_run_status", &word))
                .transpose()?,
            last_interrupted_run_id: row.last_interrupted_run_id.map(RunId::new),
            resume_from_event_id: row.resume_from_event_id,
            queued_runs: at.number("queued_runs", row.queued_runs)?,
            queue_held: row.queue_held,
            pending_interactions: at.number("pending_interactions", row.pending_interactions)?,
            checkpoint_count: at.number("checkpoint_count", row.checkpoint_count)?,
            latest_checkpoint_id: row.latest_checkpoint_id.map(CheckpointId::new),
            latest_checkpoint_label: row.latest_checkpoint_label,
        };
        let session = Session {
            key: SessionKey(key),
            session_id: SessionId::new(row.session_id),
            namespace: row.namespace,
            settings: SessionSettings {
                title: row.title,
                approval_policy: at.word("approval_policy", &row.approval_policy)?,
                agent: at.object("agent", &row.agent)?,
                run_target: serde_json::from_str(&row.run_target)
                    .map_err(|_broken| at.bad("run_target"))?,
                origin: row.origin,
                metadata: at.object("metadata", &row.metadata)?,
            },
            tape_id: TapeId::new(row.tape_id),
            summary,
            forked_from,
            restored_seq: at.maybe_number("restored_seq", row.restored_seq)?,
            folded_seq: at.maybe_number("folded_seq", row.folded_seq)?,
            created_at: Timestamp(row.created_at),
            updated_at: Timestamp(row.updated_at),
            last_activity_at: Timestamp(row.last_activity_at),
            closed_at: row.closed_at.map(Timestamp),
        };
        let head = HeadRow {
            session_key: key,
            session_id: row.session_id,
            head_seq: row.head_seq,
            projection_epoch: row.projection_epoch,
            owner_id: row.owner_id,
            owner_epoch: row.owner_epoch,
            owner_expires_at: row.owner_expires_at,
            active_run_key: row.active_run_key,
            last_activity_at: row.last_activity_at,
        };
        Ok(Self {
            session,
            head: head.try_into()?,
        })
    }
}

fn forked_from(row: &SessionRow) -> Rows<Option<ForkOrigin>> {
    let at = At::new("sessions", &row.session_key);
    let Some(session) = row.forked_from_session_id else {
        return Ok(None);
    };
    let seq = at.present("forked_from_seq", row.forked_from_seq)?;
    Ok(Some(ForkOrigin {
        session_id: SessionId::new(session),
        checkpoint_id: row.forked_from_checkpoint_id.map(CheckpointId::new),
        session_seq: at.number("forked_from_seq", seq)?,
    }))
}

/// One session of a namespace.
pub(crate) async fn find(
    conn: &mut PgConnection,
    namespace: &str,
    id: SessionId,
) -> Rows<Option<SessionView>> {
    let row = session_rows!(
        "WHERE s.session_id = $1 AND s.namespace = $2",
        id.uuid(),
        namespace,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(SessionView::try_from).transpose()
}

/// The newest sessions of a namespace before an id.
pub(crate) async fn page(
    conn: &mut PgConnection,
    namespace: &str,
    page: PageRequest,
) -> Rows<Vec<SessionView>> {
    let rows = session_rows!(
        "WHERE s.namespace = $1 AND s.session_id < $2
         ORDER BY s.session_id DESC
         LIMIT $3",
        namespace,
        before(page.before),
        i64::from(page.limit) + 1,
    )
    .fetch_all(conn)
    .await
    .map_err(from_sqlx)?;
    rows.into_iter().map(SessionView::try_from).collect()
}

#[async_trait]
impl SessionRows for PostgresTx<'_> {
    async fn insert_session(&mut self, session: &Session) -> Rows<SessionKey> {
        let settings = &session.settings;
        let summary = &session.summary;
        let origin = session.forked_from;
        let key = sqlx::query_scalar!(
            "INSERT INTO sessions (
                session_id, namespace, title, approval_policy, agent, run_target, origin, metadata,
                tape_id, status, turn_status, queued_runs, queue_held, pending_interactions,
                checkpoint_count, created_at, updated_at, closed_at, forked_from_session_id,
                forked_from_checkpoint_id, forked_from_seq, restored_seq, folded_seq
             ) VALUES (
                $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 0, false, 0, 0, $12, $13, $14, $15,
                $16, $17, $18, $19
             )
             RETURNING session_key",
            session.session_id.uuid(),
            session.namespace,
            settings.title,
            settings.approval_policy.as_str(),
            object_text(&settings.agent),
            serde_json::to_string(&settings.run_target).map_err(internal)?,
            settings.origin,
            object_text(&settings.metadata),
            session.tape_id.uuid(),
            summary.status.as_str(),
            summary.turn_status.as_str(),
            session.created_at.0,
            session.updated_at.0,
            session.closed_at.map(|at| at.0),
            origin.map(|origin| origin.session_id.uuid()),
            origin
                .and_then(|origin| origin.checkpoint_id)
                .map(CheckpointId::uuid),
            origin.map(|origin| integer(origin.session_seq)),
            session.restored_seq.map(integer),
            session.folded_seq.map(integer),
        )
        .fetch_one(self.conn())
        .await
        .map_err(from_sqlx)?;
        let key = SessionKey(key);
        if *summary != SessionSummary::empty() {
            let inserted = Session {
                key,
                ..session.clone()
            };
            self.save_summary(&inserted).await?;
        }
        Ok(key)
    }

    /// An id keeps its key and its namespace for ever, so finding the key in the locking statement
    /// decides on nothing that another transaction can change but the session's end, and then its
    /// head is gone as well.
    async fn lock_session(
        &mut self,
        namespace: &str,
        id: SessionId,
    ) -> Rows<Option<LockedSession>> {
        let key = sqlx::query_scalar!(
            "SELECT session_key FROM session_heads
             WHERE session_key = (
                SELECT session_key FROM sessions WHERE session_id = $1 AND namespace = $2
             )
             FOR UPDATE",
            id.uuid(),
            namespace,
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        match key {
            None => Ok(None),
            Some(key) => {
                self.note_held(SessionKey(key));
                locked(self.conn(), key).await.map(Some)
            }
        }
    }

    async fn lock_session_by_key(&mut self, key: SessionKey) -> Rows<LockedSession> {
        if !self.holds(key) {
            heads::lock(self.conn(), key).await?;
            self.note_held(key);
        }
        locked(self.conn(), key.0).await
    }

    async fn save_settings(&mut self, session: &Session) -> Rows<()> {
        let settings = &session.settings;
        let done = sqlx::query!(
            "UPDATE sessions SET
                title = $1, approval_policy = $2, agent = $3, run_target = $4, origin = $5,
                metadata = $6, closed_at = $7, restored_seq = $8, updated_at = $9
             WHERE session_key = $10",
            settings.title,
            settings.approval_policy.as_str(),
            object_text(&settings.agent),
            serde_json::to_string(&settings.run_target).map_err(internal)?,
            settings.origin,
            object_text(&settings.metadata),
            session.closed_at.map(|at| at.0),
            session.restored_seq.map(integer),
            session.updated_at.0,
            session.key.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("sessions", done.rows_affected(), 1)
    }

    async fn save_summary(&mut self, session: &Session) -> Rows<()> {
        let summary = &session.summary;
        let run = |id: Option<RunId>| id.map(RunId::uuid);
        let done = sqlx::query!(
            "UPDATE sessions SET
                status = $1, turn_status = $2, active_run_id = $3, last_run_id = $4,
                last_run_status = $5, last_interrupted_run_id = $6, resume_from_event_id = $7,
                queued_runs = $8, queue_held = $9, pending_interactions = $10,
                checkpoint_count = $11, latest_checkpoint_id = $12, latest_checkpoint_label = $13,
                updated_at = $14
             WHERE session_key = $15",
            summary.status.as_str(),
            summary.turn_status.as_str(),
            run(summary.active_run_id),
            run(summary.last_run_id),
            summary.last_run_status.map(RunStatus::as_str),
            run(summary.last_interrupted_run_id),
            summary.resume_from_event_id,
            i64::from(summary.queued_runs),
            summary.queue_held,
            i64::from(summary.pending_interactions),
            i64::from(summary.checkpoint_count),
            summary.latest_checkpoint_id.map(CheckpointId::uuid),
            summary.latest_checkpoint_label,
            session.updated_at.0,
            session.key.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("sessions", done.rows_affected(), 1)
    }

    /// What belongs to the session goes with it by its foreign keys, each an index.
    async fn delete_session(&mut self, key: SessionKey) -> Rows<()> {
        let done = sqlx::query!("DELETE FROM sessions WHERE session_key = $1", key.0)
            .execute(self.conn())
            .await
            .map_err(from_sqlx)?;
        expect_rows("sessions", done.rows_affected(), 1)
    }
}

/// A session whose head is locked, as it is now.
async fn locked(conn: &mut PgConnection, key: i64) -> Rows<LockedSession> {
    let row = session_rows!("WHERE s.session_key = $1", key,)
        .fetch_one(conn)
        .await
        .map_err(from_sqlx)?;
    let view = SessionView::try_from(row)?;
    Ok(LockedSession {
        session: view.session,
        head: view.head,
    })
}
