//! HTTP in front of the control plane: routes, streams, problem documents, and the listener. It
//! parses, authorises and answers; it decides no rule, holds no state of a session, and knows no
//! SQL.

#![deny(clippy::wildcard_enum_match_arm)]

mod accept;
mod aliases;
mod auth;
mod body;
mod extract;
mod host;
mod limits;
mod openapi;
mod problem;
mod router;
mod routes;
mod serve;
mod sse;
mod stall;
mod state;
mod telemetry;

pub use auth::{BearerToken, TokenPolicy};
pub use host::HostPolicy;
pub use limits::Limits;
pub use openapi::document;
pub use router::router;
pub use serve::serve;
pub use state::ServerState;
