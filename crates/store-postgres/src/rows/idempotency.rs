//! Rows of `idempotency_keys`.

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::Timestamp;
use tapedeck_domain::idempotency::{IdempotencyKey, StoredResult};
use tapedeck_store::rows::{IdempotencyRows, Rows};

use crate::encode::{At, bytes, text};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::PostgresTx;

#[async_trait]
impl IdempotencyRows for PostgresTx<'_> {
    /// Two commands under one key may come at the same time, to one instance or to two: the later
    /// one waits for the earlier one's end, and must then see its result. A row that isn't there yet
    /// can't be locked, so the key's hash is. The lock is a statement of its own, because one
    /// statement sees only what was committed before it began to wait (rules R1). It comes before all
    /// other locks (rules R2), and two keys of one hash merely wait for each other.
    async fn stored_result(&mut self, key: &IdempotencyKey) -> Rows<Option<StoredResult>> {
        sqlx::query!(
            "SELECT pg_advisory_xact_lock(
                hashtextextended(json_build_array($1::text, $2::text, $3::text, $4::text)::text, 0)
             )",
            key.namespace,
            key.principal,
            key.operation,
            key.key,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        let row = sqlx::query!(
            "SELECT entry_key, body_digest, result FROM idempotency_keys
             WHERE namespace = $1 AND principal = $2 AND operation = $3 AND key = $4",
            key.namespace,
            key.principal,
            key.operation,
            key.key,
        )
        .fetch_optional(self.conn())
        .await
        .map_err(from_sqlx)?;
        row.map(|row| {
            let at = At::new("idempotency_keys", &row.entry_key);
            Ok(StoredResult {
                body_digest: at.digest("body_digest", &row.body_digest)?,
                result: at.json("result", &row.result)?,
            })
        })
        .transpose()
    }

    async fn insert_result(
        &mut self,
        key: &IdempotencyKey,
        result: &Value,
        now: Timestamp,
    ) -> Rows<()> {
        let done = sqlx::query!(
            "INSERT INTO idempotency_keys (
                namespace, principal, operation, key, body_digest, result, created_at
             ) VALUES ($1, $2, $3, $4, $5, $6, $7)",
            key.namespace,
            key.principal,
            key.operation,
            key.key,
            bytes(&key.body_digest),
            text(result),
            now.0,
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        expect_rows("idempotency_keys", done.rows_affected(), 1)
    }

    /// What another instance is purging now is left to it.
    async fn purge_results(&mut self, before: Timestamp, limit: u32) -> Rows<u64> {
        let done = sqlx::query!(
            "WITH old AS MATERIALIZED (
                SELECT entry_key FROM idempotency_keys
                WHERE created_at < $1
                ORDER BY created_at
                LIMIT $2
                FOR UPDATE SKIP LOCKED
             )
             DELETE FROM idempotency_keys k USING old WHERE k.entry_key = old.entry_key",
            before.0,
            i64::from(limit),
        )
        .execute(self.conn())
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }
}
