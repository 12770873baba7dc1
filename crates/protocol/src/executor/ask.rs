//! Questions an executor asks on behalf of its agent, and the answers it gets.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tapedeck_domain::form::Form;
use tapedeck_domain::interaction::{
    Asked, FormRequest, Interaction, InteractionStatus, Question, Scope, ToolUse,
};
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

/// Body of `POST /executor/runs/{id}/question`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QuestionRequest {
    /// Who holds the claim.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// What proves it.
    #[schema(required)]
    pub claim_token: Option<String>,
    /// The executor's id of the question; asking again with it goes on waiting. Approvals and
    /// questions of an attempt share these ids.
    #[schema(required)]
    pub request_id: Option<String>,
    /// The question in words.
    #[schema(required)]
    pub message: Option<String>,
    /// The form to fill in, as a JSON schema: an object of texts, numbers, booleans and choices, as
    /// ACP's `elicitation/create` has it.
    #[schema(value_type = Object, required)]
    pub form: Option<Value>,
    /// The tool call it belongs to.
    pub call_id: Option<String>,
    /// How long the question stays open, 1 to 86400; 3600 by default.
    pub timeout_seconds: Option<u32>,
    /// Waits this long and then answers 202, 0 to 60; without it as long as the question is open.
    pub wait_seconds: Option<u32>,
}

/// A checked question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedAsk {
    /// The claim.
    pub claim: Presented,
    /// The question.
    pub question: Question,
    /// How long to wait, in seconds; `None` is as long as it is open.
    pub wait_seconds: Option<u32>,
}

impl ApprovalRequest {
    /// Checks every field.
    pub fn check(self) -> Result<CheckedAsk, Vec<FieldError>> {
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
        // The question is an event of the log.
        let size = |value: &Option<Value>| value.as_ref().map_or(0, |it| it.to_string().len());
        let bytes = size(&self.arguments) + size(&self.options);
        if bytes > limits::EVENT_BYTES {
            let most = limits::EVENT_BYTES;
            faults.add(
                "arguments",
                format!("has {bytes} bytes with the options; {most} are allowed"),
            );
        }
        let asked = Asked::Approval(ToolUse {
            tool_name,
            tool_kind: self.tool_kind,
            call_id: self.call_id,
            arguments: self.arguments.unwrap_or(Value::Null),
            options: self.options.unwrap_or(Value::Null),
        });
        finished(
            faults,
            (claim, request_id, asked),
            self.timeout_seconds,
            self.wait_seconds,
        )
    }
}

/// What all that is asked has in common.
fn finished(
    mut faults: Faults,
    (claim, request_id, asked): (Presented, String, Asked),
    timeout_seconds: Option<u32>,
    wait_seconds: Option<u32>,
) -> Result<CheckedAsk, Vec<FieldError>> {
    let (most, default) = limits::QUESTION_SECONDS;
    faults.range("timeout_seconds", timeout_seconds, 1..=most);
    check_wait(&mut faults, wait_seconds);
    let question = Question {
        request_id,
        timeout_seconds: timeout_seconds.unwrap_or(default),
        asked,
    };
    faults.finish(CheckedAsk {
        claim,
        question,
        wait_seconds,
    })
}

impl QuestionRequest {
    /// Checks every field.
    pub fn check(self) -> Result<CheckedAsk, Vec<FieldError>> {
        let mut faults = Faults::default();
        let fields = PresentedFields {
            executor_id: self.executor_id,
            worker_id: self.worker_id,
            claim_token: self.claim_token,
        };
        let claim = fields.check(&mut faults);
        let request_id = faults.required("request_id", self.request_id);
        let message = self.message.unwrap_or_default();
        faults.name("message", &message, limits::MESSAGE_CHARS);
        let schema = self.form.unwrap_or(Value::Null);
        faults.json("form", &schema);
        if let Err(errors) = Form::of_schema(&schema) {
            faults.extend(errors);
        }
        if let Some(call_id) = &self.call_id {
            faults.text("call_id", call_id, limits::NAME_CHARS);
        }
        let asked = Asked::Form(FormRequest {
            message,
            schema,
            call_id: self.call_id,
        });
        finished(
            faults,
            (claim, request_id, asked),
            self.timeout_seconds,
            self.wait_seconds,
        )
    }
}

/// Answer of an approval: 200 once it is answered or ended, 202 while it is pending.
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

/// Answer of a question: 200 once it is answered or ended, 202 while it is pending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuestionResponse {
    /// The executor's id of the question.
    pub request_id: String,
    /// The interaction.
    #[schema(value_type = Uuid)]
    pub interaction_id: InteractionId,
    /// `pending`; `approved` with a `response`; `denied`, if the person declined; `expired` or
    /// `cancelled`, if nobody will answer.
    #[schema(value_type = schema::InteractionStatus)]
    pub status: InteractionStatus,
    /// The filled-in form, which fits the form as it was asked; null without one.
    #[schema(value_type = Option<Object>, required)]
    pub response: Option<Value>,
    /// What the person adds.
    #[schema(required)]
    pub feedback: Option<String>,
}

impl From<&Interaction> for QuestionResponse {
    fn from(interaction: &Interaction) -> Self {
        let answer = |name: &str| interaction.response.as_ref()?.get(name).cloned();
        Self {
            request_id: interaction.request_id.clone(),
            interaction_id: interaction.interaction_id,
            status: interaction.status,
            response: answer("response"),
            feedback: answer("feedback").and_then(|text| text.as_str().map(str::to_owned)),
        }
    }
}
