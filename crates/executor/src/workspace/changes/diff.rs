//! What lies between two trees: the table of files, and a patch that git itself can apply. It owns
//! the bounds; a file that does not fit is named in the table and left out of the patch.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use tapedeck_protocol::changes::{ChangeSet, ChangeStatus, FileChange};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::parse::{self, Counts, RawChange};
use super::shadow::{FILE_BYTES, Shadow, index_line};
use crate::files::if_there;
use crate::workspace::git::{Call, GitError};

/// Files in a table.
const FILES: usize = 2_000;
/// Bytes of paths in a table.
const PATH_BYTES: usize = 256 * 1024;
/// Bytes of a patch.
const PATCH_BYTES: usize = 5 * 512 * 1024;

/// The changes between two trees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Difference {
    /// The table.
    pub table: ChangeSet,
    /// The patch, in git's form with binary content.
    pub patch: Vec<u8>,
}

pub(super) async fn between(
    shadow: &Shadow,
    base: &str,
    head: &str,
) -> Result<Difference, GitError> {
    let raw = if base == head {
        Vec::new()
    } else {
        let raw = compare(shadow, "--raw", base, head).output().await?;
        parse::raw(&raw)?
    };
    let whole = raw.len();
    let links = |change: &RawChange| !change.is_link_to_repository();
    let changes: Vec<_> = raw.into_iter().filter(links).collect();
    let (file_count, listed) = (changes.len(), listed(&changes));
    let sizes = sizes(shadow, listed).await?;
    let carried: Vec<_> = listed.iter().filter(|change| sizes.fit(change)).collect();
    let head_carried = (carried.len() == whole).then_some(head);
    let content = Content::of(shadow, base, head_carried, &carried).await?;
    let files: Vec<_> = listed
        .iter()
        .map(|change| content.describe(change, &sizes))
        .collect();
    let truncated = listed.len() < file_count || files.iter().any(|file| file.truncated);
    let sum = |lines: fn(&FileChange) -> Option<u64>| files.iter().filter_map(lines).sum();
    let table = ChangeSet {
        base: base.to_owned(),
        head: head.to_owned(),
        file_count: file_count as u64,
        additions: sum(|file| file.additions),
        deletions: sum(|file| file.deletions),
        truncated,
        files,
        note: None,
    };
    Ok(Difference {
        table,
        patch: content.patch,
    })
}

fn compare(shadow: &Shadow, form: &str, base: &str, head: &str) -> Call {
    shadow.call("diff-tree").args([
        "-r",
        "-z",
        form,
        "--no-abbrev",
        "-M",
        "-l1000",
        "--no-ext-diff",
        "--no-textconv",
        base,
        head,
    ])
}

fn listed(changes: &[RawChange]) -> &[RawChange] {
    let mut bytes = 0;
    let fits = |change: &&RawChange| {
        bytes += change.path.len() + change.old_path.as_ref().map_or(0, Vec::len);
        bytes <= PATH_BYTES
    };
    let count = changes.iter().take(FILES).take_while(fits).count();
    &changes[..count]
}

/// How large the contents are.
struct Sizes {
    /// Of files as git keeps them.
    kept: HashMap<String, u64>,
    /// Of large files, by what stands for them.
    huge: HashMap<String, u64>,
}

impl Sizes {
    /// Whether a change can be in the patch.
    fn fit(&self, change: &RawChange) -> bool {
        change.sides().all(|id| {
            let size = self.kept.get(id);
            !self.huge.contains_key(id) && size.is_some_and(|size| *size <= FILE_BYTES)
        })
    }

    fn of(&self, id: &str) -> Option<u64> {
        self.huge.get(id).or_else(|| self.kept.get(id)).copied()
    }
}

