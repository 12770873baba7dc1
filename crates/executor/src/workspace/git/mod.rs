//! Git workspaces: a worktree and a branch for each session, from a copy of the repository kept
//! below the state directory. It owns the record by which a later run of the session finds its
//! worktree again; it must never reach a repository in a way that the executor wasn't allowed.

mod aside;
mod command;
mod lock;
mod loose;
mod mirror;
mod tie;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tapedeck_domain::git::{GitWorkspace, Source, Transport};

use aside::Unfinished;
pub use command::GitError;
pub(crate) use command::{Call, Git};
pub(crate) use lock::FileLock;
use mirror::{Mirror, Origin};

use super::{WorkspaceError, local};
use crate::files::{if_there, private_dir, write_whole};

/// Putting a worktree's files on disk.
const CHECKOUT_LIMIT: Duration = Duration::from_mins(10);

/// How an executor uses git.
#[derive(Clone)]
pub struct GitOptions {
    /// The executor's own variables; git is given only what it needs of them.
    pub environment: Vec<(OsString, OsString)>,
    /// The operator's git settings, such as a credential helper. No other file outside of the
    /// repositories is read.
    pub config_file: Option<PathBuf>,
    /// How remote repositories may be reached. Directories are allowed inside workspace roots.
    pub transports: Vec<Transport>,
    /// How long a fetch may take.
    pub fetch_limit: Duration,
    /// How long a closed session's worktree with uncommitted work is kept.
    pub keep_dirty: Duration,
    /// How often the server is asked which sessions have been closed.
    pub check_every: Duration,
}

impl std::fmt::Debug for GitOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GitOptions")
            .field("config_file", &self.config_file)
            .field("transports", &self.transports)
            .field("fetch_limit", &self.fetch_limit)
            .field("keep_dirty", &self.keep_dirty)
            .field("check_every", &self.check_every)
            .finish_non_exhaustive()
    }
}

impl Default for GitOptions {
    fn default() -> Self {
        Self {
            environment: Vec::new(),
            config_file: None,
            transports: vec![Transport::Https, Transport::Ssh],
            fetch_limit: Duration::from_mins(10),
            keep_dirty: Duration::from_hours(14 * 24),
            check_every: Duration::from_mins(5),
        }
    }
}

/// Where git's things lie below the state directory.
#[derive(Debug, Clone)]
pub(crate) struct Folders {
    root: PathBuf,
}

impl Folders {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join("git"),
        }
    }

    fn mirrors(&self) -> PathBuf {
        self.root.join("mirrors")
    }

    fn worktrees(&self) -> PathBuf {
        self.root.join("worktrees")
    }

    pub(crate) fn worktree(&self, session_id: &str) -> PathBuf {
        self.worktrees().join(session_id)
    }

    /// Where worktrees are made whose files lie elsewhere already.
    fn tying(&self) -> PathBuf {
        self.root.join("tying")
    }

    pub(crate) fn records(&self) -> PathBuf {
        self.root.join("sessions")
    }

    fn record(&self, session_id: &str) -> PathBuf {
        self.records().join(format!("{session_id}.json"))
    }

    /// Says since when it is known that a session is over and its worktree is not clean.
    pub(crate) fn dirty_mark(&self, session_id: &str) -> PathBuf {
        self.records().join(format!("{session_id}.dirty"))
    }

    /// Says which deployment a session is of.
    pub(crate) fn deployment(&self, session_id: &str) -> PathBuf {
        self.records().join(format!("{session_id}.deployment"))
    }

    /// Where the trees of a session's runs are kept.
    pub(crate) fn changes(&self, session_id: &str) -> PathBuf {
        self.changes_root().join(session_id)
    }

    pub(crate) fn changes_root(&self) -> PathBuf {
        self.root.join("changes")
    }
}

/// What is known of a session's worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The session.
    pub session_id: String,
    /// Where its repository is.
    pub source: String,
    /// The copy that it belongs to.
    pub mirror: PathBuf,
    /// Its branch in that copy.
    pub branch: String,
    /// Where it started.
    pub commit: String,
    /// Where its agents start, for the lock on it.
    pub directory: PathBuf,
}

impl Record {
    /// What is known of a session's worktree, if it has one.
    pub(crate) fn read(folders: &Folders, session_id: &str) -> io::Result<Option<Self>> {
        let bytes = if_there(std::fs::read(folders.record(session_id)))?;
        let record = bytes.map(|bytes| serde_json::from_slice(&bytes));
        record.transpose().map_err(io::Error::from)
    }

