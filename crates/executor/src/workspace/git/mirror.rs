//! Bare copies of repositories, one for each URL, shared by all sessions of this state directory.
//! It owns their place, their lock and their settings; branches of sessions live in them and are
//! never removed here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tapedeck_domain::git::{Start, Transport};

use super::command::{Git, GitError, LOOK_LIMIT};
use super::lock::FileLock;
use crate::files::{private_dir, write_whole};

/// The settings of a mirror. They are written anew before each use: agents can write to the
/// repository that their worktree belongs to.
const SETTINGS: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n";

/// Where the remote's own default is kept; nothing else may have this name, and beside it lies what
/// worktrees left.
const REMOTE_HEAD: &str = "refs/tapedeck/head";

/// A repository to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    /// Its URL, or its directory.
    pub(super) url: String,
    pub(super) transport: Transport,
    /// How much of its history is wanted.
    pub(super) depth: Option<u32>,
}

impl Origin {
    /// What the mirror is called: shallow ones are apart, for they can't serve whole ones.
    fn key(&self) -> String {
        let depth = self.depth.map(|depth| depth.to_string());
        let text = format!("{}\0{}", self.url, depth.unwrap_or_default());
        let digest = Sha256::digest(text.as_bytes());
        let name = u128::from_be_bytes(std::array::from_fn(|at| digest[at]));
        format!("{name:032x}")
    }
}

/// A locked mirror.
#[derive(Debug)]
pub(super) struct Mirror {
    git: Git,
    path: PathBuf,
    _lock: FileLock,
}

/// A commit to start from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) commit: String,
    /// Why it may not be the newest.
    pub(super) note: Option<String>,
}

impl Mirror {
    /// The mirror of `origin` below `folder`, locked and made if it is not there.
    pub(super) async fn open(git: &Git, folder: &Path, origin: &Origin) -> Result<Self, GitError> {
        let path = folder.join(format!("{}.git", origin.key()));
        Self::open_at(git, &path).await
    }

