//! Rows of `access_tokens`.

use async_trait::async_trait;
use sqlx::SqliteConnection;
use tapedeck_domain::Timestamp;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::id::TokenId;
use tapedeck_domain::token::AccessToken;
use tapedeck_store::PageRequest;
use tapedeck_store::rows::{Rows, TokenRows};

use crate::encode::{At, before, blob};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::SqliteTx;

/// Tokens, with what follows their table in the statement.
macro_rules! token_rows {
    ($tail:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            TokenRow,
            "SELECT token_id, name, role, namespace, digest, created_at, created_by, expires_at,
                    revoked_at, revoked_by
             FROM access_tokens " + $tail
            $(, $argument)*
        )
    };
}

/// A row of `access_tokens`.
struct TokenRow {
    token_id: Vec<u8>,
    name: String,
    role: String,
    namespace: String,
    digest: Vec<u8>,
    created_at: i64,
    created_by: String,
    expires_at: Option<i64>,
    revoked_at: Option<i64>,
    revoked_by: Option<String>,
}

impl TryFrom<TokenRow> for AccessToken {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: TokenRow) -> Rows<Self> {
        let at = At::new("access_tokens", &row.name);
        Ok(Self {
            token_id: at.id("token_id", &row.token_id, TokenId::new)?,
            role: at.word("role", &row.role)?,
            namespace: row.namespace,
            digest: at.digest("digest", &row.digest)?,
            created_at: Timestamp(row.created_at),
            created_by: row.created_by,
            expires_at: row.expires_at.map(Timestamp),
            revoked_at: row.revoked_at.map(Timestamp),
            revoked_by: row.revoked_by,
            name: row.name,
        })
    }
}

/// One token.
pub(crate) async fn find(conn: &mut SqliteConnection, id: TokenId) -> Rows<Option<AccessToken>> {
    let id = blob(id.uuid());
    let row = token_rows!("WHERE token_id = ?1", id)
        .fetch_optional(conn)
        .await
        .map_err(from_sqlx)?;
    row.map(AccessToken::try_from).transpose()
}

/// The token of a secret.
pub(crate) async fn of_digest(
    conn: &mut SqliteConnection,
    digest: &Digest,
) -> Rows<Option<AccessToken>> {
    let digest = digest.0.as_slice();
    let row = token_rows!("WHERE digest = ?1", digest)
        .fetch_optional(conn)
        .await
        .map_err(from_sqlx)?;
    row.map(AccessToken::try_from).transpose()
}

/// Whether any token is neither revoked nor over at this time.
pub(crate) async fn any_live(conn: &mut SqliteConnection, at: Timestamp) -> Rows<bool> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (
            SELECT 1 FROM access_tokens
            WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?1)
         ) AS "any!: bool""#,
        at.0,
    )
    .fetch_one(conn)
    .await
    .map_err(from_sqlx)
}

/// The newest tokens before an id; with `all` also those that are revoked.
pub(crate) async fn page(
    conn: &mut SqliteConnection,
    all: bool,
    page: PageRequest,
) -> Rows<Vec<AccessToken>> {
    let (before, limit) = (before(page.before), i64::from(page.limit) + 1);
    let rows = token_rows!(
        "WHERE token_id < ?1 AND (?2 OR revoked_at IS NULL) ORDER BY token_id DESC LIMIT ?3",
        before,
        all,
        limit,
    )
    .fetch_all(conn)
    .await
    .map_err(from_sqlx)?;
    rows.into_iter().map(AccessToken::try_from).collect()
}

#[async_trait]
impl TokenRows for SqliteTx<'_> {
    async fn token(&mut self, id: TokenId) -> Rows<Option<AccessToken>> {
        find(self.read(), id).await
    }

    async fn token_of_name(&mut self, name: &str) -> Rows<Option<AccessToken>> {
        let row = token_rows!("WHERE name = ?1 AND revoked_at IS NULL", name)
            .fetch_optional(self.read())
            .await
            .map_err(from_sqlx)?;
        row.map(AccessToken::try_from).transpose()
    }

    async fn insert_token(&mut self, token: &AccessToken) -> Rows<bool> {
        let id = blob(token.token_id.uuid());
        let (role, digest) = (token.role.as_str(), token.digest.0.as_slice());
        let expires_at = token.expires_at.map(|at| at.0);
        let done = sqlx::query!(
            "INSERT INTO access_tokens (
                token_id, name, role, namespace, digest, created_at, created_by, expires_at
             ) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING",
            id,
            token.name,
            role,
            token.namespace,
            digest,
            token.created_at.0,
            token.created_by,
            expires_at,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected() == 1)
    }

    async fn revoke_token(&mut self, id: TokenId, by: &str, at: Timestamp) -> Rows<()> {
        let id = blob(id.uuid());
        let done = sqlx::query!(
            "UPDATE access_tokens SET revoked_at = ?1, revoked_by = ?2 WHERE token_id = ?3",
            at.0,
            by,
            id,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("access_tokens", done.rows_affected(), 1)
    }
}
