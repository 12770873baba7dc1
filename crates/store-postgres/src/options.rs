//! How a store is opened.

use std::fmt;
use std::time::Duration;

use crate::clock::Clock;

/// What becomes of hints to other instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hints {
    /// They are sent and listened for.
    #[default]
    Sent,
    /// All are lost, so that only polls notice other instances; a test's option.
    Dropped,
}

/// How a store is opened. What a commit waits for is the server's own setting: Tapedeck expects
/// `synchronous_commit` to be on, and says `relaxed` where it isn't.
#[derive(Clone)]
pub struct Options {
    /// Where the database is, with its user and password.
    pub url: String,
    /// The clock.
    pub clock: Clock,
    /// Connections for commands and reads at most, at least 4. Two more send and hear hints.
    pub connections: u32,
    /// Commands that may wait for a connection.
    pub queue_commands: usize,
    /// Bytes of commands that may wait for a connection.
    pub queue_bytes: usize,
    /// How long a command may wait for those of its session before it and for its turn.
    pub queue_timeout: Duration,
    /// How long a connection may take to come.
    pub acquire_timeout: Duration,
    /// How long one statement may take on the server.
    pub statement_timeout: Duration,
    /// How long a statement may wait for a lock.
    pub lock_timeout: Duration,
    /// After which the server ends a transaction in which nothing happens.
    pub idle_in_transaction_timeout: Duration,
    /// How long a whole command may take, its tries included: a connection may end without a sign.
    pub command_timeout: Duration,
    /// What becomes of hints to other instances.
    pub hints: Hints,
    /// The shortest time between two sendings of hints.
    pub notify_interval: Duration,
    /// Between two polls while hints may be lost; ten times as long while they arrive.
    pub poll: Duration,
}

impl Options {
    /// The standard options.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            clock: Clock::database(),
            connections: 12,
            queue_commands: 4_096,
            queue_bytes: 64 * 1024 * 1024,
            queue_timeout: Duration::from_secs(15),
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(5),
            idle_in_transaction_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_mins(1),
            hints: Hints::Sent,
            notify_interval: Duration::from_millis(10),
            poll: Duration::from_millis(500),
        }
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("clock", &self.clock)
            .field("connections", &self.connections)
            .field("hints", &self.hints)
            .finish_non_exhaustive()
    }
}
