//! Directories of this machine, inside the allowed roots. It owns the check of the path; it must
//! never judge a path before its links are resolved.

use std::path::{Path, PathBuf};

use super::WorkspaceError;

pub(super) fn prepare(path: &Path, roots: &[PathBuf]) -> Result<PathBuf, WorkspaceError> {
    if !path.is_absolute() {
        return Err(WorkspaceError::Relative(path.to_owned()));
    }
    let outside = || WorkspaceError::OutsideRoots {
        path: path.to_owned(),
        roots: named(roots),
    };
    let within = |candidate: &Path| roots.iter().any(|root| candidate.starts_with(root));
    let canonical = match path.canonicalize() {
        Ok(canonical) => canonical,
        // What lies outside is not even told to be missing, that would let the server look around.
        Err(source) => {
            let parent = path
                .ancestors()
                .skip(1)
                .find_map(|above| above.canonicalize().ok());
            return Err(if parent.is_some_and(|parent| within(&parent)) {
                WorkspaceError::Unusable {
                    path: path.to_owned(),
                    source,
                }
            } else {
                outside()
            });
        }
    };
    if !within(&canonical) {
        return Err(outside());
    }
    if !canonical.is_dir() {
        return Err(WorkspaceError::NotADirectory(path.to_owned()));
    }
    Ok(canonical)
}

fn named(roots: &[PathBuf]) -> String {
    if roots.is_empty() {
        return "none is configured".to_owned();
    }
    let names: Vec<_> = roots
        .iter()
        .map(|root| format!("`{}`", root.display()))
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::{WorkspaceTarget, Workspaces};
    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
        workspaces: Workspaces,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["root/project", "root-other", "elsewhere"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("root/file"), "").unwrap();
        symlink(dir.path().join("root"), dir.path().join("link-to-root")).unwrap();
        symlink(dir.path().join("elsewhere"), dir.path().join("root/escape")).unwrap();
        let roots = [dir.path().join("link-to-root")];
        let workspaces = Workspaces::new(&roots, &dir.path().join("state")).unwrap();
        Fixture { dir, workspaces }
    }

    fn prepare(fixture: &Fixture, path: &str) -> Result<PathBuf, WorkspaceError> {
        let path = fixture.dir.path().join(path);
        fixture
            .workspaces
            .prepare(&WorkspaceTarget::LocalPath { path }, "s")
    }

    #[test]
    fn a_directory_inside_a_root_is_used_under_its_canonical_path() {
        let fixture = fixture();
        let expected = fixture
            .dir
            .path()
            .canonicalize()
            .unwrap()
            .join("root/project");
        assert_eq!(prepare(&fixture, "root/project").unwrap(), expected);
        assert_eq!(prepare(&fixture, "link-to-root/project").unwrap(), expected);
        assert_eq!(prepare(&fixture, "root/../root/project").unwrap(), expected);
    }

    #[test]
    fn what_leads_outside_is_refused_with_the_roots_named() {
        let fixture = fixture();
        for path in [
            "elsewhere",
            "root-other",
            "root/escape",
            "root/../elsewhere",
            "missing",
        ] {
            let error = prepare(&fixture, path).unwrap_err();
            assert!(
                matches!(error, WorkspaceError::OutsideRoots { .. }),
                "{path}: {error}"
            );
            assert!(error.to_string().contains("/root`"), "{error}");
        }
    }

    #[test]
    fn a_missing_directory_a_file_and_a_relative_path_are_refused() {
        let fixture = fixture();
        let error = prepare(&fixture, "root/missing").unwrap_err();
        assert!(matches!(error, WorkspaceError::Unusable { .. }), "{error}");
        assert!(matches!(
            prepare(&fixture, "root/file"),
            Err(WorkspaceError::NotADirectory(_))
        ));
        let relative = WorkspaceTarget::LocalPath {
            path: "project".into(),
        };
        let refused = fixture.workspaces.prepare(&relative, "s");
        assert!(matches!(refused, Err(WorkspaceError::Relative(_))));
    }
}
