//! Access tokens.

use http::Method;
use tapedeck_domain::TokenId;
use tapedeck_protocol::token::{
    CreateTokenRequest, CreatedTokenResponse, TokenList, TokenResponse,
};

use crate::Result;
use crate::call::Call;
use crate::connect::Client;
use crate::sessions::Paging;

impl Client {
    /// One page of the tokens, newest first; with `all` also those that were revoked.
    pub async fn tokens(&self, all: bool, paging: &Paging) -> Result<TokenList> {
        let call = Call::get(&["tokens"]).query("all", all.then_some(true));
        self.call(call.page(paging)).await
    }

    /// One token, revoked or not.
    pub async fn token(&self, id: TokenId) -> Result<TokenResponse> {
        self.call(Call::get(&["tokens", &id.to_string()])).await
    }

    /// Makes a token. Made again by itself under one idempotency key, and then without its secret.
    pub async fn create_token(&self, request: &CreateTokenRequest) -> Result<CreatedTokenResponse> {
        let call = Call::post(&["tokens"]);
        self.call(call.keyed(request.command_id.as_deref()).json(request)?)
            .await
    }

    /// Revokes a token; once more changes nothing.
    pub async fn revoke_token(&self, id: TokenId) -> Result<()> {
        let call = Call::new(Method::DELETE, &["tokens", &id.to_string()]);
        self.send(call.harmless()).await.map(drop)
    }
}
