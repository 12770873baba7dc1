//! Who may open the directory (rules R8). A server holds `lock` alone, embedded processes share it;
//! each local owner also holds a lock on a file of its own, so that whoever can take that lock knows
//! the owner's process is dead. Locks end with their process, however it ends.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tapedeck_domain::owner::is_deployment;
use tapedeck_store::StoreError;

use crate::error::{internal, of_path};
use crate::options::Mode;

/// Prefixes of owners that are local processes; only of those can a death be proved.
const LOCAL_OWNERS: [&str; 2] = ["cli:", "acp-stdio:"];
/// Tries to get the directory's lock, and the pause between two: another process may hold it for
/// the moment of its own start.
pub(crate) const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(25);

/// The locks that this process holds on a directory.
#[derive(Debug)]
pub(crate) struct DirLock {
    dir: PathBuf,
    exclusive: bool,
    /// Our own owner file, for embedded processes.
    own: Option<OwnerFile>,
    lock: File,
}

#[derive(Debug)]
struct OwnerFile {
    owner_id: String,
    path: PathBuf,
    _file: File,
}

impl Drop for OwnerFile {
    fn drop(&mut self) {
        // A file that stays behind only says once more that the owner is dead.
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// How a lock is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Alone,
    Shared,
}

/// Makes the directory if need be, and gives the one name of all its equivalent paths.
pub(crate) fn canonical_dir(dir: &Path) -> Result<PathBuf, StoreError> {
    let mut parts = dir.components();
    let dir = match parts.next() {
        Some(Component::Normal(first)) if first == "~" => std::env::home_dir()
            .ok_or_else(|| internal("the home directory is unknown"))?
            .join(parts.as_path()),
        _ => dir.to_path_buf(),
    };
    let at = |error: std::io::Error| of_path(&dir, &error);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(at)?;
    let dir = dir.canonicalize().map_err(at)?;
    let owners = dir.join("owners");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(owners)
        .map_err(at)?;
    Ok(dir)
}

impl DirLock {
    /// Takes the directory's lock, and the owner's own for an embedded process.
    pub(crate) async fn acquire(dir: &Path, mode: &Mode) -> Result<Self, StoreError> {
        let want = match mode {
            Mode::Server => Want::Alone,
            Mode::Embedded { .. } => Want::Shared,
        };
        let lock = take(dir, want).await?;
        let own = match mode {
            Mode::Server => {
                bury_owners(dir);
                None
            }
            Mode::Embedded { owner_id } => Some(own_file(dir, owner_id).await?),
        };
        Ok(Self {
            dir: dir.to_path_buf(),
            exclusive: want == Want::Alone,
            own,
            lock,
        })
    }

    /// Takes the directory alone, for a migration, if nobody else has it now; otherwise this
    /// process holds nothing, so that somebody can get it.
    pub(crate) fn try_alone(&mut self) -> Result<bool, StoreError> {
        if self.exclusive {
            return Ok(true);
        }
        self.lock.unlock().map_err(internal)?;
        match self.lock.try_lock() {
            Ok(()) => {
                self.exclusive = true;
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(internal(error)),
        }
    }

    /// Shares the directory again, in a moment.
    pub(crate) async fn share_later(&mut self) -> Result<(), StoreError> {
        tokio::time::sleep(PAUSE).await;
        self.lock = take(&self.dir, Want::Shared).await?;
        Ok(())
    }

    /// Shares the directory again after a migration, where the process is not a server.
    pub(crate) async fn share(&mut self) -> Result<(), StoreError> {
        if self.own.is_some() {
            self.lock.unlock().map_err(internal)?;
            self.lock = take(&self.dir, Want::Shared).await?;
            self.exclusive = false;
        }
        Ok(())
    }

    /// The refusal of a migration that never got the directory alone.
    pub(crate) fn refused_alone(&self) -> StoreError {
        StoreError::Locked(format!(
            "the database must be migrated, and others use it: {}",
            names(&self.dir)
        ))
    }

    /// Whether other processes may have the database open.
    pub(crate) fn is_shared(&self) -> bool {
        !self.exclusive
    }

    /// Whether a local owner's process is proved dead.
    pub(crate) fn owner_is_dead(&self, owner_id: &str) -> bool {
        if self.is_self(owner_id) {
            return false;
        }
        if is_deployment(owner_id) {
            // A server holds the directory alone, so none lives beside a local process.
            return !self.exclusive;
        }
        if !is_local(owner_id) {
            return false;
        }
        // A server is alone, so no local owner can live beside it.
        self.exclusive || !is_held(&owner_path(&self.dir, owner_id))
    }

    /// The local owners whose processes live, as far as their names can be files.
    pub(crate) fn living_owners(&self) -> Vec<String> {
        if self.exclusive {
            return self.own.iter().map(|own| own.owner_id.clone()).collect();
        }
        holders(&self.dir)
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    fn is_self(&self, owner_id: &str) -> bool {
        self.own
            .as_ref()
            .is_some_and(|own| own.owner_id == owner_id)
    }
}

fn is_local(owner_id: &str) -> bool {
    LOCAL_OWNERS
        .iter()
        .any(|prefix| owner_id.starts_with(prefix))
        && is_file_name(owner_id)
}

fn is_file_name(owner_id: &str) -> bool {
    owner_id.len() <= 200
        && owner_id
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | ':' | '_'))
}

fn owner_path(dir: &Path, owner_id: &str) -> PathBuf {
    dir.join("owners").join(owner_id)
}

fn open(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|error| of_path(path, &error))
}

