//! The bounds of numbers in requests, for the document of the interface: those that the requests are
//! checked by.

use tapedeck_domain::limits;

use crate::executor::MAX_RUNS;
use crate::run_target::CONSTRAINTS;
use crate::session::MAX_STEPS;

/// Fields by the names of their schema and their own, with their least and their most.
pub fn of_requests() -> Vec<(&'static str, &'static str, u64, u64)> {
    let (least_lease, most_lease, _) = limits::LEASE_SECONDS;
    let (longest_question, _) = limits::QUESTION_SECONDS;
    let numbers = [
        ("ApprovalRequest", "timeout_seconds", 1, longest_question),
        (
            "ApprovalRequest",
            "wait_seconds",
            0,
            limits::WAIT_SECONDS_MAX,
        ),
        ("ClaimRunRequest", "lease_seconds", least_lease, most_lease),
        ("ClaimRunRequest", "max_runs", 1, MAX_RUNS),
        (
            "ClaimRunRequest",
            "wait_seconds",
            0,
            limits::WAIT_SECONDS_MAX,
        ),
        ("CreateSessionRequest", "max_steps", 1, MAX_STEPS),
        ("HeartbeatRequest", "lease_seconds", least_lease, most_lease),
        (
            "HeartbeatRequest",
            "wait_seconds",
            0,
            limits::WAIT_SECONDS_MAX,
        ),
        ("QuestionRequest", "timeout_seconds", 1, longest_question),
        (
            "QuestionRequest",
            "wait_seconds",
            0,
            limits::WAIT_SECONDS_MAX,
        ),
        ("UpdateSessionRequest", "max_steps", 1, MAX_STEPS),
    ];
    let constraints =
        CONSTRAINTS.map(|(field, least, most)| ("ConstraintsBody", field, least, most));
    let wide = numbers
        .into_iter()
        .chain(constraints)
        .map(|(schema, field, least, most)| (schema, field, u64::from(least), u64::from(most)));
    let token = (
        "CreateTokenRequest",
        "expires_in_seconds",
        1,
        limits::TOKEN_SECONDS,
    );
    wide.chain([token]).collect()
}

/// The most items of a page: of events, or of anything else.
pub const fn of_page(of_events: bool) -> u32 {
    if of_events {
        limits::EVENT_PAGE_MAX
    } else {
        limits::PAGE_MAX
    }
}
