//! Approval rules: standing answers to tools that want to run.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::LOCATION;
use tapedeck_control_plane::RuleFilter;
use tapedeck_domain::RuleId;
use tapedeck_protocol::rule::{CreateRuleRequest, RuleList, RuleResponse, RulesQuery};

use super::sessions::path;
use super::{Answer, next_cursor, page_request};
use crate::body::Body;
use crate::extract::{Call, Id, WithQuery};
use crate::problem::Fault;

/// Makes a rule. If the same one stands already, it is given.
#[utoipa::path(
    post, path = "/approval-rules", tag = "approval-rules",
    params(("Idempotency-Key" = Option<String>, Header, description = "Sent again with the same body, the first rule is given.")),
    request_body = CreateRuleRequest,
    responses((status = 201, body = RuleResponse, headers(("Location" = String))))
)]
pub(super) async fn create(call: Call, body: Body) -> Result<Response, Fault> {
    let (request, key) = call.keyed::<CreateRuleRequest>(&body, "approval-rule".to_owned())?;
    let (session_id, terms) = request.check()?;
    let by = call.name();
    let made = call
        .control()
        .create_rule(call.namespace(), session_id, terms, by, key);
    let rule = made.await.map_err(Fault::of_admission)?;
    let location = path(&call, &format!("/approval-rules/{}", rule.rule_id));
    let answer = Json(RuleResponse::from(&rule));
    Ok((StatusCode::CREATED, [(LOCATION, location)], answer).into_response())
}

/// Lists rules, newest first.
#[utoipa::path(
    get, path = "/approval-rules", tag = "approval-rules", params(RulesQuery),
    responses((status = 200, body = RuleList))
)]
pub(super) async fn list(WithQuery(call, query): WithQuery<RulesQuery>) -> Answer<RuleList> {
    let selection = query.check()?;
    let filter = RuleFilter {
        session_id: selection.session_id,
        include_revoked: selection.include_revoked,
    };
    let page = page_request(selection.page);
    let listed = call.control().rules(call.namespace(), filter, page).await?;
    Ok(Json(RuleList {
        rules: listed.items.iter().map(RuleResponse::from).collect(),
        next_cursor: next_cursor(listed.next),
    }))
}

/// Shows a rule, revoked or not.
#[utoipa::path(
    get, path = "/approval-rules/{rule_id}", tag = "approval-rules",
    params(("rule_id" = Uuid, Path)), responses((status = 200, body = RuleResponse))
)]
pub(super) async fn show(call: Call, Id(id): Id<RuleId>) -> Answer<RuleResponse> {
    let rule = call.control().rule(call.namespace(), id).await?;
    Ok(Json(RuleResponse::from(&rule)))
}

/// Revokes a rule. What it has answered stays answered.
#[utoipa::path(
    delete, path = "/approval-rules/{rule_id}", tag = "approval-rules",
    params(("rule_id" = Uuid, Path)), responses((status = 204))
)]
pub(super) async fn revoke(call: Call, Id(id): Id<RuleId>) -> Result<StatusCode, Fault> {
    let by = call.name();
    call.control().revoke_rule(call.namespace(), id, by).await?;
    Ok(StatusCode::NO_CONTENT)
}
