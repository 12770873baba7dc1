//! The closed list of error codes and what each means for a caller. It never holds a text about one
//! request; that is the problem document's.

use serde::{Deserialize, Serialize};
use tapedeck_domain::Rejection;
use utoipa::ToSchema;

const BAD_REQUEST: u16 = 400;
const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const METHOD_NOT_ALLOWED: u16 = 405;
const CONFLICT: u16 = 409;
const GONE: u16 = 410;
const PAYLOAD_TOO_LARGE: u16 = 413;
const UNSUPPORTED_MEDIA_TYPE: u16 = 415;
const UNPROCESSABLE: u16 = 422;
const TOO_MANY_REQUESTS: u16 = 429;
const INTERNAL: u16 = 500;
const UNAVAILABLE: u16 = 503;

/// What a refused request may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effects {
    /// Nothing.
    None,
    /// Nobody knows: the write may have been committed before the failure.
    Unknown,
}

/// Why a request was refused, in one word.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The question has its answer, or ended without one.
    AlreadyResolved,
    /// An artifact came again with another content.
    ArtifactConflict,
    /// The run told of no such thing.
    ArtifactNotFound,
    /// The body is larger than the endpoint takes.
    BodyTooLarge,
    /// There is no such checkpoint.
    CheckpointNotFound,
    /// The checkpoint was put aside by a restore, or deleted.
    CheckpointSuperseded,
    /// The claim is an earlier one or its lease has ended: stop now.
    ClaimLost,
    /// The token was never this run's.
    ClaimTokenInvalid,
    /// The cursor lies before what is kept.
    CursorExpired,
    /// The cursor lies beyond the end of the log.
    CursorFuture,
    /// The cursor can't be read.
    CursorMalformed,
    /// The server is shutting down.
    Draining,
    /// A tape entry's id came again with another content, run or session.
    EntryIdConflict,
    /// An event id came again with another content.
    EventIdConflict,
    /// Fewer events have arrived than the executor sent.
    EventsMissing,
    /// There is no such executor.
    ExecutorNotFound,
    /// The executor is not offline, so it can't be forgotten.
    ExecutorNotOffline,
    /// The caller's role doesn't reach that far.
    Forbidden,
    /// The `Host` header is not one this server answers to.
    HostForbidden,
    /// The idempotency key was used with another body.
    IdempotencyConflict,
    /// There is no such interaction.
    InteractionNotFound,
    /// A fault of the server.
    Internal,
    /// The request is well-formed and breaks a rule.
    InvalidRequest,
    /// The cursor is of another log.
    LogChanged,
    /// The body is no JSON, or the path or the query can't be read.
    MalformedRequest,
    /// The resource doesn't take this method.
    MethodNotAllowed,
    /// No run that this executor may take is waiting.
    NoRunAvailable,
    /// There is no settled run to go on from.
    NothingToResume,
    /// The `Origin` header is not one this server answers to.
    OriginForbidden,
    /// Too much is waiting already.
    Overloaded,
    /// Another owner's lease on the session is live.
    OwnedElsewhere,
    /// The lease of the presented epoch has ended.
    OwnerLeaseExpired,
    /// Too many runs wait in the session.
    QueueFull,
    /// A request id came again with another question.
    RequestIdConflict,
    /// There is no such endpoint.
    RouteNotFound,
    /// Too many approval rules stand.
    RuleLimit,
    /// There is no such approval rule.
    RuleNotFound,
    /// The run is being cancelled and can't be given back.
    RunCancelling,
    /// The run has output and can't be given back.
    RunHasOutput,
    /// There is no such run.
    RunNotFound,
    /// The run is settled: stop now.
    RunSettled,
    /// A run of the session is active.
    SessionBusy,
    /// The session takes no more runs.
    SessionClosed,
    /// There is no such session.
    SessionNotFound,
    /// The run has reported no messages.
    SnapshotNotFound,
    /// The presented epoch is not the owner's.
    StaleEpoch,
    /// The disk is full.
    StorageFull,
    /// A live token has the name already.
    TokenNameTaken,
    /// There is no such token.
    TokenNotFound,
    /// The credential is missing or wrong.
    Unauthorized,
    /// The store can't be reached or is too busy.
    Unavailable,
    /// The body's media type is not JSON.
    UnsupportedMediaType,
}

