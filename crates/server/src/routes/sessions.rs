//! Sessions: create, show, change, end; and what admits, cancels and answers their runs.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_LOCATION, LOCATION};
use http::{HeaderValue, StatusCode};
use tapedeck_control_plane::commands::configure_session::SettingsPatch;
use tapedeck_control_plane::commands::prompt::{AdmitPrompt, Admitted};
use tapedeck_control_plane::{FollowRequest, ResumeRequest as Resume, SessionView, Start};
use tapedeck_domain::admit::Prompt;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_protocol::interaction::{ApproveQuery, ApproveRequest, ApproveResponse};
use tapedeck_protocol::page::PageQuery;
use tapedeck_protocol::run::{
    AcceptedResponse, CancelResponse, EmptyRequest, PromptQuery, PromptRequest, ResumeRequest,
    RunList,
};
use tapedeck_protocol::session::{
    Change, CreateSessionRequest, DeleteSessionQuery, SessionList, SessionResponse, SettingsChange,
    UpdateSessionRequest,
};
use tapedeck_protocol::views::{RepairResponse, ResultResponse, RunsQuery};

use super::{Answer, next_cursor, page_request};
use crate::accept::Representation;
use crate::body::Body;
use crate::extract::{Call, Id, WithQuery};
use crate::problem::Fault;
use crate::sse::{self, CancelOnDisconnect};

/// Creates a session.
#[utoipa::path(
    post, path = "/sessions", tag = "sessions",
    params(("Idempotency-Key" = Option<String>, Header, description = "Sent again with the same body, the first result is given.")),
    request_body = CreateSessionRequest,
    responses((status = 201, body = SessionResponse, headers(("Location" = String))))
)]
pub(super) async fn create(call: Call, body: Body) -> Result<Response, Fault> {
    let (request, key) = call.keyed::<CreateSessionRequest>(&body, "create".to_owned())?;
    let settings = request.check()?;
    let created = call
        .control()
        .create_session(call.namespace(), settings, key);
    let view = created.await.map_err(Fault::of_admission)?;
    let location = path(&call, &format!("/sessions/{}", view.session.session_id));
    let answer = shown(&call, &view).await?;
    Ok((StatusCode::CREATED, [(LOCATION, location)], answer).into_response())
}

/// Lists sessions, newest first.
#[utoipa::path(
    get, path = "/sessions", tag = "sessions", params(PageQuery),
    responses((status = 200, body = SessionList))
)]
pub(super) async fn list(WithQuery(call, query): WithQuery<PageQuery>) -> Answer<SessionList> {
    let page = page_request(query.check::<SessionId>()?);
    let page = call.control().sessions(call.namespace(), page).await?;
    let now = call.control().now().await?;
    let log_id = Some(call.control().store().reader().identity().log_id);
    let shown = |view: &SessionView| SessionResponse::new(&view.session, &view.head, log_id, now);
    Ok(Json(SessionList {
        sessions: page.items.iter().map(shown).collect(),
        next_cursor: next_cursor(page.next),
    }))
}

/// Shows a session.
#[utoipa::path(
    get, path = "/sessions/{session_id}", tag = "sessions",
    params(("session_id" = Uuid, Path)), responses((status = 200, body = SessionResponse))
)]
pub(super) async fn show(call: Call, Id(id): Id<SessionId>) -> Answer<SessionResponse> {
    let view = call.control().session(call.namespace(), id).await?;
    shown(&call, &view).await
}

/// Changes a session. What runs depend on can't change while one is active.
#[utoipa::path(
    patch, path = "/sessions/{session_id}", tag = "sessions",
    params(("session_id" = Uuid, Path)), request_body = UpdateSessionRequest,
    responses((status = 200, body = SessionResponse))
)]
pub(super) async fn update(
    call: Call,
    Id(id): Id<SessionId>,
    body: Body,
) -> Answer<SessionResponse> {
    let change = body.read::<UpdateSessionRequest>()?.check()?;
    let patched = call
        .control()
        .configure_session(call.namespace(), id, patch(change));
    shown(&call, &patched.await?).await
}

/// Changes what runs depend on: model, provider, approval policy and the like. What is omitted
/// stays; refused while a run is active.
#[utoipa::path(
    patch, path = "/sessions/{session_id}/runtime-config", tag = "sessions",
    params(("session_id" = Uuid, Path)), request_body = UpdateSessionRequest,
    responses((status = 200, body = SessionResponse))
)]
pub(super) async fn configure(
    call: Call,
    Id(id): Id<SessionId>,
    body: Body,
) -> Answer<SessionResponse> {
    update(call, Id(id), body).await
}

