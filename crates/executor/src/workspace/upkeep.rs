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

/// A session's worktree, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldWorktree {
    /// What is known of it.
    pub record: Record,
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
        Ok(sessions)
    }

    /// All worktrees, in the order of their sessions.
    pub async fn held(&self) -> Result<Vec<HeldWorktree>, WorkspaceError> {
        let mut held = Vec::new();
        for session_id in self.sessions()? {
            let folders = &self.worktrees.folders;
            let record = Record::read(folders, &session_id).map_err(GitError::from)?;
            let Some(record) = record else { continue };
            let dirty = self.worktrees.is_dirty(&record).await.ok();
            let path = folders.worktree(&session_id);
            held.push(HeldWorktree {
                record,
                path,
                dirty,
            });
        }
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
        let done = match record {
            Some(record) => self.end_worktree(&record, force).await?,
            None => Upkeep::Remove,
        };
        if matches!(done, Upkeep::Remove | Upkeep::RemoveDirty) {
            let changes = tokio::fs::remove_dir_all(folders.changes(session_id)).await;
            if_there(changes).map_err(GitError::from)?;
            let noted = fs::remove_file(folders.deployment(session_id));
            if_there(noted).map_err(GitError::from)?;
        }
        Ok(done)
    }

    async fn end_worktree(&self, record: &Record, force: bool) -> Result<Upkeep, WorkspaceError> {
        let path = lock_path(&self.state_dir, &record.directory);
        private_dir(path.parent().unwrap_or(&path)).map_err(GitError::from)?;
        // An agent that is still in it is about to be ended; the next look finds it gone.
        let _lock = match FileLock::take(&path, LOCK_LIMIT).await {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(Upkeep::Keep),
            Err(error) => return Err(GitError::from(error).into()),
        };
        let (session_id, branch) = (&record.session_id, &record.branch);
        let worktree = self.worktrees.folders.worktree(session_id);
        // What can't be told counts as work that is committed nowhere.
        let dirty = worktree.exists()
            && match self.worktrees.is_dirty(record).await {
                Err(WorkspaceError::Damaged(_)) => true,
                dirty => dirty?,
            };
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
        let worktree = worktree.display();
        match done {
            Upkeep::Keep => return Ok(done),
            Upkeep::KeepDirty => {
                if is_new {
                    let keep_days = keep.as_secs() / 86_400;
                    tracing::warn!(
                        session_id, branch, %worktree, keep_days,
                        "the session is over, and its worktree is kept: it holds work that is not \
                         committed"
                    );
                }
                return Ok(done);
            }
            Upkeep::RemoveDirty => tracing::warn!(
                session_id, branch, %worktree,
                "the session is over, and its worktree is removed with work that is not committed"
            ),
            Upkeep::Remove => tracing::info!(
                session_id, branch, %worktree,
                "the session is over, and its worktree is removed; its branch stays"
            ),
        }
        self.worktrees.remove(record).await?;
        let unmarked = fs::remove_file(mark);
        if_there(unmarked).map_err(GitError::from)?;
        Ok(done)
    }
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
mod tests {
    use std::fs::File;
    use std::time::SystemTime;

    use super::super::WorkspaceTarget;
    use super::super::testing::{Fixture, git};
    use super::*;

    async fn worktree(fixture: &Fixture, session_id: &str) -> PathBuf {
        let fields = serde_json::json!({"path": fixture.project()});
        let target = WorkspaceTarget::read("git", fields.as_object().unwrap()).unwrap();
        let prepared = fixture
            .workspaces
            .prepare(&target, session_id)
            .await
            .unwrap();
        let tracked = fixture
            .workspaces
            .track(&prepared.directory, session_id)
            .await;
        assert!(tracked.unwrap().is_some());
        prepared.directory
    }

