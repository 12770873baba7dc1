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
#[path = "../support/stores.rs"]
mod stores;

/// Makes one test for each name and store, each over a fresh database.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::control::TestControl::fresh().await).await;
                }
            )*
        }
    };
}

mod admission;
mod claims;
mod follow;
mod idempotency;
mod interactions;
mod outages;
mod ownership;
mod recovery;
mod resume;
mod sequence;
mod sessions;
