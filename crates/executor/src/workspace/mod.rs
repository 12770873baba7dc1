//! Where an agent works. It owns the way from a workspace as the server names it to a directory on
//! this machine; it must never hand out a directory outside the allowed roots and its own state.

mod changes;
mod git;
mod local;
mod scratch;
#[cfg(test)]
mod testing;
mod upkeep;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use tapedeck_domain::git::GitWorkspace;
use tapedeck_domain::rejection::sentences;

pub(crate) use changes::summary;
pub use changes::{Changes, Difference, Tracking};
use git::{Folders, Git, Worktrees};
pub use git::{GitError, GitOptions, Record};
pub use upkeep::HeldWorktree;

/// A workspace as the server names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkspaceTarget {
    /// A directory of this machine.
    LocalPath {
        /// Its absolute path.
        path: PathBuf,
    },
    /// A worktree of the session's own, from a git repository.
    Git(GitWorkspace),
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
    #[error("session id `{0}` cannot name a directory")]
    SessionId(String),
    /// The kind is unknown here, or its fields are.
    #[error("the workspace of kind `{kind}` can't be used by this executor: {why}")]
    Unknown {
        /// The kind.
        kind: String,
        /// What is missing or wrong.
        why: String,
    },
    /// Remote repositories may not be reached that way.
    #[error("this executor reaches no git repositories by {0}")]
    Transport(&'static str),
    /// The subdirectory is a link that leads out of the repository.
    #[error("`{0}` leads out of the repository")]
    OutsideRepository(PathBuf),
    /// The session had another repository before.
    #[error("the session's worktree `{path}` is of another repository, {source_then}")]
    OtherSource {
        /// The worktree.
        path: PathBuf,
        /// What it is of.
        source_then: String,
    },
    /// The worktree is not what was made.
    #[error(
        "the session's worktree `{0}` no longer belongs to its repository: an agent has changed its \
         `.git`. Move it somewhere else; then the session's next run makes it anew from the \
         session's branch"
    )]
    Damaged(PathBuf),
    /// Git could not do it.
    #[error("the git workspace can't be prepared: {0}")]
    Git(#[from] GitError),
}

/// A directory for an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Where the agent starts, canonical.
    pub directory: PathBuf,
    /// What is told of it, where it is more than the directory that was asked for.
    pub told: Option<WorkspaceTold>,
}

/// What a run tells of its git worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkspaceTold {
    /// `git`.
    pub kind: &'static str,
    /// Where the repository is.
    pub source: String,
    /// The session's branch.
    pub branch: String,
    /// The commit that the branch started from.
    pub commit: String,
    /// Why the worktree may not be what is expected: it starts from what may not be the newest, or
    /// had to be mended.
    pub note: Option<String>,
}

/// Prepares workspaces.
#[derive(Debug, Clone)]
pub struct Workspaces {
    roots: Vec<PathBuf>,
    state_dir: PathBuf,
    worktrees: Worktrees,
}

impl Workspaces {
    /// Local paths are allowed inside `roots`, which have to exist; scratch directories and
    /// worktrees lie in `state_dir`.
    pub fn new(
        roots: &[PathBuf],
        state_dir: &Path,
        git: GitOptions,
    ) -> Result<Self, WorkspaceError> {
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
        let worktrees = Worktrees {
            git: Git::new(Arc::new(git)),
            folders: Folders::new(state_dir),
        };
        Ok(Self {
            roots,
            state_dir: state_dir.to_owned(),
            worktrees,
        })
    }

    /// The canonical directory of `target` for a session.
    pub async fn prepare(
        &self,
        target: &WorkspaceTarget,
        session_id: &str,
    ) -> Result<Prepared, WorkspaceError> {
        check_session_id(session_id)?;
        let directory = match target {
            WorkspaceTarget::LocalPath { path } => local::prepare(path, &self.roots).await?,
            WorkspaceTarget::Scratch => scratch::prepare(&self.state_dir, session_id)?,
            WorkspaceTarget::Git(workspace) => {
                let made = self.worktrees.prepare(workspace, session_id, &self.roots);
                let made = made.await?;
                return Ok(Prepared {
                    directory: made.directory,
                    told: Some(WorkspaceTold {
                        kind: "git",
                        source: made.record.source,
                        branch: made.record.branch,
                        commit: made.record.commit,
                        note: made.note,
                    }),
                });
            }
        };
        Ok(Prepared {
            directory,
            told: None,
        })
    }
}

impl WorkspaceTarget {
    /// Reads what a session names; nothing is a scratch directory.
    pub fn read(kind: &str, fields: &Map<String, Value>) -> Result<Self, WorkspaceError> {
        let unknown = |why: String| WorkspaceError::Unknown {
            kind: kind.to_owned(),
            why,
        };
        match kind {
            "scratch" => Ok(Self::Scratch),
            "local_path" => match fields.get("path").and_then(Value::as_str) {
                Some(path) => Ok(Self::LocalPath { path: path.into() }),
                None => Err(unknown("it names no path".to_owned())),
            },
            "git" => match GitWorkspace::read(fields) {
                Ok(workspace) => Ok(Self::Git(workspace)),
                Err(errors) => Err(unknown(sentences(&errors))),
            },
            _ => Err(unknown("the kind is unknown".to_owned())),
        }
    }
}

/// Session ids name directories and branches.
fn check_session_id(session_id: &str) -> Result<(), WorkspaceError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if session_id.is_empty()
        || session_id.len() > 200
        || session_id.starts_with('-')
        || !session_id.bytes().all(plain)
    {
        return Err(WorkspaceError::SessionId(session_id.to_owned()));
    }
    Ok(())
}
