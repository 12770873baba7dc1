//! How a worktree and its mirror know of each other: the worktree's `.git` names a part of the
//! mirror, its registration, and that names the worktree. An agent can take away either. It must
//! only ever mend the session's own; what is wrong with another's is that session's matter.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::aside::put_aside;
use super::command::GitError;
use super::loose::submodules;
use super::mirror::Mirror;
use super::{CHECKOUT_LIMIT, Record, WorkspaceError, Worktrees};
use crate::files::{if_there, private_dir, write_whole};

/// Why git keeps the registration of a worktree that has no `.git` for now.
const LOCKED: &str = "a session works here\n";

impl Worktrees {
    /// Whether a worktree's files are there and nothing says what they belong to.
    pub(super) fn is_untied(&self, record: &Record) -> bool {
        let place = self.folders.worktree(&record.session_id);
        if !place.is_dir() {
            return false;
        }
        let tie = place.join(".git");
        match if_there(tie.symlink_metadata()) {
            Ok(None) => true,
            Ok(Some(found)) if found.is_file() => {
                let parts = record.mirror.join("worktrees");
                let parts = parts.canonicalize().unwrap_or(parts);
                // The mirror has forgotten it.
                named_by(&tie)
                    .is_some_and(|named| named.parent() == Some(&parts) && !named.exists())
            }
            Ok(Some(_)) | Err(_) => false,
        }
    }

    /// The part of the mirror that names the session's worktree, whatever the worktree says.
    pub(super) fn registration(&self, record: &Record) -> io::Result<Option<PathBuf>> {
        let folder = if_there(self.folders.worktrees().canonicalize())?;
        let Some(folder) = folder else {
            return Ok(None);
        };
        let wanted = folder.join(&record.session_id).join(".git");
        let parts = if_there(fs::read_dir(record.mirror.join("worktrees")))?;
        for part in parts.into_iter().flatten() {
            let part = part?.path();
            let Ok(named) = fs::read(part.join("gitdir")) else {
                continue;
            };
            let named = Path::new(OsStr::from_bytes(named.trim_ascii_end()));
            if part.join(named) == wanted {
                return part.canonicalize().map(Some);
            }
        }
        Ok(None)
    }

    /// The part of the mirror that belongs to a worktree. The worktree says itself which one it is,
    /// and an agent may have changed that.
    pub(super) fn repository_of(&self, record: &Record) -> Result<PathBuf, WorkspaceError> {
        let place = self.folders.worktree(&record.session_id);
        let damaged = || WorkspaceError::Damaged(place.clone());
        let named = named_by(&place.join(".git")).ok_or_else(damaged)?;
        let parts = record.mirror.join("worktrees");
        let canonical = |path: &Path| path.canonicalize().map_err(|_error| damaged());
        let (named, parts) = (canonical(&named)?, canonical(&parts)?);
        if named.parent() == Some(&parts) {
            Ok(named)
        } else {
            Err(damaged())
        }
    }

    pub(super) fn is_finished(&self, record: &Record) -> Result<bool, WorkspaceError> {
        let is_there = self.folders.worktree(&record.session_id).exists();
        Ok(is_there && !is_unfinished(&self.repository_of(record)?))
    }

    /// Has git keep the registration even where the worktree says nothing of it: whoever tidies the
    /// mirror up would else forget a worktree that only lost its `.git`.
    pub(super) fn hold(&self, record: &Record) {
        let held = self.registration(record).and_then(|registration| {
            let lock = registration.map(|registration| registration.join("locked"));
            let open = lock.filter(|lock| !lock.exists());
            open.map_or(Ok(()), |lock| write_whole(&lock, LOCKED.as_bytes()))
        });
        if let Err(error) = held {
            let session_id = &record.session_id;
            tracing::warn!(session_id, %error, "the worktree can't be locked");
        }
    }