    fn branches(fixture: &Fixture, session_id: &str) -> String {
        let folders = &fixture.workspaces.worktrees.folders;
        let mirror = Record::read(folders, session_id).unwrap().unwrap().mirror;
        mirror.to_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn a_clean_worktree_goes_with_its_session_and_its_branch_stays() {
        let fixture = Fixture::new();
        let directory = worktree(&fixture, "one").await;
        let other = worktree(&fixture, "two").await;
        fs::write(directory.join("kept.txt"), "kept").unwrap();
        git(&directory, &["add", "."]);
        git(&directory, &["commit", "--quiet", "-m", "kept"]);
        let mirror = PathBuf::from(branches(&fixture, "one"));
        let workspaces = &fixture.workspaces;
        assert_eq!(workspaces.held().await.unwrap().len(), 2);
        let done = workspaces.end_session("one", false).await.unwrap();
        assert_eq!(done, Upkeep::Remove);
        assert!(!directory.exists() && other.exists());
        assert_eq!(workspaces.sessions().unwrap(), ["two".to_owned()].into());
        assert_eq!(git(&mirror, &["show", "tapedeck/one:kept.txt"]), "kept");
        // Once more is the same, and so is a session that never was here.
        for session_id in ["one", "never"] {
            let done = workspaces.end_session(session_id, false).await.unwrap();
            assert_eq!(done, Upkeep::Remove);
        }
        assert!(workspaces.end_session("../two", true).await.is_err());
    }

    #[tokio::test]
    async fn a_dirty_worktree_stays_until_its_time_is_up_or_somebody_insists() {
        let fixture = Fixture::new();
        let workspaces = &fixture.workspaces;
        let directory = worktree(&fixture, "one").await;
        fs::write(directory.join("new.txt"), "new").unwrap();
        for _ in 0..2 {
            let done = workspaces.end_session("one", false).await.unwrap();
            assert_eq!(done, Upkeep::KeepDirty);
        }
        assert_eq!(workspaces.held().await.unwrap()[0].dirty, Some(true));
        let mark = workspaces.worktrees.folders.dirty_mark("one");
        let past = SystemTime::UNIX_EPOCH + Duration::from_hours(24);
        File::options()
            .write(true)
            .open(mark)
            .unwrap()
            .set_modified(past)
            .unwrap();
        let done = workspaces.end_session("one", false).await.unwrap();
        assert_eq!(done, Upkeep::RemoveDirty);
        assert!(!directory.exists());

        let directory = worktree(&fixture, "two").await;
        fs::write(directory.join("a.txt"), "changed").unwrap();
        let done = workspaces.end_session("two", true).await.unwrap();
        assert_eq!(done, Upkeep::RemoveDirty);
        assert!(!directory.exists() && workspaces.sessions().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_damaged_worktree_stays_until_somebody_insists() {
        let fixture = Fixture::new();
        let workspaces = &fixture.workspaces;
        let directory = worktree(&fixture, "one").await;
        fs::remove_file(directory.join(".git")).unwrap();
        fs::write(directory.join(".git"), "gitdir: /elsewhere").unwrap();
        assert_eq!(workspaces.held().await.unwrap()[0].dirty, None);
        let done = workspaces.end_session("one", false).await.unwrap();
        assert_eq!(done, Upkeep::KeepDirty);
        let done = workspaces.end_session("one", true).await.unwrap();
        assert_eq!(done, Upkeep::RemoveDirty);
        assert!(!directory.exists() && workspaces.sessions().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_worktree_that_an_agent_is_in_stays() {
        let fixture = Fixture::new();
        let directory = worktree(&fixture, "one").await;
        let path = lock_path(&fixture.path("state"), &directory);
        private_dir(path.parent().unwrap()).unwrap();
        let lock = FileLock::take(&path, LOCK_LIMIT).await.unwrap();
        let done = fixture.workspaces.end_session("one", true).await.unwrap();
        assert_eq!(done, Upkeep::Keep);
        drop(lock);
        let done = fixture.workspaces.end_session("one", true).await.unwrap();
        assert_eq!(done, Upkeep::Remove);
    }
}
