//! The commands, one file each: its arguments and what it does with them.

pub(crate) mod acp;
pub(crate) mod agents;
pub(crate) mod approvals;
pub(crate) mod attach;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod demo_agent;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod executor;
pub(crate) mod executors;
pub(crate) mod man;
pub(crate) mod remote;
pub(crate) mod repl;
pub(crate) mod resume;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod storage;
pub(crate) mod token;

mod following;
mod forms;
mod keyboard;
mod local;
mod rendering;
mod signals;
mod starting;
mod waiting;
mod workspaces;
