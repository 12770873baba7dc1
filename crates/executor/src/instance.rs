//! This process among those that share a state directory. It owns the record that tells a living
//! executor from a dead one, and the end of what dead ones left behind; it must never touch what a
//! living one owns.

use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::process::sweep_executor_leftovers;

/// The record of a living executor: a file that is locked as long as the process lives.
#[derive(Debug)]
pub(crate) struct Instance {
    _locked: File,
    record: PathBuf,
    spool: PathBuf,
}

impl Instance {
    /// Enters this process and ends what dead ones left.
    pub(crate) async fn enter(state_dir: &Path, instance_id: &str) -> io::Result<Self> {
        let (folder, spools) = (state_dir.join("instances"), state_dir.join("spool"));
        for path in [&folder, &spools] {
            DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        }
        // Locked before it has its name, or another start could take it for a dead one's.
        let record = folder.join(instance_id);
        let unnamed = folder.join(format!(".{instance_id}"));
        let locked = File::create(&unnamed)?;
        locked.try_lock().map_err(io::Error::from)?;
        std::fs::rename(&unnamed, &record)?;
        let instance = Self {
            _locked: locked,
            record,
            spool: spools.join(instance_id),
        };
        let dead = dead_instances(&folder, instance_id)?;
        if !dead.is_empty() {
            end_leftovers(&folder, &spools, &dead).await;
        }
        Ok(instance)
    }

    /// Where this process spools.
    pub(crate) fn spool_folder(&self) -> &Path {
        &self.spool
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // What can't be removed is removed by the next start.
        drop(std::fs::remove_dir(&self.spool));
        drop(std::fs::remove_file(&self.record));
    }
}

fn dead_instances(folder: &Path, own: &str) -> io::Result<Vec<String>> {
    let mut dead = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if name == own || name.starts_with('.') {
            continue;
        }
        let file = match File::open(entry.path()) {
            Ok(file) => file,
            // Its owner ended in good order meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) => dead.push(name),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(dead)
}

/// The dead one's claims are not ours, so what it spooled can't be sent by anybody.
async fn end_leftovers(folder: &Path, spools: &Path, dead: &[String]) {
    tracing::info!(instances = ?dead, "ending what executors that died left behind");
    if !sweep_executor_leftovers(dead).await {
        // Their records stay, so that the next start tries again.
        return;
    }
    for name in dead {
        let spool = spools.join(name);
        if spool.is_dir() {
            tracing::info!(path = %spool.display(), "removing a dead executor's spool");
            if let Err(error) = std::fs::remove_dir_all(&spool) {
                tracing::warn!(path = %spool.display(), %error, "spool could not be removed");
            }
        }
        drop(std::fs::remove_file(folder.join(name)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::environment::EXECUTOR_MARK;

    #[tokio::test]
    async fn a_dead_ones_spool_goes_and_a_living_ones_stays() {
        let dir = tempfile::tempdir().unwrap();
        let living = Instance::enter(dir.path(), "living").await.unwrap();
        std::fs::create_dir(living.spool_folder()).unwrap();
        std::fs::write(living.spool_folder().join("run"), "x").unwrap();
        std::fs::write(dir.path().join("instances/dead"), "").unwrap();
        std::fs::create_dir(dir.path().join("spool/dead")).unwrap();
        std::fs::write(dir.path().join("spool/dead/run"), "x").unwrap();

        let second = Instance::enter(dir.path(), "second").await.unwrap();
        assert!(!dir.path().join("spool/dead").exists());
        assert!(!dir.path().join("instances/dead").exists());
        assert!(living.spool_folder().join("run").exists());
        assert!(dir.path().join("instances/living").exists());
        drop(second);
        assert!(!dir.path().join("instances/second").exists());
    }

    #[tokio::test]
    async fn a_process_of_a_dead_executor_is_killed_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let instance_id = format!("dead-{}", std::process::id());
        std::fs::create_dir(dir.path().join("instances")).unwrap();
        std::fs::write(dir.path().join("instances").join(&instance_id), "").unwrap();
        let start = |mark: &str| {
            tokio::process::Command::new("sleep")
                .arg("300")
                .env(EXECUTOR_MARK, mark)
                .kill_on_drop(true)
                .spawn()
                .unwrap()
        };
        let (left, mut other) = (start(&instance_id), start("somebody-else"));
        let _second = Instance::enter(dir.path(), "second").await.unwrap();
        // The sweep reaps its victim here, whose parent it happens to be.
        assert!(
            !Path::new("/proc")
                .join(left.id().unwrap().to_string())
                .exists()
        );
        assert_eq!(other.try_wait().unwrap(), None);
    }
}
