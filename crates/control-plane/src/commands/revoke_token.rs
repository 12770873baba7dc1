//! Revokes an access token. Its row stays, because what its holder did names it.

use async_trait::async_trait;
use tapedeck_domain::TokenId;
use tapedeck_store::{Failure, Lane, Target};

use crate::context::Context;
use crate::execute::Command;

/// Revokes a token.
#[derive(Debug)]
pub struct RevokeToken {
    /// The token.
    pub token_id: TokenId,
    /// Who revokes it.
    pub by: String,
}

#[async_trait]
impl Command for RevokeToken {
    type Output = ();
    const LANE: Lane = Lane::Urgent;

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let found = context.tx.token(self.token_id).await?;
        let token = found.ok_or(Failure::NotFound(Target::Token))?;
        if token.revoked_at.is_none() {
            let at = context.now.wall;
            context.tx.revoke_token(self.token_id, &self.by, at).await?;
        }
        Ok(())
    }
}
