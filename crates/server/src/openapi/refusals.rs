//! Which refusals an operation may answer. It is told from the operation's own shape, so that a new one
//! has its list at once; that the list is whole is for the fuzzer of the document to find out.

use std::collections::BTreeMap;

use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::problem::{MEDIA_TYPE, Problem};
use utoipa::openapi::path::{Operation, ParameterIn, PathItem};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, Response};

/// Names the refusals of every operation. What several have in common stands once in the document.
pub(super) fn add(document: &mut OpenApi) {
    let mut known: BTreeMap<(u16, Vec<ErrorCode>), String> = BTreeMap::new();
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations(item) {
            let shape = Shape::of(path, method, operation);
            let mut statuses: BTreeMap<u16, Vec<ErrorCode>> = BTreeMap::new();
            for code in ErrorCode::ALL.iter().filter(|code| shape.answers(**code)) {
                statuses.entry(code.status()).or_default().push(*code);
            }
            for (status, codes) in statuses {
                let number = known.keys().filter(|(other, _)| *other == status).count() + 1;
                let new = || format!("Refusal{status}-{number}");
                let name = known.entry((status, codes)).or_insert_with(new);
                let response = RefOr::Ref(Ref::from_response_name(name.as_str()));
                let responses = &mut operation.responses.responses;
                responses.insert(status.to_string(), response);
            }
        }
    }
    let components = document.components.get_or_insert_default();
    let named = known.into_iter();
    let named = named.map(|((_, codes), name)| (name, RefOr::T(response(&codes))));
    components.responses.extend(named);
}

/// The operations of a path with their methods.
pub(super) fn operations(
    item: &mut PathItem,
) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let operations = [
        ("get", &mut item.get),
        ("post", &mut item.post),
        ("patch", &mut item.patch),
        ("delete", &mut item.delete),
    ];
    let there = |(method, operation)| Some((method, Option::as_mut(operation)?));
    operations.into_iter().filter_map(there)
}

/// The codes of one status.
fn response(codes: &[ErrorCode]) -> Response {
    let lines = codes.iter().map(|code| {
        let title = code.title();
        format!("`{}`: {title}", code.as_str())
    });
    let mut content = Content::new(Some(Ref::from_schema_name("Problem")));
    if let Some(code) = codes.first() {
        let problem = Problem::new(*code, code.title());
        content.example = serde_json::to_value(problem).ok();
    }
    let mut response = Response::new(lines.collect::<Vec<_>>().join("\n"));
    response
        .content
        .insert(MEDIA_TYPE.to_owned(), RefOr::T(content));
    response
}

/// What an operation looks like from outside.
struct Shape<'a> {
    path: &'a str,
    method: &'static str,
    has_body: bool,
    has_key: bool,
    /// The parameters of its query.
    query: Vec<String>,
    is_stream: bool,
}

impl<'a> Shape<'a> {
    fn of(path: &'a str, method: &'static str, operation: &Operation) -> Self {
        let parameters = operation.parameters.iter().flatten();
        let parameters = parameters.filter_map(|parameter| match parameter {
            RefOr::T(parameter) => Some(parameter),
            RefOr::Ref(_) => None,
        });
        let named = |place: ParameterIn| {
            let there = parameters
                .clone()
                .filter(move |it| it.parameter_in == place);
            there.map(|parameter| parameter.name.clone()).collect()
        };
        let headers: Vec<String> = named(ParameterIn::Header);
        let has_stream = |response: &RefOr<Response>| match response {
            RefOr::T(response) => response.content.contains_key("text/event-stream"),
            RefOr::Ref(_) => false,
        };
        Self {
            path,
            method,
            has_body: operation.request_body.is_some(),
            has_key: headers.iter().any(|name| name == "Idempotency-Key"),
            query: named(ParameterIn::Query),
            is_stream: operation.responses.responses.values().any(has_stream),
        }
    }

    fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path == path
    }

    /// Whether a word of its path or a parameter of its query is this.
    fn names(&self, word: &str) -> bool {
        let has_part = |part: &str| part.trim_matches(['{', '}']) == word;
        self.path.split('/').any(has_part) || self.query.iter().any(|name| name == word)
    }

    fn is_write(&self) -> bool {
        self.method != "get"
    }

    /// Whether it proves a claim.
    fn is_claimed(&self) -> bool {
        self.path.starts_with("/executor/runs/{run_id}/")
    }

    /// Whether it changes a session, or what belongs to one.
    fn writes_session(&self) -> bool {
        let person = self.names("session_id") || self.names("run_id") || self.names("resolve");
        self.is_write() && person && !self.is_claimed()
    }

    fn answers(&self, code: ErrorCode) -> bool {
        match code {
            ErrorCode::Draining
            | ErrorCode::Forbidden
            | ErrorCode::HostForbidden
            | ErrorCode::Internal
            | ErrorCode::MalformedRequest
            | ErrorCode::OriginForbidden
            | ErrorCode::Overloaded
            | ErrorCode::Unauthorized
            | ErrorCode::Unavailable => true,
            // Of no operation.
            ErrorCode::MethodNotAllowed | ErrorCode::RouteNotFound => false,
            ErrorCode::BodyTooLarge | ErrorCode::UnsupportedMediaType => self.has_body,
            ErrorCode::InvalidRequest => self.has_body || !self.query.is_empty(),
            ErrorCode::IdempotencyConflict => self.has_key,
            ErrorCode::StorageFull => self.is_write(),
            ErrorCode::CursorMalformed => self.is_stream || self.names("cursor"),
            ErrorCode::CursorExpired | ErrorCode::CursorFuture | ErrorCode::LogChanged => {
                self.is_stream
            }
            ErrorCode::SessionNotFound => {
                // What a request made that is sent again may have been deleted since.
                let of_a_body = self.is("post", "/approval-rules") || self.is("post", "/sessions");
                self.names("session_id") || of_a_body
            }
            ErrorCode::RunNotFound => self.names("run_id"),
            ErrorCode::InteractionNotFound => self.names("interaction_id") || self.names("approve"),
            ErrorCode::RuleNotFound => self.names("rule_id"),
            ErrorCode::TokenNotFound => self.names("token_id"),
            ErrorCode::ExecutorNotFound => self.names("executor_id"),
            ErrorCode::CheckpointNotFound | ErrorCode::CheckpointSuperseded => {
                self.names("checkpoint_id") || self.names("fork")
            }
            ErrorCode::SnapshotNotFound => self.method == "get" && self.names("snapshot"),
            ErrorCode::ArtifactNotFound => self.names("diff") || self.names("patch"),
            ErrorCode::NoRunAvailable => self.names("claim"),
            ErrorCode::ClaimLost => self.is_claimed() || self.names("claim"),
            ErrorCode::ClaimTokenInvalid | ErrorCode::RunCancelling => self.is_claimed(),
            ErrorCode::RunSettled => self.is_claimed() || self.writes_session(),
            ErrorCode::ArtifactConflict => self.names("artifacts"),
            ErrorCode::EntryIdConflict => {
                self.is_claimed() && (self.names("tape") || self.names("complete"))
            }
            ErrorCode::EventIdConflict => self.is_claimed() && self.names("events"),
            ErrorCode::EventsMissing => self.names("complete"),
            ErrorCode::RequestIdConflict => {
                self.is_claimed() && (self.names("approval") || self.names("question"))
            }
            ErrorCode::RunHasOutput => self.names("release"),
            ErrorCode::AlreadyResolved => self.names("resolve") || self.names("approve"),
            ErrorCode::RuleLimit => {
                let answers = self.names("resolve") || self.names("approve");
                answers || self.is("post", "/approval-rules")
            }
            ErrorCode::TokenNameTaken => self.is("post", "/tokens"),
            ErrorCode::ExecutorNotOffline => self.is("delete", "/executors/{executor_id}"),
            ErrorCode::NothingToResume => self.names("resume"),
            ErrorCode::QueueFull => self.names("prompt") || self.names("resume"),
            ErrorCode::OwnedElsewhere
            | ErrorCode::OwnerLeaseExpired
            | ErrorCode::SessionBusy
            | ErrorCode::SessionClosed
            | ErrorCode::StaleEpoch => self.writes_session(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::routes;

    #[test]
    fn every_code_but_those_of_no_operation_is_some_operations() {
        let (_, mut document) = routes::all(&Limits::STANDARD).split_for_parts();
        let mut shapes = Vec::new();
        for (path, item) in &mut document.paths.paths {
            shapes.extend(operations(item).map(|(method, it)| Shape::of(path, method, it)));
        }
        for code in ErrorCode::ALL {
            let count = shapes.iter().filter(|shape| shape.answers(*code)).count();
            let of_none = matches!(code, ErrorCode::MethodNotAllowed | ErrorCode::RouteNotFound);
            assert_eq!(count == 0, of_none, "{code:?}");
        }
    }
}
