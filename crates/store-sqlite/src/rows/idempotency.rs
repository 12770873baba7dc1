//! Rows of `idempotency_keys`.

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::Timestamp;
use tapedeck_domain::idempotency::{IdempotencyKey, StoredResult};
use tapedeck_store::rows::{IdempotencyRows, Rows};

use crate::encode::{At, bytes, text};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::SqliteTx;

#[async_trait]
impl IdempotencyRows for SqliteTx<'_> {
    async fn stored_result(&mut self, key: &IdempotencyKey) -> Rows<Option<StoredResult>> {
        let row = sqlx::query!(
            "SELECT entry_key, body_digest, result FROM idempotency_keys
             WHERE namespace = ? AND principal = ? AND operation = ? AND key = ?",
            key.namespace,
            key.principal,
            key.operation,
            key.key,
        )
        .fetch_optional(self.read())
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
        let body_digest = bytes(&key.body_digest);
        let result = text(result);
        let done = sqlx::query!(
            "INSERT INTO idempotency_keys (
                namespace, principal, operation, key, body_digest, result, created_at
             ) VALUES (?, ?, ?, ?, ?, ?, ?)",
            key.namespace,
            key.principal,
            key.operation,
            key.key,
            body_digest,
            result,
            now.0,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        expect_rows("idempotency_keys", done.rows_affected(), 1)
    }

    async fn purge_results(&mut self, before: Timestamp, limit: u32) -> Rows<u64> {
        let done = sqlx::query!(
            "DELETE FROM idempotency_keys WHERE entry_key IN (
                SELECT entry_key FROM idempotency_keys
                WHERE created_at < ? ORDER BY created_at LIMIT ?
             )",
            before.0,
            limit,
        )
        .execute(self.write().await?)
        .await
        .map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }
}
