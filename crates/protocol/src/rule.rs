//! Approval rules on the wire.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tapedeck_domain::interaction::Scope;
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::rule::{ApprovalRule, ArgumentPattern, Decision, RuleTerms};
use tapedeck_domain::{InteractionId, RuleId, SessionId, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::check::Faults;
use crate::page::{self, Page, PageQuery, QueryFault};
use crate::schema;

/// A standing answer to tools that want to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RuleResponse {
    /// The identifier.
    #[schema(value_type = Uuid)]
    pub rule_id: RuleId,
    /// `session`, or `always` for every session of the namespace.
    #[schema(value_type = schema::Scope)]
    pub scope: Scope,
    /// The session of a rule with that scope.
    #[schema(value_type = Option<Uuid>, required)]
    pub session_id: Option<SessionId>,
    /// The tool by its name, with `*` and `?`.
    pub tool_name: String,
    /// What its arguments must look like, `{fields: {name: pattern}}` or `{equals: …}`; null is any.
    #[schema(value_type = Option<Object>, required)]
    pub arguments: Option<ArgumentPattern>,
    /// Whether the tool may run.
    #[schema(value_type = schema::Decision)]
    pub decision: Decision,
    /// The interaction whose answer made it.
    #[schema(value_type = Option<Uuid>, required)]
    pub interaction_id: Option<InteractionId>,
    /// Who made it.
    #[schema(required)]
    pub created_by: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was revoked; from then on it answers nothing.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub revoked_at: Option<Timestamp>,
    /// Who revoked it.
    #[schema(required)]
    pub revoked_by: Option<String>,
}

impl From<&ApprovalRule> for RuleResponse {
    fn from(rule: &ApprovalRule) -> Self {
        Self {
            rule_id: rule.rule_id,
            scope: rule.scope(),
            session_id: rule.session_id,
            tool_name: rule.terms.tool_name.clone(),
            arguments: rule.terms.arguments.clone(),
            decision: rule.terms.decision,
            interaction_id: rule.interaction_id,
            created_by: rule.created_by.clone(),
            created_at: rule.created_at,
            revoked_at: rule.revoked_at,
            revoked_by: rule.revoked_by.clone(),
        }
    }
}

/// Answer of `GET /approval-rules`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RuleList {
    /// Newest first.
    pub rules: Vec<RuleResponse>,
    /// The next page; null at the end.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// Query of `GET /approval-rules`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RulesQuery {
    /// Only those of this session.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<Uuid>)]
    pub session_id: Option<String>,
    /// `true` also shows those that were revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<bool>)]
    pub include_revoked: Option<String>,
    /// Items of one page, 1 to 200; 50 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    pub limit: Option<String>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A checked selection of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleSelection {
    /// Only those of this session.
    pub session_id: Option<SessionId>,
    /// Also those that were revoked.
    pub include_revoked: bool,
    /// The page.
    pub page: Page<RuleId>,
}

impl RulesQuery {
    /// Checks every parameter.
    pub fn check(self) -> Result<RuleSelection, QueryFault> {
        let include_revoked = match self.include_revoked.as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => {
                let text = "must be true or false".to_owned();
                return Err(QueryFault::parameter("include_revoked", text));
            }
        };
        let session_id = page::id("session_id", self.session_id.as_deref())?;
        let page = PageQuery {
            limit: self.limit,
            cursor: self.cursor,
        };
        Ok(RuleSelection {
            session_id,
            include_revoked,
            page: page.check()?,
        })
    }
}

/// Body of `POST /approval-rules`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateRuleRequest {
    /// The tool by its name, with `*` and `?`.
    #[schema(required)]
    pub tool_name: Option<String>,
    /// What its arguments must look like: `{fields: {name: pattern}}`, where each of these fields must
    /// be there and match, or `{equals: …}`; without it, any.
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Value>,
    /// Whether the tool may run.
    #[schema(value_type = schema::Decision, required)]
    pub decision: Option<Decision>,
    /// The session it is for; without it, every session of the namespace.
    #[schema(value_type = Option<Uuid>)]
    pub session_id: Option<SessionId>,
    /// The older place of an idempotency key.
    pub command_id: Option<String>,
}

impl CreateRuleRequest {
    /// Checks every field; gives the session and the terms.
    pub fn check(self) -> Result<(Option<SessionId>, RuleTerms), Vec<FieldError>> {
        let mut faults = Faults::default();
        let tool_name = faults.required("tool_name", self.tool_name);
        if self.decision.is_none() {
            faults.add("decision", "must be `allow` or `deny`");
        }
        let arguments = self.arguments.and_then(|value| {
            faults.json("arguments", &value);
            let pattern = serde_json::from_value(value);
            if pattern.is_err() {
                let text = "must be `{\"fields\": {name: pattern}}` or `{\"equals\": …}`";
                faults.add("arguments", text);
            }
            pattern.ok()
        });
        let terms = RuleTerms {
            tool_name,
            arguments,
            decision: self.decision.unwrap_or(Decision::Deny),
        };
        match faults.finish(()) {
            Ok(()) => terms.check()?,
            Err(errors) => return Err(errors),
        }
        Ok((self.session_id, terms))
    }
}
