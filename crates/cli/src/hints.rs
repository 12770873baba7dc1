//! What a person can do about an error, where it isn't plain.

use tapedeck_control_plane::StoreError;
use tapedeck_protocol::ErrorCode;

use crate::exit::is_unwritable;

const FREE_SOME: &str = "free some of it, and try again; what was acknowledged is kept";

/// What to do about a refusal, where it isn't plain.
pub(crate) const fn of_code(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::OwnedElsewhere => Some(
            "`tapedeck attach` reads along; try again once the other process has ended, or share the \
             data directory by `tapedeck serve`",
        ),
        ErrorCode::SessionBusy => {
            Some("`tapedeck attach` follows the active run, `tapedeck runs cancel` ends it")
        }
        ErrorCode::CheckpointSuperseded => Some(
            "`tapedeck sessions checkpoints` lists the active ones, with `--all` the others too",
        ),
        ErrorCode::Unauthorized => Some(
            "`--token-file` names the file that holds a token; a remote has its own: `tapedeck remote add \
             NAME URL --token-file FILE --replace`",
        ),
        ErrorCode::SessionNotFound => Some("`tapedeck sessions list` shows the sessions"),
        ErrorCode::RunNotFound => Some("`tapedeck runs list` shows the runs"),
        ErrorCode::ExecutorNotFound => Some("`tapedeck executors list` shows the executors"),
        ErrorCode::InteractionNotFound => {
            Some("`tapedeck approvals list --all` shows the questions")
        }
        ErrorCode::RuleNotFound => Some("`tapedeck approvals rules list` shows the rules"),
        ErrorCode::CheckpointNotFound => {
            Some("`tapedeck sessions checkpoints` shows those of a session")
        }
        ErrorCode::TokenNotFound | ErrorCode::TokenNameTaken => {
            Some("`tapedeck token list` shows the tokens")
        }
        ErrorCode::StorageFull => Some(FREE_SOME),
        ErrorCode::NothingToResume => Some("`tapedeck run --goal …` starts a session"),
        _ => None,
    }
}

/// The same for what the store of this process says.
pub(crate) fn of_store(error: &StoreError) -> Option<&'static str> {
    match error {
        StoreError::StorageFull => Some(FREE_SOME),
        StoreError::Locked(_) => Some(
            "try again once the other process has ended, or name another data directory with \
             `--data-dir`",
        ),
        error if is_unwritable(error) => {
            Some("make the data directory writable, or name another with `--data-dir`")
        }
        _ => None,
    }
}
