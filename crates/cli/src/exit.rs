//! How the process ends: one small list of exit codes and what leads to each. It must never print;
//! it only names the end.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::process::ExitCode;

use tapedeck_client::NoToken;
use tapedeck_control_plane::StoreError;
use tapedeck_domain::run::RunStatus;
use tapedeck_executor::ExecutorError;
use tapedeck_protocol::ErrorCode;

/// The table in `tapedeck --help` and in the documents.
pub(crate) const TABLE: &str = "\
Exit codes:
   0  it went well
   1  the run failed, or a step of the demo was not as expected
   2  the command line, the configuration or the request breaks a rule
   3  there is no such session, run, checkpoint, question, executor, remote, database or file
   4  something else is going on: a run is active, another process owns the session, the data
      directory is in use, the question has another answer
   5  the server can't be reached or can't serve now
   6  the credential is missing or wrong
   7  the run was cancelled or interrupted, or the command was
   8  a check of the database or of an agent found something, or the database is damaged
  70  an internal fault";

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It went well.
    Success,
    /// The run failed.
    RunFailed,
    /// What was asked breaks a rule.
    Usage,
    /// The target isn't there.
    NotFound,
    /// Something else is going on.
    Conflict,
    /// No server, or it can't serve.
    Unreachable,
    /// The credential is missing or wrong.
    Refused,
    /// Cancelled or interrupted.
    Interrupted,
    /// A check of the database or of an agent found something.
    Findings,
    /// A fault of ours.
    Internal,
}

