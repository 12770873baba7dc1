//! Whether agents are there: their programs on the path, and what those say of their version. It
//! must never look anywhere but on the path that an agent would get.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::unistd::{AccessFlags, access};
use tapedeck_executor::process::Environment;
use tokio::process::Command;

/// Some agents take seconds to say their version.
const VERSION_LIMIT: Duration = Duration::from_secs(15);
/// Longer ones are no versions.
const VERSION_CHARS: usize = 60;

/// The first of these programs that is there.
pub(crate) fn program(names: &[String], environment: &Environment) -> Option<PathBuf> {
    names.iter().find_map(|name| on_path(name, environment))
}

fn on_path(name: &str, environment: &Environment) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(is_program);
    }
    let path = environment
        .iter()
        .find(|(variable, _)| *variable == OsStr::new("PATH"))
        .map(|(_, value)| value)?;
    std::env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(is_program)
}

/// What a program says to `--version`, in one line.
pub(crate) async fn version(program: &Path, environment: &Environment) -> Option<String> {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .env_clear()
        .envs(environment.iter())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(VERSION_LIMIT, command.output()).await;
    let output = output.ok()?.ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(VERSION_CHARS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(path: &Path) -> Environment {
        let pairs = [("PATH".to_owned(), path.to_str().unwrap().to_owned())];
        Environment::select([], &[], &pairs)
    }

    #[tokio::test]
    async fn a_program_is_found_on_the_path_and_says_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let inherited = Environment::select(std::env::vars_os(), &[], &[]);
        let real = on_path("cat", &inherited).unwrap();
        std::os::unix::fs::symlink(real, dir.path().join("tool")).unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        std::fs::write(dir.path().join("text"), "").unwrap();
        let environment = environment(dir.path());
        let names = ["folder", "text", "tool"].map(str::to_owned);
        let found = program(&names, &environment).unwrap();
        assert_eq!(found, dir.path().join("tool"));
        let version = version(&found, &environment).await.unwrap();
        assert!(
            !version.contains('\n') && version.contains("cat"),
            "{version}"
        );
        assert_eq!(program(&["cat".to_owned()], &environment), None);
    }
}
