//! Typed identifiers. Each is a UUID in a newtype of its own, so that a run can never be passed
//! where a session is meant; keys are the store's small integers and never leave the server.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text that is no identifier of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no `{kind}`: a UUID is expected")]
pub struct InvalidId {
    /// What was expected, e.g. `session_id`.
    pub kind: &'static str,
    /// What was given, cut to 64 characters.
    pub text: String,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $label:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Wraps a UUID chosen by the id source or read from the store.
            pub const fn new(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID itself.
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Uuid::try_parse(text).map(Self).map_err(|_| InvalidId {
                    kind: $label,
                    text: text.chars().take(64).collect(),
                })
            }
        }
    )*};
}

ids! {
    /// A checkpoint of a session.
    CheckpointId = "checkpoint_id";
    /// The deployment: one database, however many server instances.
    DeploymentId = "deployment_id";
    /// A standing answer to tools that want to run.
    RuleId = "rule_id";
    /// A durable question to a person.
    InteractionId = "interaction_id";
    /// The identity of the log as a whole; it changes when a backup is restored (rules R22).
    LogId = "log_id";
    /// One attempt at one prompt.
    RunId = "run_id";
    /// A durable conversation.
    SessionId = "session_id";
    /// The tape of a session.
    TapeId = "tape_id";
    /// One entry of a tape.
    TapeEntryId = "entry_id";
    /// A token that callers prove who they are with.
    TokenId = "token_id";
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i64);
    )*};
}

keys! {
    /// A session's row number in the store (stores §1).
    SessionKey;
    /// A run's row number in the store (stores §1).
    RunKey;
}