    /// The mirror at `path`.
    pub(super) async fn open_at(git: &Git, path: &Path) -> Result<Self, GitError> {
        let folder = path.parent().unwrap_or(path);
        private_dir(folder)?;
        // Somebody else may be fetching the same repository.
        let wait = git.options().fetch_limit;
        let lock = FileLock::take(&path.with_extension("lock"), wait).await?;
        let mirror = Self {
            git: git.clone(),
            path: path.to_owned(),
            _lock: lock,
        };
        if !path.join("HEAD").is_file() {
            git.init(path, &[]).await?;
        }
        mirror.settle_settings()?;
        Ok(mirror)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn settle_settings(&self) -> std::io::Result<()> {
        let settings = self.path.join("config");
        if std::fs::read(&settings).is_ok_and(|held| held == SETTINGS.as_bytes()) {
            return Ok(());
        }
        write_whole(&settings, SETTINGS.as_bytes())
    }

    pub(super) fn call(&self, subcommand: &str, limit: Duration) -> super::command::Call {
        let call = self.git.call(&self.path, subcommand, limit);
        call.git_dir(&self.path)
    }

    /// The commit to start from, fetched if the remote can be reached, else as it was last seen.
    pub(super) async fn find(&self, origin: &Origin, start: &Start) -> Result<Found, GitError> {
        let wanted = match start {
            Start::Ref(name) if is_commit(name) => Some(name.as_str()),
            Start::Ref(_) | Start::Branch(_) | Start::Default => None,
        };
        // A commit never changes, so one that is here needs no fetch.
        if wanted.is_some()
            && let Some(commit) = self.look_up(start).await?
        {
            return Ok(Found { commit, note: None });
        }
        let fetched = self.fetch(origin, &refspecs()).await;
        if let (Ok(()), Some(wanted)) = (&fetched, wanted)
            && self.look_up(start).await?.is_none()
        {
            // Not every server hands out a commit that no branch leads to.
            self.fetch(origin, &[wanted.to_owned()]).await?;
        }
        match (self.look_up(start).await?, fetched) {
            (Some(commit), Ok(())) => Ok(Found { commit, note: None }),
            (Some(commit), Err(error)) => {
                let note = format!("not fetched, the copy kept here is used: {error}");
                Ok(Found {
                    commit,
                    note: Some(note),
                })
            }
            (None, Err(error)) if error.is_without_head() => Err(GitError::Output {
                what: "fetch".to_owned(),
                why: "the repository has no commit to start from".to_owned(),
            }),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Err(GitError::Output {
                what: "fetch".to_owned(),
                why: match start {
                    Start::Default => "the repository has no commit to start from".to_owned(),
                    Start::Branch(name) => format!("the repository has no branch `{name}`"),
                    Start::Ref(name) => {
                        format!("the repository has no branch, tag or commit `{name}`")
                    }
                },
            }),
        }
    }

    async fn fetch(&self, origin: &Origin, refspecs: &[String]) -> Result<(), GitError> {
        let limit = self.git.options().fetch_limit;
        let depth = origin.depth.map(|depth| format!("--depth={depth}"));
        let call = self.call("fetch", limit).allow(origin.transport).args([
            "--quiet",
            "--force",
            "--prune",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
        ]);
        call.args(depth)
            .args(["--", &origin.url])
            .args(refspecs)
            .output()
            .await?;
        Ok(())
    }

    async fn look_up(&self, start: &Start) -> Result<Option<String>, GitError> {
        for name in candidates(start) {
            let found = self.named(&format!("{name}^{{commit}}")).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Whether this branch is here.
    pub(super) async fn has_branch(&self, branch: &str) -> Result<bool, GitError> {
        let found = self.named(&format!("refs/heads/{branch}")).await?;
        Ok(found.is_some())
    }

    async fn named(&self, name: &str) -> Result<Option<String>, GitError> {
        let call = self.call("rev-parse", LOOK_LIMIT);
        call.verify(name).found().await
    }
}

/// The remote's branches and its default under names of their own, so that the sessions' branches
/// are in nobody's way.
fn refspecs() -> [String; 3] {
    [
        "+refs/heads/*:refs/remotes/origin/*".to_owned(),
        "+refs/tags/*:refs/tags/*".to_owned(),
        format!("+HEAD:{REMOTE_HEAD}"),
    ]
}

/// Where a start may be found, the first one wins.
fn candidates(start: &Start) -> Vec<String> {
    let branch = |name: &str| format!("refs/remotes/origin/{name}");
    match start {
        Start::Default => vec![REMOTE_HEAD.to_owned()],
        Start::Branch(name) => vec![branch(name.strip_prefix("refs/heads/").unwrap_or(name))],
        Start::Ref(name) => {
            if let Some(name) = name.strip_prefix("refs/heads/") {
                return vec![branch(name)];
            }
            if name.starts_with("refs/tags/") {
                return vec![name.clone()];
            }
            let mut places = vec![branch(name), format!("refs/tags/{name}")];
            let hex = name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if hex && (7..=64).contains(&name.len()) {
                places.push(name.clone());
            }
            places
        }
    }
}

/// Whether this is the whole name of a commit.
pub(super) fn is_commit(name: &str) -> bool {
    matches!(name.len(), 40 | 64) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_looked_for_among_the_remotes_own_names_only() {
        assert_eq!(candidates(&Start::Default), [REMOTE_HEAD]);
        let named = |name: &str| candidates(&Start::Ref(name.to_owned()));
        assert_eq!(
            named("main"),
            ["refs/remotes/origin/main", "refs/tags/main"]
        );
        assert_eq!(named("refs/heads/main"), ["refs/remotes/origin/main"]);
        assert_eq!(named("refs/tags/v1"), ["refs/tags/v1"]);
        assert_eq!(named("0123abc").last().unwrap(), "0123abc");
        let branch = candidates(&Start::Branch("0123abc".to_owned()));
        assert_eq!(branch, ["refs/remotes/origin/0123abc"]);
        assert!(is_commit(&"a".repeat(40)) && !is_commit("main"));
    }

    #[test]
    fn a_shallow_mirror_is_another_one() {
        let origin = |depth| Origin {
            url: "https://example.com/a".to_owned(),
            transport: Transport::Https,
            depth,
        };
        assert_ne!(origin(None).key(), origin(Some(1)).key());
        assert_eq!(origin(None).key(), origin(None).key());
    }
}
