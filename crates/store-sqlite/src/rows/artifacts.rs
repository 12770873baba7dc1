//! Rows of `artifacts`.

use async_trait::async_trait;
use sqlx::SqliteConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::artifact::{Artifact, ArtifactFacts, NewArtifact};
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_store::rows::{ArtifactRows, Rows};

use crate::encode::{At, blob, bytes, integer};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::SqliteTx;

/// A row of `artifacts`.
struct ArtifactRow {
    artifact_key: i64,
    run_id: Vec<u8>,
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
            run_id: at.id("run_id", &row.run_id, RunId::new)?,
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
    conn: &mut SqliteConnection,
    namespace: &str,
    (session, run): (SessionId, RunId),
    name: &str,
) -> Rows<Option<Artifact>> {
    let (session, run) = (blob(session.uuid()), blob(run.uuid()));
    let row = sqlx::query_as!(
        ArtifactRow,
        "SELECT artifact_key, run_id, attempt, name, media_type, encoding, content, bytes, created_at
         FROM artifacts
         WHERE run_key = (
             SELECT run_key FROM runs WHERE run_id = ? AND session_id = ? AND namespace = ?
         ) AND name = ?",
        run,
        session,
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
    conn: &mut SqliteConnection,
    namespace: &str,
    session: SessionId,
    name: &str,
) -> Rows<Option<Artifact>> {
    let session = blob(session.uuid());
    let row = sqlx::query_as!(
        ArtifactRow,
        "SELECT a.artifact_key, a.run_id, a.attempt, a.name, a.media_type, a.encoding, a.content,
             a.bytes, a.created_at
         FROM artifacts a
         JOIN runs r ON r.run_key = a.run_key
         WHERE a.session_key = (
             SELECT session_key FROM sessions WHERE session_id = ? AND namespace = ?
         ) AND a.name = ? AND r.superseded_at IS NULL
         ORDER BY a.artifact_key DESC LIMIT 1",
        session,
        namespace,
        name,
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    row.map(Artifact::try_from).transpose()
}

#[async_trait]
impl ArtifactRows for SqliteTx<'_> {
    async fn artifact_facts(&mut self, run: RunKey) -> Rows<Vec<ArtifactFacts>> {
        let rows = sqlx::query!(
            "SELECT name, attempt, bytes, digest FROM artifacts WHERE run_key = ? ORDER BY name",
            run.0,
        )
        .fetch_all(self.read())
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
        let run_id = blob(artifact.run_id.uuid());
        let (encoding, digest) = (
            artifact.sent.encoding.as_str(),
            bytes(&artifact.sent.digest()),
        );
        let length = integer(artifact.sent.bytes);
        let done = sqlx::query!(
            "INSERT INTO artifacts (
                run_key, session_key, run_id, attempt, name, media_type, encoding, content, bytes,
                digest, created_at
             ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (run_key, name) DO UPDATE SET
                attempt = excluded.attempt, media_type = excluded.media_type,
                encoding = excluded.encoding, content = excluded.content,
                bytes = excluded.bytes, digest = excluded.digest,
                created_at = excluded.created_at",
            run.0,
            session.0,
            run_id,
            artifact.attempt,
            artifact.sent.name,
            artifact.sent.media_type,
            encoding,
            artifact.sent.content,
            length,
            digest,
            artifact.created_at.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("artifacts", done.rows_affected(), 1)
    }
}