impl ErrorCode {
    /// Every code, in alphabetical order.
    pub const ALL: &[Self] = &[
        Self::AlreadyResolved,
        Self::ArtifactConflict,
        Self::ArtifactNotFound,
        Self::BodyTooLarge,
        Self::CheckpointNotFound,
        Self::CheckpointSuperseded,
        Self::ClaimLost,
        Self::ClaimTokenInvalid,
        Self::CursorExpired,
        Self::CursorFuture,
        Self::CursorMalformed,
        Self::Draining,
        Self::EntryIdConflict,
        Self::EventIdConflict,
        Self::EventsMissing,
        Self::ExecutorNotFound,
        Self::ExecutorNotOffline,
        Self::Forbidden,
        Self::HostForbidden,
        Self::IdempotencyConflict,
        Self::InteractionNotFound,
        Self::Internal,
        Self::InvalidRequest,
        Self::LogChanged,
        Self::MalformedRequest,
        Self::MethodNotAllowed,
        Self::NoRunAvailable,
        Self::NothingToResume,
        Self::OriginForbidden,
        Self::Overloaded,
        Self::OwnedElsewhere,
        Self::OwnerLeaseExpired,
        Self::QueueFull,
        Self::RequestIdConflict,
        Self::RouteNotFound,
        Self::RuleLimit,
        Self::RuleNotFound,
        Self::RunCancelling,
        Self::RunHasOutput,
        Self::RunNotFound,
        Self::RunSettled,
        Self::SessionBusy,
        Self::SessionClosed,
        Self::SessionNotFound,
        Self::SnapshotNotFound,
        Self::StaleEpoch,
        Self::StorageFull,
        Self::TokenNameTaken,
        Self::TokenNotFound,
        Self::Unauthorized,
        Self::Unavailable,
        Self::UnsupportedMediaType,
    ];

    /// The code of a domain rejection.
    pub const fn of(rejection: &Rejection) -> Self {
        match rejection {
            Rejection::AlreadyResolved { .. } => Self::AlreadyResolved,
            Rejection::ArtifactConflict { .. } => Self::ArtifactConflict,
            Rejection::CheckpointSuperseded { .. } => Self::CheckpointSuperseded,
            Rejection::ClaimLost => Self::ClaimLost,
            Rejection::ClaimTokenInvalid => Self::ClaimTokenInvalid,
            Rejection::EntryIdConflict { .. } => Self::EntryIdConflict,
            Rejection::EventIdConflict { .. } => Self::EventIdConflict,
            Rejection::EventsMissing { .. } => Self::EventsMissing,
            // To an executor they are the same: nothing for it now, ask again.
            Rejection::ExecutorDraining { .. }
            | Rejection::ExecutorFull { .. }
            | Rejection::NoRunAvailable => Self::NoRunAvailable,
            Rejection::ExecutorNotOffline { .. } => Self::ExecutorNotOffline,
            Rejection::IdempotencyConflict => Self::IdempotencyConflict,
            Rejection::Invalid(_) => Self::InvalidRequest,
            Rejection::NothingToResume => Self::NothingToResume,
            Rejection::OwnedElsewhere { .. } => Self::OwnedElsewhere,
            Rejection::OwnerLeaseExpired => Self::OwnerLeaseExpired,
            Rejection::QueueFull { .. } => Self::QueueFull,
            Rejection::RequestIdConflict { .. } => Self::RequestIdConflict,
            Rejection::RuleLimit { .. } => Self::RuleLimit,
            Rejection::RunCancelling => Self::RunCancelling,
            Rejection::RunHasOutput => Self::RunHasOutput,
            Rejection::RunSettled { .. } => Self::RunSettled,
            Rejection::SessionBusy { .. } => Self::SessionBusy,
            Rejection::SessionClosed => Self::SessionClosed,
            Rejection::StaleEpoch => Self::StaleEpoch,
            Rejection::TokenNameTaken { .. } => Self::TokenNameTaken,
        }
    }

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status.
    pub const fn status(self) -> u16 {
        self.row().1
    }

