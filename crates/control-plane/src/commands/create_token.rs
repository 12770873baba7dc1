//! Makes an access token. It belongs to no session, and so has no owner to be proved.

use async_trait::async_trait;
use serde_json::{Value, json};
use tapedeck_domain::digest::Digest;
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::token::{Admission, Maker, TokenTerms, admit};
use tapedeck_domain::{Rejection, TokenId};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Makes a token.
#[derive(Debug)]
pub struct CreateToken {
    /// The id, should the token be new.
    pub token_id: TokenId,
    /// The digest of its secret.
    pub digest: Digest,
    /// What it is to be.
    pub terms: TokenTerms,
    /// Who makes it.
    pub by: String,
    /// The client's key.
    pub key: Option<IdempotencyKey>,
}

#[async_trait]
impl Command for CreateToken {
    type Output = TokenId;
    const LANE: Lane = Lane::Admission;

    fn idempotency(&self) -> Option<&IdempotencyKey> {
        self.key.as_ref()
    }

    fn stored(&self, output: &TokenId) -> Value {
        json!({"token_id": output})
    }

    fn restored(&self, stored: &Value) -> Option<TokenId> {
        stored["token_id"].as_str()?.parse().ok()
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<TokenId, Failure> {
        self.terms.check().map_err(Rejection::Invalid)?;
        let at = context.now.wall;
        let token = self.terms.clone().made(Maker {
            token_id: self.token_id,
            digest: self.digest,
            by: self.by.clone(),
            at,
        });
        let namesake = context.tx.token_of_name(&token.name).await?;
        match admit(namesake.as_ref(), at)? {
            Admission::New => {}
            Admission::Replaces(expired) => {
                context.tx.revoke_token(expired, &self.by, at).await?;
            }
        }
        if context.tx.insert_token(&token).await? {
            Ok(token.token_id)
        } else {
            // Another took the name since it was looked up.
            Err(Rejection::TokenNameTaken { name: token.name }.into())
        }
    }
}
