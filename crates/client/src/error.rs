//! What can go wrong with a call, and whether it may simply be made again.

use std::time::Duration;

use http::StatusCode;
use tapedeck_protocol::{Effects, ErrorCode, Problem};

use crate::call::Repeat;
use crate::connect::BoxError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused, and says why.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    /// An answer that is none of the interface's, e.g. from a proxy.
    #[error("the server answered {status}: {body}")]
    Unexpected {
        /// Its status.
        status: StatusCode,
        /// The beginning of its body.
        body: String,
    },
    /// The server could not be reached, or the connection broke.
    #[error("can't reach the server")]
    Transport {
        /// What happened.
        source: BoxError,
        /// Whether the request may have reached the server.
        sent: bool,
    },
    /// No answer came in time.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// What answers at the address is no server of ours.
    #[error("{url} does not answer like a Tapedeck server")]
    Foreign {
        /// The address.
        url: Box<str>,
        /// What its JSON lacks, where it is JSON at least.
        source: Option<serde_json::Error>,
    },
    /// The request could not be made.
    #[error("the request can't be made: {0}")]
    Request(String),
    /// The server broke the rules of a stream again and again.
    #[error("the stream breaks its rules: {0}")]
    Stream(String),
}

impl Error {
    /// The server's code, where it sent one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Problem(problem) => Some(problem.code),
            Self::Unexpected { .. }
            | Self::Transport { .. }
            | Self::Timeout(_)
            | Self::Foreign { .. }
            | Self::Request(_)
            | Self::Stream(_) => None,
        }
    }

    /// The problem document, where the server sent one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Unexpected { .. }
            | Self::Transport { .. }
            | Self::Timeout(_)
            | Self::Foreign { .. }
            | Self::Request(_)
            | Self::Stream(_) => None,
        }
    }

    /// The cursor to start again from, where one lies inside events that were folded into one.
    pub fn restart_after(&self) -> Option<u64> {
        self.problem()
            .and_then(|problem| problem.extensions.restart_after)
    }

    /// Whether the server may become reachable or able again: worth another try of a call that
    /// can't do harm twice.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Problem(problem) => problem.code.retryable(),
            Self::Unexpected { status, .. } => is_transient_status(*status),
            Self::Transport { .. } | Self::Timeout(_) => true,
            Self::Foreign { .. } | Self::Request(_) | Self::Stream(_) => false,
        }
    }

    /// How long the server asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.problem()
            .and_then(|problem| problem.retry_after_ms)
            .map(Duration::from_millis)
    }

    /// Whether nothing can have been changed by the failed call.
    fn is_without_effect(&self) -> bool {
        match self {
            Self::Problem(problem) => problem.code.effects() == Effects::None,
            Self::Transport { sent, .. } => !sent,
            Self::Request(_) => true,
            Self::Unexpected { .. } | Self::Foreign { .. } | Self::Timeout(_) | Self::Stream(_) => {
                false
            }
        }
    }

    /// Whether the send path makes the call again by itself.
    pub(crate) fn is_retried(&self, repeat: Repeat) -> bool {
        // Missing events don't arrive by asking again: the caller uploads them first.
        if self.code() == Some(ErrorCode::EventsMissing) {
            return false;
        }
        let harmless = match repeat {
            Repeat::Harmless => true,
            Repeat::IfWithoutEffect => self.is_without_effect(),
        };
        harmless && self.is_transient()
    }
}

pub(crate) fn is_transient_status(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}
