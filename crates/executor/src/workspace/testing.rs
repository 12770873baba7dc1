//! What the tests of workspaces share: real repositories, made with the real git.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{GitOptions, Workspaces};

/// Runs git as a user would, on settings of its own.
pub(super) fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(directory)
        .args([
            "-c",
            "user.name=Tester",
            "-c",
            "user.email=tester@example.com",
        ])
        .args([
            "-c",
            "init.defaultBranch=main",
            "-c",
            "protocol.file.allow=always",
        ])
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A root with a repository `project` in it, and workspaces that are allowed there.
#[derive(Debug)]
pub(super) struct Fixture {
    dir: tempfile::TempDir,
    pub(super) workspaces: Workspaces,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join("root/project");
        std::fs::create_dir_all(&project).unwrap();
        git(&project, &["init", "--quiet"]);
        std::fs::write(project.join("a.txt"), "one\ntwo\nthree\n").unwrap();
        std::fs::create_dir(project.join("sub")).unwrap();
        std::fs::write(project.join("sub/b.txt"), "b\n").unwrap();
        std::fs::write(project.join(".gitignore"), "ignored\n").unwrap();
        let workspaces = Workspaces::new(
            &[dir.path().join("root")],
            &dir.path().join("state"),
            GitOptions::default(),
        );
        let fixture = Self {
            workspaces: workspaces.unwrap(),
            dir,
        };
        fixture.commit("first");
        fixture
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(path)
    }

    pub(super) fn project(&self) -> PathBuf {
        self.path("root/project")
    }

    pub(super) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.project().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(super) fn commit(&self, message: &str) -> String {
        git(&self.project(), &["add", "--all"]);
        git(&self.project(), &["commit", "--quiet", "-m", message]);
        git(&self.project(), &["rev-parse", "HEAD"])
    }
}
