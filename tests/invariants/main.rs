//! The invariants of the design by name, and the faults that must be impossible, against every
//! store. Each test gets a fresh database and a clock of its own.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test, what must not happen ends it"
)]

#[path = "../support/control.rs"]
#[macro_use]
mod control;
#[path = "../support/faulty.rs"]
mod faulty_store;
#[path = "../support/postgres.rs"]
#[expect(dead_code, reason = "shared with other suites, which need more of it")]
mod postgres;
#[cfg(test)]
#[path = "../support/seed.rs"]
mod seed;
#[path = "../support/stores.rs"]
mod stores;
#[path = "../support/wait.rs"]
mod wait;

/// Makes one test for each name, in a module that says on which store it runs.
macro_rules! on_store {
    ($module:ident, $kind:ident, $($name:ident),*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let kind = $crate::stores::Kind::$kind;
                    super::$name($crate::control::TestControl::fresh(kind).await).await;
                }
            )*
        }
    };
}

/// Makes one test for each name and store, each over a fresh database.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        on_store!(sqlite, Sqlite, $($name),*);
        on_store!(postgres, Postgres, $($name),*);
        on_store!(postgres_without_hints, PostgresWithoutHints, $($name),*);
    };
}

/// The same for what only SQLite has. Each use says why.
macro_rules! on_sqlite {
    ($($name:ident),* $(,)?) => {
        on_store!(sqlite_only, Sqlite, $($name),*);
    };
}

/// The same for what needs several processes with one database.
macro_rules! on_postgres {
    ($($name:ident),* $(,)?) => {
        on_store!(postgres_only, Postgres, $($name),*);
        on_store!(postgres_only_without_hints, PostgresWithoutHints, $($name),*);
    };
}

mod access_tokens;
mod admission;
mod approval_rules;
mod archive;
mod artifacts;
mod audit;
mod busy;
mod claims;
mod creating;
mod faulty;
mod feed;
mod fleet;
mod folds;
mod follow;
mod forks;
mod idempotency;
mod instances;
mod interactions;
mod liveness;
mod maintenance;
mod model;
mod next_run;
mod outages;
mod ownership;
mod queue;
mod recovery;
mod restore;
mod resume;
mod rules_claims;
mod rules_log;
mod rules_owners;
mod rules_runs;
mod secrets;
mod sequence;
mod sessions;
mod write_paths;
