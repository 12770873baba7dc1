//! Where an agent works. It owns the way from a workspace as the server names it to a directory on
//! this machine; it must never hand out a directory outside the allowed roots and its own state.

mod local;
mod scratch;

use std::path::{Path, PathBuf};

/// A workspace as the server names it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum WorkspaceTarget {
    /// A directory of this machine.
    LocalPath {
        /// Its absolute path.
        path: PathBuf,
    },
    /// A fresh directory for each session, kept between its runs.
    Scratch,
}

/// Why a workspace is refused.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// It lies outside the allowed roots.
    #[error("workspace `{path}` is outside the allowed roots ({roots})")]
    OutsideRoots {
        /// The path as named.
        path: PathBuf,
        /// The roots, for a person.
        roots: String,
    },
    /// It is relative.
    #[error("workspace `{0}` is not an absolute path")]
    Relative(PathBuf),
    /// It does not exist or cannot be read.
    #[error("workspace `{path}` cannot be used: {source}")]
    Unusable {
        /// The path as named.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It is no directory.
    #[error("workspace `{0}` is not a directory")]
    NotADirectory(PathBuf),
    /// The session id cannot name a directory.
    #[error("session id `{0}` cannot name a scratch directory")]
    SessionId(String),
}

/// Prepares workspaces.
#[derive(Debug, Clone)]
pub struct Workspaces {
    roots: Vec<PathBuf>,
    state_dir: PathBuf,
}

impl Workspaces {
    /// Local paths are allowed inside `roots`, which have to exist; scratch directories lie in
    /// `state_dir`.
    pub fn new(roots: &[PathBuf], state_dir: &Path) -> Result<Self, WorkspaceError> {
        let roots = roots
            .iter()
            .map(|root| {
                root.canonicalize()
                    .map_err(|source| WorkspaceError::Unusable {
                        path: root.clone(),
                        source,
                    })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            roots,
            state_dir: state_dir.to_owned(),
        })
    }

    /// The canonical directory of `target` for a session.
    pub fn prepare(
        &self,
        target: &WorkspaceTarget,
        session_id: &str,
    ) -> Result<PathBuf, WorkspaceError> {
        match target {
            WorkspaceTarget::LocalPath { path } => local::prepare(path, &self.roots),
            WorkspaceTarget::Scratch => scratch::prepare(&self.state_dir, session_id),
        }
    }
}
