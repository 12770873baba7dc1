//! The one way from an error to an answer. What the caller may know goes out as a problem document;
//! what it may not is logged here, once, with the request's id, and nowhere else.

use std::error::Error as StdError;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use tapedeck_control_plane::{CursorError, Error, StoreError, Target};
use tapedeck_domain::Rejection;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::event::OLDEST_SEQ;
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::text::with_causes;
use tapedeck_protocol::page::QueryFault;
use tapedeck_protocol::problem::{Extensions, MEDIA_TYPE};
use tapedeck_protocol::{ErrorCode, Problem};

/// When to come back after an overload, in milliseconds.
const RETRY_MS: u64 = 1_000;
/// When to come back to a full disk, in milliseconds.
const FULL_DISK_RETRY_MS: u64 = 5_000;

/// An answer that is an error, with its source for the log.
#[derive(Debug, Clone)]
pub(crate) struct Fault(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    problem: Problem,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Fault {
    pub(crate) fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self::from(Problem::new(code, detail))
    }

    /// JSON that breaks rules.
    pub(crate) fn invalid(errors: &[FieldError]) -> Self {
        Self::from(Problem::invalid(errors))
    }

    /// A path or a query whose values can't be used.
    pub(crate) fn malformed(path: &str, message: &str) -> Self {
        Self::from(Problem::malformed(&[FieldError::new(path, message)]))
    }

    /// More than the server takes at once.
    pub(crate) fn overloaded(code: ErrorCode) -> Self {
        let problem = Problem::new(code, "the server has too much to do; try again shortly");
        Self::from(problem.retry_after_ms(RETRY_MS))
    }

    /// A fault of the server whose cause the caller may not see.
    pub(crate) fn internal(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let detail = "the server failed; its log names this request";
        Self::new(ErrorCode::Internal, detail).caused_by(source)
    }

    fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// The answer to a create, a prompt or a resume: overload is 429 (api.md, Errors).
    pub(crate) fn of_admission(error: Error) -> Self {
        let mut fault = Self::from(error);
        if fault.is_overload() {
            let source = fault.0.source.take();
            fault = Self::overloaded(ErrorCode::Overloaded);
            fault.0.source = source;
        }
        if fault.0.problem.code == ErrorCode::SessionBusy {
            let allowed = [OnActive::Enqueue, OnActive::Interrupt];
            let words = allowed.iter().map(|policy| policy.as_str().to_owned());
            fault.0.problem.extensions.on_active_allowed = Some(words.collect());
        }
        fault
    }

    /// The answer to a claim: overload stops handing out work, which is 404 (stores §7).
    pub(crate) fn of_claim(error: Error) -> Self {
        let mut fault = Self::from(error);
        if fault.is_overload() {
            let source = fault.0.source.take();
            fault = Self::from(&Rejection::NoRunAvailable);
            fault.0.source = source;
        }
        fault
    }

    /// Whether the store has too much to do.
    fn is_overload(&self) -> bool {
        let source = self.0.source.as_ref();
        source.is_some_and(|source| {
            matches!(
                source.downcast_ref::<StoreError>(),
                Some(StoreError::Overloaded { .. })
            )
        })
    }

    pub(crate) fn extensions(&mut self) -> &mut Extensions {
        &mut self.0.problem.extensions
    }

    fn log(&self, request_id: &str) {
        let code = self.0.problem.code.as_str();
        let Some(source) = &self.0.source else {
            return;
        };
        let chain = with_causes(source.as_ref());
        if self.0.problem.status >= 500 && self.0.problem.code != ErrorCode::Draining {
            tracing::error!(request_id, code, error = chain, "request.failed");
        } else {
            tracing::debug!(request_id, code, error = chain, "request.refused");
        }
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Self(Box::new(Inner {
            problem,
            source: None,
        }))
    }
}

impl From<&Rejection> for Fault {
    fn from(rejection: &Rejection) -> Self {
        Self::from(Problem::from(rejection))
    }
}

impl From<QueryFault> for Fault {
    fn from(fault: QueryFault) -> Self {
        Self::from(Problem::from(fault))
    }
}

