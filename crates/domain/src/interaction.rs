//! Interactions: durable questions with durable answers (design §4.7; rules R15).

mod question;

use serde_json::{Value, json};

use crate::digest::Digest;
use crate::event::{Draft, EventKind};
use crate::form::Form;
use crate::id::{InteractionId, RunId, RunKey, SessionId};
use crate::rejection::Rejection;
use crate::rule::{ApprovalRule, Decision};
use crate::session::{ApprovalPolicy, text_enum};
use crate::time::{LeaseInstant, Now, Timestamp};

pub use question::{Asked, FormRequest, Question, ToolUse};

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
    /// The question as asked: `tool_call`, `options`, or `message`, `form`, …
    pub request: Value,
    /// The answer: `{approved, scope, feedback}`, and `response` of a filled-in form.
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

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What is answered.
    pub reply: Reply,
    /// What the person adds.
    pub feedback: Option<String>,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To a tool that wants to run.
    Approval {
        /// Yes or no.
        approved: bool,
        /// How far it reaches.
        scope: Scope,
    },
    /// To a form: filled in.
    Response(Value),
    /// To a form: left blank on purpose.
    Declined,
}

impl Reply {
    /// Makes it fit the kind of question. An older client says no to a form with `approved: false`;
    /// nothing but a filled-in form says yes to one, and nothing but `approved` opens a gate.
    fn to(self, kind: InteractionKind) -> Result<Self, Rejection> {
        match (kind, self) {
            (InteractionKind::Approval, reply @ Self::Approval { .. })
            | (InteractionKind::Question, reply @ (Self::Response(_) | Self::Declined)) => {
                Ok(reply)
            }
            (InteractionKind::Approval, Self::Response(_)) => Err(Rejection::invalid(
                "response",
                "is for a question's form; answer an approval with `approved`",
            )),
            (InteractionKind::Approval, Self::Declined) => Err(Rejection::invalid(
                "declined",
                "is for a question's form; answer an approval with `approved`",
            )),
            (InteractionKind::Question, Self::Approval { scope, .. }) if scope != Scope::Once => {
                let text = "must be `once`: the answer to a form stands for no other";
                Err(Rejection::invalid("scope", text))
            }
            (InteractionKind::Question, Self::Approval { approved: true, .. }) => {
                Err(Rejection::invalid(
                    "approved",
                    "fills in no form; answer with `response`, or with `declined`",
                ))
            }
            (
                InteractionKind::Question,
                Self::Approval {
                    approved: false, ..
                },
            ) => Ok(Self::Declined),
        }
    }

    /// Whether it says yes.
    pub const fn approves(&self) -> bool {
        match self {
            Self::Approval { approved, .. } => *approved,
            Self::Response(_) => true,
            Self::Declined => false,
        }
    }

    const fn status(&self) -> InteractionStatus {
        if self.approves() {
            InteractionStatus::Approved
        } else {
            InteractionStatus::Denied
        }
    }

    fn recorded(&self, feedback: Option<&str>) -> Value {
        let scope = match self {
            Self::Approval { scope, .. } => *scope,
            Self::Response(_) | Self::Declined => Scope::Once,
        };
        let mut value = json!({
            "approved": self.approves(),
            "scope": scope,
            "feedback": feedback,
        });
        if let Self::Response(response) = self {
            value["response"] = response.clone();
        }
        value
    }
}

/// What decides a question at the moment it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskContext<'a> {
    /// The session's policy.
    pub policy: ApprovalPolicy,
    /// Whether the run is being cancelled.
    pub cancelling: bool,
    /// A rule that covers the question.
    pub rule: Option<&'a ApprovalRule>,
}

/// Tool kinds that read only, in the words agents use over ACP.
const READ_ONLY_KINDS: &[&str] = &["read", "search", "think"];

/// Decides a new question at once where policy, a standing rule or a cancel already answers it:
/// gives status, answer and who answered, or `None` to leave it open.
///
/// A form is never answered for the person: neither a policy nor a rule knows what to write.
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
    let tool = match &question.asked {
        Asked::Approval(tool) => tool,
        Asked::Form(_) => return None,
    };
    let approved = |by: String| {
        let answer = json!({"approved": true, "scope": Scope::Once, "feedback": null});
        Some((InteractionStatus::Approved, answer, by))
    };
    if let Some(rule) = context.rule {
        return match rule.terms.decision {
            Decision::Allow => approved(rule.signature()),
            Decision::Deny => {
                let why = if rule.terms.looks_at_parts(tool) {
                    ": its arguments are too long to be seen whole"
                } else {
                    ""
                };
                let answer = json!({
                    "approved": false,
                    "scope": Scope::Once,
                    "feedback": format!("denied by approval rule {}{why}", rule.rule_id),
                });
                Some((InteractionStatus::Denied, answer, rule.signature()))
            }
        };
    }
    match context.policy {
        ApprovalPolicy::Yolo => approved("policy:yolo".to_owned()),
        ApprovalPolicy::Auto
            if tool
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
    let reply = answer.reply.clone().to(stored.kind)?;
    let recorded = reply.recorded(answer.feedback.as_deref());
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
            if let Reply::Response(response) = &reply {
                check_form(&stored, response)?;
            }
            stored.status = reply.status();
            stored.response = Some(recorded);
            stored.resolved_at = Some(now.wall);
            stored.resolved_by = Some(by.to_owned());
            let event = response_event(&stored);
            Ok(Resolution::First(stored, event))
        }
        InteractionStatus::Approved | InteractionStatus::Denied => {
            if stored.response.as_ref() == Some(&recorded) {
                Ok(Resolution::Repeated(stored))
            } else {
                Err(refused)
            }
        }
        InteractionStatus::Expired | InteractionStatus::Cancelled => Err(refused),
    }
}

/// Checks a filled-in form against the form as it was asked.
fn check_form(stored: &Interaction, response: &Value) -> Result<(), Rejection> {
    let form = Form::of_schema(&stored.request["form"]).map_err(Rejection::Invalid)?;
    form.check(response).map_err(Rejection::Invalid)
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
    payload["kind"] = json!(interaction.kind);
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
        "kind": interaction.kind,
        "approved": interaction.status == InteractionStatus::Approved,
        "status": interaction.status,
        "feedback": field("feedback"),
        "scope": scope.unwrap_or_else(|| json!(Scope::Once)),
        "response": field("response"),
        "resolved_by": interaction.resolved_by,
    });
    let mut draft = Draft::server(EventKind::ApprovalResponse, payload)
        .of(interaction.run_key, interaction.run_id);
    draft.attempt = Some(interaction.attempt);
    draft
}

#[cfg(test)]
mod tests;
