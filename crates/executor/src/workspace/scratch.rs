//! Scratch directories, one a session, kept between its runs. It owns their place below the state
//! directory; it must never remove one.

use std::path::{Path, PathBuf};

use super::WorkspaceError;
use crate::files::private_dir;

pub(super) fn prepare(state_dir: &Path, session_id: &str) -> Result<PathBuf, WorkspaceError> {
    let path = state_dir.join("scratch").join(session_id);
    private_dir(&path)
        .and_then(|()| path.canonicalize())
        .map_err(|source| WorkspaceError::Unusable { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_finds_its_directory_again() {
        let state = tempfile::tempdir().unwrap();
        let first = prepare(state.path(), "0197-a").unwrap();
        std::fs::write(first.join("kept"), "").unwrap();
        assert_eq!(prepare(state.path(), "0197-a").unwrap(), first);
        assert!(first.join("kept").exists());
        assert_ne!(prepare(state.path(), "0197-b").unwrap(), first);
    }

    #[test]
    fn a_session_id_cannot_lead_elsewhere() {
        for id in ["", "..", "a/b", "a\0b", &"x".repeat(201)] {
            assert!(matches!(
                super::super::check_session_id(id),
                Err(WorkspaceError::SessionId(_))
            ));
        }
    }
}