impl From<Vec<FieldError>> for Fault {
    fn from(errors: Vec<FieldError>) -> Self {
        Self::invalid(&errors)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Rejected(rejection) => Self::from(&rejection),
            Error::NotFound(target) => Self::from(target),
            Error::Cursor(error) => {
                let detail = error.to_string();
                match error {
                    CursorError::Future { after: _, head_seq } => {
                        let mut fault = Self::new(ErrorCode::CursorFuture, detail);
                        fault.extensions().head_seq = Some(head_seq);
                        fault
                    }
                    CursorError::Folded {
                        after: _,
                        restart_after,
                    } => {
                        let mut fault = Self::new(ErrorCode::CursorExpired, detail);
                        fault.extensions().restart_after = Some(restart_after);
                        fault.extensions().oldest_seq = Some(OLDEST_SEQ);
                        fault
                    }
                    CursorError::LogChanged {
                        cursor_log_id: _,
                        log_id,
                    } => {
                        let mut fault = Self::new(ErrorCode::LogChanged, detail);
                        fault.extensions().log_id = Some(log_id);
                        fault
                    }
                    CursorError::FeedFuture => Self::new(ErrorCode::CursorFuture, detail),
                }
            }
            Error::Draining => {
                let detail = "the server is shutting down; connect again";
                Self::from(Problem::new(ErrorCode::Draining, detail).retry_after_ms(RETRY_MS))
            }
            Error::Store(error) => Self::from(error),
        }
    }
}

impl From<Target> for Fault {
    fn from(target: Target) -> Self {
        let (code, word) = match target {
            Target::Session => (ErrorCode::SessionNotFound, "session"),
            Target::Run => (ErrorCode::RunNotFound, "run"),
            Target::Interaction => (ErrorCode::InteractionNotFound, "interaction"),
            Target::Rule => (ErrorCode::RuleNotFound, "approval rule"),
            Target::Checkpoint => (ErrorCode::CheckpointNotFound, "checkpoint"),
            Target::Snapshot => (ErrorCode::SnapshotNotFound, "snapshot"),
            Target::Executor => (ErrorCode::ExecutorNotFound, "executor"),
            Target::Token => (ErrorCode::TokenNotFound, "token"),
            Target::Changes => {
                let detail = "no changes were told: the workspace is in no git repository, or they \
                              couldn't be followed, and the run's `result.changes` says why";
                return Self::new(ErrorCode::ArtifactNotFound, detail);
            }
        };
        Self::new(code, format!("there is no such {word}"))
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        let fault = match &error {
            StoreError::Overloaded { .. } => Self::overloaded(ErrorCode::Unavailable),
            StoreError::Unavailable { .. } => {
                let detail = "the server's store is away; try again shortly";
                let problem = Problem::new(ErrorCode::Unavailable, detail);
                Self::from(problem.retry_after_ms(RETRY_MS))
            }
            StoreError::OutcomeUnknown { .. } => {
                let detail = "nobody knows whether the request took effect; with an \
                              `Idempotency-Key` it can be sent again safely";
                let problem = Problem::new(ErrorCode::Unavailable, detail);
                Self::from(problem.retry_after_ms(RETRY_MS))
            }
            StoreError::StorageFull => {
                let problem = Problem::new(ErrorCode::StorageFull, error.to_string());
                Self::from(problem.retry_after_ms(FULL_DISK_RETRY_MS))
            }
            StoreError::NoDatabase(_)
            | StoreError::Damaged { .. }
            | StoreError::Inconsistent { .. }
            | StoreError::SchemaTooNew { .. }
            | StoreError::SchemaTooOld { .. }
            | StoreError::Locked(_)
            | StoreError::Internal(_) => return Self::internal(error),
        };
        fault.caused_by(error)
    }
}

impl IntoResponse for Fault {
    /// The status alone; [`render`] writes the document, which names the request.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::from_u16(self.0.problem.status)
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the problem document of an answer that is an error, and logs its source. Gives the code.
pub(crate) fn render(response: &mut Response, request_id: &str) -> Option<ErrorCode> {
    let mut fault = response.extensions_mut().remove::<Fault>()?;
    fault.log(request_id);
    let problem = &mut fault.0.problem;
    problem.request_id = Some(request_id.to_owned());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    if let Some(ms) = problem.retry_after_ms {
        headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000)));
    }
    if problem.code == ErrorCode::Unauthorized {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    // A problem document is made of texts and numbers, which always serialise.
    *response.body_mut() = Body::from(serde_json::to_vec(&problem).unwrap_or_default());
    Some(problem.code)
}
