//! What was made in a worktree and would be lost with it. Branches and stashes are the mirror's, and
//! stay; what only the worktree itself leads to gets a name there before the worktree goes. What was
//! rewritten on purpose, as by an amend or a rebase, is not kept.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::command::{GitError, LOOK_LIMIT};
use super::mirror::{Mirror, is_commit};
use super::{CHECKOUT_LIMIT, Record, WorkspaceError, Worktrees};
use crate::files::if_there;

/// Where the names are; no fetch comes here.
const KEPT: &str = "refs/tapedeck/kept";

/// Objects that are looked at, the newest first.
const LOOKED_AT: usize = 256;

/// The files of a worktree's part of the mirror that lead to commits: where it stands, and what git
/// keeps of a merge, a rebase or the like that is under way, with the work that it has stashed.
const LEADING: [&str; 12] = [
    "HEAD",
    "MERGE_HEAD",
    "MERGE_AUTOSTASH",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "REBASE_HEAD",
    "BISECT_HEAD",
    "rebase-merge/orig-head",
    "rebase-merge/autostash",
    "rebase-apply/orig-head",
    "rebase-apply/autostash",
    "sequencer/head",
];

/// How git's log of HEAD begins to say that another line of work was gone to.
const LEFT: &str = "checkout: moving from ";

impl Worktrees {
    /// Gives names to what only this worktree leads to, and returns them.
    pub(super) async fn keep_loose(
        &self,
        mirror: &Mirror,
        record: &Record,
        registration: &Path,
    ) -> Result<Vec<String>, GitError> {
        let found = there(mirror, &leading(registration)).await?;
        let commits: Vec<_> = found
            .iter()
            .filter(|(_, kind)| kind == "commit")
            .map(|(id, _)| id.as_str())
            .collect();
        let any = !commits.is_empty() && is_unreached(mirror, record, &commits, &[]).await?;
        let mut kept: Vec<String> = Vec::new();
        for (id, kind) in &found {
            let loose = match kind.as_str() {
                "commit" => any && is_unreached(mirror, record, &[id], &kept).await?,
                // No walk over commits reaches it.
                _ => true,
            };
            if loose {
                kept.push(id.clone());
            }
        }
        let mut input = String::new();
        let mut names = Vec::new();
        for id in kept {
            let name = format!("{KEPT}/{}/{id}", record.session_id);
            for word in ["update ", &name, " ", &id, "\n"] {
                input.push_str(word);
            }
            names.push(name);
        }
        if !input.is_empty() {
            let call = mirror.call("update-ref", LOOK_LIMIT).arg("--stdin");
            call.input(input.into_bytes()).output().await?;
        }
        Ok(names)
    }

    /// Whether a repository lies in this worktree that its commits only name, such as a submodule
    /// that was fetched. What was made in there is nowhere else.
    pub(super) async fn holds_repositories(&self, record: &Record) -> Result<bool, WorkspaceError> {
        let place = self.folders.worktree(&record.session_id);
        let registration = self.repository_of(record)?;
        if submodules(&registration).is_some() {
            return Ok(true);
        }
        let call = self.git.call(&place, "ls-files", CHECKOUT_LIMIT);
        let call = call
            .git_dir(&registration)
            .common_dir(&record.mirror)
            .work_tree(&place)
            .args(["--stage", "-z"]);
        let links = call.read(links_to_repositories).await?;
        let is_there = |link: &PathBuf| place.join(link).join(".git").symlink_metadata().is_ok();
        Ok(links.iter().any(is_there))
    }
}

/// The repositories of a worktree's submodules, which git keeps apart from their files.
pub(super) fn submodules(registration: &Path) -> Option<PathBuf> {
    let folder = registration.join("modules");
    let mut entries = fs::read_dir(&folder).ok()?;
    entries.next().map(|_| folder)
}

/// The paths of an index at which other repositories are.
async fn links_to_repositories(output: impl AsyncRead + Unpin) -> Result<Vec<PathBuf>, GitError> {
    let mut entries = BufReader::new(output);
    let mut links = Vec::new();
    let mut entry = Vec::new();
    while entries.read_until(0, &mut entry).await? > 0 {
        let start = entry.iter().position(|byte| *byte == b'\t');
        if let (true, Some(start)) = (entry.starts_with(b"160000 "), start) {
            let path = &entry[start + 1..];
            let path = path.strip_suffix(b"\0").unwrap_or(path);
            links.push(PathBuf::from(OsStr::from_bytes(path)));
        }
        entry.clear();
    }
    Ok(links)
}

