//! Interactions on the wire: open questions, answers, and the lists people answer from.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tapedeck_domain::interaction::{
    Answer, Interaction, InteractionKind, InteractionStatus, Reply, Scope,
};
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::{InteractionId, RunId, SessionId, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::check::Faults;
use crate::page::{self, Page, PageQuery, QueryFault};
use crate::schema;

/// A person's words beside an answer, in characters.
const FEEDBACK_CHARS: usize = 16_384;

/// A durable question and, later, its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InteractionResponse {
    /// The identifier.
    #[schema(value_type = Uuid)]
    pub interaction_id: InteractionId,
    /// The run that asks.
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// The attempt that asks.
    pub attempt: u32,
    /// The executor's id of the question.
    pub request_id: String,
    /// What is asked.
    #[schema(value_type = schema::InteractionKind)]
    pub kind: InteractionKind,
    /// How far it is.
    #[schema(value_type = schema::InteractionStatus)]
    pub status: InteractionStatus,
    /// The question as asked.
    #[schema(value_type = Object)]
    pub request: Value,
    /// The answer, `{approved, scope, feedback}`, and `response` of a filled-in form.
    #[schema(value_type = Option<Object>, required)]
    pub response: Option<Value>,
    /// When it was asked.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it expires.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    /// When it was answered or ended.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub resolved_at: Option<Timestamp>,
    /// Who or what answered.
    #[schema(required)]
    pub resolved_by: Option<String>,
}

impl From<&Interaction> for InteractionResponse {
    fn from(interaction: &Interaction) -> Self {
        Self {
            interaction_id: interaction.interaction_id,
            run_id: interaction.run_id,
            session_id: interaction.session_id,
            attempt: interaction.attempt,
            request_id: interaction.request_id.clone(),
            kind: interaction.kind,
            status: interaction.status,
            request: interaction.request.clone(),
            response: interaction.response.clone(),
            created_at: interaction.created_at,
            expires_at: interaction.expires_at,
            resolved_at: interaction.resolved_at,
            resolved_by: interaction.resolved_by.clone(),
        }
    }
}

/// Answer of `GET /interactions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InteractionList {
    /// Newest first.
    pub interactions: Vec<InteractionResponse>,
    /// The next page; null at the end.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// Query of `GET /interactions`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct InteractionsQuery {
    /// Only those in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::InteractionStatus>)]
    pub status: Option<String>,
    /// Only those of this session.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<Uuid>)]
    pub session_id: Option<String>,
    /// Items of one page, 1 to 200; 50 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    pub limit: Option<String>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A checked selection of interactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InteractionSelection {
    /// Only those in this state.
    pub status: Option<InteractionStatus>,
    /// Only those of this session.
    pub session_id: Option<SessionId>,
    /// The page.
    pub page: Page<InteractionId>,
}

impl InteractionsQuery {
    /// Checks every parameter.
    pub fn check(self) -> Result<InteractionSelection, QueryFault> {
        let status = page::word("status", self.status.as_deref())?;
        let session_id = page::id("session_id", self.session_id.as_deref())?;
        let page = PageQuery {
            limit: self.limit,
            cursor: self.cursor,
        }
        .check()?;
        Ok(InteractionSelection {
            status,
            session_id,
            page,
        })
    }
}

/// Body of `POST /interactions/{id}/resolve`: `approved`, or for a question its filled-in form, or
/// `declined`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResolveRequest {
    /// Yes or no to a tool.
    pub approved: Option<bool>,
    /// A question's form, filled in.
    #[schema(value_type = Option<Object>)]
    pub response: Option<Value>,
    /// True leaves a question's form blank.
    pub declined: Option<bool>,
    /// How far the answer to a tool reaches; `once` by default.
    #[schema(value_type = Option<schema::Scope>)]
    pub scope: Option<Scope>,
    /// What the person adds.
    pub feedback: Option<String>,
}

