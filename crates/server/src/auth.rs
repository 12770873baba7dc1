//! The shared bearer token: asked for on every endpoint where one is set. The token itself is never
//! kept, compared byte by byte, or shown; its digest is.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;
use tapedeck_domain::digest::Digest;
use tapedeck_protocol::ErrorCode;

use crate::problem::Fault;
use crate::state::ServerState;

/// Every session belongs to this namespace until tokens name others.
const NAMESPACE: &str = "default";

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
    fn admits(&self, presented: &[u8]) -> bool {
        let presented = Digest::of_bytes(presented);
        self.0.0.ct_eq(&presented.0).into()
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Principal {
    /// Whose sessions it sees.
    pub(crate) namespace: &'static str,
    /// Its name, in answers to questions and in idempotency keys.
    pub(crate) name: &'static str,
}

/// Refuses a caller without the token; names the others.
pub(crate) async fn authenticate(
    State(server): State<Arc<ServerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let name = match &server.token {
        None => "local",
        Some(token) if bearer(&request).is_some_and(|presented| token.admits(presented)) => "token",
        Some(_) => {
            let detail = "send the server's token as `Authorization: Bearer …`";
            return Fault::new(ErrorCode::Unauthorized, detail).into_response();
        }
    };
    let namespace = NAMESPACE;
    request
        .extensions_mut()
        .insert(Principal { namespace, name });
    next.run(request).await
}

fn bearer(request: &Request) -> Option<&[u8]> {
    let value = request.headers().get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}
