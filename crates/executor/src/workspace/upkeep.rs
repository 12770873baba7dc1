//! The end of worktrees whose sessions are over. It must never remove work that is committed nowhere
//! without a word, nor a worktree that an agent is in.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tapedeck_domain::git::{Upkeep, upkeep};

use super::git::{FileLock, GitError, Record};
use super::{WorkspaceError, Workspaces};
use crate::files::{if_there, private_dir};
use crate::guard::lock_path;

/// A process that is being started may hold a copy of a lock for a moment.
const LOCK_LIMIT: Duration = Duration::from_secs(1);

/// A session's worktree, or what lies here of it beside that, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldWorktree {
    /// The session.
    pub session_id: String,
    /// What is known of it; nothing of what was put aside.
    pub record: Option<Record>,
    /// Where it lies.
    pub path: PathBuf,
    /// Whether it holds work that is not committed; not known where git can't tell.
    pub dirty: Option<bool>,
}

impl Workspaces {
    /// The sessions of which something lies here that belongs to git.
    pub fn sessions(&self) -> Result<BTreeSet<String>, WorkspaceError> {
        self.listed().map_err(|error| GitError::from(error).into())
    }

    fn listed(&self) -> io::Result<BTreeSet<String>> {
        let folders = &self.worktrees.folders;
        let mut sessions = BTreeSet::new();
        for folder in [folders.records(), folders.changes_root()] {
            for entry in if_there(fs::read_dir(folder))?.into_iter().flatten() {
                let path = PathBuf::from(entry?.file_name());
                let ends = path.extension().and_then(|end| end.to_str());
                let name = path.file_stem().and_then(|name| name.to_str());
                if let (None | Some("json"), Some(name)) = (ends, name) {
                    sessions.insert(name.to_owned());
                }
            }
        }
        sessions.extend(
            folders
                .strays()?
                .into_iter()
                .map(|(session_id, _)| session_id),
        );
        Ok(sessions)
    }

    /// All worktrees and what was put aside, in the order of their sessions.
    pub async fn held(&self) -> Result<Vec<HeldWorktree>, WorkspaceError> {
        let folders = &self.worktrees.folders;
        let mut held = Vec::new();
        for session_id in self.sessions()? {
            let record = Record::read(folders, &session_id).map_err(GitError::from)?;
            let Some(record) = record else { continue };
            let dirty = self.worktrees.is_dirty(&record).await.ok();
            let path = folders.worktree(&session_id);
            held.push(HeldWorktree {
                session_id,
                record: Some(record),
                path,
                dirty,
            });
        }
        let strays = folders.strays().map_err(GitError::from)?;
        held.extend(strays.into_iter().map(|(session_id, path)| HeldWorktree {
            session_id,
            record: None,
            path,
            dirty: None,
        }));
        held.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(held)
    }

    /// The deployment that a session is known to be of.
    pub(crate) fn noted_deployment(
        &self,
        session_id: &str,
    ) -> Result<Option<String>, WorkspaceError> {
        let noted = fs::read_to_string(self.worktrees.folders.deployment(session_id));
        if_there(noted).map_err(|error| GitError::from(error).into())
    }

    /// Remembers the deployment of a session.
    pub(crate) fn note_deployment(
        &self,
        session_id: &str,
        deployment: &str,
    ) -> Result<(), WorkspaceError> {
        if self.noted_deployment(session_id)?.is_some() {
            return Ok(());
        }
        let folders = &self.worktrees.folders;
        let noted = private_dir(&folders.records())
            .and_then(|()| fs::write(folders.deployment(session_id), deployment));
        noted.map_err(|error| GitError::from(error).into())
    }

    /// Removes what lies here of a session that is over, as the policy allows. `force` counts work
    /// that is not committed as old enough.
    pub async fn end_session(
        &self,
        session_id: &str,
        force: bool,
    ) -> Result<Upkeep, WorkspaceError> {
        super::check_session_id(session_id)?;
        let folders = &self.worktrees.folders;
        let record = Record::read(folders, session_id).map_err(GitError::from)?;
        let mut strays = folders.strays().map_err(GitError::from)?;
        strays.retain(|(of, _)| of == session_id);
        let strays: Vec<_> = strays.into_iter().map(|(_, path)| path).collect();
        let done = match (&record, strays.is_empty()) {
            (None, true) => Upkeep::Remove,
            _ => {
                self.end_worktree(session_id, record.as_ref(), &strays, force)
                    .await?
            }
        };
        if matches!(done, Upkeep::Remove | Upkeep::RemoveDirty) {
            let changes = tokio::fs::remove_dir_all(folders.changes(session_id)).await;
            if_there(changes).map_err(GitError::from)?;
            let noted = fs::remove_file(folders.deployment(session_id));
            if_there(noted).map_err(GitError::from)?;
        }
        Ok(done)
    }

