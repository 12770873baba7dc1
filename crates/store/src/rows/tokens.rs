//! Access tokens.

use async_trait::async_trait;
use tapedeck_domain::id::TokenId;
use tapedeck_domain::time::Timestamp;
use tapedeck_domain::token::AccessToken;

use super::Rows;

/// Rows of `access_tokens`.
#[async_trait]
pub trait TokenRows {
    /// One token, revoked or not.
    async fn token(&mut self, id: TokenId) -> Rows<Option<AccessToken>>;
    /// The token of a name that is not revoked; it may have expired.
    async fn token_of_name(&mut self, name: &str) -> Rows<Option<AccessToken>>;
    /// Inserts a token, unless another that is not revoked has its name; gives whether it did.
    async fn insert_token(&mut self, token: &AccessToken) -> Rows<bool>;
    /// Marks a token as revoked.
    async fn revoke_token(&mut self, id: TokenId, by: &str, at: Timestamp) -> Rows<()>;
}
