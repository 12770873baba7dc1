//! Results under idempotency keys.

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_domain::Timestamp;
use tapedeck_domain::idempotency::{IdempotencyKey, StoredResult};

use super::Rows;

/// Rows of `idempotency_keys`.
#[async_trait]
pub trait IdempotencyRows {
    /// The result stored under the key, whatever the body.
    async fn stored_result(&mut self, key: &IdempotencyKey) -> Rows<Option<StoredResult>>;
    /// Stores a result in the command's own transaction.
    async fn insert_result(
        &mut self,
        key: &IdempotencyKey,
        result: &Value,
        now: Timestamp,
    ) -> Rows<()>;
    /// Deletes results older than `before`, at most `limit`. Gives how many.
    async fn purge_results(&mut self, before: Timestamp, limit: u32) -> Rows<u64>;
}
