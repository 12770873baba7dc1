//! What is behind the facade: a control plane, and whoever executes its runs. The facade asks for
//! both when it needs them; it never starts anything itself.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;

use async_trait::async_trait;
use tapedeck_client::Client;
use tapedeck_domain::SessionId;
use tapedeck_protocol::session::SessionResponse;

/// Why what is behind the facade can't be had, in a sentence for the person at the editor.
pub type HostError = Box<dyn StdError + Send + Sync>;

/// What is behind the facade.
#[async_trait]
pub trait Host: Send + Sync + fmt::Debug {
    /// A client of the control plane, which may have to be started for it.
    async fn connect(&self) -> Result<Client, HostError>;

    /// Whether sessions can work in a directory; why not, in a sentence.
    fn admits(&self, directory: &Path) -> Result<(), String>;

    /// A session was made here.
    async fn created(&self, session: &SessionResponse) -> Result<(), HostError>;

    /// A session is about to get a prompt: somebody has to be there to execute it.
    async fn prepare(&self, session: SessionId) -> Result<(), HostError>;

    /// Why nobody will execute what a session waits for, once that is sure.
    async fn trouble(&self, session: SessionId) -> Option<String>;
}

/// A server with executors of its own.
#[derive(Debug)]
pub struct Remote(pub Client);

#[async_trait]
impl Host for Remote {
    async fn connect(&self) -> Result<Client, HostError> {
        Ok(self.0.clone())
    }

    /// The directory may be on another machine: the executor knows.
    fn admits(&self, _directory: &Path) -> Result<(), String> {
        Ok(())
    }

    async fn created(&self, _session: &SessionResponse) -> Result<(), HostError> {
        Ok(())
    }

    async fn prepare(&self, _session: SessionId) -> Result<(), HostError> {
        Ok(())
    }

    /// Another executor may come at any time.
    async fn trouble(&self, _session: SessionId) -> Option<String> {
        None
    }
}
