//! Where new identifiers and secrets come from: one place, so that tests can seed it.

use std::fmt::Debug;

use uuid::Uuid;

/// A source of UUIDs and of secrets.
pub trait IdSource: Send + Sync + Debug {
    /// A new UUID; time-ordered in production.
    fn next(&self) -> Uuid;

    /// 256 bits that nobody can guess.
    fn secret(&self) -> [u8; 32];
}

/// Version 7 UUIDs, and secrets of a generator that the operating system seeds.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimeOrdered;

impl IdSource for TimeOrdered {
    #[expect(clippy::disallowed_methods, reason = "this is the id source")]
    fn next(&self) -> Uuid {
        Uuid::now_v7()
    }

    fn secret(&self) -> [u8; 32] {
        rand::random()
    }
}