/// Deletes a session and everything of it.
#[utoipa::path(
    delete, path = "/sessions/{session_id}", tag = "sessions",
    params(("session_id" = Uuid, Path), DeleteSessionQuery), responses((status = 204))
)]
pub(super) async fn delete(
    WithQuery(call, query): WithQuery<DeleteSessionQuery>,
    Id(id): Id<SessionId>,
) -> Result<StatusCode, Fault> {
    let deleted = call
        .control()
        .delete_session(call.namespace(), id, query.force);
    deleted.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Closes a session: it takes no more runs, and everything stays readable.
#[utoipa::path(
    post, path = "/sessions/{session_id}/close", tag = "sessions",
    params(("session_id" = Uuid, Path)), request_body = EmptyRequest,
    responses((status = 200, body = SessionResponse))
)]
pub(super) async fn close(
    call: Call,
    Id(id): Id<SessionId>,
    body: Body,
) -> Answer<SessionResponse> {
    body.read::<EmptyRequest>()?;
    let view = call.control().close_session(call.namespace(), id).await?;
    shown(&call, &view).await
}

/// Lets a queue go on that is held after an interrupted run.
#[utoipa::path(
    post, path = "/sessions/{session_id}/queue/continue", tag = "sessions",
    params(("session_id" = Uuid, Path)), request_body = EmptyRequest,
    responses((status = 200, body = SessionResponse))
)]
pub(super) async fn continue_queue(
    call: Call,
    Id(id): Id<SessionId>,
    body: Body,
) -> Answer<SessionResponse> {
    body.read::<EmptyRequest>()?;
    let view = call.control().continue_queue(call.namespace(), id).await?;
    shown(&call, &view).await
}

/// Admits a prompt as a run, and streams the run to its end; as JSON it answers at once.
#[utoipa::path(
    post, path = "/sessions/{session_id}/prompt", tag = "sessions",
    params(
        ("session_id" = Uuid, Path), PromptQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "Sent again with the same body, the first run is given.")
    ),
    request_body = PromptRequest,
    responses(
        (status = 200, description = "The run's stream", content_type = "text/event-stream", body = String),
        (status = 202, body = AcceptedResponse)
    )
)]
pub(super) async fn prompt(
    WithQuery(call, query): WithQuery<PromptQuery>,
    Id(session_id): Id<SessionId>,
    body: Body,
) -> Result<Response, Fault> {
    let body = body.with_query(&query)?;
    let (request, key) = call.keyed::<PromptRequest>(&body, format!("prompt:{session_id}"))?;
    let checked = request.check()?;
    let command = AdmitPrompt {
        namespace: call.namespace().to_owned(),
        session_id,
        prompt: Prompt {
            run_id: RunId::new(call.control().new_id()),
            text: checked.text,
            on_active: checked.on_active,
            metadata: checked.metadata,
        },
        key,
    };
    let admitted = call.control().prompt(command).await;
    let admitted = admitted.map_err(Fault::of_admission)?;
    admission(&call, admitted, checked.cancel_on_disconnect).await
}

/// Resumes a session: a new run linked to the newest settled one. Answers like a prompt.
#[utoipa::path(
    post, path = "/sessions/{session_id}/resume", tag = "sessions",
    params(
        ("session_id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Sent again with the same body, the first run is given.")
    ),
    request_body = ResumeRequest,
    responses(
        (status = 200, description = "The run's stream", content_type = "text/event-stream", body = String),
        (status = 202, body = AcceptedResponse)
    )
)]
pub(super) async fn resume(
    call: Call,
    Id(id): Id<SessionId>,
    body: Body,
) -> Result<Response, Fault> {
    let (request, key) = call.keyed::<ResumeRequest>(&body, format!("resume:{id}"))?;
    let checked = request.check()?;
    let resume = Resume {
        text: checked.text,
        reason: checked.reason,
        metadata: checked.metadata,
        key,
    };
    let admitted = call.control().resume(call.namespace(), id, resume).await;
    let admitted = admitted.map_err(Fault::of_admission)?;
    admission(&call, admitted, checked.cancel_on_disconnect).await
}

/// Cancels the session's active run.
#[utoipa::path(
    post, path = "/sessions/{session_id}/cancel", tag = "sessions",
    params(("session_id" = Uuid, Path)), request_body = EmptyRequest,
    responses(
        (status = 202, description = "The run is being cancelled", body = CancelResponse),
        (status = 200, description = "Nothing was active", body = CancelResponse)
    )
)]
pub(super) async fn cancel(
    call: Call,
    Id(id): Id<SessionId>,
    body: Body,
) -> Result<(StatusCode, Json<CancelResponse>), Fault> {
    body.read::<EmptyRequest>()?;
    let cancelled = call
        .control()
        .cancel_session(call.namespace(), id, call.name());
    Ok(match cancelled.await?.run_id {
        Some(run_id) => (
            StatusCode::ACCEPTED,
            Json(CancelResponse::cancelling(id, run_id)),
        ),
        None => (StatusCode::OK, Json(CancelResponse::idle(id))),
    })
}

