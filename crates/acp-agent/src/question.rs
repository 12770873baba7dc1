//! An agent's questions, put to the person at the editor. It owns how a question looks there and what
//! the answer means here; who answers first is decided by the control plane. A question that the
//! editor can't show stays open for somebody elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    CreateElicitationRequest, ElicitationAction, ElicitationFormMode, ElicitationSchema,
    ElicitationSessionScope, PermissionOption, PermissionOptionKind, RequestPermissionOutcome,
    RequestPermissionRequest, SessionId, ToolCallUpdate,
};
use agent_client_protocol::{Client as Editor, Error};
use serde_json::{Value, json};
use tapedeck_client::Client;
use tapedeck_domain::interaction::Scope;
use tapedeck_domain::{InteractionId, RunId};
use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::interaction::ResolveRequest;

/// Between two tries to send an answer, beside those of a call itself.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// What a person can say to a tool: id, words, kind, and the answer that it is.
const OPTIONS: [(&str, &str, PermissionOptionKind, bool, Scope); 4] = [
    (
        "allow-once",
        "Allow once",
        PermissionOptionKind::AllowOnce,
        true,
        Scope::Once,
    ),
    (
        "allow-session",
        "Allow for this session",
        PermissionOptionKind::AllowAlways,
        true,
        Scope::Session,
    ),
    (
        "allow-always",
        "Always allow",
        PermissionOptionKind::AllowAlways,
        true,
        Scope::Always,
    ),
    (
        "reject-once",
        "Reject",
        PermissionOptionKind::RejectOnce,
        false,
        Scope::Once,
    ),
];

/// An open question.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) id: InteractionId,
    pub(crate) run_id: RunId,
    /// As it was asked.
    pub(crate) request: Value,
}

/// How a question left the editor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// It was answered, here or elsewhere.
    Answered,
    /// The person ended the turn instead.
    Cancelled,
    /// The answer doesn't fit the question, which is asked again.
    Unfit,
    /// The editor can't ask it, or has answered what can't be read.
    Unasked,
}

/// What is put to the person.
#[derive(Debug)]
pub(crate) enum Asking {
    Permission(Box<RequestPermissionRequest>),
    Form(Box<CreateElicitationRequest>),
}

impl Question {
    /// Whether it is a form to fill in.
    pub(crate) fn is_form(&self) -> bool {
        self.request["form"].is_object()
    }

    /// A question about a tool.
    pub(crate) fn permission(session: SessionId, call: ToolCallUpdate) -> Asking {
        let options = OPTIONS
            .iter()
            .map(|(id, name, kind, ..)| PermissionOption::new(*id, *name, *kind))
            .collect();
        Asking::Permission(Box::new(RequestPermissionRequest::new(
            session, call, options,
        )))
    }

    /// A form, if the protocol's types take it.
    pub(crate) fn form(&self, session: SessionId, call: Option<ToolCallUpdate>) -> Option<Asking> {
        let schema: ElicitationSchema =
            serde_json::from_value(self.request["form"].clone()).ok()?;
        let scope = ElicitationSessionScope::new(session);
        let scope = scope.tool_call_id(call.map(|call| call.tool_call_id));
        let message = self.request["message"].as_str().unwrap_or_default();
        let request =
            CreateElicitationRequest::new(ElicitationFormMode::new(scope, schema), message);
        Some(Asking::Form(Box::new(request)))
    }
}

impl Asking {
    /// Asks. Whoever drops this withdraws the question from the editor.
    pub(crate) async fn answer(self, editor: ConnectionTo<Editor>) -> Answer {
        Answer(match self {
            Self::Permission(request) => {
                let answer = editor.send_request(*request).block_task().await;
                answer.map(|answer| permission(&answer.outcome))
            }
            Self::Form(request) => {
                let answer = editor.send_request(*request).block_task().await;
                answer.map(|answer| Some(form(&answer.action)))
            }
        })
    }
}

/// What the editor has answered; none if the turn was ended instead.
#[derive(Debug)]
pub(crate) struct Answer(Result<Option<ResolveRequest>, Error>);

