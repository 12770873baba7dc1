//! The PostgreSQL store through its public face: what only several instances can do to each other,
//! its plans, and the row tests that it shares with the SQLite store.

#[cfg(test)]
mod abandoned;
#[cfg(test)]
#[path = "../../../store-sqlite/tests/store/checkpoint_rows.rs"]
mod checkpoint_rows;
#[cfg(test)]
mod feed;
#[cfg(test)]
#[path = "../../../store-sqlite/tests/store/fold_rows.rs"]
mod fold_rows;
#[cfg(test)]
mod hints;
#[cfg(test)]
mod locks;
#[cfg(test)]
mod migrations;
#[cfg(test)]
mod opening;
#[cfg(test)]
mod outcomes;
#[cfg(test)]
mod plans;
#[cfg(test)]
#[path = "../../../store-sqlite/tests/store/queue_rows.rs"]
mod queue_rows;
#[cfg(test)]
#[path = "../../../store-sqlite/tests/store/reads.rs"]
mod reads;
#[cfg(test)]
#[path = "../../../store-sqlite/tests/store/rows.rs"]
mod rows;
#[cfg(test)]
#[path = "../../../store-sqlite/tests/store/run_rows.rs"]
mod run_rows;
#[cfg(test)]
mod shared_rows;
#[cfg(test)]
mod skew;
#[cfg(test)]
#[path = "../../../store-sqlite/tests/store/snapshot_rows.rs"]
mod snapshot_rows;
#[cfg(test)]
mod support;
#[cfg(test)]
#[path = "../../../store-sqlite/tests/store/tape_rows.rs"]
mod tape_rows;

#[cfg(test)]
#[path = "../../../../tests/support/postgres.rs"]
#[expect(
    dead_code,
    reason = "shared with tests that stop and start their servers"
)]
mod postgres;
#[cfg(test)]
#[path = "../../../../tests/support/wait.rs"]
mod wait;
