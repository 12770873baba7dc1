//! Checkpoints of a session: capture, list, delete, restore; and forks that start from one.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::LOCATION;
use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_domain::{CheckpointId, SessionId};
use tapedeck_protocol::checkpoint::{
    CheckpointList, CheckpointResponse, CheckpointsQuery, CreateCheckpointRequest, ForkFrom,
    ForkRequest, RestoreRequest,
};
use tapedeck_protocol::session::SessionResponse;

use super::sessions::{path, shown};
use super::{Answer, next_cursor, page_request};
use crate::body::Body;
use crate::extract::{Call, Id, Ids, WithQuery};
use crate::problem::Fault;

/// Captures a checkpoint of an idle session.
#[utoipa::path(
    post, path = "/sessions/{session_id}/checkpoints", tag = "checkpoints",
    params(
        ("session_id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Sent again with the same body, the first checkpoint is given.")
    ),
    request_body = CreateCheckpointRequest,
    responses((status = 201, body = CheckpointResponse))
)]
pub(super) async fn create(
    call: Call,
    Id(id): Id<SessionId>,
    body: Body,
) -> Result<(StatusCode, Json<CheckpointResponse>), Fault> {
    let operation = format!("checkpoint:{id}");
    let (request, key) = call.keyed::<CreateCheckpointRequest>(&body, operation)?;
    let label = request.check()?;
    let control = call.control();
    let captured = control.capture_checkpoint(call.namespace(), id, label, key);
    let captured = captured.await.map_err(Fault::of_admission)?;
    let answer = CheckpointResponse::from(&captured);
    Ok((StatusCode::CREATED, Json(answer)))
}

/// Lists a session's checkpoints, newest first.
#[utoipa::path(
    get, path = "/sessions/{session_id}/checkpoints", tag = "checkpoints",
    params(("session_id" = Uuid, Path), CheckpointsQuery),
    responses((status = 200, body = CheckpointList))
)]
pub(super) async fn list(
    WithQuery(call, query): WithQuery<CheckpointsQuery>,
    Id(id): Id<SessionId>,
) -> Answer<CheckpointList> {
    let page = page_request(query.page()?);
    let (control, all) = (call.control(), query.include_superseded);
    let page = control.checkpoints(call.namespace(), id, all, page).await?;
    Ok(Json(CheckpointList {
        checkpoints: page.items.iter().map(CheckpointResponse::from).collect(),
        next_cursor: next_cursor(page.next),
    }))
}

/// Drops a checkpoint from the active list; its record stays for audits.
#[utoipa::path(
    delete, path = "/sessions/{session_id}/checkpoints/{checkpoint_id}", tag = "checkpoints",
    params(("session_id" = Uuid, Path), ("checkpoint_id" = Uuid, Path)),
    responses((status = 204))
)]
pub(super) async fn delete(
    call: Call,
    Ids(session_id, checkpoint_id): Ids<SessionId, CheckpointId>,
) -> Result<StatusCode, Fault> {
    let control = call.control();
    let deleted = control.delete_checkpoint(call.namespace(), session_id, checkpoint_id);
    deleted.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Puts an idle session back to a checkpoint. Nothing is deleted; later runs, tape entries and
/// checkpoints are put aside.
#[utoipa::path(
    post, path = "/sessions/{session_id}/checkpoints/{checkpoint_id}/restore", tag = "checkpoints",
    params(
        ("session_id" = Uuid, Path), ("checkpoint_id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Sent again with the same body, nothing is put back a second time.")
    ),
    request_body = RestoreRequest,
    responses((status = 200, body = SessionResponse))
)]
pub(super) async fn restore(
    call: Call,
    Ids(session_id, checkpoint_id): Ids<SessionId, CheckpointId>,
    body: Body,
) -> Answer<SessionResponse> {
    let operation = format!("restore:{session_id}:{checkpoint_id}");
    let (request, key) = call.keyed::<RestoreRequest>(&body, operation)?;
    request.check()?;
    let control = call.control();
    let restored = control.restore_session(call.namespace(), session_id, checkpoint_id, key);
    let view = restored.await.map_err(Fault::of_admission)?;
    shown(&call, &view).await
}

/// Makes a new session that starts from a checkpoint's or an event's settled conversation.
#[utoipa::path(
    post, path = "/sessions/{session_id}/fork", tag = "checkpoints",
    params(
        ("session_id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Sent again with the same body, the first fork is given.")
    ),
    request_body = ForkRequest,
    responses((status = 201, body = SessionResponse, headers(("Location" = String))))
)]
pub(super) async fn fork(call: Call, Id(id): Id<SessionId>, body: Body) -> Result<Response, Fault> {
    let (request, key) = call.keyed::<ForkRequest>(&body, format!("fork:{id}"))?;
    let checked = request.check()?;
    let point = match checked.from {
        ForkFrom::Checkpoint(id) => ForkPoint::Checkpoint(id),
        ForkFrom::Seq(seq) => ForkPoint::Seq(seq),
        ForkFrom::Now => ForkPoint::Head,
    };
    let control = call.control();
    let forked = control.fork_session(call.namespace(), id, point, checked.title, key);
    let view = forked.await.map_err(Fault::of_admission)?;
    let location = path(&call, &format!("/sessions/{}", view.session.session_id));
    let answer = shown(&call, &view).await?;
    Ok((StatusCode::CREATED, [(LOCATION, location)], answer).into_response())
}
