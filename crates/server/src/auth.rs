//! Who calls: whoever presents the shared token of the token file or a live one of the database, or,
//! where no token is asked for, a caller on this machine. A secret itself is never kept, compared
//! byte by byte, or shown; its digest is.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::session::DEFAULT_NAMESPACE;
use tapedeck_domain::token::{AccessToken, Role, TokenSecret};
use tapedeck_protocol::ErrorCode;

use crate::problem::Fault;
use crate::state::ServerState;

/// A secret that callers present. Holds its digest only.
#[derive(Clone)]
pub struct BearerToken(Digest);

impl BearerToken {
    /// Takes the text of a token file. `None` if it holds no token.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(Digest::of_bytes(text.as_bytes())))
    }

    /// Compares without telling by its duration where the difference lies.
    fn admits(&self, presented: &Digest) -> bool {
        self.0.0.ct_eq(&presented.0).into()
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

/// When a token is asked for on every endpoint. With a token file it always is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenPolicy {
    /// Never: the router is called in process.
    Never,
    /// While any token of the database is live: only this machine can call.
    WhileAnyIsLive,
    /// Always, even once the last token has ended: other machines can call.
    Always,
}

impl ServerState {
    /// Whether a token is asked for now.
    pub(crate) async fn asks_for_token(&self) -> Result<bool, Fault> {
        if self.token.is_some() {
            return Ok(true);
        }
        match self.token_policy {
            TokenPolicy::Never => Ok(false),
            TokenPolicy::Always => Ok(true),
            TokenPolicy::WhileAnyIsLive => Ok(self.control.has_live_tokens().await?),
        }
    }
}

/// Whether this request has to present a token. Found out once, so that it can't change between
/// the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenAsked(pub(crate) bool);

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Principal {
    /// What it may do.
    pub(crate) role: Role,
    /// Whose sessions it sees.
    pub(crate) namespace: Arc<str>,
    /// Its name, in answers to questions and in idempotency keys.
    pub(crate) name: Arc<str>,
    /// The token that may end while it is answered.
    pub(crate) token: Option<Digest>,
}

impl Principal {
    /// Whoever runs the server.
    fn operator(name: &str) -> Self {
        Self {
            role: Role::Operator,
            namespace: DEFAULT_NAMESPACE.into(),
            name: name.into(),
            token: None,
        }
    }
}

impl From<AccessToken> for Principal {
    fn from(token: AccessToken) -> Self {
        Self {
            role: token.role,
            name: token.principal().into(),
            namespace: token.namespace.into(),
            token: Some(token.digest),
        }
    }
}

/// Refuses a caller without an accepted token where one is asked for; names the others.
pub(crate) async fn authenticate(
    State(server): State<Arc<ServerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let is_asked = request.extensions().get() != Some(&TokenAsked(false));
    let presented = bearer(&request).map(Presented::of);
    match identify(&server, is_asked, presented).await {
        Ok(principal) => request.extensions_mut().insert(principal),
        Err(fault) => return fault.into_response(),
    };
    next.run(request).await
}

async fn identify(
    server: &ServerState,
    is_asked: bool,
    presented: Option<Presented>,
) -> Result<Principal, Fault> {
    if !is_asked {
        return Ok(Principal::operator("local"));
    }
    let Some(presented) = presented else {
        let detail = "send a token that this server accepts as `Authorization: Bearer …`";
        return Err(Fault::new(ErrorCode::Unauthorized, detail));
    };
    let is = |token: Option<&BearerToken>| token.is_some_and(|it| it.admits(&presented.digest));
    if is(server.token.as_ref()) {
        return Ok(Principal::operator("token"));
    }
    if is(server.own_token.as_ref()) {
        return Ok(Principal::operator("local"));
    }
    let found = match presented.of_database {
        Some(digest) => server.control.live_token(&digest).await?,
        None => None,
    };
    found.map(Principal::from).ok_or_else(|| {
        let detail = "the token was not accepted: it is unknown, has expired or was revoked";
        Fault::new(ErrorCode::Unauthorized, detail)
    })
}

/// What a caller presents, by its digests alone.
#[derive(Debug, Clone, Copy)]
struct Presented {
    digest: Digest,
    /// The same, if it may be a token of the database.
    of_database: Option<Digest>,
}

impl Presented {
    fn of(secret: &[u8]) -> Self {
        Self {
            digest: Digest::of_bytes(secret),
            of_database: TokenSecret::digest_of(secret),
        }
    }
}

fn bearer(request: &Request) -> Option<&[u8]> {
    let value = request.headers().get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

/// What a group of endpoints asks of its callers' role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Any role.
    Any,
    /// This role, or one that covers it.
    Role(Role),
}

impl Access {
    /// The role's word; `None` where any will do.
    pub(crate) const fn word(self) -> Option<&'static str> {
        match self {
            Self::Any => None,
            Self::Role(role) => Some(role.as_str()),
        }
    }
}

/// Proves that a request has passed [`permit`]: a handler gets no call without it, so an endpoint
/// that stands in no group serves nobody.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Permitted;

/// Refuses a caller whose role doesn't reach as far as a group of endpoints.
pub(crate) async fn permit(
    State(access): State<Access>,
    mut request: Request,
    next: Next,
) -> Response {
    let principal = request.extensions().get::<Principal>();
    let role = principal.map(|principal| principal.role);
    match (access, role) {
        (Access::Role(needed), Some(role)) if !role.covers(needed) => {
            let detail = format!(
                "this needs a token with the role `{needed}`; the one that was sent has the role \
                 `{role}`"
            );
            return Fault::new(ErrorCode::Forbidden, detail).into_response();
        }
        (_, None) => return Fault::internal("the call was not authenticated").into_response(),
        (Access::Any | Access::Role(_), Some(_)) => {}
    }
    request.extensions_mut().insert(Permitted);
    next.run(request).await
}
