//! Executors, as they were last heard of.

use async_trait::async_trait;
use tapedeck_domain::Now;
use tapedeck_domain::executor::{Contact, Report};

use super::Rows;

/// Rows of `executors`.
#[async_trait]
pub trait ExecutorRows {
    /// Records a contact. What the contact doesn't say keeps its value.
    async fn save_contact(&mut self, contact: &Contact, now: Now) -> Rows<()>;
    /// Records that the executor of a live claim was heard of.
    async fn touch_executor(&mut self, executor_id: &str, report: &Report, now: Now) -> Rows<()>;
    /// Whether it was told to take no new work.
    async fn is_draining(&mut self, executor_id: &str) -> Rows<bool>;
}
