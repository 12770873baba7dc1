//! The approval inbox: open questions, and their answers.

use axum::Json;
use tapedeck_control_plane::{Error, InteractionFilter};
use tapedeck_domain::{InteractionId, Rejection};
use tapedeck_protocol::interaction::{
    InteractionList, InteractionResponse, InteractionsQuery, ResolveRequest,
};

use super::{Answer, next_cursor, page_request};
use crate::body::Body;
use crate::extract::{Call, Id, WithQuery};
use crate::problem::Fault;

/// Lists questions, newest first.
#[utoipa::path(
    get, path = "/interactions", tag = "interactions", params(InteractionsQuery),
    responses((status = 200, body = InteractionList))
)]
pub(super) async fn list(
    WithQuery(call, query): WithQuery<InteractionsQuery>,
) -> Answer<InteractionList> {
    let selection = query.check()?;
    let filter = InteractionFilter {
        status: selection.status,
        session_id: selection.session_id,
        run_id: None,
    };
    let page = page_request(selection.page);
    let listed = call.control().interactions(call.namespace(), &filter, page);
    let listed = listed.await?;
    Ok(Json(InteractionList {
        interactions: listed.items.iter().map(InteractionResponse::from).collect(),
        next_cursor: next_cursor(listed.next),
    }))
}

/// Shows a question.
#[utoipa::path(
    get, path = "/interactions/{interaction_id}", tag = "interactions",
    params(("interaction_id" = Uuid, Path)), responses((status = 200, body = InteractionResponse))
)]
pub(super) async fn show(call: Call, Id(id): Id<InteractionId>) -> Answer<InteractionResponse> {
    let interaction = call.control().interaction(call.namespace(), id).await?;
    Ok(Json(InteractionResponse::from(&interaction)))
}

/// Answers a question. The first answer wins; the same answer again is accepted.
#[utoipa::path(
    post, path = "/interactions/{interaction_id}/resolve", tag = "interactions",
    params(("interaction_id" = Uuid, Path)), request_body = ResolveRequest,
    responses((status = 200, body = InteractionResponse))
)]
pub(super) async fn resolve(
    call: Call,
    Id(id): Id<InteractionId>,
    body: Body,
) -> Answer<InteractionResponse> {
    let answer = body.read::<ResolveRequest>()?.check()?;
    let resolved = call
        .control()
        .resolve(call.namespace(), id, answer, call.name());
    match resolved.await {
        Ok(interaction) => Ok(Json(InteractionResponse::from(&interaction))),
        Err(error) => Err(with_recorded_answer(&call, error).await),
    }
}

/// A refused answer shows the one that is recorded.
pub(super) async fn with_recorded_answer(call: &Call, error: Error) -> Fault {
    let resolved = match &error {
        Error::Rejected(Rejection::AlreadyResolved { interaction_id, .. }) => Some(*interaction_id),
        Error::Rejected(_)
        | Error::NotFound(_)
        | Error::Cursor(_)
        | Error::Draining
        | Error::Store(_) => None,
    };
    let mut fault = Fault::from(error);
    if let Some(id) = resolved
        && let Ok(recorded) = call.control().interaction(call.namespace(), id).await
    {
        let recorded = InteractionResponse::from(&recorded);
        fault.extensions().interaction = Some(Box::new(recorded));
    }
    fault
}
