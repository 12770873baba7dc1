//! Rows of `sessions`, always read together with their heads in one statement.

use async_trait::async_trait;
use sqlx::SqliteConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::checkpoint::ForkOrigin;
use tapedeck_domain::id::{CheckpointId, RunId, SessionId, SessionKey, TapeId};
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::{Session, SessionSettings, SessionSummary};
use tapedeck_store::rows::{LockedSession, Rows, SessionRows};
use tapedeck_store::{PageRequest, SessionView};

use super::heads::HeadRow;
use crate::encode::{At, before, blob, integer, object_text};
use crate::error::{expect_rows, from_sqlx, internal};
use crate::tx::SqliteTx;

/// A session and its head.
struct SessionRow {
    session_key: i64,
    session_id: Vec<u8>,
    namespace: String,
    title: Option<String>,
    approval_policy: String,
    agent: String,
    run_target: String,
    origin: Option<String>,
    metadata: String,
    tape_id: Vec<u8>,
    status: String,
    turn_status: String,
    active_run_id: Option<Vec<u8>>,
    last_run_id: Option<Vec<u8>>,
    last_run_status: Option<String>,
    last_interrupted_run_id: Option<Vec<u8>>,
    resume_from_event_id: Option<String>,
    queued_runs: i64,
    queue_held: i64,
    pending_interactions: i64,
    checkpoint_count: i64,
    latest_checkpoint_id: Option<Vec<u8>>,
    latest_checkpoint_label: Option<String>,
    created_at: i64,
    updated_at: i64,
    closed_at: Option<i64>,
    forked_from_session_id: Option<Vec<u8>>,
    forked_from_checkpoint_id: Option<Vec<u8>>,
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
        let run = |column, id: Option<&[u8]>| at.maybe_id(column, id, RunId::new);
        let summary = SessionSummary {
            status: at.word("status", &row.status)?,
            turn_status: at.word("turn_status", &row.turn_status)?,
            active_run_id: run("active_run_id", row.active_run_id.as_deref())?,
            last_run_id: run("last_run_id", row.last_run_id.as_deref())?,
            last_run_status: row
                .last_run_status
                .map(|word| at.word("last_run_status", &word))
                .transpose()?,
            last_interrupted_run_id: run(
                "last_interrupted_run_id",
                row.last_interrupted_run_id.as_deref(),
            )?,
            resume_from_event_id: row.resume_from_event_id,
            queued_runs: at.number("queued_runs", row.queued_runs)?,
            queue_held: row.queue_held != 0,
            pending_interactions: at.number("pending_interactions", row.pending_interactions)?,
            checkpoint_count: at.number("checkpoint_count", row.checkpoint_count)?,
            latest_checkpoint_id: at.maybe_id(
                "latest_checkpoint_id",
                row.latest_checkpoint_id.as_deref(),
                CheckpointId::new,
            )?,
            latest_checkpoint_label: row.latest_checkpoint_label,
        };
        let session = Session {
            key: SessionKey(key),
            session_id: at.id("session_id", &row.session_id, SessionId::new)?,
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
            tape_id: at.id("tape_id", &row.tape_id, TapeId::new)?,
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
    let Some(session) = &row.forked_from_session_id else {
        return Ok(None);
    };
    let checkpoint = row.forked_from_checkpoint_id.as_deref();
    let seq = at.present("forked_from_seq", row.forked_from_seq)?;
    Ok(Some(ForkOrigin {
        session_id: at.id("forked_from_session_id", session, SessionId::new)?,
        checkpoint_id: at.maybe_id("forked_from_checkpoint_id", checkpoint, CheckpointId::new)?,
        session_seq: at.number("forked_from_seq", seq)?,
    }))
}

/// One session of a namespace.
pub(crate) async fn find(
    conn: &mut SqliteConnection,
    namespace: &str,
    id: SessionId,
) -> Rows<Option<SessionView>> {
    let id = blob(id.uuid());
    let row = sqlx::query_as!(
        SessionRow,
        "SELECT s.*, h.head_seq, h.projection_epoch, h.owner_id, h.owner_epoch,
                h.owner_expires_at, h.active_run_key, h.last_activity_at
         FROM sessions s JOIN session_heads h ON h.session_key = s.session_key
         WHERE s.session_id = ? AND s.namespace = ?",
        id,
        namespace,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(SessionView::try_from).transpose()
}

/// The newest sessions of a namespace before an id.
pub(crate) async fn page(
    conn: &mut SqliteConnection,
    namespace: &str,
    page: PageRequest,
) -> Rows<Vec<SessionView>> {
    let before = before(page.before);
    let limit = i64::from(page.limit) + 1;
    let rows = sqlx::query_as!(
        SessionRow,
        "SELECT s.*, h.head_seq, h.projection_epoch, h.owner_id, h.owner_epoch,
                h.owner_expires_at, h.active_run_key, h.last_activity_at
         FROM sessions s JOIN session_heads h ON h.session_key = s.session_key
         WHERE s.namespace = ? AND s.session_id < ?
         ORDER BY s.session_id DESC
         LIMIT ?",
        namespace,
        before,
        limit,
    )
    .fetch_all(conn)
    .await
    .map_err(from_sqlx)?;
    rows.into_iter().map(SessionView::try_from).collect()
}

#[async_trait]
impl SessionRows for SqliteTx<'_> {
    async fn insert_session(&mut self, session: &Session) -> Rows<SessionKey> {
        let settings = &session.settings;
        let summary = &session.summary;
        let id = blob(session.session_id.uuid());
        let policy = settings.approval_policy.as_str();
        let agent = object_text(&settings.agent);
        let run_target = serde_json::to_string(&settings.run_target).map_err(internal)?;
        let metadata = object_text(&settings.metadata);
        let tape_id = blob(session.tape_id.uuid());
        let (status, turn_status) = (summary.status.as_str(), summary.turn_status.as_str());
        let closed_at = session.closed_at.map(|at| at.0);
        let origin = session.forked_from;
        let origin_id = origin.map(|origin| blob(origin.session_id.uuid()));
        let origin_checkpoint = origin.and_then(|origin| origin.checkpoint_id);
        let origin_checkpoint = origin_checkpoint.map(|id| blob(id.uuid()));
        let origin_seq = origin.map(|origin| integer(origin.session_seq));
        let (restored_seq, folded_seq) = (
            session.restored_seq.map(integer),
            session.folded_seq.map(integer),
        );
        let key = sqlx::query_scalar!(
            "INSERT INTO sessions (
                session_id, namespace, title, approval_policy, agent, run_target, origin, metadata,
                tape_id, status, turn_status, queued_runs, queue_held, pending_interactions,
                checkpoint_count, created_at, updated_at, closed_at, forked_from_session_id,
                forked_from_checkpoint_id, forked_from_seq, restored_seq, folded_seq
             ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?)
             RETURNING session_key",
            id,
            session.namespace,
            settings.title,
            policy,
            agent,
            run_target,
            settings.origin,
            metadata,
            tape_id,
            status,
            turn_status,
            session.created_at.0,
            session.updated_at.0,
            closed_at,
            origin_id,
            origin_checkpoint,
            origin_seq,
            restored_seq,
            folded_seq,
        )
        .fetch_one(self.write().await?)
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

    async fn lock_session(
        &mut self,
        namespace: &str,
        id: SessionId,
    ) -> Rows<Option<LockedSession>> {
        Ok(find(self.read(), namespace, id).await?.map(locked))
    }

    async fn lock_session_by_key(&mut self, key: SessionKey) -> Rows<LockedSession> {
        let row = sqlx::query_as!(
            SessionRow,
            "SELECT s.*, h.head_seq, h.projection_epoch, h.owner_id, h.owner_epoch,
                    h.owner_expires_at, h.active_run_key, h.last_activity_at
             FROM sessions s JOIN session_heads h ON h.session_key = s.session_key
             WHERE s.session_key = ?",
            key.0,
        )
        .fetch_one(self.read())
        .await
        .map_err(from_sqlx)?;
        Ok(locked(row.try_into()?))
    }

    async fn save_settings(&mut self, session: &Session) -> Rows<()> {
        let settings = &session.settings;
        let policy = settings.approval_policy.as_str();
        let agent = object_text(&settings.agent);
        let run_target = serde_json::to_string(&settings.run_target).map_err(internal)?;
        let metadata = object_text(&settings.metadata);
        let closed_at = session.closed_at.map(|at| at.0);
        let restored_seq = session.restored_seq.map(integer);
        let done = sqlx::query!(
            "UPDATE sessions SET
                title = ?, approval_policy = ?, agent = ?, run_target = ?, origin = ?,
                metadata = ?, closed_at = ?, restored_seq = ?, updated_at = ?
             WHERE session_key = ?",
            settings.title,
            policy,
            agent,
            run_target,
            settings.origin,
            metadata,
            closed_at,
            restored_seq,
            session.updated_at.0,
            session.key.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("sessions", done.rows_affected(), 1)
    }

    async fn save_summary(&mut self, session: &Session) -> Rows<()> {
        let summary = &session.summary;
        let run = |id: Option<RunId>| id.map(|id| blob(id.uuid()));
        let (status, turn_status) = (summary.status.as_str(), summary.turn_status.as_str());
        let (active, last) = (run(summary.active_run_id), run(summary.last_run_id));
        let last_status = summary.last_run_status.map(RunStatus::as_str);
        let interrupted = run(summary.last_interrupted_run_id);
        let checkpoint = summary.latest_checkpoint_id.map(|id| blob(id.uuid()));
        let done = sqlx::query!(
            "UPDATE sessions SET
                status = ?, turn_status = ?, active_run_id = ?, last_run_id = ?,
                last_run_status = ?, last_interrupted_run_id = ?, resume_from_event_id = ?,
                queued_runs = ?, queue_held = ?, pending_interactions = ?, checkpoint_count = ?,
                latest_checkpoint_id = ?, latest_checkpoint_label = ?, updated_at = ?
             WHERE session_key = ?",
            status,
            turn_status,
            active,
            last,
            last_status,
            interrupted,
            summary.resume_from_event_id,
            summary.queued_runs,
            summary.queue_held,
            summary.pending_interactions,
            summary.checkpoint_count,
            checkpoint,
            summary.latest_checkpoint_label,
            session.updated_at.0,
            session.key.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("sessions", done.rows_affected(), 1)
    }

    async fn delete_session(&mut self, key: SessionKey) -> Rows<()> {
        let done = sqlx::query!("DELETE FROM sessions WHERE session_key = ?", key.0)
            .execute(self.write().await?)
            .await
            .map_err(from_sqlx)?;
        expect_rows("sessions", done.rows_affected(), 1)
    }
}

fn locked(view: SessionView) -> LockedSession {
    LockedSession {
        session: view.session,
        head: view.head,
    }
}
