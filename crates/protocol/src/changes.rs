//! What a run changed in its workspace: a table of files, and the patch beside it. Executors send
//! both as artifacts; what is too large is named and not carried.

use serde::{Deserialize, Serialize};
use tapedeck_domain::{RunId, SessionId};
use utoipa::{IntoParams, ToSchema};

use crate::page::{self, QueryFault};

/// The artifact with the table of a run's own changes.
pub const RUN_CHANGES: &str = "run.diff";
/// The artifact with the patch of a run's own changes.
pub const RUN_PATCH: &str = "run.patch";
/// The artifact with the table of all changes since the session began.
pub const SESSION_CHANGES: &str = "session.diff";
/// The artifact with the patch of all changes since the session began.
pub const SESSION_PATCH: &str = "session.patch";

/// The media type of tables.
pub const CHANGES_TYPE: &str = "application/json";
/// The media type of patches.
pub const PATCH_TYPE: &str = "text/x-diff";

/// What has become of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeStatus {
    /// It is new.
    Added,
    /// It is gone.
    Deleted,
    /// Its content or its mode is another.
    Modified,
    /// It has another name, and perhaps another content.
    Renamed,
    /// It is a link where there was a file, or the other way round.
    TypeChanged,
}

impl ChangeStatus {
    /// The letter that git has for it.
    pub const fn letter(self) -> char {
        match self {
            Self::Added => 'A',
            Self::Deleted => 'D',
            Self::Modified => 'M',
            Self::Renamed => 'R',
            Self::TypeChanged => 'T',
        }
    }
}

/// A changed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileChange {
    /// Its path from the repository's root.
    pub path: String,
    /// Its path before, where it was renamed.
    #[schema(required)]
    pub old_path: Option<String>,
    /// What has become of it.
    pub status: ChangeStatus,
    /// Lines added; null where nothing was counted.
    #[schema(required)]
    pub additions: Option<u64>,
    /// Lines deleted; null where nothing was counted.
    #[schema(required)]
    pub deletions: Option<u64>,
    /// Whether its content is no text.
    pub binary: bool,
    /// Its size now, in bytes; null where it is gone or not known.
    #[schema(required)]
    pub size: Option<u64>,
    /// Whether it is too large to be in the patch.
    pub truncated: bool,
}

/// Changes between two states of a working tree.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ChangeSet {
    /// Git's name of the files before.
    pub base: String,
    /// Git's name of the files after.
    pub head: String,
    /// The files in the order of their paths, as many as are told.
    pub files: Vec<FileChange>,
    /// How many files have changed.
    pub file_count: u64,
    /// Lines added in all files that were counted.
    pub additions: u64,
    /// Lines deleted in all files that were counted.
    pub deletions: u64,
    /// Whether files are missing here or in the patch.
    pub truncated: bool,
    /// Why this may not be all that was asked for.
    #[serde(default)]
    #[schema(required)]
    pub note: Option<String>,
}

/// Which changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeScope {
    /// Of one run.
    #[default]
    Run,
    /// Since the session began, up to the end of that run.
    Session,
}

impl ChangeScope {
    /// The artifact with the table.
    pub const fn changes(self) -> &'static str {
        match self {
            Self::Run => RUN_CHANGES,
            Self::Session => SESSION_CHANGES,
        }
    }

    /// The artifact with the patch.
    pub const fn patch(self) -> &'static str {
        match self {
            Self::Run => RUN_PATCH,
            Self::Session => SESSION_PATCH,
        }
    }
}

/// Query of `GET /sessions/{id}/diff` and `/patch`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ChangesQuery {
    /// The run; without it the newest that told of its changes and that no restore has put aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<Uuid>)]
    pub run_id: Option<String>,
    /// `run` (default) for the run's own changes, `session` for all since the session began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<ChangeScope>)]
    pub scope: Option<String>,
}

impl ChangesQuery {
    /// The run and the scope.
    pub fn check(&self) -> Result<(Option<RunId>, ChangeScope), QueryFault> {
        let run_id = page::id("run_id", self.run_id.as_deref())?;
        let scope = match self.scope.as_deref() {
            None | Some("run") => ChangeScope::Run,
            Some("session") => ChangeScope::Session,
            Some(_) => {
                let message = "must be `run` or `session`";
                return Err(QueryFault::parameter("scope", message));
            }
        };
        Ok((run_id, scope))
    }
}

/// What a run changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangesResponse {
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// The run at whose end this was so.
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    /// Since when.
    pub scope: ChangeScope,
    /// The changes.
    #[serde(flatten)]
    pub changes: ChangeSet,
}
