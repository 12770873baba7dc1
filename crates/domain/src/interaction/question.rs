//! What an executor may ask on behalf of its agent: may this tool run, or please fill in this form.

use serde_json::{Value, json};

use super::InteractionKind;
use crate::digest::Digest;

/// A question as an executor asks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The executor's id of the question.
    pub request_id: String,
    /// How long it stays open, in seconds.
    pub timeout_seconds: u32,
    /// What is asked.
    pub asked: Asked,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// May the tool run?
    Approval(ToolUse),
    /// A form to fill in.
    Form(FormRequest),
}

/// A tool and what an agent wants to use it with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolUse {
    /// The tool.
    pub tool_name: String,
    /// What kind of tool it is in the agent's own words, e.g. `read`, `edit`, `execute`.
    pub tool_kind: Option<String>,
    /// The tool call it belongs to.
    pub call_id: Option<String>,
    /// The tool's arguments.
    pub arguments: Value,
    /// The agent's own options, kept as they are.
    pub options: Value,
}

/// A form and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormRequest {
    /// The question in words.
    pub message: String,
    /// The form as a JSON schema that [`crate::form::Form::of_schema`] takes.
    pub schema: Value,
    /// The tool call it belongs to.
    pub call_id: Option<String>,
}

/// What a question stands under where clients look for a tool's name.
const FORM_TOOL: &str = "question";

impl Question {
    /// What kind of question it is.
    pub const fn kind(&self) -> InteractionKind {
        match self.asked {
            Asked::Approval(_) => InteractionKind::Approval,
            Asked::Form(_) => InteractionKind::Question,
        }
    }

    /// The request as it is stored and shown. A form has a `tool_call`, too, because clients that
    /// know approvals only look for one.
    pub fn request(&self) -> Value {
        match &self.asked {
            Asked::Approval(tool) => json!({
                "request_id": self.request_id,
                "tool_call": {
                    "call_id": tool.call_id,
                    "tool_name": tool.tool_name,
                    "tool_kind": tool.tool_kind,
                    "arguments": tool.arguments,
                },
                "options": tool.options,
                "timeout_seconds": self.timeout_seconds,
            }),
            Asked::Form(form) => json!({
                "request_id": self.request_id,
                "message": form.message,
                "form": form.schema,
                "tool_call": {
                    "call_id": form.call_id,
                    "tool_name": FORM_TOOL,
                    "tool_kind": null,
                    "arguments": null,
                },
                "options": null,
                "timeout_seconds": self.timeout_seconds,
            }),
        }
    }

    /// The digest that tells the same question from another one under the same id. How long it
    /// stays open is no part of it: who asks again may have less time left.
    pub fn digest(&self) -> Digest {
        let mut request = self.request();
        request["timeout_seconds"] = Value::Null;
        let label = match self.asked {
            Asked::Approval(_) => "question",
            Asked::Form(_) => "form",
        };
        Digest::of_json(label, &request)
    }
}
