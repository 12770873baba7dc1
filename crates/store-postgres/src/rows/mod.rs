//! Rows in PostgreSQL, one file for each row trait, under the same names as in `store`. Statements
//! only move rows; each says how many it expects.

pub(crate) mod artifacts;
pub(crate) mod checkpoints;
pub(crate) mod deployment;
pub(crate) mod events;
pub(crate) mod executors;
pub(crate) mod folds;
pub(crate) mod heads;
pub(crate) mod idempotency;
pub(crate) mod interactions;
pub(crate) mod queue;
pub(crate) mod rules;
pub(crate) mod runs;
pub(crate) mod sessions;
pub(crate) mod snapshots;
pub(crate) mod tape;
pub(crate) mod tokens;
