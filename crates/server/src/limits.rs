//! How much is taken at once, how large and for how long. What is too much is refused in the order
//! of stores §7: prompts and creates first, then new claims, then uploads; what keeps runs alive
//! last.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tapedeck_protocol::{ErrorCode, Problem, limits};
use tokio::sync::Semaphore;

use crate::body::BodyLimit;
use crate::problem::Fault;

/// How much the server takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Prompts, resumes and creates being admitted.
    pub admissions: usize,
    /// Claim polls being held.
    pub claims: usize,
    /// Uploads being taken.
    pub uploads: usize,
    /// Heartbeats, questions and completions.
    pub leases: usize,
    /// All other requests being answered; streams count until their first frame.
    pub requests: usize,
    /// How long an ordinary request may take to be answered.
    pub request_time: Duration,
}

impl Limits {
    /// What one process on ordinary hardware takes.
    pub const STANDARD: Self = Self {
        connections: 8_192,
        admissions: 256,
        claims: 4_096,
        uploads: 256,
        leases: 8_192,
        requests: 1_024,
        request_time: Duration::from_secs(30),
    };
}

/// Which requests are refused together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Prompts, resumes and creates.
    Admission,
    /// Claim polls; they may be held.
    Claim,
    /// Uploads of events and of a run's end.
    Upload,
    /// Heartbeats and questions, which may be held, and releases.
    Lease,
    /// Everything else.
    Other,
}

/// The bounds of one class.
#[derive(Debug)]
pub(crate) struct Bounds {
    class: Class,
    places: Semaphore,
    body_bytes: usize,
    answer_time: Option<Duration>,
}

impl Bounds {
    pub(crate) fn new(class: Class, limits: &Limits) -> Arc<Self> {
        let (places, body_bytes, is_held) = match class {
            Class::Admission => (limits.admissions, limits::BODY_BYTES, false),
            Class::Claim => (limits.claims, limits::BODY_BYTES, true),
            Class::Upload => (limits.uploads, limits::UPLOAD_BYTES, false),
            Class::Lease => (limits.leases, limits::BODY_BYTES, true),
            Class::Other => (limits.requests, limits::BODY_BYTES, false),
        };
        // An upload's time includes the arrival of up to 16 MiB.
        let time = match class {
            Class::Upload => limits.request_time * 2,
            Class::Admission | Class::Claim | Class::Lease | Class::Other => limits.request_time,
        };
        Arc::new(Self {
            class,
            places: Semaphore::new(places),
            body_bytes,
            answer_time: (!is_held).then_some(time),
        })
    }

    fn refusal(&self) -> Fault {
        match self.class {
            Class::Admission => Fault::overloaded(ErrorCode::Overloaded),
            Class::Claim => Fault::from(&tapedeck_domain::Rejection::NoRunAvailable),
            Class::Upload | Class::Lease | Class::Other => {
                Fault::overloaded(ErrorCode::Unavailable)
            }
        }
    }
}

/// Bounds a group of routes. A request that takes too long is answered; its command goes on, so its
/// outcome is unknown.
pub(crate) async fn bound(
    State(bounds): State<Arc<Bounds>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Ok(_place) = bounds.places.try_acquire() else {
        return bounds.refusal().into_response();
    };
    request
        .extensions_mut()
        .insert(BodyLimit(bounds.body_bytes));
    let Some(time) = bounds.answer_time else {
        return next.run(request).await;
    };
    match tokio::time::timeout(time, next.run(request)).await {
        Ok(response) => response,
        Err(_elapsed) => {
            let detail = "the server took too long; the request may still take effect";
            let problem = Problem::new(ErrorCode::Unavailable, detail).retry_after_ms(1_000);
            Fault::from(problem).into_response()
        }
    }
}
