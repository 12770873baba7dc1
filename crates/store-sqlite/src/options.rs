//! How a store is opened.

use std::path::PathBuf;
use std::time::Duration;

use crate::clock::Clock;

/// How the process takes part (rules R8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// A server: alone on the directory.
    Server,
    /// A local process that embeds the control plane, beside others of its kind.
    Embedded {
        /// The owner it writes as, e.g. `cli:<uuid>`.
        owner_id: String,
    },
}

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The disk: what was acknowledged survives a power cut.
    #[default]
    Full,
    /// The operating system: a power cut may lose the last commits, a killed process none.
    Relaxed,
}

impl Durability {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Relaxed => "relaxed",
        }
    }
}

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory; made if it isn't there.
    pub dir: PathBuf,
    /// How the process takes part.
    pub mode: Mode,
    /// What a commit waits for.
    pub durability: Durability,
    /// The clocks.
    pub clock: Clock,
    /// Reading connections at most.
    pub readers: u32,
    /// Commands that may wait for the writer.
    pub queue_commands: usize,
    /// Bytes of commands that may wait for the writer.
    pub queue_bytes: usize,
    /// How long a statement waits for another process's transaction.
    pub busy_timeout: Duration,
    /// Bounds the database's size in pages, to test a full disk.
    pub max_page_count: Option<u32>,
}

impl Options {
    /// The standard options.
    pub fn new(dir: impl Into<PathBuf>, mode: Mode) -> Self {
        Self {
            dir: dir.into(),
            mode,
            durability: Durability::Full,
            clock: Clock::system(),
            readers: 3,
            queue_commands: 4_096,
            queue_bytes: 64 * 1024 * 1024,
            busy_timeout: Duration::from_secs(5),
            max_page_count: None,
        }
    }
}