    fn write(&self, folders: &Folders) -> io::Result<()> {
        private_dir(&folders.records())?;
        let record = serde_json::to_vec(self).map_err(io::Error::from)?;
        write_whole(&folders.record(&self.session_id), &record)
    }

    pub(crate) fn remove(folders: &Folders, session_id: &str) -> io::Result<()> {
        if_there(std::fs::remove_file(folders.record(session_id))).map(drop)
    }
}

/// A session's worktree, ready for an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Worktree {
    pub(super) record: Record,
    /// Where the agent starts.
    pub(super) directory: PathBuf,
    /// Why it may not be what is expected: it starts from an older state, or was mended.
    pub(super) note: Option<String>,
}

/// Makes and finds worktrees.
#[derive(Debug, Clone)]
pub(crate) struct Worktrees {
    pub(crate) git: Git,
    pub(crate) folders: Folders,
}

impl Worktrees {
    /// The worktree of a session, made if this is its first run here.
    pub(super) async fn prepare(
        &self,
        workspace: &GitWorkspace,
        session_id: &str,
        roots: &[PathBuf],
    ) -> Result<Worktree, WorkspaceError> {
        let held = Record::read(&self.folders, session_id).map_err(GitError::from)?;
        let origin = self.origin(workspace, roots).await;
        let (record, note) = if let Some(record) = held {
            let is_same = match origin {
                // A session goes on in its worktree whatever has become of the repository.
                Err(WorkspaceError::Unusable { path, .. }) if path == Path::new(&record.source) => {
                    true
                }
                origin => origin?.url == record.source,
            };
            if !is_same {
                return Err(WorkspaceError::OtherSource {
                    path: self.folders.worktree(session_id),
                    source_then: record.source,
                });
            }
            let note = self.find_again(&record).await?;
            (record, note)
        } else {
            self.create(&origin?, workspace, session_id).await?
        };
        let top = self.folders.worktree(session_id);
        let directory = inside(&top, workspace.subdirectory.as_deref())?;
        Ok(Worktree {
            record,
            directory,
            note,
        })
    }

    async fn origin(
        &self,
        workspace: &GitWorkspace,
        roots: &[PathBuf],
    ) -> Result<Origin, WorkspaceError> {
        let (url, transport) = match &workspace.source {
            Source::Remote { url, transport } => {
                if !self.git.options().transports.contains(transport) {
                    return Err(WorkspaceError::Transport(transport.as_str()));
                }
                (url.clone(), *transport)
            }
            Source::Directory(path) => {
                let path = local::prepare(Path::new(path), roots).await?;
                let text = path.to_str().map(str::to_owned);
                let text = text.ok_or_else(|| WorkspaceError::NotADirectory(path.clone()))?;
                (text, Transport::File)
            }
        };
        Ok(Origin {
            url,
            transport,
            depth: workspace.depth,
        })
    }

    async fn create(
        &self,
        origin: &Origin,
        workspace: &GitWorkspace,
        session_id: &str,
    ) -> Result<(Record, Option<String>), WorkspaceError> {
        let mirror = Mirror::open(&self.git, &self.folders.mirrors(), origin).await?;
        let found = mirror.find(origin, &workspace.start).await?;
        if let Some(note) = &found.note {
            tracing::warn!(source = origin.url, note, "the repository was not fetched");
        }
        let mut record = Record {
            session_id: session_id.to_owned(),
            source: origin.url.clone(),
            mirror: mirror.path().to_owned(),
            branch: format!("tapedeck/{session_id}"),
            commit: found.commit,
            directory: PathBuf::new(),
        };
        let more = self.check_out(&mirror, &record).await?;
        let top = self.folders.worktree(session_id);
        record.directory = inside(&top, workspace.subdirectory.as_deref())?;
        self.hold(&record);
        record.write(&self.folders).map_err(GitError::from)?;
        Ok((record, joined(found.note, more)))
    }

    /// A worktree that is there has to be the session's own; one that is gone is made again from
    /// its branch, and one that only lost its tie to the mirror gets that back. Gives what is to be
    /// told of that.
    async fn find_again(&self, record: &Record) -> Result<Option<String>, WorkspaceError> {
        // What is being made right now is looked at when it is done.
        if matches!(self.is_finished(record), Ok(true)) {
            self.hold(record);
            return Ok(None);
        }
        let mirror = Mirror::open_at(&self.git, &record.mirror).await?;
        let mut note = None;
        if self.is_untied(record) {
            note = Some(self.tie_again(&mirror, record).await?);
        }
        if !self.is_finished(record)? {
            note = Some(self.make_again(&mirror, record).await?);
        }
        self.hold(record);
        Ok(note)
    }

