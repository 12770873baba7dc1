//! What goes over HTTP: requests, responses, event records, stream frames and error codes. Requests
//! are checked here and become domain values; nothing here decides, stores or sends anything.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod bounds;
pub mod changes;
pub mod checkpoint;
pub mod display;
pub mod error;
pub mod event;
pub mod examples;
pub mod executor;
pub mod feed;
pub mod interaction;
pub mod operations;
pub mod page;
pub mod problem;
pub mod rule;
pub mod run;
pub mod run_target;
pub mod schema;
pub mod session;
pub mod stream;
pub mod tape;
pub mod token;
pub mod views;

mod check;

pub use error::{Effects, ErrorCode};
pub use problem::{FieldErrorBody, Problem};
pub use tapedeck_domain::limits;

#[cfg(test)]
mod tests;
