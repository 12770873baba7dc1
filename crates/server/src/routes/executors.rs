//! Executors as operators see them, and what operators tell them.

use axum::Json;
use http::StatusCode;
use tapedeck_domain::executor::Executor;
use tapedeck_protocol::executor::{ExecutorList, ExecutorResponse, ExecutorsQuery};
use tapedeck_protocol::run::EmptyRequest;

use super::Answer;
use crate::body::Body;
use crate::extract::{Call, Name, WithQuery};
use crate::problem::Fault;

/// Lists executors by name.
#[utoipa::path(
    get, path = "/executors", tag = "executors", params(ExecutorsQuery),
    responses((status = 200, body = ExecutorList))
)]
pub(super) async fn list(
    WithQuery(call, query): WithQuery<ExecutorsQuery>,
) -> Answer<ExecutorList> {
    let (page, filter) = query.check()?;
    let control = call.control();
    // One more than the page, to know whether it is the last.
    let listed = control.executors(&filter, page.after.as_deref(), page.limit + 1);
    let mut listed = listed.await?;
    let limit = page.limit as usize;
    let has_more = listed.len() > limit;
    listed.truncate(limit);
    let now = control.now().await?;
    let timing = control.timing();
    let last = listed.last().filter(|_| has_more);
    Ok(Json(ExecutorList {
        next_cursor: last.map(|executor| executor.contact.executor_id.clone()),
        executors: listed
            .iter()
            .map(|executor| ExecutorResponse::new(executor, call.namespace(), now, timing))
            .collect(),
    }))
}

/// Shows an executor.
#[utoipa::path(
    get, path = "/executors/{executor_id}", tag = "executors",
    params(("executor_id" = String, Path)), responses((status = 200, body = ExecutorResponse))
)]
pub(super) async fn show(call: Call, Name(id): Name) -> Answer<ExecutorResponse> {
    let executor = call.control().executor(&id).await?;
    shown(&call, &executor).await
}

/// Tells an executor to take no new work: none of its claims succeeds after the answer. Runs that it
/// holds go on.
#[utoipa::path(
    post, path = "/executors/{executor_id}/drain", tag = "executors",
    params(("executor_id" = String, Path)), request_body = EmptyRequest,
    responses((status = 200, body = ExecutorResponse))
)]
pub(super) async fn drain(call: Call, Name(id): Name, body: Body) -> Answer<ExecutorResponse> {
    body.read::<EmptyRequest>()?;
    let executor = call.control().drain_executor(&id, true).await?;
    shown(&call, &executor).await
}

/// Lets an executor take new work again.
#[utoipa::path(
    post, path = "/executors/{executor_id}/undrain", tag = "executors",
    params(("executor_id" = String, Path)), request_body = EmptyRequest,
    responses((status = 200, body = ExecutorResponse))
)]
pub(super) async fn undrain(call: Call, Name(id): Name, body: Body) -> Answer<ExecutorResponse> {
    body.read::<EmptyRequest>()?;
    let executor = call.control().drain_executor(&id, false).await?;
    shown(&call, &executor).await
}

/// Removes an executor that is offline from the list. Its runs stay as they are, and should it come
/// back it is listed again.
#[utoipa::path(
    delete, path = "/executors/{executor_id}", tag = "executors",
    params(("executor_id" = String, Path)), responses((status = 204))
)]
pub(super) async fn forget(call: Call, Name(id): Name) -> Result<StatusCode, Fault> {
    call.control().forget_executor(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn shown(call: &Call, executor: &Executor) -> Answer<ExecutorResponse> {
    let control = call.control();
    let now = control.now().await?;
    let response = ExecutorResponse::new(executor, call.namespace(), now, control.timing());
    Ok(Json(response))
}