impl Exit {
    /// The number.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::RunFailed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Conflict => 4,
            Self::Unreachable => 5,
            Self::Refused => 6,
            Self::Interrupted => 7,
            Self::Findings => 8,
            Self::Internal => 70,
        }
    }

    /// What a server's code leads to.
    pub(crate) const fn of_code(code: ErrorCode) -> Self {
        match code {
            ErrorCode::ArtifactNotFound
            | ErrorCode::CheckpointNotFound
            | ErrorCode::ExecutorNotFound
            | ErrorCode::InteractionNotFound
            | ErrorCode::NoRunAvailable
            | ErrorCode::RouteNotFound
            | ErrorCode::RuleNotFound
            | ErrorCode::RunNotFound
            | ErrorCode::SessionNotFound
            | ErrorCode::SnapshotNotFound
            | ErrorCode::TokenNotFound => Self::NotFound,
            ErrorCode::AlreadyResolved
            | ErrorCode::ArtifactConflict
            | ErrorCode::CheckpointSuperseded
            | ErrorCode::ClaimLost
            | ErrorCode::EntryIdConflict
            | ErrorCode::EventIdConflict
            | ErrorCode::EventsMissing
            | ErrorCode::ExecutorNotOffline
            | ErrorCode::IdempotencyConflict
            | ErrorCode::LogChanged
            | ErrorCode::NothingToResume
            | ErrorCode::OwnedElsewhere
            | ErrorCode::OwnerLeaseExpired
            | ErrorCode::QueueFull
            | ErrorCode::RequestIdConflict
            | ErrorCode::RuleLimit
            | ErrorCode::RunCancelling
            | ErrorCode::RunHasOutput
            | ErrorCode::RunSettled
            | ErrorCode::SessionBusy
            | ErrorCode::SessionClosed
            | ErrorCode::StaleEpoch
            | ErrorCode::TokenNameTaken => Self::Conflict,
            ErrorCode::Draining
            | ErrorCode::Overloaded
            | ErrorCode::StorageFull
            | ErrorCode::Unavailable => Self::Unreachable,
            ErrorCode::ClaimTokenInvalid
            | ErrorCode::Forbidden
            | ErrorCode::HostForbidden
            | ErrorCode::OriginForbidden
            | ErrorCode::Unauthorized => Self::Refused,
            ErrorCode::BodyTooLarge
            | ErrorCode::CursorExpired
            | ErrorCode::CursorFuture
            | ErrorCode::CursorMalformed
            | ErrorCode::InvalidRequest
            | ErrorCode::MalformedRequest
            | ErrorCode::MethodNotAllowed
            | ErrorCode::UnsupportedMediaType => Self::Usage,
            ErrorCode::Internal => Self::Internal,
        }
    }

    /// What a run's status leads to.
    pub(crate) const fn of_run(status: RunStatus) -> Self {
        match status {
            RunStatus::Completed => Self::Success,
            RunStatus::Failed => Self::RunFailed,
            RunStatus::Cancelled | RunStatus::Interrupted => Self::Interrupted,
            RunStatus::Requested
            | RunStatus::Queued
            | RunStatus::Claimed
            | RunStatus::Running
            | RunStatus::Cancelling => Self::Internal,
        }
    }

    /// What an error leads to: the first cause that is known decides.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        error.chain().find_map(of_cause).unwrap_or(Self::Internal)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(failed) = cause.downcast_ref::<Failed>() {
        return Some(failed.exit);
    }
    if let Some(error) = cause.downcast_ref::<tapedeck_client::Error>() {
        return Some(of_client(error));
    }
    if let Some(error) = cause.downcast_ref::<StoreError>() {
        return Some(match error {
            StoreError::Locked(_)
            | StoreError::SchemaTooNew { .. }
            | StoreError::SchemaTooOld { .. } => Exit::Conflict,
            StoreError::Unavailable { .. }
            | StoreError::Overloaded { .. }
            | StoreError::StorageFull => Exit::Unreachable,
            StoreError::NoDatabase(_) => Exit::NotFound,
            StoreError::Damaged { .. } => Exit::Findings,
            StoreError::Internal(_) if is_unwritable(error) => Exit::Usage,
            StoreError::OutcomeUnknown { .. }
            | StoreError::Inconsistent { .. }
            | StoreError::Internal(_) => Exit::Internal,
        });
    }
    if let Some(error) = cause.downcast_ref::<ExecutorError>() {
        return Some(match error {
            ExecutorError::Option(_) | ExecutorError::Root(_) => Exit::Usage,
            ExecutorError::Refused(_) => Exit::Refused,
            ExecutorError::State { .. } | ExecutorError::Thread(_) => Exit::Internal,
        });
    }
    if cause.is::<NoToken>() {
        return Some(Exit::Usage);
    }
    let error = cause.downcast_ref::<io::Error>()?;
    match error.kind() {
        io::ErrorKind::BrokenPipe => Some(Exit::Success),
        io::ErrorKind::AddrInUse | io::ErrorKind::AlreadyExists => Some(Exit::Conflict),
        io::ErrorKind::NotFound => Some(Exit::NotFound),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Exit::Unreachable),
        // A path that was given leads to what can't be used so.
        io::ErrorKind::IsADirectory
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::InvalidFilename
        | io::ErrorKind::InvalidData
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem => Some(Exit::Usage),
        _ => None,
    }
}

fn of_client(error: &tapedeck_client::Error) -> Exit {
    use tapedeck_client::Error;
    if let Some(code) = error.code() {
        return Exit::of_code(code);
    }
    match error {
        Error::Transport { .. }
        | Error::Timeout(_)
        | Error::Unexpected { .. }
        | Error::Foreign { .. } => Exit::Unreachable,
        Error::Request(_) => Exit::Usage,
        _ => Exit::Internal,
    }
}

/// Whether the store's files can't be written by this user, which is for the caller to change.
pub(crate) fn is_unwritable(error: &StoreError) -> bool {
    let StoreError::Internal(source) = error else {
        return false;
    };
    source.downcast_ref::<io::Error>().is_some_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
        )
    })
}

/// Whether the reader of our output has gone, which is no error of ours.
pub(crate) fn reader_has_gone(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| {
            error.kind() == io::ErrorKind::BrokenPipe && error.source().is_none()
        })
    })
}

/// An error of a command itself, with the exit that it leads to.
#[derive(Debug)]
pub(crate) struct Failed {
    exit: Exit,
    message: String,
}

