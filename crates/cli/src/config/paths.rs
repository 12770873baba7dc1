//! Paths as people write them. It owns `~` and the making of private directories.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;

use crate::exit::Failed;

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
    if path.exists() && !path.is_dir() {
        let message = format!("`{}` is no directory", path.display());
        return Err(Failed::usage(message));
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.with_context(|| format!("`{}`", path.display()))?;
    absolute(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_paths_have_one_name() {
        let dir = tempfile::tempdir().unwrap();
        let real = make_private_dir(&dir.path().join("real/data")).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("real"), &link).unwrap();
        for path in [link.join("data"), link.join("../real/data"), real.join(".")] {
            assert_eq!(make_private_dir(&path).unwrap(), real, "{}", path.display());
        }
    }

    #[test]
    fn a_tilde_is_the_home_directory() {
        let home = etcetera::home_dir().unwrap();
        assert_eq!(expand(Path::new("~/x")).unwrap(), home.join("x"));
        assert_eq!(expand(Path::new("~x")).unwrap(), Path::new("~x"));
        assert!(absolute(Path::new("/nowhere/at/all")).is_err());
    }
}
