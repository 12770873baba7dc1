//! This process among those that share a state directory. It owns the record that tells a living
//! executor from a dead one, and the end of the agents that dead ones left behind; it must never touch
//! what a living one owns.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{if_there, private_dir};
use crate::process::sweep_executor_leftovers;

/// The record of a living executor: a file that is locked as long as the process lives.
#[derive(Debug)]
pub(crate) struct Instance {
    _locked: File,
    record: PathBuf,
    spool: PathBuf,
}

impl Instance {
    /// Enters this process and ends the agents that dead ones left. Gives the dead ones, whose runs
    /// are still to be reported.
    pub(crate) async fn enter(
        state_dir: &Path,
        instance_id: &str,
    ) -> io::Result<(Self, Vec<Dead>)> {
        let (folder, spools) = (state_dir.join("instances"), state_dir.join("spool"));
        for path in [&folder, &spools] {
            private_dir(path)?;
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
        let mut dead = dead_instances(&folder, &spools, instance_id)?;
        if !dead.is_empty() {
            let names: Vec<_> = dead.iter().map(|dead| dead.name.clone()).collect();
            tracing::info!(instances = ?names, "ending what executors that died left behind");
            if !sweep_executor_leftovers(&names).await {
                // Their records stay, so that the next start tries again.
                dead.clear();
            }
        }
        Ok((instance, dead))
    }

    /// Where this process spools.
    pub(crate) fn spool_folder(&self) -> &Path {
        &self.spool
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Runs that could not be reported are left to the next start, which finds them by the record.
        if if_there(std::fs::remove_dir(&self.spool)).is_ok() {
            drop(std::fs::remove_file(&self.record));
        }
    }
}

/// An executor that died. As long as this lives, no other start takes the same one for its own.
#[derive(Debug)]
pub(crate) struct Dead {
    name: String,
    _locked: File,
    record: PathBuf,
    spool: PathBuf,
}

impl Dead {
    /// Where it spooled.
    pub(crate) fn spool(&self) -> &Path {
        &self.spool
    }

    /// Nothing of it is of use any more.
    pub(crate) fn remove(self) {
        match if_there(std::fs::remove_dir_all(&self.spool)) {
            Ok(_) => drop(std::fs::remove_file(&self.record)),
            Err(error) => {
                let path = self.spool.display();
                tracing::warn!(%path, %error, "spool could not be removed");
            }
        }
    }
}

fn dead_instances(folder: &Path, spools: &Path, own: &str) -> io::Result<Vec<Dead>> {
    let mut dead = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if name == own || name.starts_with('.') {
            continue;
        }
        // Without a file its owner ended in good order meanwhile.
        let Some(file) = if_there(File::open(entry.path()))? else {
            continue;
        };
        match file.try_lock() {
            Ok(()) => dead.push(Dead {
                record: entry.path(),
                spool: spools.join(&name),
                name,
                _locked: file,
            }),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(dead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::environment::EXECUTOR_MARK;

    #[tokio::test]
    async fn a_dead_one_is_found_once_and_a_living_one_never() {
        let dir = tempfile::tempdir().unwrap();
        let (living, dead) = Instance::enter(dir.path(), "living").await.unwrap();
        assert!(dead.is_empty());
        std::fs::create_dir(living.spool_folder()).unwrap();
        std::fs::write(living.spool_folder().join("run"), "x").unwrap();
        std::fs::write(dir.path().join("instances/dead"), "").unwrap();
        std::fs::create_dir(dir.path().join("spool/dead")).unwrap();
        std::fs::write(dir.path().join("spool/dead/run"), "x").unwrap();

        let (second, mut dead) = Instance::enter(dir.path(), "second").await.unwrap();
        let (third, none) = Instance::enter(dir.path(), "third").await.unwrap();
        assert!(none.is_empty(), "the second start has it: {none:?}");
        let found = dead.pop().unwrap();
        assert_eq!((found.name.as_str(), dead.len()), ("dead", 0));
        found.remove();
        assert!(!dir.path().join("spool/dead").exists());
        assert!(!dir.path().join("instances/dead").exists());
        drop((second, third));
        assert!(!dir.path().join("instances/second").exists());

        // A living one that ends with runs that it could not report is one of the dead.
        assert!(living.spool_folder().join("run").exists());
        drop(living);
        let (_fourth, dead) = Instance::enter(dir.path(), "fourth").await.unwrap();
        assert_eq!(dead[0].name, "living");
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
