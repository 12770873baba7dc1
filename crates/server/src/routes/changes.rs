//! What runs changed in their workspaces, as their executors told it: a table, and a patch.

use axum::Json;
use axum::body::Body;
use axum::response::Response;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use tapedeck_domain::SessionId;
use tapedeck_protocol::changes::{ChangesQuery, ChangesResponse, PATCH_TYPE};
use tapedeck_protocol::executor::content;

use super::Answer;
use crate::extract::{Id, WithQuery};
use crate::problem::Fault;

/// Lists the files that a run changed, or all runs of the session together.
#[utoipa::path(
    get, path = "/sessions/{session_id}/diff", tag = "sessions",
    params(("session_id" = Uuid, Path), ChangesQuery),
    responses((status = 200, body = ChangesResponse))
)]
pub(super) async fn diff(
    WithQuery(call, query): WithQuery<ChangesQuery>,
    Id(id): Id<SessionId>,
) -> Answer<ChangesResponse> {
    let (run, scope) = query.check()?;
    let control = call.control();
    let table = control.changes(call.namespace(), id, run, scope.changes());
    let table = table.await?;
    let changes = serde_json::from_str(&table.sent.content)
        .map_err(|_broken| Fault::internal("a stored table of changes can't be read"))?;
    Ok(Json(ChangesResponse {
        session_id: id,
        run_id: table.run_id,
        scope,
        changes,
    }))
}

/// Gives the patch of what a run changed, or all runs of the session together; `git apply` takes it.
#[utoipa::path(
    get, path = "/sessions/{session_id}/patch", tag = "sessions",
    params(("session_id" = Uuid, Path), ChangesQuery),
    responses((status = 200, content((String = "text/x-diff"))))
)]
pub(super) async fn patch(
    WithQuery(call, query): WithQuery<ChangesQuery>,
    Id(id): Id<SessionId>,
) -> Result<Response, Fault> {
    let (run, scope) = query.check()?;
    let control = call.control();
    let patch = control.changes(call.namespace(), id, run, scope.patch());
    let patch = content(&patch.await?.sent);
    let patch = patch.ok_or_else(|| Fault::internal("a stored patch can't be read"))?;
    let mut response = Response::new(Body::from(patch));
    let media_type = HeaderValue::from_static(PATCH_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    Ok(response)
}