impl Failed {
    /// An end with this message.
    pub(crate) fn with(exit: Exit, message: impl Into<String>) -> anyhow::Error {
        let message = message.into();
        Self { exit, message }.into()
    }

    /// A command line or a configuration that breaks a rule.
    pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
        Self::with(Exit::Usage, message)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failed {}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;
    use tapedeck_protocol::Problem;

    fn problem(code: ErrorCode) -> anyhow::Error {
        tapedeck_client::Error::Problem(Box::new(Problem::new(code, "no"))).into()
    }

    #[test]
    fn a_servers_code_decides_under_any_context() {
        for (code, exit) in [
            (ErrorCode::SessionNotFound, Exit::NotFound),
            (ErrorCode::SessionBusy, Exit::Conflict),
            (ErrorCode::OwnedElsewhere, Exit::Conflict),
            (ErrorCode::Unauthorized, Exit::Refused),
            (ErrorCode::InvalidRequest, Exit::Usage),
            (ErrorCode::Draining, Exit::Unreachable),
            (ErrorCode::Internal, Exit::Internal),
        ] {
            assert_eq!(Exit::of_error(&problem(code).context("while asking")), exit);
        }
    }

    #[test]
    fn a_server_that_is_away_is_unreachable() {
        let error = tapedeck_client::Error::Transport {
            source: "refused".into(),
            sent: false,
        };
        assert_eq!(Exit::of_error(&error.into()), Exit::Unreachable);
    }

    #[test]
    fn a_held_directory_is_a_conflict_and_a_wrong_lease_is_usage() {
        let locked = StoreError::Locked("held".to_owned());
        assert_eq!(Exit::of_error(&locked.into()), Exit::Conflict);
        let option = ExecutorError::Option("lease".to_owned());
        assert_eq!(Exit::of_error(&option.into()), Exit::Usage);
    }

    #[test]
    fn a_data_directory_that_cannot_be_written_is_the_callers_to_change() {
        for (kind, exit) in [
            (io::ErrorKind::PermissionDenied, Exit::Usage),
            (io::ErrorKind::ReadOnlyFilesystem, Exit::Usage),
            (io::ErrorKind::Other, Exit::Internal),
        ] {
            let error = StoreError::Internal(io::Error::from(kind).into());
            assert_eq!(Exit::of_error(&error.into()), exit, "{kind}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_the_callers_to_change() {
        for (kind, exit) in [
            (io::ErrorKind::NotFound, Exit::NotFound),
            (io::ErrorKind::AlreadyExists, Exit::Conflict),
            (io::ErrorKind::IsADirectory, Exit::Usage),
            (io::ErrorKind::PermissionDenied, Exit::Usage),
            (io::ErrorKind::StorageFull, Exit::Unreachable),
        ] {
            let error = anyhow::Error::new(io::Error::from(kind)).context("`file`");
            assert_eq!(Exit::of_error(&error), exit);
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        let error = io::Error::from(io::ErrorKind::BrokenPipe);
        let error = Err::<(), _>(error).context("printing").unwrap_err();
        assert!(reader_has_gone(&error));
        assert_eq!(Exit::of_error(&error), Exit::Success);
        assert!(!reader_has_gone(&Failed::usage("no")));
    }

    #[test]
    fn every_exit_is_in_the_table() {
        for exit in [
            Exit::Success,
            Exit::RunFailed,
            Exit::Usage,
            Exit::NotFound,
            Exit::Conflict,
            Exit::Unreachable,
            Exit::Refused,
            Exit::Interrupted,
            Exit::Findings,
            Exit::Internal,
        ] {
            assert!(
                TABLE.contains(&format!("\n{:>4}  ", exit.code())),
                "{exit:?}"
            );
        }
    }

    #[test]
    fn what_is_not_known_is_internal() {
        assert_eq!(Exit::of_error(&anyhow::anyhow!("odd")), Exit::Internal);
        assert_eq!(Exit::of_run(RunStatus::Interrupted), Exit::Interrupted);
        assert_eq!(Exit::of_run(RunStatus::Failed), Exit::RunFailed);
    }
}