/// The ids that a worktree's part of the mirror leads to. Only files are read: the part may be as
/// broken as an agent leaves it.
fn leading(registration: &Path) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    for file in LEADING {
        let text = text_of(&registration.join(file)).unwrap_or_default();
        ids.extend(text.lines().filter_map(first_id));
    }
    let mut folders = vec![registration.join("refs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) => ids.extend(text_of(&entry.path()).as_deref().and_then(first_id)),
                Err(_) => {}
            }
        }
    }
    let log = text_of(&registration.join("logs/HEAD")).unwrap_or_default();
    let left = log.lines().rev().filter(|line| {
        let why = line.split_once('\t');
        why.is_some_and(|(_, why)| why.starts_with(LEFT))
    });
    ids.extend(left.filter_map(first_id));
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    ids.truncate(LOOKED_AT);
    ids
}

/// The id that a line begins with.
fn first_id(line: &str) -> Option<String> {
    let word = line.split_whitespace().next()?;
    let is_id = is_commit(word) && word.bytes().any(|byte| byte != b'0');
    is_id.then(|| word.to_owned())
}

/// What a file says; nothing if it is none, for what isn't a file may never end.
fn text_of(path: &Path) -> Option<String> {
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    let bytes = is_file.then(|| if_there(fs::read(path)).ok().flatten());
    Some(String::from_utf8_lossy(&bytes.flatten()?).into_owned())
}

/// The objects that are there, with what they are.
async fn there(mirror: &Mirror, ids: &[String]) -> Result<Vec<(String, String)>, GitError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut input = ids.join("\n").into_bytes();
    input.push(b'\n');
    let call = mirror.call("cat-file", LOOK_LIMIT).input(input);
    let format = "--batch-check=%(objectname) %(objecttype)";
    let output = call.args(["--buffer", format]).output().await?;
    let pair = |line: &str| {
        let (id, kind) = line.split_once(' ')?;
        (kind != "missing").then(|| (id.to_owned(), kind.to_owned()))
    };
    let text = String::from_utf8_lossy(&output);
    Ok(text.lines().filter_map(pair).collect())
}

/// Whether any of these commits is reached by no name that stays. Tags don't count: one that the
/// remote doesn't have is gone with the next fetch.
async fn is_unreached(
    mirror: &Mirror,
    record: &Record,
    commits: &[&str],
    kept: &[String],
) -> Result<bool, GitError> {
    let call = mirror.call("rev-list", CHECKOUT_LIMIT);
    let call = call
        .args(["--ignore-missing", "--max-count=1"])
        .args(commits);
    let call = call.args([
        "--not",
        "--branches",
        "--remotes",
        "--glob=refs/tapedeck",
        &record.commit,
    ]);
    let output = call.args(kept).output().await?;
    Ok(!output.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_to_commits_is_found_once_and_what_was_rewritten_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let id = |digit: &str| digit.repeat(40);
        let write = |path: &str, text: String| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("HEAD", format!("{}\n", id("1")));
        write("MERGE_HEAD", format!("{}\n{}\n", id("2"), id("3")));
        write("rebase-merge/autostash", id("4"));
        write("refs/worktree/a/b", id("5"));
        write("refs/bisect/bad", "ref: refs/heads/main\n".to_owned());
        let entry = |old: &str, new: &str, why: &str| {
            format!("{} {} a <a@b> 1 +0000\t{why}\n", id(old), id(new))
        };
        let log = [
            entry("0", "1", "checkout: moving from main to x"),
            entry("6", "1", "checkout: moving from 666 to main"),
            entry("7", "1", "commit (amend): again"),
            entry("1", "8", "reset: moving to 888"),
        ];
        write("logs/HEAD", log.concat());
        let expected: Vec<_> = ["1", "2", "3", "4", "5", "6"].map(id).into();
        assert_eq!(leading(dir.path()), expected);
        assert_eq!(leading(&dir.path().join("nowhere")), [""; 0]);
    }

    #[tokio::test]
    async fn only_links_to_repositories_are_taken_from_an_index() {
        let index = b"100644 11 0\ta\tb\x00160000 22 0\tin\tner\x00160000 33 0\tlast\0";
        let links = links_to_repositories(&index[..]).await.unwrap();
        assert_eq!(links, [Path::new("in\tner"), Path::new("last")]);
    }
}
