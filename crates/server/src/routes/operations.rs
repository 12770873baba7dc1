//! What the server says of itself.

use axum::Json;
use tapedeck_control_plane::{Error, sweep};
use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::operations::{CapabilitiesResponse, HealthResponse, ReadyResponse};

use super::Answer;
use crate::extract::Call;
use crate::problem::Fault;

/// Shows versions, policies and limits.
#[utoipa::path(
    get, path = "/capabilities", tag = "operations",
    responses((status = 200, body = CapabilitiesResponse))
)]
pub(super) async fn capabilities(call: Call) -> Answer<CapabilitiesResponse> {
    let server = &call.server;
    let engine = server.control.store().health().engine;
    let is_token_required = server.asks_for_token().await?;
    let version = server.version;
    Ok(Json(CapabilitiesResponse::new(
        server.control.deployment_id(),
        version,
        engine,
        is_token_required,
    )))
}

/// Tells that the process runs.
#[utoipa::path(
    get, path = "/healthz", tag = "operations",
    responses((status = 200, body = HealthResponse))
)]
pub(super) async fn healthz(call: Call) -> Json<HealthResponse> {
    let health = call.control().store().health();
    Json(HealthResponse {
        status: "ok".to_owned(),
        version: call.server.version.to_owned(),
        storage: health.engine.to_owned(),
        durability: health.durability.to_owned(),
    })
}

/// Tells that the store answers and the server isn't shutting down.
#[utoipa::path(
    get, path = "/readyz", tag = "operations",
    responses((status = 200, body = ReadyResponse))
)]
pub(super) async fn readyz(call: Call) -> Answer<ReadyResponse> {
    let control = call.control();
    if control.lifecycle().is_draining() {
        return Err(Fault::from(Error::Draining));
    }
    // Writes as the sweep does: a full disk or a stuck writer is told here first.
    sweep::start(control).await?;
    let health = control.store().health();
    if !health.writable {
        return Err(Fault::overloaded(ErrorCode::Unavailable));
    }
    Ok(Json(ReadyResponse {
        status: "ready".to_owned(),
        storage: health.engine.to_owned(),
    }))
}
