//! SHA-256 digests: of canonical JSON (RFC 8785) for "is it the same?", and of secrets, so that
//! the store never holds one (rules R9, R12, R15).

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of raw bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of labelled JSON: the label, a NUL byte, and the value's canonical form.
    pub fn of_json(label: &str, value: &Value) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(label.as_bytes());
        hasher.update([0]);
        match serde_json_canonicalizer::to_vec(value) {
            Ok(canonical) => hasher.update(&canonical),
            // Values come from parsed JSON, which always has a canonical form; the plain form
            // keeps the function total.
            Err(_) => hasher.update(value.to_string().as_bytes()),
        }
        Self(hasher.finalize().into())
    }

    /// Compares without telling by its duration where the difference lies.
    pub fn matches(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(other.0)
            .fold(0_u8, |diff, (a, b)| diff | (a ^ b))
            == 0
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0[..6]))
    }
}

/// HMAC-SHA256 of `message` under `key`, in lowercase hexadecimal.
pub fn hmac_hex(key: &[u8], message: &[u8]) -> String {
    // HMAC takes a key of any length, so the fallback is never reached.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return String::new();
    };
    mac.update(message);
    hex(&mac.finalize().into_bytes())
}

/// Lowercase hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn key_order_does_not_change_a_digest_and_the_label_does() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":[true,null]}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"b":[true,null],"a":1}"#).unwrap();
        assert_eq!(Digest::of_json("k", &one), Digest::of_json("k", &two));
        assert_ne!(Digest::of_json("k", &one), Digest::of_json("l", &one));
        assert_ne!(
            Digest::of_json("k", &json!({"a": 1})),
            Digest::of_json("k", &json!({"a": 2}))
        );
    }

    #[test]
    fn hmac_agrees_with_rfc_4231_case_2() {
        assert_eq!(
            hmac_hex(b"Jefe", b"what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }
}
