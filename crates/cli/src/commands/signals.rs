//! Signals as a stream: SIGINT and SIGTERM, as often as they come; and the end of whoever started
//! this process, for those that are to end with it.

use tokio::io::{AsyncReadExt as _, Stdin, stdin};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Ctrl-C.
    Interrupt,
    /// The machine or a supervisor wants us gone.
    Terminate,
}

/// The signals that end processes.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    /// Its other end is held by who started us.
    tether: Option<Stdin>,
}

/// For processes that others start for themselves.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Tether {
    /// End as by SIGTERM once stdin ends, as it does when who started this process is gone
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

impl Signals {
    /// From here on these signals no longer end the process by themselves.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            tether: None,
        })
    }

    /// The same for a process that may have been started for another one.
    pub(crate) fn listen_at(tether: Tether) -> anyhow::Result<Self> {
        let mut signals = Self::listen()?;
        signals.tether = tether.until_stdin_ends.then(stdin);
        Ok(signals)
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            Some(()) = self.interrupt.recv() => Asked::Interrupt,
            Some(()) = self.terminate.recv() => Asked::Terminate,
            Some(()) = self.hangup.recv() => Asked::Terminate,
            () = end_of(self.tether.as_mut()) => {
                self.tether = None;
                Asked::Terminate
            }
            else => std::future::pending().await,
        }
    }
}

/// Waits until there is nothing more to read.
async fn end_of(tether: Option<&mut Stdin>) {
    let Some(tether) = tether else {
        return std::future::pending().await;
    };
    let mut bytes = [0; 64];
    while let Ok(1..) = tether.read(&mut bytes).await {}
}
