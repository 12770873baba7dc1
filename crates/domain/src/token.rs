//! Access tokens: who a caller is, what its role lets it do, and for how long. A token is a secret
//! that only its holder has; here it is known by its digest.

use std::fmt;

use crate::digest::{Digest, hex};
use crate::id::TokenId;
use crate::json::storable_text;
use crate::limits;
use crate::rejection::{FieldError, Rejection};
use crate::session::{DEFAULT_NAMESPACE, text_enum};
use crate::time::Timestamp;

text_enum! {
    /// What whoever holds a token may do.
    Role {
        /// Everything of its namespace's sessions; executors may be looked at.
        Client = "client",
        /// What executors do, for every namespace, and nothing else.
        Executor = "executor",
        /// Everything.
        Operator = "operator",
    }
}

impl Role {
    /// Whether who has this role may do what takes `needed`.
    pub const fn covers(self, needed: Self) -> bool {
        match (self, needed) {
            (Self::Operator, _)
            | (Self::Client, Self::Client)
            | (Self::Executor, Self::Executor) => true,
            (Self::Client | Self::Executor, _) => false,
        }
    }
}

/// What every secret begins with.
const PREFIX: &str = "tdk_";

/// The secret that proves who calls. Never stored, never logged; shown once.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret(String);

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(…)")
    }
}

impl TokenSecret {
    /// Makes one of random bits. It begins so that people and scanners know it for what it is.
    pub fn new(random: [u8; 32]) -> Self {
        Self(format!("{PREFIX}{}", hex(&random)))
    }

    /// The text, for the answer to a creation.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The digest that is stored.
    pub fn digest(&self) -> Digest {
        Digest::of_bytes(self.0.as_bytes())
    }

    /// The digest of what was presented; `None` if nothing like it is ever given out, so that nobody
    /// needs to look it up.
    pub fn digest_of(presented: &[u8]) -> Option<Digest> {
        let bits = presented.strip_prefix(PREFIX.as_bytes())?;
        (bits.len() == 64).then(|| Digest::of_bytes(presented))
    }
}

/// A token as somebody asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenTerms {
    /// What people call it.
    pub name: String,
    /// What it lets its holder do.
    pub role: Role,
    /// Whose sessions it sees; `None` is the default namespace, or of an executor every one.
    pub namespace: Option<String>,
    /// How long it holds, in seconds; `None` is until it is revoked.
    pub expires_in_seconds: Option<u64>,
}

impl TokenTerms {
    /// Checks what a person made up.
    pub fn check(&self) -> Result<(), Vec<FieldError>> {
        let mut faults = Vec::new();
        check_name("name", &self.name, &mut faults);
        match (&self.namespace, self.role) {
            (None, _) => {}
            (Some(_), Role::Executor) => {
                let text = "can't be given to an executor: it serves every namespace";
                faults.push(FieldError::new("namespace", text));
            }
            (Some(namespace), Role::Client | Role::Operator) => {
                check_name("namespace", namespace, &mut faults);
            }
        }
        if let Some(seconds) = self.expires_in_seconds
            && !(1..=limits::TOKEN_SECONDS).contains(&seconds)
        {
            let text = format!("must be 1 to {}", limits::TOKEN_SECONDS);
            faults.push(FieldError::new("expires_in_seconds", text));
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }

    /// The token that this becomes.
    pub fn made(self, maker: Maker) -> AccessToken {
        let ms = self
            .expires_in_seconds
            .map(|seconds| i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX));
        let namespace = self.namespace;
        AccessToken {
            token_id: maker.token_id,
            name: self.name,
            role: self.role,
            namespace: namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            digest: maker.digest,
            created_at: maker.at,
            created_by: maker.by,
            expires_at: ms.map(|ms| maker.at.plus_ms(ms)),
            revoked_at: None,
            revoked_by: None,
        }
    }
}

fn check_name(path: &str, text: &str, faults: &mut Vec<FieldError>) {
    let chars = text.chars().count();
    if text.trim().is_empty() {
        faults.push(FieldError::new(path, "must not be blank"));
    } else if chars > limits::NAME_CHARS {
        let text = format!("has {chars} characters; {} are allowed", limits::NAME_CHARS);
        faults.push(FieldError::new(path, text));
    }
    if text.chars().any(char::is_control) {
        faults.push(FieldError::new(path, "must have no control characters"));
    } else if let Err(why) = storable_text(text) {
        faults.push(FieldError::new(path, why.to_string()));
    }
}

/// Who makes a token, under which id, and for which secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maker {
    /// The new token's id.
    pub token_id: TokenId,
    /// The digest of its secret.
    pub digest: Digest,
    /// Who makes it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessToken {
    /// The identifier.
    pub token_id: TokenId,
    /// What people call it; no two live tokens are called the same.
    pub name: String,
    /// What it lets its holder do.
    pub role: Role,
    /// Whose sessions it sees. An executor's has no say by it.
    pub namespace: String,
    /// The digest of its secret.
    pub digest: Digest,
    /// When it was made.
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// Who revoked it.
    pub revoked_by: Option<String>,
}

impl AccessToken {
    /// Whether it is accepted at this time. The one place where wall time decides, because days must
    /// pass while nobody is alive, too (ADR 28); it is the store's.
    pub fn is_live(&self, at: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| at < end)
    }

    /// What its holder is called where something says who did it.
    pub fn principal(&self) -> String {
        format!("token:{}", self.name)
    }
}

/// What becomes of a new token, where `namesake` is the unrevoked token of its name.
pub fn admit(namesake: Option<&AccessToken>, at: Timestamp) -> Result<Admission, Rejection> {
    match namesake {
        None => Ok(Admission::New),
        Some(token) if token.is_live(at) => Err(Rejection::TokenNameTaken {
            name: token.name.clone(),
        }),
        Some(token) => Ok(Admission::Replaces(token.token_id)),
    }
}

/// What becomes of a new token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Its name is free.
    New,
    /// It takes the name of one that has expired, which is revoked for it.
    Replaces(TokenId),
}

#[cfg(test)]
mod tests;
