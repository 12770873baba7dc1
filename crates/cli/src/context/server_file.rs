//! `server.json` in a data directory: how programs on this machine find the server that holds it
//! (rules R8). The directory's lock says whether the file is true; the file alone never does.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tapedeck_client::Secret;
use tapedeck_domain::Timestamp;

use super::Server;
use crate::config;
use crate::exit::{Exit, Failed};
use crate::whole_file::write_whole;

const NAME: &str = "server.json";
const TOKEN: &str = "server.token";
/// The store's lock of a directory; a server holds it alone and writes its process id into it.
const LOCK: &str = "lock";
/// A server holds the lock for a moment before it has an address.
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_millis(50);

/// The token of a server that has no token file: whoever may read the directory may use the server.
/// It stays the same from server to server, so that whoever knew one knows the next.
pub(crate) fn own_token(dir: &Path) -> anyhow::Result<(Secret, PathBuf)> {
    let path = dir.join(TOKEN);
    if let Ok(token) = config::read_token(&path) {
        return Ok((token, path));
    }
    let [high, low]: [u128; 2] = rand::random();
    let token = Secret::new(format!("{high:032x}{low:032x}"));
    write_whole(&path, &format!("{}\n", token.expose()))?;
    Ok((token, path))
}

/// What a server says of itself to programs on its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerFile {
    /// Its address.
    pub(crate) url: String,
    /// Its process.
    pub(crate) pid: u32,
    /// When it started.
    pub(crate) started_at: Timestamp,
    /// Where its token is, if it asks for one.
    #[serde(default)]
    pub(crate) token_file: Option<PathBuf>,
    /// Whether it serves in the background of editors, and ends when none needs it.
    #[serde(default)]
    pub(crate) is_background: bool,
}

impl ServerFile {
    /// The server as clients reach it.
    pub(crate) fn server(self, token: Option<Secret>) -> Server {
        Server {
            url: self.url,
            token,
            is_background: self.is_background,
        }
    }

    /// Writes the file, for its owner's eyes only.
    pub(crate) fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        write_whole(&dir.join(NAME), &format!("{text}\n"))
    }

    /// Removes the file if it is still this process's.
    pub(crate) fn remove(&self, dir: &Path) {
        if Self::read(dir).is_some_and(|found| found.pid == self.pid) {
            let _gone = std::fs::remove_file(dir.join(NAME));
        }
    }

    /// The file that the last server left, live or not.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(dir.join(NAME)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// The file of the server that holds the directory now, if one does.
    pub(crate) async fn of_live_server(dir: &Path) -> anyhow::Result<Option<Self>> {
        for _ in 0..TRIES {
            let Some(holder) = holder(&dir.join(LOCK))? else {
                return Ok(None);
            };
            if let Some(file) = Self::read(dir)
                && holder.trim() == file.pid.to_string()
            {
                return Ok(Some(file));
            }
            tokio::time::sleep(PAUSE).await;
        }
        let holder = holder(&dir.join(LOCK))?.unwrap_or_default();
        Err(Failed::with(
            Exit::Conflict,
            format!(
                "`{}` is held by process {} which gave no address",
                dir.display(),
                holder.trim()
            ),
        ))
    }
}

/// What stands in a lock file that somebody holds alone.
fn holder(lock: &Path) -> anyhow::Result<Option<String>> {
    let at = || format!("`{}`", lock.display());
    let file = match File::open(lock) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error).with_context(at),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(std::fs::read_to_string(lock).with_context(at)?)),
        Err(TryLockError::Error(error)) => Err(error).with_context(at),
    }
}

/// Whether there is no such file, and no directory that it could be in.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    fn server() -> ServerFile {
        ServerFile {
            url: "http://127.0.0.1:1".to_owned(),
            pid: std::process::id(),
            started_at: Timestamp(0),
            token_file: None,
            is_background: false,
        }
    }

    fn lock(dir: &Path) -> File {
        let lock = File::create(dir.join(LOCK)).unwrap();
        lock.try_lock().unwrap();
        write!(&lock, "{}", std::process::id()).unwrap();
        lock
    }

    #[tokio::test]
    async fn only_the_file_of_the_locks_holder_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(ServerFile::of_live_server(dir).await.unwrap(), None);
        server().write(dir).unwrap();
        assert_eq!(ServerFile::of_live_server(dir).await.unwrap(), None);
        let lock = lock(dir);
        assert_eq!(
            ServerFile::of_live_server(dir).await.unwrap(),
            Some(server())
        );
        drop(lock);
        assert_eq!(ServerFile::of_live_server(dir).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_of_an_earlier_server_is_not_the_holders() {
        let dir = tempfile::tempdir().unwrap();
        let _lock = lock(dir.path());
        ServerFile { pid: 1, ..server() }.write(dir.path()).unwrap();
        let error = ServerFile::of_live_server(dir.path()).await.unwrap_err();
        assert_eq!(Exit::of_error(&error), Exit::Conflict);
        assert!(error.to_string().contains(&std::process::id().to_string()));
    }

    #[test]
    fn the_file_is_private_and_removed_by_its_writer_only() {
        let dir = tempfile::tempdir().unwrap();
        server().write(dir.path()).unwrap();
        let path = dir.path().join(NAME);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        ServerFile { pid: 1, ..server() }.remove(dir.path());
        assert!(path.exists());
        server().remove(dir.path());
        assert!(!path.exists());
    }
}
