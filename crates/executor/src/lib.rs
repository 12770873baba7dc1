//! The executor: claims runs, drives agents through them and reports what happens. It owns the
//! agents' processes and workspaces on this machine; it must never leave an agent running whose
//! claim is gone.

pub mod backend;
pub mod guard;
pub mod lines;
pub mod process;
pub mod workspace;
