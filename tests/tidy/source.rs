//! The repository's files as the checks see them: what is tracked or would be, so that a check
//! fails before the commit. It never looks at build output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// A file of the repository.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// From the root, with `/`.
    pub(crate) path: String,
    /// Its text; `None` if it is not UTF-8.
    pub(crate) text: Option<String>,
}

impl SourceFile {
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// The text before the tests that end the file.
    pub(crate) fn production(&self) -> &str {
        let text = self.text();
        let starts = ["\n#[cfg(test)]\nmod ", "\n#[cfg(test)]\npub(crate) mod "];
        starts
            .iter()
            .filter_map(|start| {
                let at = text.find(start)?;
                // `mod tests;` in the middle only names a file.
                let declaration = text[at + start.len()..].lines().next()?;
                declaration.ends_with('{').then_some(at)
            })
            .min()
            .map_or(text, |at| &text[..=at])
    }

    pub(crate) fn is_test(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
    }
}

static FILES: LazyLock<Vec<SourceFile>> = LazyLock::new(|| {
    let root = root();
    let output = Command::new("git")
        .arg("-c")
        .arg(format!("safe.directory={}", root.display()))
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(&root)
        .output()
        .expect("the structure checks ask git which files there are");
    assert!(
        output.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut paths: Vec<_> = String::from_utf8(output.stdout)
        .expect("file names are UTF-8")
        .split_terminator('\0')
        .map(str::to_owned)
        .collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter(|path| root.join(path).is_file())
        .map(|path| {
            let text = String::from_utf8(fs::read(root.join(&path)).unwrap()).ok();
            SourceFile { path, text }
        })
        .collect()
});

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Every file, in the order of its path.
pub(crate) fn files() -> &'static [SourceFile] {
    &FILES
}

/// The files under a folder (`crates/domain/src/`) or whose path starts so.
pub(crate) fn under(prefix: &str) -> impl Iterator<Item = &'static SourceFile> {
    files()
        .iter()
        .filter(move |file| file.path.starts_with(prefix))
}

/// The Rust files of `crates/`.
pub(crate) fn rust() -> impl Iterator<Item = &'static SourceFile> {
    under("crates/").filter(|file| has_extension(file, "rs"))
}

pub(crate) fn has_extension(file: &SourceFile, extension: &str) -> bool {
    Path::new(&file.path)
        .extension()
        .is_some_and(|found| found == extension)
}

/// The text of one file, which must be there.
pub(crate) fn read(path: &str) -> &'static str {
    files()
        .iter()
        .find(|file| file.path == path)
        .unwrap_or_else(|| panic!("`{path}` is missing"))
        .text()
}

/// Where `word` stands in `text` as a word of its own, so that `run` is not found in `runs`.
pub(crate) fn mentions(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part))
}

/// Fails with one line for each complaint.
#[track_caller]
pub(crate) fn assert_none<S: AsRef<str>>(what: &str, complaints: &[S]) {
    let lines: Vec<_> = complaints.iter().map(AsRef::as_ref).collect();
    assert!(lines.is_empty(), "{what}:\n  {}", lines.join("\n  "));
}
