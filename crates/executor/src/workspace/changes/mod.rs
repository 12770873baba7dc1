//! What a run changes in its workspace, where that lies in a git repository. It owns the states of
//! the files at the session's and the run's beginning; it must never fail a run, nor touch the
//! user's repository.

mod diff;
mod parse;
mod shadow;

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tapedeck_protocol::changes::ChangeSet;

pub use diff::Difference;
use shadow::{Files, Repository, Shadow};

use super::Workspaces;
use super::git::{FileLock, GitError};
use crate::files::{if_there, private_dir, write_whole};
use crate::guard::lock_path;

/// How long another run's agent may still be in a workspace; its own start waits as long again.
const LOCK_WAIT: Duration = Duration::from_secs(25);

/// Where a session's beginning is noted.
const SESSION_BASE: &str = "session-base";

/// Files that a run's result names.
const NAMED_FILES: usize = 100;

/// Repositories inside the repository that a note names.
const NAMED_APART: usize = 5;

/// A workspace whose changes are followed.
#[derive(Debug)]
pub struct Tracking {
    shadow: Shadow,
    session_base: Base,
    run_base: String,
}

/// The files as they were when a session began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Base {
    tree: String,
    /// Why it is later than the session's first run.
    note: Option<String>,
}

impl Base {
    /// What was noted for a session, or what is from now on.
    fn read_or_begin(path: &Path, tree: &str) -> io::Result<Self> {
        let noted = if_there(fs::read(path))?;
        let noted = noted.and_then(|noted| serde_json::from_slice(&noted).ok());
        noted.map_or_else(|| Self::begin(path, tree, None), Ok)
    }

    fn begin(path: &Path, tree: &str, note: Option<String>) -> io::Result<Self> {
        let tree = tree.to_owned();
        let base = Self { tree, note };
        write_whole(path, &serde_json::to_vec(&base)?)?;
        Ok(base)
    }
}

/// What has changed up to now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// Since the run began.
    pub run: Difference,
    /// Since the session began here.
    pub session: Difference,
}

impl Workspaces {
    /// Notes the files as they are before a run. There is nothing to follow outside of git
    /// repositories, and in those whose root lies outside the allowed roots.
    pub async fn track(
        &self,
        directory: &Path,
        session_id: &str,
    ) -> Result<Option<Tracking>, GitError> {
        super::check_session_id(session_id).map_err(io::Error::other)?;
        let worktrees = &self.worktrees;
        let Some(repository) = Repository::of(&worktrees.git, directory).await? else {
            return Ok(None);
        };
        let own = worktrees.folders.worktree(session_id).canonicalize();
        let allowed = self.roots.iter().chain(own.as_ref().ok());
        let mut allowed = allowed.map(|root| repository.top.starts_with(root));
        if !allowed.any(|inside| inside) {
            return Ok(None);
        }
        let folder = worktrees.folders.changes(session_id);
        private_dir(&worktrees.folders.changes_root())?;
        // What another run does in it until then is not this run's.
        let lock = lock_path(&self.state_dir, directory);
        private_dir(lock.parent().unwrap_or(&lock))?;
        let _lock = FileLock::take(&lock, LOCK_WAIT).await?;
        let shadow = Shadow::open(&worktrees.git, &folder, repository).await?;
        let run_base = shadow.files().await?.tree;
        let session_base = Base::read_or_begin(&folder.join(SESSION_BASE), &run_base)?;
        Ok(Some(Tracking {
            shadow,
            session_base,
            run_base,
        }))
    }
}

impl Tracking {
    /// What has changed up to now.
    pub async fn changes(&self) -> Result<Changes, GitError> {
        let Files { tree: head, apart } = self.shadow.files().await?;
        let mut run = diff::between(&self.shadow, &self.run_base, &head).await?;
        let mut base = self.session_base.clone();
        let mut session = if base.tree == self.run_base {
            run.clone()
        } else {
            match diff::between(&self.shadow, &base.tree, &head).await {
                Ok(session) => session,
                Err(error) => {
                    // What nothing leads to is removed from repositories now and then.
                    tracing::warn!(%error, "what the session changed so far can't be told any more");
                    let note = "the repository no longer has the files of the session's beginning: \
                                this is what has changed since a later run began";
                    let path = self.shadow.folder().join(SESSION_BASE);
                    base = Base::begin(&path, &self.run_base, Some(note.to_owned()))?;
                    run.clone()
                }
            }
        };
        run.table.note = told_apart(&apart);
        let notes = base.note.into_iter().chain(told_apart(&apart));
        session.table.note = notes.reduce(|one, other| format!("{one}; {other}"));
        Ok(Changes { run, session })
    }
}

/// What is said of repositories inside the repository, whose files are in no table.
fn told_apart(apart: &[String]) -> Option<String> {
    if apart.is_empty() {
        return None;
    }
    let named = apart.iter().take(NAMED_APART);
    let named: Vec<_> = named.map(|path| format!("`{path}`")).collect();
    let mut named = named.join(", ");
    if apart.len() > NAMED_APART {
        named = format!("{named} and {} more", apart.len() - NAMED_APART);
    }
    Some(format!(
        "what lies in repositories of their own is not among these files: {named}"
    ))
}

/// What a run's result names of its changes.
pub(crate) fn summary(table: &ChangeSet) -> Value {
    let named = table.files.iter().take(NAMED_FILES).map(|file| {
        json!({
            "path": file.path,
            "old_path": file.old_path,
            "status": file.status,
            "additions": file.additions,
            "deletions": file.deletions,
        })
    });
    json!({
        "files": named.collect::<Vec<_>>(),
        "file_count": table.file_count,
        "additions": table.additions,
        "deletions": table.deletions,
        "truncated": table.truncated || table.files.len() > NAMED_FILES,
        "note": table.note,
    })
}
