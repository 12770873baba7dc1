//! Where new identifiers come from: one place, so that tests can seed it.

use std::fmt::Debug;

use uuid::Uuid;

/// A source of UUIDs.
pub trait IdSource: Send + Sync + Debug {
    /// A new UUID; time-ordered in production.
    fn next(&self) -> Uuid;
}

/// Version 7 UUIDs.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimeOrdered;

impl IdSource for TimeOrdered {
    #[expect(clippy::disallowed_methods, reason = "this is the id source")]
    fn next(&self) -> Uuid {
        Uuid::now_v7()
    }
}
