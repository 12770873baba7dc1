//! Idempotency keys (rules R17): looked up before authority and state, stored with the first
//! successful result in its own transaction.

use serde_json::Value;

use crate::digest::Digest;
use crate::rejection::Rejection;

/// A key with all that it is scoped by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    /// The namespace.
    pub namespace: String,
    /// Who sent it.
    pub principal: String,
    /// Which operation on which target, e.g. `prompt:<session id>`.
    pub operation: String,
    /// The client's key, 1 to 200 characters.
    pub key: String,
    /// The digest of the request body.
    pub body_digest: Digest,
}

/// A stored result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResult {
    /// The digest of the body it answered.
    pub body_digest: Digest,
    /// Identifiers and status; never a whole answer.
    pub result: Value,
}

/// Gives the stored result of the same request, or refuses another body under the same key.
pub fn replay(key: &IdempotencyKey, stored: StoredResult) -> Result<Value, Rejection> {
    if stored.body_digest == key.body_digest {
        Ok(stored.result)
    } else {
        Err(Rejection::IdempotencyConflict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_body_is_replayed_and_another_refused() {
        let key = IdempotencyKey {
            namespace: "default".to_owned(),
            principal: "p".to_owned(),
            operation: "prompt".to_owned(),
            key: "k".to_owned(),
            body_digest: Digest::of_bytes(b"a"),
        };
        let stored = |body: &[u8]| StoredResult {
            body_digest: Digest::of_bytes(body),
            result: Value::Bool(true),
        };
        assert_eq!(replay(&key, stored(b"a")), Ok(Value::Bool(true)));
        assert_eq!(
            replay(&key, stored(b"b")),
            Err(Rejection::IdempotencyConflict)
        );
    }
}
