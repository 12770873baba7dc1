//! The executor: claims runs, drives agents through them and reports what happens. It owns the
//! agents' processes and workspaces on this machine; it must never leave an agent running whose
//! claim is gone.

pub mod backend;
pub mod guard;
pub mod lines;
pub mod process;
pub mod workspace;

mod batch;
mod changes;
mod claim;
mod config;
mod executor;
mod files;
mod heartbeat;
mod held;
mod insist;
mod instance;
mod kept;
mod memory;
mod place;
mod questions;
mod recovery;
mod run;
mod settle;
mod spool;
mod upkeep;
mod upload;
mod verdict;

pub use config::{Backends, EveryRun, ExecutorError, Options};
pub use executor::{Drained, Executor, Shutdown};
pub use upkeep::{UpkeepError, end_sessions};
pub use workspace::GitOptions;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
