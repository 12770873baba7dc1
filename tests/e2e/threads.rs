//! Machines that give no more threads: a command that needs them says so and ends.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::unistd::getuid;

use crate::wait::eventually;

const LIMIT: Duration = Duration::from_secs(20);
/// Root has no such limit, so a user is taken that has no process yet.
const NOBODY: u32 = 54_321;

/// What a user may look into: whose build this is may be hidden from it.
fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
}

#[tokio::test]
async fn an_executor_that_gets_no_threads_says_so_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    let binary = dir.path().join("tapedeck");
    fs::copy(env!("CARGO_BIN_EXE_tapedeck"), &binary).unwrap();
    let mut refused = 0;
    // Another user has as many processes as it has. For a new one each count is another moment at
    // which there are no more.
    let most = if getuid().is_root() { 9 } else { 1 };
    for processes in 1..=most {
        let log = dir.path().join(format!("{processes}.log"));
        let home = dir.path().join(format!("{processes}"));
        fs::create_dir(&home).unwrap();
        open_to_all(&home);
        let file = fs::File::create(&log).unwrap();
        let mut command = Command::new("prlimit");
        command
            .arg(format!("--nproc={processes}"))
            .arg(&binary)
            .args(["executor", "--agent", "demo", "--server"])
            // Nobody listens there.
            .arg("http://127.0.0.1:9")
            .arg("--state-dir")
            .arg(home.join("state"))
            .env("HOME", &home)
            .env("RUST_BACKTRACE", "0")
            .current_dir(&home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        if getuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command.spawn().unwrap();
        let look = async || {
            let text = fs::read_to_string(&log).unwrap();
            match child.try_wait().unwrap() {
                Some(status) => Some((Some(status), text)),
                None if text.contains("executor.started") => Some((None, text)),
                None => None,
            }
        };
        let (status, text) = eventually("it starts or ends", LIMIT, look).await;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!text.contains("panicked"), "{processes}: {text}");
        if let Some(status) = status {
            assert_eq!(status.code(), Some(70), "{processes}: {text}");
            assert!(text.contains("thread"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
            refused += 1;
        }
    }
    assert!(refused > 0);
}
