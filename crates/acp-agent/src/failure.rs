//! The errors of the protocol: which code a refusal has and what it says. An error never carries a
//! prompt.

use agent_client_protocol::{Error, ErrorCode};
use serde_json::json;
use tapedeck_client::Error as ClientError;
use tapedeck_domain::text::with_causes;
use tapedeck_protocol::ErrorCode as Refusal;

use crate::host::HostError;

/// What is wrong with a request's parameters.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(i32::from(ErrorCode::INVALID_PARAMS), message.into())
}

/// A request that doesn't fit what the session is doing.
pub(crate) fn unfit(message: impl Into<String>) -> Error {
    Error::new(i32::from(ErrorCode::INVALID_REQUEST), message.into())
}

/// Something failed that the editor can do nothing about.
pub(crate) fn failed(message: impl Into<String>) -> Error {
    Error::new(i32::from(ErrorCode::INTERNAL_ERROR), message.into())
}

/// A session that isn't known here.
pub(crate) fn unknown_session(id: &str) -> Error {
    let code = i32::from(ErrorCode::RESOURCE_NOT_FOUND);
    Error::new(code, format!("there is no session `{id}`")).data(json!({"sessionId": id}))
}

/// What is behind the facade can't be had.
pub(crate) fn of_host(error: &HostError) -> Error {
    failed(with_causes(error.as_ref()))
}

/// A refused or failed call about a session.
pub(crate) fn of_call(error: &ClientError, session: &str) -> Error {
    let Some(problem) = error.problem() else {
        return failed(with_causes(error));
    };
    let failure = match problem.code {
        Refusal::SessionNotFound => return unknown_session(session),
        Refusal::SessionBusy => unfit(
            "the session has a run in progress: wait for its end or cancel it, then try again",
        ),
        Refusal::Unauthorized => failed(format!(
            "{}: give it with `--token-file` where the editor starts `tapedeck acp`, or in `tapedeck \
             remote add … --replace`",
            problem.detail
        )),
        Refusal::SessionClosed => unfit("the session is closed and takes no more prompts"),
        _ if matches!(problem.status, 400 | 413 | 422) => invalid(problem.detail.clone()),
        _ if problem.status == 409 => unfit(problem.detail.clone()),
        _ => failed(problem.detail.clone()),
    };
    failure.data(json!({"code": problem.code}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapedeck_protocol::Problem;

    #[test]
    fn a_refusal_has_the_protocols_code() {
        for (code, expected) in [
            (Refusal::SessionNotFound, -32002),
            (Refusal::SessionBusy, -32600),
            (Refusal::SessionClosed, -32600),
            (Refusal::OwnedElsewhere, -32600),
            (Refusal::InvalidRequest, -32602),
            (Refusal::Unauthorized, -32603),
            (Refusal::Overloaded, -32603),
        ] {
            let error = ClientError::Problem(Box::new(Problem::new(code, "because")));
            let error = of_call(&error, "s");
            assert_eq!(i32::from(error.code), expected, "{code:?}");
            assert!(!error.message.is_empty());
        }
        let lost = ClientError::Transport {
            source: "it broke".into(),
            sent: true,
        };
        let error = of_call(&lost, "s");
        assert_eq!(error.message, "can't reach the server: it broke");
    }
}