async fn sizes(shadow: &Shadow, changes: &[RawChange]) -> Result<Sizes, GitError> {
    if changes.is_empty() {
        let (kept, huge) = (HashMap::new(), HashMap::new());
        return Ok(Sizes { kept, huge });
    }
    let mut input = String::new();
    for id in changes.iter().flat_map(RawChange::sides) {
        input.push_str(id);
        input.push('\n');
    }
    let call = shadow.call("cat-file").input(input.into_bytes());
    let format = "--batch-check=%(objectname) %(objectsize)";
    let output = call.args(["--buffer", format]).output().await?;
    let kept = String::from_utf8_lossy(&output)
        .lines()
        .filter_map(|line| {
            let (id, size) = line.split_once(' ')?;
            Some((id.to_owned(), size.parse().ok()?))
        })
        .collect();
    let huge = shadow.known_stand_ins()?;
    Ok(Sizes { kept, huge })
}

/// What is carried.
struct Content {
    patch: Vec<u8>,
    /// The files in the patch by their present path, with their lines.
    counts: HashMap<Vec<u8>, Counts>,
}

impl Content {
    /// `head` is the tree that has the carried changes and no others, where it is known.
    async fn of(
        shadow: &Shadow,
        base: &str,
        head: Option<&str>,
        carried: &[&RawChange],
    ) -> Result<Self, GitError> {
        let nothing = Self {
            patch: Vec::new(),
            counts: HashMap::new(),
        };
        if carried.is_empty() {
            return Ok(nothing);
        }
        let head = match head {
            Some(head) => head.to_owned(),
            None => tree_of(shadow, base, carried).await?,
        };
        let raw = compare(shadow, "--raw", base, &head).output().await?;
        let counts = compare(shadow, "--numstat", base, &head).output().await?;
        let mut counts: BTreeMap<_, _> = parse::counts(&counts)?.into_iter().collect();
        // One part of the patch each; what became another type is taken away and put there anew.
        let parts = parse::raw(&raw)?.into_iter().flat_map(|change| {
            let parts = if change.status == b'T' { 2 } else { 1 };
            (0..parts).map(move |part| Part {
                path: change.path.clone(),
                whole: part + 1 == parts,
            })
        });
        let call = shadow.call("diff-tree").args([
            "-r",
            "-p",
            "--binary",
            "--full-index",
            "-M",
            "-l1000",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            "--src-prefix=a/",
            "--dst-prefix=b/",
            base,
            &head,
        ]);
        let parts: Vec<_> = parts.collect();
        let patch = call.read(|output| bounded(output, &parts)).await?;
        let counts = patch.paths.into_iter().map(|path| {
            let lines = counts.remove(&path).flatten();
            (path, lines)
        });
        Ok(Self {
            counts: counts.collect(),
            patch: patch.bytes,
        })
    }

    fn describe(&self, change: &RawChange, sizes: &Sizes) -> FileChange {
        let counts = self.counts.get(&change.path);
        let lines = counts.copied().flatten();
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let status = match change.status {
            b'A' => ChangeStatus::Added,
            b'D' => ChangeStatus::Deleted,
            b'R' => ChangeStatus::Renamed,
            b'T' => ChangeStatus::TypeChanged,
            _ => ChangeStatus::Modified,
        };
        FileChange {
            path: text(&change.path),
            old_path: change.old_path.as_deref().map(text),
            status,
            additions: lines.map(|(added, _)| added),
            deletions: lines.map(|(_, deleted)| deleted),
            binary: counts.is_some_and(Option::is_none),
            size: sizes.of(&change.new_id),
            truncated: counts.is_none(),
        }
    }
}

