//! Questions an executor asks on behalf of its agent, and the answers it gets.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tapedeck_domain::interaction::{Interaction, InteractionStatus, Question, Scope};
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::{InteractionId, limits};
use utoipa::ToSchema;

use super::lease::{Presented, PresentedFields, check_wait};
use crate::check::Faults;
use crate::schema;

/// Body of `POST /executor/runs/{id}/approval`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalRequest {
    /// Who holds the claim.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// What proves it.
    #[schema(required)]
    pub claim_token: Option<String>,
    /// The executor's id of the question; asking again with it goes on waiting.
    #[schema(required)]
    pub request_id: Option<String>,
    /// The tool.
    #[schema(required)]
    pub tool_name: Option<String>,
    /// What kind of tool it is in the agent's own words, e.g. `read`, `edit`, `execute`.
    pub tool_kind: Option<String>,
    /// The tool's arguments.
    #[schema(value_type = Option<Value>)]
    pub arguments: Option<Value>,
    /// The tool call it belongs to.
    pub call_id: Option<String>,
    /// The agent's own options.
    #[schema(value_type = Option<Value>)]
    pub options: Option<Value>,
    /// How long the question stays open, 1 to 86400; 3600 by default.
    pub timeout_seconds: Option<u32>,
    /// Waits this long and then answers 202, 0 to 60; without it as long as the question is open.
    pub wait_seconds: Option<u32>,
}

/// A checked question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedApproval {
    /// The claim.
    pub claim: Presented,
    /// The question.
    pub question: Question,
    /// How long to wait, in seconds; `None` is as long as it is open.
    pub wait_seconds: Option<u32>,
}

impl ApprovalRequest {
    /// Checks every field.
    pub fn check(self) -> Result<CheckedApproval, Vec<FieldError>> {
        let mut faults = Faults::default();
        let fields = PresentedFields {
            executor_id: self.executor_id,
            worker_id: self.worker_id,
            claim_token: self.claim_token,
        };
        let claim = fields.check(&mut faults);
        let request_id = faults.required("request_id", self.request_id);
        let tool_name = faults.required("tool_name", self.tool_name);
        for (path, text) in [("tool_kind", &self.tool_kind), ("call_id", &self.call_id)] {
            if let Some(text) = text {
                faults.text(path, text, limits::NAME_CHARS);
            }
        }
        for (path, value) in [("arguments", &self.arguments), ("options", &self.options)] {
            if let Some(value) = value {
                faults.json(path, value);
            }
        }
        let (most, default) = limits::QUESTION_SECONDS;
        faults.range("timeout_seconds", self.timeout_seconds, 1..=most);
        check_wait(&mut faults, self.wait_seconds);
        let question = Question {
            request_id,
            tool_name,
            tool_kind: self.tool_kind,
            call_id: self.call_id,
            arguments: self.arguments.unwrap_or(Value::Null),
            options: self.options.unwrap_or(Value::Null),
            timeout_seconds: self.timeout_seconds.unwrap_or(default),
        };
        let wait_seconds = self.wait_seconds;
        faults.finish(CheckedApproval {
            claim,
            question,
            wait_seconds,
        })
    }
}

/// Answer of a question: 200 once it is answered or ended, 202 while it is pending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalResponse {
    /// The executor's id of the question.
    pub request_id: String,
    /// The interaction.
    #[schema(value_type = Uuid)]
    pub interaction_id: InteractionId,
    /// How far it is.
    #[schema(value_type = schema::InteractionStatus)]
    pub status: InteractionStatus,
    /// Whether the tool may run; null while pending.
    #[schema(required)]
    pub approved: Option<bool>,
    /// How far the answer reaches; null without one.
    #[schema(value_type = Option<schema::Scope>, required)]
    pub scope: Option<Scope>,
    /// What the person adds.
    #[schema(required)]
    pub feedback: Option<String>,
}

impl From<&Interaction> for ApprovalResponse {
    fn from(interaction: &Interaction) -> Self {
        let answer = |name: &str| {
            interaction
                .response
                .as_ref()
                .and_then(|response| response.get(name)?.as_str())
        };
        let approved = match interaction.status {
            InteractionStatus::Pending => None,
            InteractionStatus::Approved => Some(true),
            InteractionStatus::Denied
            | InteractionStatus::Expired
            | InteractionStatus::Cancelled => Some(false),
        };
        Self {
            request_id: interaction.request_id.clone(),
            interaction_id: interaction.interaction_id,
            status: interaction.status,
            approved,
            scope: answer("scope").and_then(|word| word.parse().ok()),
            feedback: answer("feedback").map(str::to_owned),
        }
    }
}
