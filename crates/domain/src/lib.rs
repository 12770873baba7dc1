//! What Tapedeck's words mean and what may happen to them: identifiers, states, and decisions as
//! pure functions of (state, command, now). Nothing here does I/O, reads a clock, draws a random
//! number or is async; stores persist what these functions decide, and nothing else.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod admit;
pub mod append;
pub mod artifact;
pub mod cancel;
pub mod checkpoint;
pub mod claim;
pub mod digest;
pub mod display;
pub mod event;
pub mod executor;
pub mod expire;
pub mod fold;
pub mod form;
pub mod git;
pub mod id;
pub mod idempotency;
pub mod interaction;
pub mod json;
pub mod limits;
pub mod owner;
pub mod queue;
pub mod rejection;
pub mod repair;
pub mod resume;
pub mod rule;
pub mod run;
pub mod session;
pub mod settle;
pub mod snapshot;
pub mod tape;
pub mod text;
pub mod time;
pub mod timing;
pub mod token;
pub mod transcript;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod model;

pub use id::{
    CheckpointId, DeploymentId, InteractionId, InvalidId, LogId, RuleId, RunId, RunKey, SessionId,
    SessionKey, TapeEntryId, TapeId, TokenId,
};
pub use json::JsonText;
pub use rejection::Rejection;
pub use time::{LeaseInstant, Now, Timestamp};
pub use timing::Timing;
