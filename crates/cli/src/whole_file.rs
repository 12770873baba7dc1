//! Files that are whole or as they were. Errors are the system's own: nobody gave the name that a
//! file has until it is whole, so nobody is told of it.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

/// Links to follow by hand, as many as the system itself follows.
const LINKS: usize = 40;

/// Begins one beside its place, for its owner alone; it goes with the value unless it is persisted.
pub(crate) fn beside(target: &Path) -> io::Result<NamedTempFile> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    tempfile::Builder::new().make_in(folder_of(target), |path| options.open(path))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    }
}

/// Replaces a file of ours as a whole: a reader finds the old or the new one, never a part. It is for
/// its owner alone.
pub(crate) fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || {
        let mut draft = beside(path)?;
        draft.write_all(text.as_bytes())?;
        draft.as_file().sync_all()?;
        draft.persist(path).map_err(|kept| kept.error)
    };
    write().with_context(|| format!("`{}` can't be written", path.display()))?;
    Ok(())
}

/// Where the bytes for a path go that a person named. Nothing but a file is ever replaced: what leads
/// elsewhere, as a pipe, a device or a link does, stays what it is.
#[derive(Debug)]
pub(crate) enum Output {
    /// A file that gets its name once it is whole.
    File {
        draft: NamedTempFile,
        target: PathBuf,
    },
    /// What has no end that it could be replaced at.
    Stream(File),
}

impl Output {
    /// Opens it. What is there stays as it is until [`Output::finish`].
    pub(crate) fn to(path: &Path) -> io::Result<Self> {
        let there = match path.metadata() {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let is_open_already = path.starts_with("/dev") || path.starts_with("/proc");
        if is_open_already || there.as_ref().is_some_and(|there| !there.is_file()) {
            return Ok(Self::Stream(File::options().write(true).open(path)?));
        }
        let target = followed(path)?;
        let draft = beside(&target)?;
        if let Some(there) = there {
            draft.as_file().set_permissions(there.permissions())?;
        }
        Ok(Self::File { draft, target })
    }

    /// Puts what was written in its place.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Stream(mut stream) => stream.flush(),
            Self::File { draft, target } => {
                draft.as_file().sync_all()?;
                draft.persist(target).map_err(|kept| kept.error)?;
                Ok(())
            }
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File { draft, .. } => draft.write(bytes),
            Self::Stream(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File { draft, .. } => draft.flush(),
            Self::Stream(stream) => stream.flush(),
        }
    }
}

/// Removes what an earlier process left at a path that a person named, if it is a file.
pub(crate) fn remove_stale(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(there) if there.is_file() => std::fs::remove_file(followed(path)?),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Where a path leads; that needn't be there.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut at = path.to_path_buf();
    for _ in 0..LINKS {
        match at.read_link() {
            Ok(next) => at = folder_of(&at).join(next),
            Err(_no_link) => return Ok(at),
        }
    }
    Err(io::Error::other("too many links"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn put(path: &Path, text: &str) -> io::Result<()> {
        let mut output = Output::to(path)?;
        output.write_all(text.as_bytes())?;
        output.finish()
    }

    #[test]
    fn a_link_stays_one_and_its_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("real"), "old").unwrap();
        std::fs::set_permissions(at("real"), std::fs::Permissions::from_mode(0o644)).unwrap();
        symlink("real", at("link")).unwrap();
        symlink("link", at("to-the-link")).unwrap();
        symlink("new", at("to-nothing")).unwrap();
        for (name, leads_to, mode) in [("to-the-link", "real", 0o644), ("to-nothing", "new", 0o600)]
        {
            put(&at(name), "text").unwrap();
            assert!(at(name).is_symlink(), "{name}");
            assert_eq!(std::fs::read_to_string(at(leads_to)).unwrap(), "text");
            let there = at(leads_to).metadata().unwrap();
            assert_eq!(there.permissions().mode() & 0o777, mode, "{name}");
        }
        symlink("round", at("round")).unwrap();
        put(&at("round"), "text").unwrap_err();
        remove_stale(&at("to-the-link")).unwrap();
        assert!(at("to-the-link").is_symlink() && !at("real").exists());
        remove_stale(&at("to-the-link")).unwrap();
    }

    #[test]
    fn what_is_no_file_is_written_to_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (read, write) = io::pipe().unwrap();
        let link = dir.path().join("link");
        let number = write.as_raw_fd();
        symlink(format!("/proc/self/fd/{number}"), &link).unwrap();
        remove_stale(&link).unwrap();
        put(&link, "text").unwrap();
        drop(write);
        assert!(link.is_symlink());
        assert_eq!(io::read_to_string(read).unwrap(), "text");
        assert!(put(dir.path(), "text").is_err());
        assert!(dir.path().is_dir());
    }

    #[test]
    fn what_is_not_finished_leaves_all_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let mut output = Output::to(&path).unwrap();
        output.write_all(b"half").unwrap();
        drop(output);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }
}
