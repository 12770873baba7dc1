//! Rows of `artifacts`.

use async_trait::async_trait;
use sqlx::PgConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::artifact::{Artifact, ArtifactFacts, NewArtifact};
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_store::rows::{ArtifactRows, Rows};
use uuid::Uuid;

use crate::encode::{At, bytes, integer};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::PostgresTx;

/// A row of `artifacts`.
struct ArtifactRow {
    artifact_key: i64,
    run_id: Uuid,
    attempt: i64,
    name: String,
    media_type: String,
    encoding: String,
    content: String,
    bytes: i64,
    created_at: i64,
}

impl TryFrom<ArtifactRow> for Artifact {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: ArtifactRow) -> Rows<Self> {
        let at = At::new("artifacts", &row.artifact_key);
        Ok(Self {
            run_id: RunId::new(row.run_id),
            attempt: at.number("attempt", row.attempt)?,
            sent: NewArtifact {
                encoding: at.word("encoding", &row.encoding)?,
                bytes: at.number("bytes", row.bytes)?,
                name: row.name,
                media_type: row.media_type,
                content: row.content,
            },
            created_at: Timestamp(row.created_at),
        })
    }
}

/// A run's artifact of a name.
pub(crate) async fn of_run(
    conn: &mut PgConnection,
    namespace: &str,
    (session, run): (SessionId, RunId),
    name: &str,
) -> Rows<Option<Artifact>> {
    let row = sqlx::query_as!(
        ArtifactRow,
        "SELECT artifact_key, run_id, attempt, name, media_type, encoding, content, bytes, created_at
         FROM artifacts
         WHERE run_key = (
             SELECT run_key FROM runs WHERE run_id = $1 AND session_id = $2 AND namespace = $3
         ) AND name = $4",
        run.uuid(),
        session.uuid(),
        namespace,
        name,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Artifact::try_from).transpose()
}

/// The newest artifact of a name among a session's runs that are not superseded.
pub(crate) async fn newest(
    conn: &mut PgConnection,
    namespace: &str,
    session: SessionId,
    name: &str,
) -> Rows<Option<Artifact>> {
    let row = sqlx::query_as!(
        ArtifactRow,
        "SELECT a.artifact_key, a.run_id, a.attempt, a.name, a.media_type, a.encoding, a.content,
             a.bytes, a.created_at
         FROM artifacts a
         JOIN runs r ON r.run_key = a.run_key
         WHERE a.session_key = (
             SELECT session_key FROM sessions WHERE session_id = $1 AND namespace = $2
         ) AND a.name = $3 AND r.superseded_at IS NULL
         ORDER BY a.artifact_key DESC LIMIT 1",
        session.uuid(),
        namespace,
        name,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Artifact::try_from).transpose()
}

#[async_trait]
impl ArtifactRows for PostgresTx<'_> {
    async fn artifact_facts(&mut self, run: RunKey) -> Rows<Vec<ArtifactFacts>> {
        let rows = sqlx::query!(
            "SELECT name, attempt, bytes, digest FROM artifacts WHERE run_key = $1 ORDER BY name",
            run.0,
        )
        .fetch_all(self.conn())
        .await
        .map_err(from_sqlx)?;
        let at = At::new("artifacts", &run.0);
        let facts = rows.into_iter().map(|row| {
            Ok(ArtifactFacts {
                attempt: at.number("attempt", row.attempt)?,
                bytes: at.number("bytes", row.bytes)?,
                digest: at.digest("digest", &row.digest)?,
                name: row.name,
            })
        });
        facts.collect()
    }

    async fn save_artifact(
        &mut self,
        session: SessionKey,
        run: RunKey,
        artifact: &Artifact,
    ) -> Rows<()> {
        let done = sqlx::query!(
            "INSERT INTO artifacts (
                run_key, session_key, run_id, attempt, name, media_type, encoding, content, bytes,
                digest, created_at
             ) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
             ON CONFLICT (run_key, name) DO UPDATE SET
                attempt = excluded.attempt, media_type = excluded.media_type,
                encoding = excluded.encoding, content = excluded.content,
                bytes = excluded.bytes, digest = excluded.digest,
                created_at = excluded.created_at",
            run.0,
            session.0,
            artifact.run_id.uuid(),
            i64::from(artifact.attempt),
            artifact.sent.name,
            artifact.sent.media_type,
            artifact.sent.encoding.as_str(),
            artifact.sent.content,
            integer(artifact.sent.bytes),
            bytes(&artifact.sent.digest()),
            artifact.created_at.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("artifacts", done.rows_affected(), 1)
    }
}
