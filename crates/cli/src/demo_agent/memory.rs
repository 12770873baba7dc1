//! What the demo agent remembers of a session, in one small JSON file that outlives the process.
//! It owns the files' names and their replacement as a whole; it must never follow an id to a file
//! outside its directory.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A session as it is kept between processes.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Memory {
    pub(super) turns: Vec<Turn>,
}

/// One prompt, recorded when it arrives, and what was said to it, recorded when the turn ends.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Turn {
    pub(super) prompt: String,
    pub(super) answer: String,
}

/// The directory of all sessions.
#[derive(Clone, Debug)]
pub(super) struct Memories {
    directory: PathBuf,
}

impl Memories {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The session's memory, or nothing where this agent never had such a session.
    pub(super) async fn recall(&self, session: &str) -> io::Result<Option<Memory>> {
        let Some(path) = self.path(session) else {
            return Ok(None);
        };
        match tokio::fs::read(path).await {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the session's file: a reader finds the old or the new one, never a part.
    pub(super) async fn keep(&self, session: &str, memory: &Memory) -> io::Result<()> {
        let path = self.path(session).ok_or(io::ErrorKind::InvalidInput)?;
        tokio::fs::create_dir_all(&self.directory).await?;
        let draft = path.with_extension(format!("{}.draft", std::process::id()));
        tokio::fs::write(&draft, serde_json::to_vec(memory)?).await?;
        tokio::fs::rename(&draft, &path).await
    }

    fn path(&self, session: &str) -> Option<PathBuf> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let named = !session.is_empty() && session.len() <= 64 && session.bytes().all(plain);
        named.then(|| {
            self.directory
                .join(Path::new(session).with_extension("json"))
        })
    }
}