/// Answers a question by the executor's id of it, for older clients.
#[utoipa::path(
    post, path = "/sessions/{session_id}/approve", tag = "interactions",
    params(("session_id" = Uuid, Path), ApproveQuery), request_body = ApproveRequest,
    responses((status = 200, body = ApproveResponse))
)]
pub(super) async fn approve(
    WithQuery(call, query): WithQuery<ApproveQuery>,
    Id(id): Id<SessionId>,
    body: Body,
) -> Answer<ApproveResponse> {
    let body = body.with_query(&query.check()?)?;
    let (request_id, answer) = body.read::<ApproveRequest>()?.check()?;
    let (control, by) = (call.control(), call.name());
    let resolved = control.resolve_request(call.namespace(), id, request_id, answer, by);
    match resolved.await {
        Ok(interaction) => Ok(Json(ApproveResponse::from(&interaction))),
        Err(error) => Err(super::interactions::with_recorded_answer(&call, error).await),
    }
}

/// Lists a session's runs, newest first.
#[utoipa::path(
    get, path = "/sessions/{session_id}/runs", tag = "runs",
    params(("session_id" = Uuid, Path), RunsQuery), responses((status = 200, body = RunList))
)]
pub(super) async fn runs(
    WithQuery(call, query): WithQuery<RunsQuery>,
    Id(id): Id<SessionId>,
) -> Answer<RunList> {
    super::runs::of_session(&call, Some(id), &query).await
}

/// Shows what the newest settled run gave; what a restore has put aside doesn't count.
#[utoipa::path(
    get, path = "/sessions/{session_id}/result", tag = "sessions",
    params(("session_id" = Uuid, Path)), responses((status = 200, body = ResultResponse))
)]
pub(super) async fn result(call: Call, Id(id): Id<SessionId>) -> Answer<ResultResponse> {
    let control = call.control();
    control.session(call.namespace(), id).await?;
    let latest = control.latest_settled_run(call.namespace(), id).await?;
    Ok(Json(ResultResponse::new(id, latest)))
}

/// Derives a session's summary again from its rows, where no live owner exists; for operators.
#[utoipa::path(
    post, path = "/sessions/{session_id}/repair", tag = "sessions",
    params(("session_id" = Uuid, Path)), request_body = EmptyRequest,
    responses((status = 200, body = RepairResponse))
)]
pub(super) async fn repair(
    call: Call,
    Id(id): Id<SessionId>,
    body: Body,
) -> Answer<RepairResponse> {
    body.read::<EmptyRequest>()?;
    let (control, by) = (call.control(), call.name());
    let changed = control.repair_session(call.namespace(), id, by).await?;
    let changed = changed.into_iter().map(str::to_owned).collect();
    Ok(Json(RepairResponse { changed }))
}

pub(super) async fn shown(call: &Call, view: &SessionView) -> Answer<SessionResponse> {
    let now = call.control().now().await?;
    let log_id = Some(call.control().store().reader().identity().log_id);
    Ok(Json(SessionResponse::new(
        &view.session,
        &view.head,
        log_id,
        now,
    )))
}

fn patch(change: SettingsChange) -> SettingsPatch {
    let some = |map: serde_json::Map<_, _>| (!map.is_empty()).then_some(map);
    SettingsPatch {
        title: match change.title {
            Change::Keep => None,
            Change::Remove => Some(None),
            Change::Set(title) => Some(Some(title)),
        },
        metadata: some(change.metadata),
        approval_policy: change.approval_policy,
        agent: some(change.agent),
        run_target: change.run_target,
    }
}

/// Answers an admitted run: its stream from the event that admitted it, or its identifiers.
async fn admission(
    call: &Call,
    admitted: Admitted,
    cancel_on_disconnect: bool,
) -> Result<Response, Fault> {
    let Admitted {
        session_id,
        run_id,
        status,
        session_seq,
    } = admitted;
    if call.representation == Representation::Json {
        let accepted = AcceptedResponse {
            session_id,
            run_id,
            status,
            session_seq,
        };
        return Ok((StatusCode::ACCEPTED, Json(accepted)).into_response());
    }
    let control = call.control();
    let on_disconnect = cancel_on_disconnect.then(|| CancelOnDisconnect::new(call, run_id));
    let follower = control.follow(FollowRequest {
        namespace: call.namespace().to_owned(),
        session_id,
        start: Start::After(session_seq - 1),
        run_id: Some(run_id),
        kinds: Vec::new(),
    });
    let mut response = sse::response(call, follower.await?, on_disconnect);
    let continued = format!("/sessions/{session_id}/events?run_id={run_id}");
    let headers = response.headers_mut();
    headers.insert(CONTENT_LOCATION, path(call, &continued));
    Ok(response)
}

/// A path of this server, as the caller reaches it.
pub(super) fn path(call: &Call, path: &str) -> HeaderValue {
    let path = format!("{}{path}", call.mount.prefix());
    // Made of identifiers and literals, so it always fits a header.
    HeaderValue::from_str(&path).unwrap_or_else(|_| HeaderValue::from_static("/"))
}
