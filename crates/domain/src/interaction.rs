//! Interactions: durable questions with durable answers (design §4.7; rules R15).

use serde_json::{Value, json};

use crate::digest::Digest;
use crate::event::{Draft, EventKind};
use crate::id::{InteractionId, RunId, RunKey, SessionId};
use crate::rejection::Rejection;
use crate::session::{ApprovalPolicy, text_enum};
use crate::time::{LeaseInstant, Now, Timestamp};

text_enum! {
    /// What is asked.
    InteractionKind {
        /// May the tool run?
        Approval = "approval",
        /// A form by JSON schema.
        Question = "question",
    }
}

text_enum! {
    /// How far the question is.
    InteractionStatus {
        /// Waits for an answer.
        Pending = "pending",
        /// Yes.
        Approved = "approved",
        /// No.
        Denied = "denied",
        /// Nobody answered in time.
        Expired = "expired",
        /// Whoever asked is gone.
        Cancelled = "cancelled",
    }
}

text_enum! {
    /// How far an answer reaches.
    Scope {
        /// This question.
        Once = "once",
        /// Later matching questions of the session.
        Session = "session",
        /// Later matching questions of the namespace.
        Always = "always",
    }
}

/// A question and, later, its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interaction {
    /// The identifier.
    pub interaction_id: InteractionId,
    /// The run that asks.
    pub run_key: RunKey,
    /// The run that asks.
    pub run_id: RunId,
    /// The session.
    pub session_id: SessionId,
    /// The attempt that asks; another attempt asks anew.
    pub attempt: u32,
    /// The executor's id of the question, unique within the attempt.
    pub request_id: String,
    /// Digest of the question.
    pub request_digest: Digest,
    /// What is asked.
    pub kind: InteractionKind,
    /// How far it is.
    pub status: InteractionStatus,
    /// The question as asked: `tool_call`, `options`, …
    pub request: Value,
    /// The answer: `{approved, scope, feedback}`.
    pub response: Option<Value>,
    /// When it was asked.
    pub created_at: Timestamp,
    /// When it expires, for display.
    pub expires_at: Timestamp,
    /// When it expires, on the lease clock.
    pub deadline: LeaseInstant,
    /// When it was answered or ended.
    pub resolved_at: Option<Timestamp>,
    /// Who or what answered.
    pub resolved_by: Option<String>,
}

/// A question as an executor asks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The executor's id of the question.
    pub request_id: String,
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
    /// How long it stays open, in seconds.
    pub timeout_seconds: u32,
}

impl Question {
    /// The request as it is stored and shown.
    pub fn request(&self) -> Value {
        json!({
            "request_id": self.request_id,
            "tool_call": {
                "call_id": self.call_id,
                "tool_name": self.tool_name,
                "tool_kind": self.tool_kind,
                "arguments": self.arguments,
            },
            "options": self.options,
            "timeout_seconds": self.timeout_seconds,
        })
    }

    /// The digest that tells the same question from another one under the same id. How long it
    /// stays open is no part of it: who asks again may have less time left.
    pub fn digest(&self) -> Digest {
        let mut request = self.request();
        request["timeout_seconds"] = Value::Null;
        Digest::of_json("question", &request)
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Yes or no.
    pub approved: bool,
    /// How far it reaches.
    pub scope: Scope,
    /// What the person adds.
    pub feedback: Option<String>,
    /// A question's form, filled in.
    pub response: Option<Value>,
}

impl Answer {
    fn recorded(&self) -> Value {
        let mut value = json!({
            "approved": self.approved,
            "scope": self.scope,
            "feedback": self.feedback,
        });
        if let Some(response) = &self.response {
            value["response"] = response.clone();
        }
        value
    }

    const fn status(&self) -> InteractionStatus {
        if self.approved {
            InteractionStatus::Approved
        } else {
            InteractionStatus::Denied
        }
    }
}

/// A standing answer that covers a question, found by the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingRule {
    /// The session or the whole namespace.
    pub scope: Scope,
    /// The tool it covers.
    pub tool_name: String,
    /// The interaction whose answer made it.
    pub created_by: InteractionId,
}

/// What decides a question at the moment it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskContext<'a> {
    /// The session's policy.
    pub policy: ApprovalPolicy,
    /// Whether the run is being cancelled.
    pub cancelling: bool,
    /// A rule that covers the question.
    pub rule: Option<&'a StandingRule>,
}

/// Tool kinds that read only, in the words agents use over ACP.
const READ_ONLY_KINDS: &[&str] = &["read", "search", "think"];

