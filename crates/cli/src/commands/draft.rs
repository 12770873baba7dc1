//! A file that gets its name once it is whole. Errors are the system's own: nobody gave the name
//! that it has until then, so nobody is told of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// Begins one beside its place, for its owner alone; it goes with the value unless it is persisted.
pub(crate) fn beside(target: &Path) -> io::Result<NamedTempFile> {
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    tempfile::Builder::new().make_in(folder, |path| options.open(path))
}