    /// Ties a worktree's files to the mirror again, and gives what is to be told of that.
    pub(super) async fn tie_again(
        &self,
        mirror: &Mirror,
        record: &Record,
    ) -> Result<String, GitError> {
        let place = self.folders.worktree(&record.session_id);
        let path = place.display();
        if let Some(registration) = self.registration(record)? {
            tracing::warn!(%path, "the worktree had lost its `.git` and gets it back");
            write_whole(&place.join(".git"), &tie_to(&registration))?;
            return Ok("the worktree had lost its `.git`, which was put back".to_owned());
        }
        tracing::warn!(%path, "the copy had forgotten the worktree, which is tied to it again");
        self.register(mirror, record, &place).await?;
        let note = "the copy of the repository had forgotten the worktree; it was tied to it again \
                    with its files as they are, on the session's branch";
        Ok(note.to_owned())
    }

    /// A registration of its own for files that are there. Git makes one only together with a
    /// folder, so it is made with another one, and then given to the files.
    async fn register(
        &self,
        mirror: &Mirror,
        record: &Record,
        place: &Path,
    ) -> Result<(), GitError> {
        let folder = self.folders.tying();
        let other = folder.join(&record.session_id);
        private_dir(&folder)?;
        if_there(fs::remove_dir_all(&other))?;
        self.add(mirror, record, &other, &["--no-checkout"]).await?;
        let tie = other.join(".git");
        let missing = || io::Error::other("the new worktree names no repository");
        let registration = named_by(&tie).ok_or_else(missing)?;
        let index = mirror.call("read-tree", CHECKOUT_LIMIT);
        let index = index.git_dir(&registration).common_dir(mirror.path());
        index.arg("HEAD").output().await?;
        let named = place.canonicalize()?.join(".git");
        let mut line = named.as_os_str().as_bytes().to_vec();
        line.push(b'\n');
        write_whole(&registration.join("gitdir"), &line)?;
        fs::rename(tie, named)?;
        fs::remove_dir_all(other)?;
        Ok(())
    }

    /// Has git make a worktree at `path`, on the session's branch.
    pub(super) async fn add(
        &self,
        mirror: &Mirror,
        record: &Record,
        path: &Path,
        more: &[&str],
    ) -> Result<(), GitError> {
        let add = mirror.call("worktree", CHECKOUT_LIMIT);
        // Twice, because one that was not finished is still locked.
        let add = add.args(["add", "--force", "--force", "--quiet", "--no-guess-remote"]);
        let add = add.args(more);
        let add = if mirror.has_branch(&record.branch).await? {
            add.arg("--").arg(path).arg(&record.branch)
        } else {
            add.args(["--no-track", "-b", &record.branch])
                .arg("--")
                .arg(path)
                .arg(&record.commit)
        };
        add.output().await.map(drop)
    }

    /// Has the mirror forget a worktree whose files are gone, after what only that leads to has got
    /// names, which are given. The repositories of its submodules are put aside.
    pub(super) async fn forget(
        &self,
        mirror: &Mirror,
        record: &Record,
    ) -> Result<Vec<String>, GitError> {
        let Some(registration) = self.registration(record)? else {
            return Ok(Vec::new());
        };
        let kept = self.keep_loose(mirror, record, &registration).await?;
        if let Some(submodules) = submodules(&registration) {
            put_aside(&submodules, &self.folders.worktree(&record.session_id))?;
        }
        if_there(tokio::fs::remove_dir_all(registration).await)?;
        Ok(kept)
    }
}

/// Whether git was ended while it made a worktree: until then it holds a lock that says so.
fn is_unfinished(registration: &Path) -> bool {
    let lock = fs::read_to_string(registration.join("locked"));
    lock.is_ok_and(|why| why.trim() == "initializing")
}

/// The registration that a worktree's `.git` names.
fn named_by(tie: &Path) -> Option<PathBuf> {
    let text = fs::read(tie).ok()?;
    let named = text.trim_ascii_end().strip_prefix(b"gitdir: ")?;
    Some(tie.parent()?.join(OsStr::from_bytes(named)))
}

fn tie_to(registration: &Path) -> Vec<u8> {
    let mut text = b"gitdir: ".to_vec();
    text.extend_from_slice(registration.as_os_str().as_bytes());
    text.push(b'\n');
    text
}
