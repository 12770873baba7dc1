//! The client's source of random identifiers. All of them only have to be new, never ordered.

use uuid::Uuid;

#[expect(clippy::disallowed_methods, reason = "this is the client's id source")]
fn random() -> Uuid {
    Uuid::new_v4()
}

/// A new idempotency key, for callers that keep one over a restart of their own.
pub fn command_id() -> String {
    random().to_string()
}

/// A new `claim_request_id`: more than the 128 random bits that rules R9 asks for.
pub fn claim_request_id() -> String {
    format!("{}{}", random().simple(), random().simple())
}

/// A new name for a process of an executor.
pub fn instance_id() -> String {
    random().to_string()
}

/// A new request id, which the server's log repeats.
pub(crate) fn request_id() -> String {
    random().simple().to_string()
}
