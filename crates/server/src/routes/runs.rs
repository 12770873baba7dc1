//! Runs: list, show, cancel, the questions they asked and the messages they reported.

use axum::Json;
use http::StatusCode;
use tapedeck_control_plane::{InteractionFilter, RunFilter};
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::{InteractionId, RunId, SessionId};
use tapedeck_protocol::interaction::{InteractionList, InteractionResponse};
use tapedeck_protocol::page::PageQuery;
use tapedeck_protocol::run::{CancelResponse, EmptyRequest, RunList, RunResponse};
use tapedeck_protocol::views::{RunsQuery, SnapshotResponse};

use super::{Answer, next_cursor, page_request};
use crate::body::Body;
use crate::extract::{Call, Id, WithQuery};
use crate::problem::Fault;

/// Lists the runs of all sessions, newest first.
#[utoipa::path(
    get, path = "/runs", tag = "runs", params(RunsQuery),
    responses((status = 200, body = RunList))
)]
pub(super) async fn list(WithQuery(call, query): WithQuery<RunsQuery>) -> Answer<RunList> {
    of_session(&call, None, &query).await
}

/// The runs of one session or of all.
pub(super) async fn of_session(
    call: &Call,
    session_id: Option<SessionId>,
    query: &RunsQuery,
) -> Answer<RunList> {
    let page = page_request(query.page()?);
    let filter = RunFilter {
        session_id,
        include_superseded: query.include_superseded,
        unservable: query.unservable,
    };
    let page = call.control().runs(call.namespace(), filter, page).await?;
    Ok(Json(RunList {
        runs: page.items.iter().map(RunResponse::from).collect(),
        next_cursor: next_cursor(page.next),
    }))
}

/// Shows a run.
#[utoipa::path(
    get, path = "/runs/{run_id}", tag = "runs",
    params(("run_id" = Uuid, Path)), responses((status = 200, body = RunResponse))
)]
pub(super) async fn show(call: Call, Id(id): Id<RunId>) -> Answer<RunResponse> {
    let run = call.control().run(call.namespace(), id).await?;
    Ok(Json(RunResponse::from(&run)))
}

/// Cancels a run, a queued one too.
#[utoipa::path(
    post, path = "/runs/{run_id}/cancel", tag = "runs",
    params(("run_id" = Uuid, Path)), request_body = EmptyRequest,
    responses(
        (status = 202, description = "The run is being cancelled", body = CancelResponse),
        (status = 200, description = "The run is settled", body = CancelResponse)
    )
)]
pub(super) async fn cancel(
    call: Call,
    Id(id): Id<RunId>,
    body: Body,
) -> Result<(StatusCode, Json<CancelResponse>), Fault> {
    body.read::<EmptyRequest>()?;
    let cancelled = call.control().cancel_run(call.namespace(), id, call.name());
    let cancelled = cancelled.await?;
    let session_id = cancelled.session_id;
    Ok(match cancelled.status {
        Some(status) if status != RunStatus::Cancelling => {
            let answer = CancelResponse {
                session_id,
                run_id: Some(id),
                status: status.to_string(),
            };
            (StatusCode::OK, Json(answer))
        }
        Some(_) | None => {
            let answer = CancelResponse::cancelling(session_id, id);
            (StatusCode::ACCEPTED, Json(answer))
        }
    })
}

/// Lists the questions a run asked, newest first.
#[utoipa::path(
    get, path = "/runs/{run_id}/interactions", tag = "runs",
    params(("run_id" = Uuid, Path), PageQuery), responses((status = 200, body = InteractionList))
)]
pub(super) async fn interactions(
    WithQuery(call, query): WithQuery<PageQuery>,
    Id(id): Id<RunId>,
) -> Answer<InteractionList> {
    let page = page_request(query.check::<InteractionId>()?);
    call.control().run(call.namespace(), id).await?;
    let filter = InteractionFilter {
        run_id: Some(id),
        ..InteractionFilter::default()
    };
    let listed = call.control().interactions(call.namespace(), &filter, page);
    let listed = listed.await?;
    Ok(Json(InteractionList {
        interactions: listed.items.iter().map(InteractionResponse::from).collect(),
        next_cursor: next_cursor(listed.next),
    }))
}

/// Shows the provider's messages as a run last reported them.
#[utoipa::path(
    get, path = "/runs/{run_id}/snapshot", tag = "runs",
    params(("run_id" = Uuid, Path)), responses((status = 200, body = SnapshotResponse))
)]
pub(super) async fn snapshot(call: Call, Id(id): Id<RunId>) -> Answer<SnapshotResponse> {
    call.control().run(call.namespace(), id).await?;
    let snapshot = call.control().snapshot(call.namespace(), id).await?;
    Ok(Json(SnapshotResponse::from(snapshot)))
}
