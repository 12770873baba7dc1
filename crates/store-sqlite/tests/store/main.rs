//! The SQLite store through its public face: rows, groups, locks, clocks, plans and crashes.

mod crash;
mod directory;
mod groups;
mod outages;
mod plans;
mod queue_rows;
mod reads;
mod rows;
mod support;