impl ResolveRequest {
    /// Checks every field.
    pub fn check(self) -> Result<Answer, Vec<FieldError>> {
        let mut faults = Faults::default();
        let scope = self.scope.unwrap_or(Scope::Once);
        let reply = match (self.approved, self.response, self.declined) {
            (Some(approved), None, None) => Reply::Approval { approved, scope },
            (None, Some(response), None) => {
                faults.json("response", &response);
                Reply::Response(response)
            }
            (None, None, Some(declined)) => {
                if !declined {
                    faults.add("declined", "must be true, or left out");
                }
                Reply::Declined
            }
            (None, None, None) => {
                let text = "must be given, or `response` or `declined` for a question";
                faults.add("approved", text);
                Reply::Declined
            }
            (Some(_), _, _) => {
                let text = "excludes `response` and `declined`; give one of them";
                faults.add("approved", text);
                Reply::Declined
            }
            (None, Some(_), Some(_)) => {
                faults.add("response", "excludes `declined`; give one of them");
                Reply::Declined
            }
        };
        if scope != Scope::Once && !matches!(reply, Reply::Approval { .. }) {
            let text = "must be `once`: the answer to a form stands for no other";
            faults.add("scope", text);
        }
        check_feedback(&mut faults, self.feedback.as_deref());
        faults.finish(Answer {
            reply,
            feedback: self.feedback,
        })
    }
}

/// Body of `POST /sessions/{id}/approve`, for older clients.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApproveRequest {
    /// The executor's id of the question.
    #[schema(required)]
    pub request_id: Option<String>,
    /// Yes or no.
    #[schema(required)]
    pub approved: Option<bool>,
    /// What the person adds.
    pub feedback: Option<String>,
    /// How far the answer reaches; `once` by default.
    #[schema(value_type = Option<schema::Scope>)]
    pub scope: Option<Scope>,
}

/// Query of `POST /sessions/{id}/approve`: what older clients say there instead of in the body.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ApproveQuery {
    /// The executor's id of the question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Yes or no.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<bool>)]
    pub approved: Option<String>,
    /// What the person adds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// How far the answer reaches.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::Scope>)]
    pub scope: Option<String>,
}

impl ApproveQuery {
    /// What is said, as fields of the body.
    pub fn check(self) -> Result<Map<String, Value>, QueryFault> {
        // Older clients write a boolean as their language does.
        let approved = match self
            .approved
            .map(|word| word.to_ascii_lowercase())
            .as_deref()
        {
            None => None,
            Some("true" | "1") => Some(true),
            Some("false" | "0") => Some(false),
            Some(_) => {
                return Err(QueryFault::parameter(
                    "approved",
                    "must be `true` or `false`",
                ));
            }
        };
        let scope = page::word::<Scope>("scope", self.scope.as_deref())?;
        let mut fields = Map::new();
        let mut say = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        say("request_id", self.request_id.map(Value::from));
        say("approved", approved.map(Value::from));
        say("feedback", self.feedback.map(Value::from));
        say("scope", scope.map(|scope| Value::from(scope.as_str())));
        Ok(fields)
    }
}

impl ApproveRequest {
    /// Checks every field; gives the question's id and the answer.
    pub fn check(self) -> Result<(String, Answer), Vec<FieldError>> {
        let mut faults = Faults::default();
        let request_id = faults.required("request_id", self.request_id);
        if self.approved.is_none() {
            faults.add("approved", "must be given");
        }
        check_feedback(&mut faults, self.feedback.as_deref());
        let answer = Answer {
            reply: Reply::Approval {
                approved: self.approved.unwrap_or(false),
                scope: self.scope.unwrap_or(Scope::Once),
            },
            feedback: self.feedback,
        };
        faults.finish((request_id, answer))
    }
}

fn check_feedback(faults: &mut Faults, feedback: Option<&str>) {
    if let Some(feedback) = feedback {
        faults.text("feedback", feedback, FEEDBACK_CHARS);
    }
}

/// Answer of `POST /sessions/{id}/approve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApproveResponse {
    /// `ok`.
    pub status: String,
    /// The executor's id of the question.
    pub request_id: String,
    /// `approved` or `denied`.
    #[schema(value_type = schema::InteractionStatus)]
    pub decision: InteractionStatus,
}

impl From<&Interaction> for ApproveResponse {
    fn from(interaction: &Interaction) -> Self {
        Self {
            status: "ok".to_owned(),
            request_id: interaction.request_id.clone(),
            decision: interaction.status,
        }
    }
}