    /// A short text that is the same for every occurrence.
    pub const fn title(self) -> &'static str {
        self.row().2
    }

    /// Whether the same request may succeed later without anything else being done.
    pub const fn retryable(self) -> bool {
        match self {
            Self::Draining
            | Self::EventsMissing
            | Self::Overloaded
            | Self::StorageFull
            | Self::Unavailable => true,
            Self::AlreadyResolved
            | Self::ArtifactConflict
            | Self::ArtifactNotFound
            | Self::BodyTooLarge
            | Self::CheckpointNotFound
            | Self::CheckpointSuperseded
            | Self::ClaimLost
            | Self::ClaimTokenInvalid
            | Self::CursorExpired
            | Self::CursorFuture
            | Self::CursorMalformed
            | Self::EntryIdConflict
            | Self::EventIdConflict
            | Self::ExecutorNotFound
            | Self::ExecutorNotOffline
            | Self::Forbidden
            | Self::HostForbidden
            | Self::IdempotencyConflict
            | Self::InteractionNotFound
            | Self::Internal
            | Self::InvalidRequest
            | Self::LogChanged
            | Self::MalformedRequest
            | Self::MethodNotAllowed
            | Self::NoRunAvailable
            | Self::NothingToResume
            | Self::OriginForbidden
            | Self::OwnedElsewhere
            | Self::OwnerLeaseExpired
            | Self::QueueFull
            | Self::RequestIdConflict
            | Self::RouteNotFound
            | Self::RuleLimit
            | Self::RuleNotFound
            | Self::RunCancelling
            | Self::RunHasOutput
            | Self::RunNotFound
            | Self::RunSettled
            | Self::SessionBusy
            | Self::SessionClosed
            | Self::SessionNotFound
            | Self::SnapshotNotFound
            | Self::StaleEpoch
            | Self::TokenNameTaken
            | Self::TokenNotFound
            | Self::Unauthorized
            | Self::UnsupportedMediaType => false,
        }
    }

    /// What the refused request may have changed.
    pub const fn effects(self) -> Effects {
        match self {
            Self::Internal | Self::Unavailable => Effects::Unknown,
            Self::AlreadyResolved
            | Self::ArtifactConflict
            | Self::ArtifactNotFound
            | Self::BodyTooLarge
            | Self::CheckpointNotFound
            | Self::CheckpointSuperseded
            | Self::ClaimLost
            | Self::ClaimTokenInvalid
            | Self::CursorExpired
            | Self::CursorFuture
            | Self::CursorMalformed
            | Self::Draining
            | Self::EntryIdConflict
            | Self::EventIdConflict
            | Self::EventsMissing
            | Self::ExecutorNotFound
            | Self::ExecutorNotOffline
            | Self::Forbidden
            | Self::HostForbidden
            | Self::IdempotencyConflict
            | Self::InteractionNotFound
            | Self::InvalidRequest
            | Self::LogChanged
            | Self::MalformedRequest
            | Self::MethodNotAllowed
            | Self::NoRunAvailable
            | Self::NothingToResume
            | Self::OriginForbidden
            | Self::Overloaded
            | Self::OwnedElsewhere
            | Self::OwnerLeaseExpired
            | Self::QueueFull
            | Self::RequestIdConflict
            | Self::RouteNotFound
            | Self::RuleLimit
            | Self::RuleNotFound
            | Self::RunCancelling
            | Self::RunHasOutput
            | Self::RunNotFound
            | Self::RunSettled
            | Self::SessionBusy
            | Self::SessionClosed
            | Self::SessionNotFound
            | Self::SnapshotNotFound
            | Self::StaleEpoch
            | Self::StorageFull
            | Self::TokenNameTaken
            | Self::TokenNotFound
            | Self::Unauthorized
            | Self::UnsupportedMediaType => Effects::None,
        }
    }

    #[rustfmt::skip]
    const fn row(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::AlreadyResolved => ("already_resolved", CONFLICT, "The question is already resolved"),
            Self::ArtifactConflict => ("artifact_conflict", CONFLICT, "The artifact is stored with another content"),
            Self::ArtifactNotFound => ("artifact_not_found", NOT_FOUND, "The run told of no such thing"),
            Self::BodyTooLarge => ("body_too_large", PAYLOAD_TOO_LARGE, "The body is too large"),
            Self::CheckpointNotFound => ("checkpoint_not_found", NOT_FOUND, "There is no such checkpoint"),
            Self::CheckpointSuperseded => ("checkpoint_superseded", CONFLICT, "The checkpoint is no longer active"),
            Self::ClaimLost => ("claim_lost", CONFLICT, "The claim is lost"),
            Self::ClaimTokenInvalid => ("claim_token_invalid", FORBIDDEN, "The claim token is not this run's"),
            Self::CursorExpired => ("cursor_expired", GONE, "The cursor lies before what is kept"),
            Self::CursorFuture => ("cursor_future", CONFLICT, "The cursor lies beyond the end of the log"),
            Self::CursorMalformed => ("cursor_malformed", BAD_REQUEST, "The cursor can't be read"),
            Self::Draining => ("draining", UNAVAILABLE, "The server is shutting down"),
            Self::EntryIdConflict => ("entry_id_conflict", CONFLICT, "The tape entry's id is stored with another content"),
            Self::EventIdConflict => ("event_id_conflict", CONFLICT, "The event id is stored with another content"),
            Self::EventsMissing => ("events_missing", CONFLICT, "Events are missing"),
            Self::ExecutorNotFound => ("executor_not_found", NOT_FOUND, "There is no such executor"),
            Self::ExecutorNotOffline => ("executor_not_offline", CONFLICT, "The executor is not offline"),
            Self::Forbidden => ("forbidden", FORBIDDEN, "The role doesn't allow this"),
            Self::HostForbidden => ("host_forbidden", FORBIDDEN, "The host is not allowed"),
            Self::IdempotencyConflict => ("idempotency_conflict", CONFLICT, "The idempotency key was used with another body"),
            Self::InteractionNotFound => ("interaction_not_found", NOT_FOUND, "There is no such interaction"),
            Self::Internal => ("internal", INTERNAL, "The server failed"),
            Self::InvalidRequest => ("invalid_request", UNPROCESSABLE, "The request breaks a rule"),
            Self::LogChanged => ("log_changed", CONFLICT, "The cursor is of another log"),
            Self::MalformedRequest => ("malformed_request", BAD_REQUEST, "The request can't be read"),
            Self::MethodNotAllowed => ("method_not_allowed", METHOD_NOT_ALLOWED, "The method is not allowed here"),
            Self::NoRunAvailable => ("no_run_available", NOT_FOUND, "No run is waiting"),
            Self::NothingToResume => ("nothing_to_resume", CONFLICT, "There is nothing to resume"),
            Self::OriginForbidden => ("origin_forbidden", FORBIDDEN, "The origin is not allowed"),
            Self::Overloaded => ("overloaded", TOO_MANY_REQUESTS, "The server is overloaded"),
            Self::OwnedElsewhere => ("owned_elsewhere", CONFLICT, "The session is owned elsewhere"),
            Self::OwnerLeaseExpired => ("owner_lease_expired", CONFLICT, "The owner lease has ended"),
            Self::QueueFull => ("queue_full", CONFLICT, "The session's queue is full"),
            Self::RequestIdConflict => ("request_id_conflict", CONFLICT, "The request id was used for another question"),
            Self::RouteNotFound => ("route_not_found", NOT_FOUND, "There is no such endpoint"),
            Self::RuleLimit => ("rule_limit", CONFLICT, "Too many approval rules stand"),
            Self::RuleNotFound => ("rule_not_found", NOT_FOUND, "There is no such approval rule"),
            Self::RunCancelling => ("run_cancelling", CONFLICT, "The run is being cancelled"),
            Self::RunHasOutput => ("run_has_output", CONFLICT, "The run has output"),
            Self::RunNotFound => ("run_not_found", NOT_FOUND, "There is no such run"),
            Self::RunSettled => ("run_settled", CONFLICT, "The run is settled"),
            Self::SessionBusy => ("session_busy", CONFLICT, "A run is active"),
            Self::SessionClosed => ("session_closed", CONFLICT, "The session is closed"),
            Self::SessionNotFound => ("session_not_found", NOT_FOUND, "There is no such session"),
            Self::SnapshotNotFound => ("snapshot_not_found", NOT_FOUND, "The run has reported no messages"),
            Self::StaleEpoch => ("stale_epoch", CONFLICT, "The owner epoch is stale"),
            Self::StorageFull => ("storage_full", UNAVAILABLE, "The disk is full"),
            Self::TokenNameTaken => ("token_name_taken", CONFLICT, "A live token has this name"),
            Self::TokenNotFound => ("token_not_found", NOT_FOUND, "There is no such token"),
            Self::Unauthorized => ("unauthorized", UNAUTHORIZED, "A credential is needed"),
            Self::Unavailable => ("unavailable", UNAVAILABLE, "The server can't serve this now"),
            Self::UnsupportedMediaType => ("unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "The body must be JSON"),
        }
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    #[test]
    fn the_table_of_codes_is_complete_and_alphabetical() {
        let mut table = String::new();
        for code in ErrorCode::ALL {
            let word = code.as_str();
            assert_eq!(
                serde_json::to_value(code).unwrap(),
                word,
                "serde and `as_str` agree"
            );
            let effects = match code.effects() {
                Effects::None => "none",
                Effects::Unknown => "unknown",
            };
            let retry = if code.retryable() { "retry" } else { "-" };
            writeln!(
                table,
                "{word:<24}{:<5}{retry:<7}{effects:<9}{}",
                code.status(),
                code.title()
            )
            .unwrap();
        }
        assert!(
            ErrorCode::ALL
                .windows(2)
                .all(|pair| pair[0].as_str() < pair[1].as_str())
        );
        // The derived order is the order of declaration: a code left out of `ALL` shows as a hole.
        let places: Vec<usize> = ErrorCode::ALL.iter().map(|code| *code as usize).collect();
        assert_eq!(places, (0..ErrorCode::ALL.len()).collect::<Vec<_>>());
        assert_eq!(
            ErrorCode::ALL.last(),
            Some(&ErrorCode::UnsupportedMediaType)
        );
        insta::assert_snapshot!(table);
    }
}
