//! Executors, as they were last heard of.

use async_trait::async_trait;
use tapedeck_domain::executor::{Contact, Executor, Report, Standing};
use tapedeck_domain::{LeaseInstant, Now, RunId, RunKey, SessionKey};

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
    /// What decides about a claim of the contact's process, read without locks.
    async fn standing(&mut self, contact: &Contact, now: Now) -> Rows<Standing>;
    /// Locks the executor for the rest of the transaction and says what decides about a claim of the
    /// contact's process (rules R2): no drain and no other claim of it commits in between.
    async fn lock_executor(&mut self, contact: &Contact, now: Now) -> Rows<Standing>;
    /// Locks the executor, and reads what is known of it.
    async fn known_executor(&mut self, executor_id: &str) -> Rows<Option<Executor>>;
    /// The executor that last had a run of a session which is settled and not superseded, without what
    /// it holds; the newest few runs are looked at.
    async fn last_executor(&mut self, session: SessionKey) -> Rows<Option<Executor>>;
    /// Runs that executors let go on beyond the deadline, which was `at` or before, by key after `after`:
    /// candidates, read without locks.
    async fn overrun_runs(
        &mut self,
        at: LeaseInstant,
        after: RunKey,
        limit: u32,
    ) -> Rows<Vec<(RunKey, RunId)>>;
    /// Every executor that was heard of after `since`, without what it holds.
    async fn executors_seen(&mut self, since: LeaseInstant) -> Rows<Vec<Executor>>;
    /// Says whether it is to take new work; waits for the claims that it is making. `false` where
    /// nobody knows it.
    async fn set_draining(&mut self, executor_id: &str, draining: bool) -> Rows<bool>;
    /// Deletes a locked executor's row. What it claimed stays recorded.
    async fn delete_executor(&mut self, executor_id: &str) -> Rows<()>;
}
