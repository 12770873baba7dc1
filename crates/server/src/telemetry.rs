//! One span and one line for each request, named by a request id that the caller may choose. No
//! body, query or header value is ever written.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderValue;
use tapedeck_protocol::ErrorCode;
use tokio::time::Instant;
use tracing::Instrument;

use crate::problem;
use crate::state::ServerState;

const REQUEST_ID: &str = "x-request-id";

/// Observes a request from its head to the head of its answer.
pub(crate) async fn observe(
    State(server): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let id = chosen_id(&request).unwrap_or_else(|| server.control.new_id().simple().to_string());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("unmatched", MatchedPath::as_str);
    let span =
        tracing::info_span!("request", request.id = id, http.method = %method, http.route = route);
    let mut response = next.run(request).instrument(span.clone()).await;
    let _entered = span.enter();
    let code = problem::render(&mut response, &id);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    tracing::info!(
        status = response.status().as_u16(),
        code = code.map(ErrorCode::as_str),
        duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        "request"
    );
    response
}

fn chosen_id(request: &Request) -> Option<String> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fits = (1..=128).contains(&id.len()) && id.bytes().all(is_plain);
    fits.then(|| id.to_owned())
}
