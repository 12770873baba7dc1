//! Tapedeck as an agent of the Agent Client Protocol: editors get sessions that are kept by a control
//! plane. It translates between the protocol and the client; it decides nothing about sessions and
//! starts no agent.

mod agent;
mod choices;
mod desk;
mod failure;
mod host;
mod listing;
mod mapping;
mod opening;
mod prompt;
mod question;
mod session;
pub mod wire;

pub use agent::serve;
pub use host::{Host, HostError, Remote};
