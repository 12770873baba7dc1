//! Paths as people write them. It owns `~` and the making of private directories.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;

/// Replaces a leading `~` by the home directory.
pub(crate) fn expand(path: &Path) -> anyhow::Result<PathBuf> {
    let mut parts = path.components();
    match parts.next() {
        Some(Component::Normal(first)) if first == "~" => {
            let home = etcetera::home_dir().context("the home directory is unknown")?;
            Ok(home.join(parts.as_path()))
        }
        _ => Ok(path.to_path_buf()),
    }
}

/// The one name of an existing path, however it was written.
pub(crate) fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    let path = expand(path)?;
    path.canonicalize()
        .with_context(|| format!("`{}`", path.display()))
}

/// Makes a directory that is only its owner's, and gives its one name.
pub(crate) fn make_private_dir(path: &Path) -> anyhow::Result<PathBuf> {
    let path = expand(path)?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.with_context(|| format!("`{}`", path.display()))?;
    absolute(&path)
}
