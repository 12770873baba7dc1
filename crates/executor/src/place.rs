//! The name of the place where agents keep what they remember: this machine's state directory. It
//! owns the file with that name; a state that lies in another place can't be taken up here.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// The name of this place, made up when it is asked for first.
pub(crate) fn place_name(state_dir: &Path) -> io::Result<String> {
    let path = state_dir.join("place");
    match std::fs::read_to_string(&path) {
        Ok(name) => return Ok(name),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)?;
    // Whole before it has its name: another executor may read it at any moment.
    let name = tapedeck_client::instance_id();
    let unnamed = state_dir.join(format!(".place-{name}"));
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unnamed)?;
    file.write_all(name.as_bytes())?;
    let named = std::fs::hard_link(&unnamed, &path);
    std::fs::remove_file(&unnamed)?;
    match named {
        Ok(()) => Ok(name),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => std::fs::read_to_string(&path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_its_name_and_no_two_have_the_same() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = place_name(here.path()).unwrap();
        assert_eq!(place_name(here.path()).unwrap(), name);
        assert_ne!(place_name(there.path()).unwrap(), name);
        assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 1);
    }
}
