//! What lies among the worktrees and is no session's worktree. Nobody knows what it is worth, so it
//! is put aside and never removed before its session is over.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Folders;
use crate::files::if_there;

/// How the names of what was put aside go on after the session's.
const ASIDE: &str = "aside-";

/// A worktree that is being made, and is gone again if that doesn't come to its end. What lay in its
/// place before has been put aside by then.
pub(super) struct Unfinished {
    path: PathBuf,
    finished: bool,
    aside: Option<PathBuf>,
}

impl Unfinished {
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        let aside = if path.exists() {
            put_aside(&path, &path)?
        } else {
            None
        };
        Ok(Self {
            path,
            finished: false,
            aside,
        })
    }

    /// It is made. Gives where that lies which lay in its place.
    pub(super) fn finish(mut self) -> Option<PathBuf> {
        self.finished = true;
        self.aside.take()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.finished {
            // What can't be removed is put aside by the next run.
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

/// Keeps what lies at `path` beside the worktree that it was found with, and says so.
pub(super) fn put_aside(path: &Path, worktree: &Path) -> io::Result<Option<PathBuf>> {
    let aside = (1..).map(|number: u32| worktree.with_extension(format!("{ASIDE}{number}")));
    let Some(aside) = aside.into_iter().find(|aside| !aside.exists()) else {
        return Ok(None);
    };
    tracing::warn!(path = %path.display(), aside = %aside.display(), "something unknown was put aside");
    fs::rename(path, &aside)?;
    Ok(Some(aside))
}

impl Folders {
    /// What was put aside, or is no worktree that anything is known of, by its session.
    pub(crate) fn strays(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let mut strays = Vec::new();
        for entry in if_there(fs::read_dir(self.worktrees()))?
            .into_iter()
            .flatten()
        {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let (session_id, is_stray) = match name.split_once('.') {
                Some((session_id, end)) => (session_id, end.starts_with(ASIDE)),
                None => (name, !self.record(name).exists()),
            };
            if is_stray {
                strays.push((session_id.to_owned(), path));
            }
        }
        strays.sort();
        Ok(strays)
    }
}