    /// Ends the worktree that is known of, if one is, and what else lies here.
    async fn end_worktree(
        &self,
        session_id: &str,
        record: Option<&Record>,
        strays: &[PathBuf],
        force: bool,
    ) -> Result<Upkeep, WorkspaceError> {
        let worktree = self.worktrees.folders.worktree(session_id);
        let directory = record.map_or(&worktree, |record| &record.directory);
        let path = lock_path(&self.state_dir, directory);
        private_dir(path.parent().unwrap_or(&path)).map_err(GitError::from)?;
        // An agent that is still in it is about to be ended; the next look finds it gone.
        let _lock = match FileLock::take(&path, LOCK_LIMIT).await {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(Upkeep::Keep),
            Err(error) => return Err(GitError::from(error).into()),
        };
        let mut dirty = !strays.is_empty();
        if let Some(record) = record
            && worktree.exists()
        {
            dirty |= match self.worktrees.is_dirty(record).await {
                // What can't be told counts as work that is committed nowhere.
                Err(WorkspaceError::Damaged(_) | WorkspaceError::Git(GitError::Failed { .. })) => {
                    true
                }
                found => found?,
            };
        }
        let mark = self.worktrees.folders.dirty_mark(session_id);
        let is_new = dirty && !mark.exists();
        let dirty_ms = if dirty {
            Some(age_ms(&mark).map_err(GitError::from)?)
        } else {
            None
        };
        let keep = self.worktrees.git.options().keep_dirty;
        let keep_ms = if force { 0 } else { millis(keep) };
        let done = upkeep(true, dirty_ms, keep_ms);
        if matches!(done, Upkeep::Keep | Upkeep::KeepDirty) {
            if is_new {
                let (keep_days, worktree) = (keep.as_secs() / 86_400, worktree.display());
                tracing::warn!(
                    session_id, %worktree, ?strays, keep_days,
                    "the session is over, and its worktree is kept: it holds work that is not \
                     committed, or something was put aside"
                );
            }
            return Ok(done);
        }
        for stray in strays {
            tracing::warn!(session_id, path = %stray.display(), "what was put aside is removed");
            remove_all(stray).await?;
        }
        if let Some(record) = record {
            self.remove(record, done == Upkeep::RemoveDirty).await?;
        }
        if_there(fs::remove_file(mark)).map_err(GitError::from)?;
        Ok(done)
    }

    async fn remove(&self, record: &Record, dirty: bool) -> Result<(), GitError> {
        let (session_id, branch) = (&record.session_id, &record.branch);
        let worktree = self.worktrees.folders.worktree(session_id);
        let worktree = worktree.display();
        let kept = self.worktrees.remove(record, dirty).await?;
        if dirty {
            tracing::warn!(
                session_id, branch, %worktree,
                "the session is over, and its worktree is removed with work that is not committed"
            );
        } else {
            tracing::info!(
                session_id, branch, %worktree,
                "the session is over, and its worktree is removed; its branches stay"
            );
        }
        if !kept.is_empty() {
            let mirror = record.mirror.display();
            tracing::warn!(
                session_id, %mirror, ?kept,
                "commits that no branch leads to are kept under names of their own"
            );
        }
        Ok(())
    }
}

/// Removes a folder with what is in it, or whatever else it is.
async fn remove_all(path: &Path) -> Result<(), GitError> {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let removed = if is_folder {
        tokio::fs::remove_dir_all(path).await
    } else {
        tokio::fs::remove_file(path).await
    };
    if_there(removed)?;
    Ok(())
}

/// For how long work that is not committed has been known of, from now on if it was not.
fn age_ms(mark: &Path) -> io::Result<u64> {
    let Some(known) = if_there(fs::metadata(mark))? else {
        fs::write(mark, "")?;
        return Ok(0);
    };
    // A clock that was put back makes it younger, never older.
    let age = known.modified()?.elapsed();
    Ok(age.map_or(0, millis))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