/// Whether a process holds the file's lock. What can't be found out counts as held: a wrong "dead"
/// would let two owners write.
fn is_held(path: &Path) -> bool {
    match File::open(path) {
        Ok(file) => !matches!(file.try_lock_shared(), Ok(())),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

async fn take(dir: &Path, want: Want) -> Result<File, StoreError> {
    let mut file = open(&dir.join("lock"))?;
    for tried in 1..=TRIES {
        let taken = match want {
            Want::Alone => file.try_lock(),
            Want::Shared => file.try_lock_shared(),
        };
        match taken {
            Ok(()) => {
                if want == Want::Alone {
                    sign(&mut file)?;
                }
                return Ok(file);
            }
            Err(TryLockError::WouldBlock) if tried < TRIES => tokio::time::sleep(PAUSE).await,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(internal(error)),
        }
    }
    Err(StoreError::Locked(refusal(dir, &mut file, want)))
}

/// Writes who holds the file, for whoever is refused.
fn sign(file: &mut File) -> Result<(), StoreError> {
    let pid = std::process::id();
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| write!(file, "{pid}"))
        .map_err(internal)
}

async fn own_file(dir: &Path, owner_id: &str) -> Result<OwnerFile, StoreError> {
    if !is_file_name(owner_id) {
        return Err(internal(format!("`{owner_id}` can't be an owner's name")));
    }
    let path = owner_path(dir, owner_id);
    let mut file = open(&path)?;
    let mut tried = 1;
    // Whoever looks whether we live holds our lock for a moment.
    while let Err(error) = file.try_lock() {
        match error {
            TryLockError::WouldBlock if tried < TRIES => tokio::time::sleep(PAUSE).await,
            TryLockError::WouldBlock => {
                let message = format!("another process already writes as `{owner_id}`");
                return Err(StoreError::Locked(message));
            }
            TryLockError::Error(error) => return Err(internal(error)),
        }
        tried += 1;
    }
    sign(&mut file)?;
    Ok(OwnerFile {
        owner_id: owner_id.to_owned(),
        path,
        _file: file,
    })
}

/// The local owners that live, with their process ids as they wrote them.
fn holders(dir: &Path) -> Vec<(String, String)> {
    let Ok(entries) = std::fs::read_dir(dir.join("owners")) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .flatten()
        .filter(|entry| is_held(&entry.path()))
        .map(|entry| {
            let pid = std::fs::read_to_string(entry.path()).unwrap_or_default();
            (entry.file_name().to_string_lossy().into_owned(), pid)
        })
        .collect();
    found.sort();
    found
}

fn refusal(dir: &Path, file: &mut File, want: Want) -> String {
    let at = dir.display();
    if want == Want::Shared || holders(dir).is_empty() {
        let mut pid = String::new();
        let _unread = file.rewind().and_then(|()| file.read_to_string(&mut pid));
        return format!("`{at}` is held by a server (process {})", pid.trim());
    }
    format!("`{at}` is in use by {}", names(dir))
}

fn names(dir: &Path) -> String {
    let names: Vec<_> = holders(dir)
        .iter()
        .map(|(name, pid)| format!("`{name}` (process {})", pid.trim()))
        .collect();
    names.join(", ")
}

/// Removes the files of dead owners; only who holds the directory alone may do so.
fn bury_owners(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir.join("owners")) else {
        return;
    };
    for entry in entries.flatten() {
        if !is_held(&entry.path()) {
            let _gone = std::fs::remove_file(entry.path());
        }
    }
}
