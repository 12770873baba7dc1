//! Revokes an approval rule. Its row stays, because interactions that it answered name it; what they
//! were answered stays as it is.

use async_trait::async_trait;
use tapedeck_domain::{RuleId, SessionId};
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;

/// Revokes a rule.
#[derive(Debug)]
pub struct RevokeRule {
    /// The namespace.
    pub namespace: String,
    /// Its session, as a read found it; `None` for a rule of the whole namespace.
    pub session_id: Option<SessionId>,
    /// The rule.
    pub rule_id: RuleId,
    /// Who revokes it.
    pub by: String,
}

#[async_trait]
impl Command for RevokeRule {
    type Output = ();
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        self.session_id
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let locked = match self.session_id {
            Some(id) => Some(context.own_session(&self.namespace, id).await?),
            None => None,
        };
        let found = context.tx.rule(&self.namespace, self.rule_id).await?;
        let rule = found
            .filter(|rule| rule.session_id == self.session_id)
            .ok_or(Failure::NotFound(Target::Rule))?;
        if rule.revoked_at.is_none() {
            let at = context.now.wall;
            context.tx.revoke_rule(self.rule_id, &self.by, at).await?;
        }
        if let Some(locked) = locked {
            context.save(&locked).await?;
        }
        Ok(())
    }
}