    async fn make_again(&self, mirror: &Mirror, record: &Record) -> Result<String, GitError> {
        let more = self.check_out(mirror, record).await?;
        let made = "the worktree was made anew from the session's branch".to_owned();
        let note = joined(Some(made), more).unwrap_or_default();
        tracing::warn!(session_id = record.session_id, note);
        Ok(note)
    }

    /// Makes a worktree, and gives what is to be told of what was there before.
    async fn check_out(
        &self,
        mirror: &Mirror,
        record: &Record,
    ) -> Result<Option<String>, GitError> {
        let path = self.folders.worktree(&record.session_id);
        private_dir(path.parent().unwrap_or(&path))?;
        let unfinished = Unfinished::new(path.clone())?;
        let kept = self.forget(mirror, record).await?;
        self.add(mirror, record, &path, &[]).await?;
        let aside = unfinished.finish();
        let aside =
            aside.map(|aside| format!("what lay in its place is now `{}`", aside.display()));
        let kept = (!kept.is_empty()).then(|| {
            let names = kept.join("`, `");
            format!("what no branch leads to is kept as `{names}`")
        });
        Ok(joined(aside, kept))
    }

    /// Whether a worktree holds anything that its branch doesn't.
    pub(crate) async fn is_dirty(&self, record: &Record) -> Result<bool, WorkspaceError> {
        let path = self.folders.worktree(&record.session_id);
        let _settled = Mirror::open_at(&self.git, &record.mirror).await?;
        let call = self.git.call(&path, "status", CHECKOUT_LIMIT);
        let call = call
            .git_dir(&self.repository_of(record)?)
            .common_dir(&record.mirror)
            .work_tree(&path)
            .args([
                "--porcelain",
                "-z",
                "--untracked-files=normal",
                "--ignore-submodules=all",
            ]);
        Ok(!call.output().await?.is_empty() || self.holds_repositories(record).await?)
    }

    /// Removes a worktree and its record. Branches stay in the mirror; what else led to its commits
    /// gets names there, which are given. `insist` goes on where git can't tell what that is.
    pub(crate) async fn remove(
        &self,
        record: &Record,
        insist: bool,
    ) -> Result<Vec<String>, GitError> {
        let mirror = Mirror::open_at(&self.git, &record.mirror).await?;
        let mut kept = Vec::new();
        let registration = self.registration(record)?;
        if let Some(registration) = &registration {
            match self.keep_loose(&mirror, record, registration).await {
                Ok(names) => kept = names,
                Err(error @ GitError::Failed { .. }) if insist => {
                    let session_id = &record.session_id;
                    tracing::warn!(session_id, %error, "what only the worktree leads to is lost");
                }
                Err(error) => return Err(error),
            }
        }
        let path = self.folders.worktree(&record.session_id);
        if_there(tokio::fs::remove_dir_all(&path).await)?;
        // The other way round, what a crash leaves would count as damaged.
        if let Some(registration) = registration {
            if_there(tokio::fs::remove_dir_all(registration).await)?;
        }
        Record::remove(&self.folders, &record.session_id)?;
        Ok(kept)
    }
}

/// Both of two notes, or the one that there is.
fn joined(one: Option<String>, other: Option<String>) -> Option<String> {
    let notes = one.into_iter().chain(other);
    notes.reduce(|one, other| format!("{one}; {other}"))
}

/// A directory inside a worktree, where no link leads out of it.
fn inside(top: &Path, subdirectory: Option<&str>) -> Result<PathBuf, WorkspaceError> {
    let canonical = |path: &Path| {
        path.canonicalize()
            .map_err(|source| WorkspaceError::Unusable {
                path: path.to_owned(),
                source,
            })
    };
    let top = canonical(top)?;
    let Some(subdirectory) = subdirectory else {
        return Ok(top);
    };
    let path = top.join(subdirectory);
    let directory = canonical(&path)?;
    if !directory.starts_with(&top) {
        return Err(WorkspaceError::OutsideRepository(path));
    }
    if !directory.is_dir() {
        return Err(WorkspaceError::NotADirectory(path));
    }
    Ok(directory)
}

#[cfg(test)]
mod tests;
