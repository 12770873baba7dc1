//! The deployment: who this database is, and when an instance was last alive (rules R6).

use async_trait::async_trait;
use tapedeck_domain::time::LeaseInstant;

use super::Rows;

/// The deployment's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deployment {
    /// When a sweep last ran; `None` before the first.
    pub alive_at: Option<LeaseInstant>,
    /// Whether `alive_at` was read on the clock of another boot (rules R7).
    pub boot_changed: bool,
}

/// The row of `deployment`.
#[async_trait]
pub trait DeploymentRows {
    /// Reads it.
    async fn deployment(&mut self) -> Rows<Deployment>;
    /// Records that an instance is alive.
    async fn set_alive(&mut self, at: LeaseInstant) -> Rows<()>;
    /// Adds `gap_ms` (which may be negative after a reboot, rules R7) to every lease and deadline that
    /// was live at `alive_at`; the others stay ended, and back-offs end. Gives how many claims were
    /// moved.
    async fn shift_leases(&mut self, alive_at: LeaseInstant, gap_ms: i64) -> Rows<u64>;
}
