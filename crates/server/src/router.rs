//! Puts routes and layers together. The order of the layers is the order in which a request is
//! refused: host, credential, bounds, route.

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::{Method, Uri};
use tapedeck_protocol::ErrorCode;
use tower_http::catch_panic::CatchPanicLayer;

use crate::problem::Fault;
use crate::state::ServerState;
use crate::{aliases, auth, host, openapi, routes, telemetry};

/// The service: every endpoint at `/` and at `/v1`.
pub fn router(state: ServerState) -> Router {
    let state = Arc::new(state);
    let (endpoints, document) = routes::all(&state.limits).split_for_parts();
    let endpoints = endpoints
        .merge(openapi::routes(document))
        .fallback(route_not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(Arc::clone(&state), auth::authenticate))
        .layer(from_fn_with_state(Arc::clone(&state), host::check))
        .layer(from_fn_with_state(Arc::clone(&state), telemetry::observe))
        .with_state(state);
    // The path is rewritten before it is matched, so this layer wraps a router of its own.
    Router::new()
        .fallback_service(endpoints)
        .layer(from_fn(aliases::resolve))
}

async fn route_not_found(uri: Uri) -> Fault {
    let path: String = uri.path().chars().take(200).collect();
    Fault::new(ErrorCode::RouteNotFound, format!("there is no `{path}`"))
}

async fn method_not_allowed(method: Method) -> Fault {
    let detail = format!("this resource doesn't take `{method}`; see `Allow`");
    Fault::new(ErrorCode::MethodNotAllowed, detail)
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the layer hands the payload over"
)]
fn panicked(payload: Box<dyn Any + Send>) -> Response {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    Fault::internal(format!("a request panicked: {text}")).into_response()
}
