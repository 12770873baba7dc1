//! The files that a script may touch. It owns the check that a path stays inside the session's
//! working directory, symbolic links included, and must never open anything before that check.

use std::io;
use std::path::{Component, Path, PathBuf};

const READ_BYTES: usize = 64 << 10;

/// Writes `text` to `path`, with the directories on the way; returns what was there before.
pub(super) async fn write(cwd: &Path, path: &str, text: &str) -> io::Result<Option<String>> {
    let path = inside(cwd, path).await?;
    if let Some(parent) = path.parent() {
        tokio::fs::create_dir_all(parent).await?;
    }
    let before = match tokio::fs::read(&path).await {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    tokio::fs::write(&path, text).await?;
    Ok(before)
}

/// The beginning of the file.
pub(super) async fn read(cwd: &Path, path: &str) -> io::Result<String> {
    let mut bytes = tokio::fs::read(inside(cwd, path).await?).await?;
    bytes.truncate(READ_BYTES);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The names in the working directory, in order, at most `most` of them.
pub(super) async fn list(cwd: &Path, most: usize) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut entries = tokio::fs::read_dir(cwd).await?;
    while let Some(entry) = entries.next_entry().await? {
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    names.truncate(most);
    Ok(names)
}

/// The real place of `path`; an error where that is not below the real `cwd`.
async fn inside(cwd: &Path, path: &str) -> io::Result<PathBuf> {
    let outside = || {
        let text = format!("`{path}` is outside the working directory");
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    };
    let cwd = tokio::fs::canonicalize(cwd).await?;
    let wanted = cwd.join(path);
    if wanted.components().any(|part| part == Component::ParentDir) {
        return Err(outside());
    }
    let mut existing = wanted.as_path();
    loop {
        match tokio::fs::symlink_metadata(existing).await {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                existing = existing.parent().ok_or_else(outside)?;
            }
            Err(error) => return Err(error),
        }
    }
    let real = tokio::fs::canonicalize(existing).await?;
    match wanted.strip_prefix(existing) {
        Ok(rest) if real.starts_with(&cwd) && rest.as_os_str().is_empty() => Ok(real),
        Ok(rest) if real.starts_with(&cwd) => Ok(real.join(rest)),
        _ => Err(outside()),
    }
}
