//! Directories of this machine, inside the allowed roots. It owns the check of the path; it must
//! never judge a path before its links are resolved.

use std::path::{Path, PathBuf};

use super::WorkspaceError;

/// The canonical directory of `path`. A mount that doesn't answer holds up nobody else.
pub(super) async fn prepare(path: &Path, roots: &[PathBuf]) -> Result<PathBuf, WorkspaceError> {
    let (named, roots) = (path.to_owned(), roots.to_owned());
    let checked = tokio::task::spawn_blocking(move || check(&named, &roots)).await;
    checked.map_err(|error| WorkspaceError::Unusable {
        path: path.to_owned(),
        source: std::io::Error::other(error),
    })?
}

fn check(path: &Path, roots: &[PathBuf]) -> Result<PathBuf, WorkspaceError> {
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

    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
        roots: Vec<PathBuf>,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["root/project", "root-other", "elsewhere"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("root/file"), "").unwrap();
        symlink(dir.path().join("root"), dir.path().join("link-to-root")).unwrap();
        symlink(dir.path().join("elsewhere"), dir.path().join("root/escape")).unwrap();
        let roots = vec![dir.path().join("link-to-root").canonicalize().unwrap()];
        Fixture { dir, roots }
    }

    fn prepare(fixture: &Fixture, path: &str) -> Result<PathBuf, WorkspaceError> {
        check(&fixture.dir.path().join(path), &fixture.roots)
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
        let refused = check(Path::new("project"), &fixture.roots);
        assert!(matches!(refused, Err(WorkspaceError::Relative(_))));
    }

    #[test]
    fn odd_paths_lead_where_they_lead_or_nowhere() {
        let fixture = fixture();
        let root = &fixture.roots[0];
        std::fs::create_dir(root.join("two words\nand a line")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        symlink("../elsewhere/../root/project", root.join("round-about")).unwrap();
        let project = root.join("project");
        for path in ["root//project/", "root/./project", "root/round-about"] {
            assert_eq!(prepare(&fixture, path).unwrap(), project, "{path}");
        }
        assert!(prepare(&fixture, "root/two words\nand a line").is_ok());
        assert_eq!(prepare(&fixture, "root").unwrap(), *root);
        let long = format!("root/{}", "x".repeat(5_000));
        for path in ["root/loop", "root/file/..", long.as_str(), "root/a\0b"] {
            assert!(prepare(&fixture, path).is_err(), "{path}");
        }
        // Nothing above the roots is allowed because a root lies in it.
        for path in ["", "/", "root/.."] {
            let refused = prepare(&fixture, path);
            assert!(matches!(refused, Err(WorkspaceError::OutsideRoots { .. })));
        }
    }

    /// A path is judged anew each time, and what is handed out has no link in it that could be
    /// turned round later without being named by the path itself.
    #[test]
    fn a_directory_that_became_a_link_is_judged_by_where_it_leads_now() {
        let fixture = fixture();
        let project = fixture.roots[0].join("project");
        assert_eq!(prepare(&fixture, "root/project").unwrap(), project);
        std::fs::remove_dir(&project).unwrap();
        symlink(fixture.dir.path().join("elsewhere"), &project).unwrap();
        let refused = prepare(&fixture, "root/project");
        assert!(matches!(refused, Err(WorkspaceError::OutsideRoots { .. })));
    }
}
