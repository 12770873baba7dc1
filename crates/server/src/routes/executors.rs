//! Executors as operators see them.

use axum::Json;
use tapedeck_protocol::executor::{ExecutorList, ExecutorResponse};
use tapedeck_protocol::page::PageQuery;

use super::Answer;
use crate::extract::{Call, Name, WithQuery};

/// Lists executors by name.
#[utoipa::path(
    get, path = "/executors", tag = "executors", params(PageQuery),
    responses((status = 200, body = ExecutorList))
)]
pub(super) async fn list(WithQuery(call, query): WithQuery<PageQuery>) -> Answer<ExecutorList> {
    let page = query.check::<String>()?;
    let control = call.control();
    // One more than the page, to know whether it is the last.
    let listed = control.executors(page.after.as_deref(), page.limit + 1);
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
            .map(|executor| ExecutorResponse::new(executor, now, timing))
            .collect(),
    }))
}

/// Shows an executor.
#[utoipa::path(
    get, path = "/executors/{executor_id}", tag = "executors",
    params(("executor_id" = String, Path)), responses((status = 200, body = ExecutorResponse))
)]
pub(super) async fn show(call: Call, Name(id): Name) -> Answer<ExecutorResponse> {
    let control = call.control();
    let executor = control.executor(&id).await?;
    let now = control.now().await?;
    Ok(Json(ExecutorResponse::new(
        &executor,
        now,
        control.timing(),
    )))
}