/// Decides a new question at once where policy, a standing rule or a cancel already answers it:
/// gives status, answer and who answered, or `None` to leave it open.
pub fn immediate(
    question: &Question,
    context: &AskContext<'_>,
) -> Option<(InteractionStatus, Value, String)> {
    if context.cancelling {
        let answer = json!({"approved": false, "scope": Scope::Once, "feedback": "the run is being cancelled"});
        return Some((
            InteractionStatus::Cancelled,
            answer,
            "system:cancel".to_owned(),
        ));
    }
    let approved = |by: String| {
        let answer = json!({"approved": true, "scope": Scope::Once, "feedback": null});
        Some((InteractionStatus::Approved, answer, by))
    };
    if let Some(rule) = context.rule {
        return approved(format!("rule:{}:{}", rule.scope, rule.created_by));
    }
    match context.policy {
        ApprovalPolicy::Yolo => approved("policy:yolo".to_owned()),
        ApprovalPolicy::Auto
            if question
                .tool_kind
                .as_deref()
                .is_some_and(|kind| READ_ONLY_KINDS.contains(&kind)) =>
        {
            approved("policy:auto".to_owned())
        }
        ApprovalPolicy::Auto | ApprovalPolicy::Interactive => None,
    }
}

/// Checks that a question under a known id is the same question (R15).
pub fn same_question(stored: &Interaction, question: &Question) -> Result<(), Rejection> {
    if stored.request_digest == question.digest() {
        Ok(())
    } else {
        Err(Rejection::RequestIdConflict {
            request_id: question.request_id.clone(),
        })
    }
}

/// What answering gives.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one value a command, matched at once"
)]
pub enum Resolution {
    /// The first answer: write it and the event.
    First(Interaction, Draft),
    /// The same answer again: nothing to write.
    Repeated(Interaction),
}

/// Answers a question: the first answer wins, the same again is fine, another is refused.
pub fn resolve(
    mut stored: Interaction,
    answer: &Answer,
    by: &str,
    now: Now,
) -> Result<Resolution, Rejection> {
    if stored.kind == InteractionKind::Approval && answer.response.is_some() {
        // A form says neither yes nor no: nothing but `approved` may open a gate.
        let message = "is for a question's form; answer an approval with `approved`";
        return Err(Rejection::invalid("response", message));
    }
    let refused = Rejection::AlreadyResolved {
        interaction_id: stored.interaction_id,
        status: stored.status,
    };
    match stored.status {
        InteractionStatus::Pending if stored.deadline <= now.judged => {
            Err(Rejection::AlreadyResolved {
                interaction_id: stored.interaction_id,
                status: InteractionStatus::Expired,
            })
        }
        InteractionStatus::Pending => {
            stored.status = answer.status();
            stored.response = Some(answer.recorded());
            stored.resolved_at = Some(now.wall);
            stored.resolved_by = Some(by.to_owned());
            let event = response_event(&stored);
            Ok(Resolution::First(stored, event))
        }
        InteractionStatus::Approved | InteractionStatus::Denied => {
            if stored.response.as_ref() == Some(&answer.recorded()) {
                Ok(Resolution::Repeated(stored))
            } else {
                Err(refused)
            }
        }
        InteractionStatus::Expired | InteractionStatus::Cancelled => Err(refused),
    }
}

/// Ends an open question without an answer: its run is gone, or its time is over.
pub fn end(
    mut stored: Interaction,
    status: InteractionStatus,
    by: &str,
    now: Now,
) -> (Interaction, Draft) {
    stored.status = status;
    stored.resolved_at = Some(now.wall);
    stored.resolved_by = Some(by.to_owned());
    let event = response_event(&stored);
    (stored, event)
}

/// The `ApprovalRequest` event of a new question.
pub fn request_event(interaction: &Interaction) -> Draft {
    let mut payload = interaction.request.clone();
    payload["interaction_id"] = json!(interaction.interaction_id);
    // A policy or a standing rule may have answered at once; then nobody needs to be asked.
    payload["status"] = json!(interaction.status);
    let mut draft = Draft::server(EventKind::ApprovalRequest, payload)
        .of(interaction.run_key, interaction.run_id);
    draft.attempt = Some(interaction.attempt);
    draft
}

/// The `ApprovalResponse` event of an answered or ended question.
pub fn response_event(interaction: &Interaction) -> Draft {
    let response = interaction.response.as_ref();
    let field = |name: &str| {
        response
            .and_then(|answer| answer.get(name))
            .cloned()
            .unwrap_or(Value::Null)
    };
    let scope = response.and_then(|answer| answer.get("scope")).cloned();
    let payload = json!({
        "request_id": interaction.request_id,
        "interaction_id": interaction.interaction_id,
        "approved": interaction.status == InteractionStatus::Approved,
        "status": interaction.status,
        "feedback": field("feedback"),
        "scope": scope.unwrap_or_else(|| json!(Scope::Once)),
        "resolved_by": interaction.resolved_by,
    });
    let mut draft = Draft::server(EventKind::ApprovalResponse, payload)
        .of(interaction.run_key, interaction.run_id);
    draft.attempt = Some(interaction.attempt);
    draft
}

#[cfg(test)]
mod tests;
