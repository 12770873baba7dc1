//! The server in the background (ADR 27): it holds the data directory while editors, and the executors
//! that they leave behind, need it. Who needs it holds a lock that it shares with others of its kind;
//! the server ends once it could have had that lock alone for a while. Locks end with their process,
//! so nothing has to be told goodbye.

use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::{Server, ServerFile};
use crate::config::{self, Config};
use crate::exit::{Exit, Failed};

const LOCK: &str = "background.lock";
const LOG: &str = "background.log";
/// A longer log begins anew.
const LOG_BYTES: u64 = 4 << 20;
/// How long a server may take to start, or to end before the next one.
const START: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(25);
/// Servers that end at once before it is said to be no use.
const MOST_STARTS: u32 = 3;
/// How long a server waits for the next who needs it, on the configured scale.
const LINGER: Duration = Duration::from_secs(10);

/// Says that this process needs the background server.
#[derive(Debug)]
pub(crate) struct Need {
    _lock: File,
}

impl Need {
    /// Waits for a server that is just ending to be gone.
    async fn take(dir: &Path) -> anyhow::Result<Self> {
        let lock = lock_file(dir)?;
        let deadline = Instant::now() + START;
        loop {
            match lock.try_lock_shared() {
                Ok(()) => return Ok(Self { _lock: lock }),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(PAUSE).await,
                Err(error) => {
                    return Err(error).context("the background server neither ends nor serves");
                }
            }
        }
    }
}

/// Waits until nobody has needed the server for a while. What it gives keeps others waiting until
/// this process has ended.
pub(crate) async fn unneeded(dir: &Path, scale: f64) -> Option<Need> {
    let linger = LINGER.mul_f64(scale);
    let mut free_since = None;
    loop {
        // Without its directory nobody can need it.
        let lock = lock_file(dir).ok()?;
        if lock.try_lock().is_ok() {
            let since: Instant = *free_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= linger {
                return Some(Need { _lock: lock });
            }
        } else {
            free_since = None;
        }
        drop(lock);
        sleep(linger.min(Duration::from_secs(1)) / 4).await;
    }
}

fn lock_file(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join(LOCK);
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    options
        .open(&path)
        .with_context(|| format!("`{}`", path.display()))
}

/// A data directory whose background server this process needs.
#[derive(Debug)]
pub(crate) struct Background {
    dir: PathBuf,
    _need: Need,
}

impl Background {
    /// Of the configured data directory.
    pub(crate) async fn enter(config: &Config) -> anyhow::Result<Self> {
        let dir = config::make_private_dir(&config.data_dir)?;
        let need = Need::take(&dir).await?;
        Ok(Self { dir, _need: need })
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where processes in the background say what they have to say.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// The server that holds the directory, if there is one.
    pub(crate) async fn live(&self) -> anyhow::Result<Option<Server>> {
        let Some(file) = ServerFile::of_live_server(&self.dir).await? else {
            return Ok(None);
        };
        let token = file.token_file.as_deref().map(config::read_token);
        Ok(Some(file.server(token.transpose()?)))
    }

    /// The server that holds the directory; if there is none, one is started by `tapedeck acp`, which
    /// this process must be.
    pub(crate) async fn holder(&self) -> anyhow::Result<Server> {
        let deadline = Instant::now() + START;
        let mut starting: Option<Child> = None;
        let mut refused = 0;
        loop {
            if let Some(server) = self.live().await? {
                return Ok(server);
            }
            let has_ended = match &mut starting {
                Some(child) => child.try_wait()?.is_some(),
                None => false,
            };
            if has_ended {
                // Another was faster, or a process works on the directory by itself.
                starting = None;
                refused += 1;
                sleep(PAUSE * 8).await;
            } else if starting.is_none() {
                starting = Some(detached(&self.dir, &["--role", "server"])?);
            } else {
                sleep(PAUSE).await;
            }
            if refused >= MOST_STARTS || Instant::now() >= deadline {
                return Err(self.cannot_start());
            }
        }
    }

    fn cannot_start(&self) -> anyhow::Error {
        let (dir, log) = (self.dir.display(), self.log());
        let text = format!(
            "no server could be started on `{dir}`: if `tapedeck run` or another command works there, \
             try again once it has ended; see also `{}`",
            log.display()
        );
        Failed::with(Exit::Conflict, text)
    }

    /// Starts this command once more in another role, in a session of its own that outlives us.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> anyhow::Result<Child> {
        detached(&self.dir, arguments)
    }
}

/// The same arguments give the child the same settings.
fn detached(dir: &Path, arguments: &[&str]) -> anyhow::Result<Child> {
    let path = dir.join(LOG);
    let is_long = path.metadata().is_ok_and(|found| found.len() > LOG_BYTES);
    let mut options = File::options();
    options.append(!is_long).write(true).truncate(is_long);
    let log = options.create(true).mode(0o600).open(&path);
    let log = log.with_context(|| format!("`{}`", path.display()))?;
    Command::new(std::env::current_exe().context("this binary can't be found")?)
        .args(std::env::args_os().skip(1))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("this binary can't be started")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_ends_only_when_nobody_has_needed_it_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let needed = Need::take(dir.path()).await.unwrap();
        let also_needed = Need::take(dir.path()).await.unwrap();
        let scale = 0.01;
        let waiting = unneeded(dir.path(), scale);
        let mut waiting = std::pin::pin!(waiting);
        let soon = Duration::from_millis(500);
        assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
        drop((needed, also_needed));
        let ended = waiting.await.unwrap();
        // Whoever comes now waits until that server is gone, and then needs the next one.
        let next = Need::take(dir.path());
        let mut next = std::pin::pin!(next);
        assert!(tokio::time::timeout(soon / 5, &mut next).await.is_err());
        drop(ended);
        next.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_whose_directory_is_gone_ends() {
        let dir = tempfile::tempdir().unwrap();
        assert!(unneeded(&dir.path().join("gone"), 1.0).await.is_none());
    }
}
