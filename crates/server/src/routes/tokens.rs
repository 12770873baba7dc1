//! Access tokens: made, shown and revoked by operators, for all namespaces.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, LOCATION};
use http::{HeaderValue, StatusCode};
use tapedeck_domain::TokenId;
use tapedeck_protocol::token::{
    CreateTokenRequest, CreatedTokenResponse, TokenList, TokenResponse, TokensQuery,
};

use super::sessions::path;
use super::{Answer, next_cursor, page_request};
use crate::body::Body;
use crate::extract::{Call, Id, WithQuery};
use crate::problem::Fault;

/// Makes a token. Its secret is in this answer and never again: it is kept nowhere, so that the same
/// request sent again gets the token with `token` null.
#[utoipa::path(
    post, path = "/tokens", tag = "tokens",
    params(("Idempotency-Key" = Option<String>, Header, description = "Sent again with the same body, the first token is given, without its secret.")),
    request_body = CreateTokenRequest,
    responses((status = 201, body = CreatedTokenResponse, headers(("Location" = String))))
)]
pub(super) async fn create(call: Call, body: Body) -> Result<Response, Fault> {
    let (request, key) = call.keyed::<CreateTokenRequest>(&body, "token".to_owned())?;
    let terms = request.check()?;
    let made = call.control().create_token(terms, call.name(), key);
    let made = made.await.map_err(Fault::of_admission)?;
    let answer = CreatedTokenResponse::new(&made.token, made.secret.as_ref());
    let location = path(&call, &format!("/tokens/{}", made.token.token_id));
    let headers = [
        (LOCATION, location),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((StatusCode::CREATED, headers, Json(answer)).into_response())
}

/// Lists the tokens of all namespaces, newest first.
#[utoipa::path(
    get, path = "/tokens", tag = "tokens", params(TokensQuery),
    responses((status = 200, body = TokenList))
)]
pub(super) async fn list(WithQuery(call, query): WithQuery<TokensQuery>) -> Answer<TokenList> {
    let (all, page) = query.check()?;
    let listed = call.control().tokens(all, page_request(page)).await?;
    Ok(Json(TokenList {
        tokens: listed.items.iter().map(TokenResponse::from).collect(),
        next_cursor: next_cursor(listed.next),
    }))
}

/// Shows a token, revoked or not.
#[utoipa::path(
    get, path = "/tokens/{token_id}", tag = "tokens",
    params(("token_id" = Uuid, Path)), responses((status = 200, body = TokenResponse))
)]
pub(super) async fn show(call: Call, Id(id): Id<TokenId>) -> Answer<TokenResponse> {
    let token = call.control().token(id).await?;
    Ok(Json(TokenResponse::from(&token)))
}

/// Revokes a token: it is refused here at once and by other instances within two seconds, and its
/// streams end. What it did stays.
#[utoipa::path(
    delete, path = "/tokens/{token_id}", tag = "tokens",
    params(("token_id" = Uuid, Path)), responses((status = 204))
)]
pub(super) async fn revoke(call: Call, Id(id): Id<TokenId>) -> Result<StatusCode, Fault> {
    call.control().revoke_token(id, call.name()).await?;
    Ok(StatusCode::NO_CONTENT)
}
