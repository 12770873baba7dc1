//! The files of a working tree as trees of git, kept in a repository of our own beside it. The
//! user's repository, index and settings are only read; nothing of theirs is run or written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::parse;
use crate::files::{if_there, private_dir};
use crate::workspace::git::{Call, Git, GitError};

/// A larger file is named and not carried, in bytes.
pub(super) const FILE_BYTES: u64 = 1024 * 1024;

/// One call at a repository on this disk.
const CALL_LIMIT: Duration = Duration::from_mins(2);

/// Only what lies in our own folder may say how files are read.
const ATTRIBUTES: &str = "* !filter !ident !working-tree-encoding\n";

/// The user's repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Repository {
    /// The root of its working tree.
    pub(super) top: PathBuf,
    git_dir: PathBuf,
    common_dir: PathBuf,
    object_format: String,
}

impl Repository {
    /// The repository whose working tree `directory` lies in.
    pub(super) async fn of(git: &Git, directory: &Path) -> Result<Option<Self>, GitError> {
        let call = git.call(directory, "rev-parse", CALL_LIMIT).args([
            "--path-format=absolute",
            "--show-toplevel",
            "--git-dir",
            "--git-common-dir",
            "--show-object-format",
        ]);
        let output = match call.output().await {
            Ok(output) => output,
            Err(GitError::Failed { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let lines: Vec<_> = output
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .collect();
        let [top, git_dir, common_dir, format] = lines[..] else {
            return Ok(None);
        };
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let (Ok(top), Ok(format)) = (path(top).canonicalize(), std::str::from_utf8(format)) else {
            return Ok(None);
        };
        if !directory.starts_with(&top) {
            return Ok(None);
        }
        Ok(Some(Self {
            top,
            git_dir: path(git_dir),
            common_dir: path(common_dir),
            object_format: format.to_owned(),
        }))
    }
}

/// Our repository beside the user's.
#[derive(Debug)]
pub(super) struct Shadow {
    git: Git,
    folder: PathBuf,
    repository: Repository,
}

/// The files of a working tree at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Files {
    /// The tree that they are.
    pub(super) tree: String,
    /// The folders that are repositories of their own. What is in them is in no tree.
    pub(super) apart: Vec<String>,
}

/// What a path is to become in the index.
enum Entry {
    Gone,
    File,
    /// Its size and when it was changed.
    Huge(u64, i128),
    /// Nothing that git keeps.
    Other,
}

impl Shadow {
    /// The session's own, begun anew where it was of another working tree.
    pub(super) async fn open(
        git: &Git,
        folder: &Path,
        repository: Repository,
    ) -> Result<Self, GitError> {
        let shadow = Self {
            git: git.clone(),
            folder: folder.to_owned(),
            repository,
        };
        let (of, mark) = (folder.join("of"), shadow.mark());
        let ours = fs::read(&of).is_ok_and(|held| held == mark);
        if !ours {
            if folder.exists() {
                tokio::fs::remove_dir_all(folder).await?;
            }
            let format = format!("--object-format={}", shadow.repository.object_format);
            git.init(folder, &[&format]).await?;
            shadow.refer()?;
            shadow.seed().await?;
            fs::write(of, mark)?;
        }
        shadow.refer()?;
        Ok(shadow)
    }

    fn mark(&self) -> Vec<u8> {
        let mut mark = self.repository.object_format.clone().into_bytes();
        mark.push(b'\n');
        mark.extend_from_slice(self.repository.top.as_os_str().as_bytes());
        mark
    }

    /// What is in the user's repository can be read from here, and what it leaves out is left out.
    fn refer(&self) -> io::Result<()> {
        let (objects, info) = (self.folder.join("objects/info"), self.folder.join("info"));
        for folder in [&objects, &info] {
            private_dir(folder)?;
        }
        let mut theirs = self.repository.common_dir.join("objects").into_os_string();
        theirs.push("\n");
        fs::write(objects.join("alternates"), theirs.as_bytes())?;
        fs::write(info.join("attributes"), ATTRIBUTES)?;
        let excluded = self.repository.common_dir.join("info/exclude");
        fs::write(info.join("exclude"), fs::read(excluded).unwrap_or_default())
    }

    /// Begins with the user's index, so that unchanged files need not be read, and files are known
    /// that are kept although they are ignored. An index of another form is not taken.
    async fn seed(&self) -> Result<(), GitError> {
        let index = self.folder.join("index");
        let theirs = self.repository.git_dir.join("index");
        if tokio::fs::copy(theirs, &index).await.is_ok() {
            let usable = self.call("ls-files").args(["--stage", "-z"]).output().await;
            match usable {
                Ok(_) => return Ok(()),
                Err(GitError::Failed { .. }) => fs::remove_file(&index)?,
                Err(error) => return Err(error),
            }
        }
        let head = self.git.call(&self.repository.top, "rev-parse", CALL_LIMIT);
        match head.verify("HEAD^{tree}").found().await? {
            Some(tree) => self.call("read-tree").arg(tree).output().await.map(drop),
            // Nothing is committed yet.
            None => Ok(()),
        }
    }

    pub(super) fn call(&self, subcommand: &str) -> Call {
        let call = self.git.call(&self.repository.top, subcommand, CALL_LIMIT);
        call.git_dir(&self.folder).work_tree(&self.repository.top)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files as they are now: all but the ignored ones, large ones by a stand-in.
    pub(super) async fn files(&self) -> Result<Files, GitError> {
        let changed = self.call("diff-files");
        let changed = changed.args(["--name-only", "-z", "--ignore-submodules=all"]);
        let unknown = self.call("ls-files");
        let unknown = unknown.args(["--others", "--exclude-standard", "-z"]);
        let (changed, unknown) = (changed.output().await?, unknown.output().await?);
        let folders = parse::paths(&unknown).filter(|path| is_apart(path));
        let apart = folders.map(|path| String::from_utf8_lossy(path).into_owned());
        let apart = apart.collect();
        let top = self.repository.top.clone();
        let entries = tokio::task::spawn_blocking(move || look(&top, &changed, &unknown));
        let entries = entries.await.map_err(io::Error::other)?;
        self.enter(entries).await?;
        let tree = self.call("write-tree").arg("--missing-ok").line().await?;
        Ok(Files { tree, apart })
    }

    async fn enter(&self, entries: BTreeMap<Vec<u8>, Entry>) -> Result<(), GitError> {
        let (mut removed, mut placed, mut added) = (Vec::new(), Vec::new(), Vec::new());
        let mut huge = Vec::new();
        for (path, entry) in entries {
            match entry {
                Entry::Gone => {
                    removed.extend(index_line("0", &self.nothing(), &path));
                }
                Entry::File => {
                    added.extend_from_slice(&path);
                    added.push(0);
                }
                Entry::Huge(size, changed) => huge.push((path, size, changed)),
                Entry::Other => {}
            }
        }
        for ((path, _, _), id) in huge.iter().zip(self.stand_ins(&huge).await?) {
            placed.extend_from_slice(&index_line("100644", &id, path));
        }
        for lines in [removed, placed] {
            self.update_index(self.call("update-index"), lines).await?;
        }
        if !added.is_empty() {
            let call = self.call("update-index").input(added);
            call.args(["-z", "--add", "--remove", "--replace", "--stdin"])
                .output()
                .await?;
        }
        Ok(())
    }

    /// Lines of [`index_line`] into an index.
    pub(super) async fn update_index(&self, call: Call, lines: Vec<u8>) -> Result<(), GitError> {
        if lines.is_empty() {
            return Ok(());
        }
        let call = call.args(["--add", "--replace", "-z", "--index-info"]);
        call.input(lines).output().await.map(drop)
    }

    /// The id of no object.
    pub(super) fn nothing(&self) -> String {
        let digits = match self.repository.object_format.as_str() {
            "sha256" => 64,
            _ => 40,
        };
        "0".repeat(digits)
    }

    /// Small objects that stand for large files; they differ if the files do.
    async fn stand_ins(&self, huge: &[(Vec<u8>, u64, i128)]) -> Result<Vec<String>, GitError> {
        if huge.is_empty() {
            return Ok(Vec::new());
        }
        let folder = self.folder.join("huge");
        private_dir(&folder)?;
        let mut names = Vec::new();
        for (number, (_, size, changed)) in huge.iter().enumerate() {
            let name = folder.join(number.to_string());
            fs::write(
                &name,
                format!("a file of {size} bytes, changed at {changed}\n"),
            )?;
            names.extend_from_slice(name.as_os_str().as_bytes());
            names.push(b'\n');
        }
        let call = self.call("hash-object").input(names);
        let output = call.args(["-w", "--no-filters", "--stdin-paths"]).output();
        let output = String::from_utf8(output.await?).map_err(io::Error::other)?;
        let ids: Vec<String> = output.lines().map(str::to_owned).collect();
        if ids.len() != huge.len() {
            return Err(GitError::Output {
                what: "hash-object".to_owned(),
                why: "gave another number of ids".to_owned(),
            });
        }
        let known = self.known_stand_ins()?;
        let file = self.folder.join("stand-ins");
        let mut file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)?;
        for (id, (_, size, _)) in ids.iter().zip(huge) {
            if !known.contains_key(id) {
                writeln!(file, "{id} {size}")?;
            }
        }
        fs::remove_dir_all(folder)?;
        Ok(ids)
    }

    /// The stand-ins so far, with the sizes of what they stand for.
    pub(super) fn known_stand_ins(&self) -> io::Result<HashMap<String, u64>> {
        let text = if_there(fs::read_to_string(self.folder.join("stand-ins")))?;
        let text = text.unwrap_or_default();
        let pair = |line: &str| {
            let (id, size) = line.split_once(' ')?;
            Some((id.to_owned(), size.parse().ok()?))
        };
        Ok(text.lines().filter_map(pair).collect())
    }
}

/// A line that puts an object at a path; the mode `0` removes the path.
pub(super) fn index_line(mode: &str, id: &str, path: &[u8]) -> Vec<u8> {
    let mut line = format!("{mode} {id}\t").into_bytes();
    line.extend_from_slice(path);
    line.push(0);
    line
}

/// What has become of the paths that git found changed or unknown.
fn look(top: &Path, changed: &[u8], unknown: &[u8]) -> BTreeMap<Vec<u8>, Entry> {
    let paths: BTreeSet<&[u8]> = parse::paths(changed).chain(parse::paths(unknown)).collect();
    let mut folders = HashMap::new();
    let paths = paths.into_iter().filter(|path| !is_apart(path));
    paths
        .map(|path| {
            let relative = Path::new(OsStr::from_bytes(path));
            (path.to_vec(), entry(top, relative, &mut folders))
        })
        .collect()
}

/// A repository inside this one is listed by its folder, and left alone.
fn is_apart(path: &[u8]) -> bool {
    path.ends_with(b"/")
}

fn entry(top: &Path, path: &Path, folders: &mut HashMap<PathBuf, bool>) -> Entry {
    // What lies behind a link belongs to wherever that leads.
    if path
        .parent()
        .is_some_and(|parent| !is_folder(top, parent, folders))
    {
        return Entry::Gone;
    }
    let whole = top.join(path);
    let Ok(found) = fs::symlink_metadata(&whole) else {
        return Entry::Gone;
    };
    let kind = found.file_type();
    if kind.is_symlink() {
        Entry::File
    } else if kind.is_dir() {
        Entry::Gone
    } else if !kind.is_file() {
        Entry::Other
    } else if found.len() > FILE_BYTES || fs::File::open(&whole).is_err() {
        use std::os::unix::fs::MetadataExt;
        let changed = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
        Entry::Huge(found.len(), changed)
    } else {
        Entry::File
    }
}

/// Whether this is a directory without a link on the way to it.
fn is_folder(top: &Path, path: &Path, folders: &mut HashMap<PathBuf, bool>) -> bool {
    if path.as_os_str().is_empty() {
        return true;
    }
    if let Some(known) = folders.get(path) {
        return *known;
    }
    let above = path
        .parent()
        .is_none_or(|above| is_folder(top, above, folders));
    let is = above && fs::symlink_metadata(top.join(path)).is_ok_and(|found| found.is_dir());
    folders.insert(path.to_owned(), is);
    is
}