/// The base with the carried changes and no others.
async fn tree_of(shadow: &Shadow, base: &str, carried: &[&RawChange]) -> Result<String, GitError> {
    let index = shadow.folder().join("carried");
    if_there(fs::remove_file(&index))?;
    let call = |subcommand| shadow.call(subcommand).index(&index);
    call("read-tree").arg(base).output().await?;
    let nothing = shadow.nothing();
    let (mut removed, mut placed) = (Vec::new(), Vec::new());
    for change in carried {
        if let Some(old_path) = &change.old_path {
            removed.extend(index_line("0", &nothing, old_path));
        }
        if change.status == b'D' {
            removed.extend(index_line("0", &nothing, &change.path));
        } else {
            placed.extend(index_line(&change.new_mode, &change.new_id, &change.path));
        }
    }
    for lines in [removed, placed] {
        shadow.update_index(call("update-index"), lines).await?;
    }
    let tree = call("write-tree").arg("--missing-ok").line().await?;
    fs::remove_file(index)?;
    Ok(tree)
}

/// A part of a patch.
struct Part {
    path: Vec<u8>,
    /// Whether it is the last one of its file.
    whole: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Patch {
    bytes: Vec<u8>,
    /// The files whose parts are all in it.
    paths: Vec<Vec<u8>>,
}

/// As much of a patch as fits, by whole files.
async fn bounded(output: impl AsyncRead + Unpin, parts: &[Part]) -> Result<Patch, GitError> {
    let mut lines = BufReader::new(output);
    let mut patch = Patch::default();
    let mut at: Option<usize> = None;
    // Where the file under way began, until one of its parts did not fit.
    let mut begun = Some(0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let more = lines.read_until(b'\n', &mut line).await? > 0;
        if !more || parse::begins_file(&line) {
            let ended = at.and_then(|at| parts.get(at));
            if let (Some(Part { path, whole: true }), Some(_)) = (ended, begun) {
                patch.paths.push(path.clone());
            }
            if !more {
                break;
            }
            if ended.is_none_or(|part| part.whole) {
                begun = Some(patch.bytes.len());
            }
            at = Some(at.map_or(0, |at| at + 1));
        }
        let Some(start) = begun else { continue };
        if patch.bytes.len() + line.len() > PATCH_BYTES {
            patch.bytes.truncate(start);
            begun = None;
        } else {
            patch.bytes.extend_from_slice(&line);
        }
    }
    if at.map_or(0, |at| at + 1) != parts.len() {
        return Err(GitError::Output {
            what: "diff-tree".to_owned(),
            why: "gave another number of files than before".to_owned(),
        });
    }
    Ok(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(path: &str, whole: bool) -> Part {
        Part {
            path: path.as_bytes().to_vec(),
            whole,
        }
    }

    #[tokio::test]
    async fn a_patch_is_cut_between_files() {
        let file = |name: &str, bytes: usize| {
            let content = "+x\n".repeat(bytes / 3);
            format!("diff --git a/{name} b/{name}\n{content}")
        };
        let (small, large, last) = (file("a", 30), file("b", PATCH_BYTES), file("c", 30));
        let whole = format!("{small}{large}{last}");
        let parts = [part("a", true), part("b", true), part("c", true)];
        let patch = bounded(whole.as_bytes(), &parts).await.unwrap();
        assert_eq!(patch.bytes, format!("{small}{last}").into_bytes());
        assert_eq!(patch.paths, [b"a".to_vec(), b"c".to_vec()]);
    }

    /// The first half alone would take the file away.
    #[tokio::test]
    async fn a_file_of_two_parts_goes_in_whole_or_not_at_all() {
        let first = "diff --git a/t b/t\n-x\n";
        let second = format!("diff --git a/t b/t\n{}", "+x\n".repeat(PATCH_BYTES));
        let whole = format!("{first}{second}diff --git a/u b/u\n+u\n");
        let parts = [part("t", false), part("t", true), part("u", true)];
        let patch = bounded(whole.as_bytes(), &parts).await.unwrap();
        assert_eq!(patch.bytes, b"diff --git a/u b/u\n+u\n");
        assert_eq!(patch.paths, [b"u".to_vec()]);
        assert!(bounded(whole.as_bytes(), &parts[1..]).await.is_err());
    }
}
