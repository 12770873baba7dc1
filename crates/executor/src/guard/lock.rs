//! The lock on a workspace: at most one agent works in it at a time. It owns the lock file and the
//! record of the run in it; the file lies in the executor's state directory, never in the
//! workspace, which is the user's.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::files::{lock_file, lock_within};

/// Where the lock of `workspace` lies below `state_dir`. The workspace's path must be canonical,
/// or one workspace would have two locks.
pub(crate) fn lock_path(state_dir: &Path, workspace: &Path) -> PathBuf {
    let digest = Sha256::digest(workspace.as_os_str().as_encoded_bytes());
    let name = u128::from_be_bytes(std::array::from_fn(|at| digest[at]));
    state_dir.join("locks").join(format!("{name:032x}.lock"))
}

/// A held lock. It ends with the process at the latest.
#[derive(Debug)]
pub(super) struct WorkspaceLock {
    file: File,
}

/// How the wait for a lock ended.
#[derive(Debug)]
pub(super) enum Acquired {
    /// Ours; `former` are runs whose processes may still be alive.
    Locked {
        lock: WorkspaceLock,
        former: Vec<String>,
    },
    Busy {
        holder: Option<String>,
    },
}

impl WorkspaceLock {
    /// Waits for the lock at most `limit`; `waiting` is called once if it is not free at once.
    pub(super) async fn acquire(
        path: &Path,
        limit: Duration,
        waiting: impl FnOnce(),
    ) -> io::Result<Acquired> {
        let file = lock_file(path)?;
        let is_ours = lock_within(&file, limit, waiting).await?;
        let mut runs = read_runs(&file);
        Ok(if is_ours {
            Acquired::Locked {
                lock: Self { file },
                former: runs,
            }
        } else {
            Acquired::Busy { holder: runs.pop() }
        })
    }

    /// Writes which runs' processes the next holder has to kill should this one not be able to.
    pub(super) fn record(&mut self, runs: &[String]) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(runs.join("\n").as_bytes())
    }
}

impl WorkspaceLock {
    /// Lets others have the workspace. The record stays: whoever takes it kills what rests in it.
    pub(super) fn lend(&self) -> io::Result<()> {
        self.file.unlock()
    }

    /// Takes the lock back without waiting; `false` if somebody has or had it meanwhile.
    pub(super) fn take_back(&self, run_id: &str) -> bool {
        self.file.try_lock().is_ok() && read_runs(&self.file) == [run_id]
    }
}

fn read_runs(mut file: &File) -> Vec<String> {
    let mut text = String::new();
    // An unreadable record only means that its runs are found by descent instead.
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    text.lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_held_lock_is_busy_and_its_record_passes_to_the_next_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.lock");
        let brief = Duration::from_millis(1);
        let first = WorkspaceLock::acquire(&path, brief, || panic!("it is free"))
            .await
            .unwrap();
        let Acquired::Locked { mut lock, former } = first else {
            panic!("{first:?}")
        };
        assert!(former.is_empty());
        lock.record(&["run-1".to_owned()]).unwrap();

        let mut waited = false;
        let second = WorkspaceLock::acquire(&path, brief, || waited = true)
            .await
            .unwrap();
        assert!(matches!(second, Acquired::Busy { holder: Some(run) } if run == "run-1"));
        assert!(waited);

        // Lent, it goes to whoever comes, with the record of the run that rests.
        lock.lend().unwrap();
        assert!(lock.take_back("run-1"));
        lock.lend().unwrap();
        let other = WorkspaceLock::acquire(&path, brief, || {}).await.unwrap();
        assert!(matches!(&other, Acquired::Locked { former, .. } if former == &["run-1"]));
        assert!(!lock.take_back("run-1"));

        drop((lock, other));
        let third = WorkspaceLock::acquire(&path, brief, || {}).await.unwrap();
        assert!(matches!(third, Acquired::Locked { former, .. } if former == ["run-1"]));
    }
}
