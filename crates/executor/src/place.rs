//! The name of the place where agents keep what they remember: this machine's state directory. It
//! owns the file with that name; a state that lies in another place can't be taken up here.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::files::{if_there, private_dir, private_file};

/// The name of this place. Without one, what agents remember is tried wherever it may lie.
pub(crate) fn of(state_dir: &Path) -> Option<String> {
    let name = place_name(state_dir);
    let name = name.inspect_err(|error| tracing::warn!(%error, "this place has no name"));
    name.ok()
}

/// Whether a state that was left in the place `left` can't be taken up `here`.
pub(crate) fn is_elsewhere(left: Option<&str>, here: Option<&str>) -> bool {
    left.is_some() && left != here
}

/// Made up when it is asked for first.
fn place_name(state_dir: &Path) -> io::Result<String> {
    let path = state_dir.join("place");
    if let Some(name) = if_there(std::fs::read_to_string(&path))? {
        return Ok(name);
    }
    private_dir(state_dir)?;
    // Whole before it has its name: another executor may read it at any moment.
    let name = tapedeck_client::instance_id();
    let unnamed = state_dir.join(format!(".place-{name}"));
    private_file(&unnamed)?.write_all(name.as_bytes())?;
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