impl Answer {
    /// Hands the answer on.
    pub(crate) async fn send(self, client: &Client, id: InteractionId) -> Left {
        match self.0 {
            Ok(Some(answer)) => resolve(client, id, &answer).await,
            Ok(None) => Left::Cancelled,
            Err(error) => unasked(&error),
        }
    }
}

/// The answer to a tool; none if the turn was cancelled instead.
fn permission(outcome: &RequestPermissionOutcome) -> Option<ResolveRequest> {
    let RequestPermissionOutcome::Selected(selected) = outcome else {
        return None;
    };
    let chosen = selected.option_id.0.as_ref();
    // What was never offered allows nothing.
    let (approved, scope) = OPTIONS
        .iter()
        .find(|(id, ..)| *id == chosen)
        .map_or((false, Scope::Once), |(.., approved, scope)| {
            (*approved, *scope)
        });
    Some(ResolveRequest {
        approved: Some(approved),
        scope: Some(scope),
        ..ResolveRequest::default()
    })
}

/// The answer to a form. One that is put away unanswered is left blank: the agent has to go on.
fn form(action: &ElicitationAction) -> ResolveRequest {
    let ElicitationAction::Accept(accepted) = action else {
        return ResolveRequest {
            declined: Some(true),
            ..ResolveRequest::default()
        };
    };
    let nothing = BTreeMap::new();
    let content = accepted.content.as_ref().unwrap_or(&nothing);
    ResolveRequest {
        response: Some(json!(content)),
        ..ResolveRequest::default()
    }
}

/// Sends an answer until the server has it: nobody answers twice because a server restarts.
async fn resolve(client: &Client, id: InteractionId, answer: &ResolveRequest) -> Left {
    loop {
        let Err(error) = client.resolve(id, answer).await else {
            return Left::Answered;
        };
        tracing::warn!(interaction.id = %id, %error, "an answer was not taken");
        match error.code() {
            // Somebody was faster, or the question has ended; the log tells how.
            Some(ErrorCode::AlreadyResolved) => return Left::Answered,
            Some(ErrorCode::InvalidRequest) => return Left::Unfit,
            _ if error.is_transient() => tokio::time::sleep(BETWEEN_TRIES).await,
            _ => return Left::Unasked,
        }
    }
}

fn unasked(error: &Error) -> Left {
    tracing::debug!(code = %i32::from(error.code), "the editor doesn't ask a question");
    Left::Unasked
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_client_protocol::v1::schema::SelectedPermissionOutcome;

    fn selected(option: &'static str) -> ResolveRequest {
        let outcome = SelectedPermissionOutcome::new(option);
        permission(&RequestPermissionOutcome::Selected(outcome)).unwrap()
    }

    #[test]
    fn every_option_is_an_answer_of_its_reach() {
        for (option, approved, scope) in [
            ("allow-once", true, Scope::Once),
            ("allow-session", true, Scope::Session),
            ("allow-always", true, Scope::Always),
            ("reject-once", false, Scope::Once),
            ("never-offered", false, Scope::Once),
        ] {
            let answer = selected(option);
            assert_eq!(
                (answer.approved, answer.scope),
                (Some(approved), Some(scope)),
                "{option}"
            );
            answer.check().unwrap();
        }
        assert_eq!(permission(&RequestPermissionOutcome::Cancelled), None);
    }

    #[test]
    fn a_form_is_sent_filled_in_or_left_blank() {
        let accepted = json!({"action": "accept", "content": {"name": "x", "count": 2}});
        let action: ElicitationAction = serde_json::from_value(accepted).unwrap();
        let answer = form(&action);
        assert_eq!(answer.response, Some(json!({"name": "x", "count": 2})));
        for word in ["decline", "cancel"] {
            let action = serde_json::from_value(json!({"action": word})).unwrap();
            let answer = form(&action);
            assert_eq!(
                (answer.declined, answer.response),
                (Some(true), None),
                "{word}"
            );
        }
    }
}
