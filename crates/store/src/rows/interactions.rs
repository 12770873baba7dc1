//! Interactions.

use async_trait::async_trait;
use tapedeck_domain::id::{InteractionId, RunKey, SessionKey};
use tapedeck_domain::interaction::Interaction;
use tapedeck_domain::time::LeaseInstant;

use super::Rows;

/// Rows of `interactions`.
#[async_trait]
pub trait InteractionRows {
    /// One interaction.
    async fn interaction(&mut self, id: InteractionId) -> Rows<Option<Interaction>>;
    /// The question of one attempt under the executor's id.
    async fn interaction_of_request(
        &mut self,
        run: RunKey,
        attempt: u32,
        request_id: &str,
    ) -> Rows<Option<Interaction>>;
    /// The newest question of a session under the executor's id.
    async fn interaction_in_session(
        &mut self,
        session: SessionKey,
        request_id: &str,
    ) -> Rows<Option<Interaction>>;
    /// Inserts a question.
    async fn insert_interaction(
        &mut self,
        session: SessionKey,
        interaction: &Interaction,
    ) -> Rows<()>;
    /// Writes status and answer.
    async fn save_interaction(&mut self, interaction: &Interaction) -> Rows<()>;
    /// Open questions of a run, oldest first.
    async fn pending_interactions(&mut self, run: RunKey) -> Rows<Vec<Interaction>>;
    /// Open questions whose time is over, by id after `after`: candidates, read without locks.
    async fn overdue_interactions(
        &mut self,
        at: LeaseInstant,
        after: Option<InteractionId>,
        limit: u32,
    ) -> Rows<Vec<InteractionId>>;
}
