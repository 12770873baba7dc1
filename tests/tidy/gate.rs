//! That no command reaches a session's rows beside the authority check (design: fencing is
//! structural). The check is in `control-plane/src/context.rs`; this keeps it the only way in.

use crate::source::{SourceFile, assert_none, rust, under};

/// Who locks a session or a run without the context's authority check, and why that is right.
const OWN_CHECKS: &[(&str, &str, &str)] = &[
    (
        "cancel_run",
        ".lock_run(",
        "looks a run up in the session that it already owns",
    ),
    (
        "renew_owner",
        ".lock_session(",
        "the domain decides about the owner itself; a renewal must never take over",
    ),
    (
        "release_owner",
        ".lock_session(",
        "the domain decides about the owner itself; a release must never take over",
    ),
];

const CONTROL_PLANE: &str = "crates/control-plane/src/";
const GATE: &str = "crates/control-plane/src/context.rs";

fn commands() -> impl Iterator<Item = &'static SourceFile> {
    under("crates/control-plane/src/").filter(|file| !file.is_test() && file.path != GATE)
}

fn own_checks(file: &SourceFile, call: &str) -> usize {
    let stem = file.name().trim_end_matches(".rs");
    OWN_CHECKS
        .iter()
        .filter(|(name, allowed, _)| *name == stem && *allowed == call)
        .count()
}

/// Calls are found across the line breaks of rustfmt.
fn calls(file: &SourceFile, call: &str) -> usize {
    let dense: String = file.production().split_whitespace().collect();
    dense.matches(call).count()
}

#[test]
fn sessions_and_runs_are_locked_behind_the_authority_check() {
    let mut complaints = Vec::new();
    for file in commands() {
        for call in [".lock_session(", ".lock_run("] {
            let (found, allowed) = (calls(file, call), own_checks(file, call));
            if found > allowed {
                complaints.push(format!(
                    "{}: {found} times `{call}…)`, {allowed} allowed; use `Context::own_session`, `own_run` or `hold_claim`",
                    file.path
                ));
            }
        }
    }
    assert_none("locks beside the gate", &complaints);
}

#[test]
fn exceptions_from_the_authority_check_are_in_use() {
    let stale: Vec<_> = OWN_CHECKS
        .iter()
        .filter(|(name, call, _)| {
            let path = format!("{CONTROL_PLANE}commands/{name}.rs");
            !commands().any(|file| file.path == path && calls(file, call) > 0)
        })
        .map(|(name, call, _)| format!("`{name}` has no `{call}…)` any more"))
        .collect();
    assert_none("exceptions that nothing needs", &stale);
}

#[test]
fn a_lock_by_key_follows_a_check_in_the_same_file() {
    let unchecked: Vec<_> = commands()
        .filter(|file| calls(file, ".lock_session_by_key(") > 0)
        .filter(|file| {
            [".own_session(", ".own_run(", ".hold_claim("]
                .iter()
                .all(|check| calls(file, check) == 0)
        })
        .map(|file| file.path.as_str())
        .collect();
    assert_none("sessions locked by key without a check before", &unchecked);
}

#[test]
fn transactions_are_opened_in_one_place() {
    let others: Vec<_> = rust()
        .filter(|file| !file.is_test() && !file.path.starts_with("crates/store"))
        .filter(|file| file.path != "crates/control-plane/src/execute.rs")
        .filter(|file| calls(file, ".transact(") > 0)
        .map(|file| file.path.as_str())
        .collect();
    assert_none("`transact` called outside `execute.rs`", &others);
}
