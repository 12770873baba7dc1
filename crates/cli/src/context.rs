//! What a command works with: the configuration, the printer, and a client of the server, or of the
//! control plane inside this process where there is no server (rules R8). Commands can't tell which.

mod background;
mod beside;
mod database;
mod embedded;
mod executor_lock;
mod server_file;

use std::path::Path;

use tapedeck_client::Client;
use tapedeck_domain::owner::is_deployment;
use tapedeck_domain::{Rejection, SessionId};

use crate::config::{self, Config};
use crate::exit::Failed;
use crate::output::Printer;
use crate::remotes::{RemotesFile, address};
pub(crate) use background::{Background, Need, unneeded};
pub(crate) use beside::Beside;
pub(crate) use database::Database;
pub(crate) use embedded::{Embedded, open_store};
pub(crate) use executor_lock::ExecutorLock;
pub(crate) use server_file::{ServerFile, own_token};

/// What a command works with.
#[derive(Debug)]
pub(crate) struct Context {
    /// All settings.
    pub(crate) config: Config,
    /// Prints.
    pub(crate) printer: Printer,
}

/// A client, and what is behind it.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Speaks to the control plane.
    pub(crate) client: Client,
    /// The control plane, if it is in this process.
    pub(crate) embedded: Option<Embedded>,
    /// The server in the background, if it is that.
    pub(crate) background: Option<InBackground>,
}

/// A server in the background, which stays for as long as this is held.
#[derive(Debug)]
pub(crate) struct InBackground {
    background: Background,
    heartbeat_client: Client,
}

/// A server, and how to prove to it who we are.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its address.
    pub(crate) url: String,
    /// The credential.
    pub(crate) token: Option<tapedeck_client::Secret>,
    /// Whether it is one in the background, for which commands bring executors of their own.
    pub(crate) is_background: bool,
}

impl Server {
    /// A client with connections of its own.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::http(&self.url, self.token.as_ref())?)
    }
}

/// What a session belongs to where the server that has it holds the data directory no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerIsGone;

impl std::fmt::Display for ServerIsGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the session's server is gone")
    }
}

/// What to do about that.
pub(crate) const GOES_ON: &str = "`tapedeck serve` on this data directory goes on with it";

/// Whether a server is said to own the session.
fn is_of_a_server(error: &anyhow::Error) -> bool {
    let mut problems = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<tapedeck_client::Error>()?.problem());
    problems.any(|problem| {
        let owner = problem.extensions.owner_id.as_deref();
        owner.is_some_and(is_deployment)
    })
}

impl Context {
    /// The server to talk to: the configured one, or the one that holds the data directory.
    pub(crate) async fn server(&self) -> anyhow::Result<Option<Server>> {
        if let Some(name) = &self.config.remote {
            return self.remote(name).map(Some);
        }
        if let Some(url) = &self.config.server {
            return Ok(Some(Server {
                url: address(url)?.into(),
                token: self.config.token()?,
                is_background: false,
            }));
        }
        if let Some(database) = &self.config.database {
            return Err(Failed::usage(format!(
                "`{database}` is for servers: name one of them with `--server`"
            )));
        }
        let dir = config::expand(&self.config.data_dir)?;
        let Some(file) = ServerFile::of_live_server(&dir).await? else {
            return Ok(None);
        };
        // What the server names serves, for whoever may read it; a configured token may be another
        // server's.
        let is_given = self.config.is_from_flag("token_file");
        let named = file.token_file.as_ref().filter(|_| !is_given);
        let token = match named.and_then(|path| config::read_token(path).ok()) {
            Some(token) => Some(token),
            None => self.config.token()?,
        };
        Ok(Some(file.server(token)))
    }

    /// A token from the configuration is another server's: only one from the command line is meant.
    fn remote(&self, name: &str) -> anyhow::Result<Server> {
        let file = RemotesFile::configured(&self.config)?;
        let remote = file.read()?.take(name)?;
        let token = if self.config.is_from_flag("token_file") {
            self.config.token()?
        } else {
            remote.token
        };
        Ok(Server {
            url: remote.url.into(),
            token,
            is_background: false,
        })
    }

    /// A client of the server, or of a control plane that now starts in this process.
    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        match self.server().await? {
            Some(server) if server.is_background => {
                let background = Background::enter(&self.config).await?;
                // It may have ended before it was needed here.
                match background.live().await? {
                    Some(server) => Connection::of_server(&server, Some(background)),
                    None => self.embed().await,
                }
            }
            Some(server) => Connection::of_server(&server, None),
            None => self.embed().await,
        }
    }

    /// Does something over a connection, and gives up afterwards what this process owns by it.
    pub(crate) async fn connected<T>(
        &self,
        work: impl AsyncFnOnce(&Connection) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let connection = self.connect().await?;
        let outcome = work(&connection).await;
        // A server that lived would have been asked in place of the database.
        let is_alone = connection.embedded.is_some();
        connection.close().await;
        outcome.map_err(|error| {
            if is_alone && is_of_a_server(&error) {
                error.context(ServerIsGone)
            } else {
                error
            }
        })
    }

    async fn embed(&self) -> anyhow::Result<Connection> {
        let embedded = Embedded::open(&self.config).await?;
        Ok(Connection {
            client: embedded.client()?,
            embedded: Some(embedded),
            background: None,
        })
    }
}

impl Connection {
    fn of_server(server: &Server, background: Option<Background>) -> anyhow::Result<Self> {
        let background = background.map(|background| {
            let heartbeat_client = server.client()?;
            anyhow::Ok(InBackground {
                background,
                heartbeat_client,
            })
        });
        Ok(Self {
            client: server.client()?,
            embedded: None,
            background: background.transpose()?,
        })
    }

    /// The data directory, where this process brings the executor: there is no server, or only one
    /// in the background of editors.
    pub(crate) fn local_dir(&self) -> Option<&Path> {
        let embedded = self.embedded.as_ref().map(Embedded::dir);
        embedded.or_else(|| Some(self.background.as_ref()?.background.dir()))
    }

    /// The clients for an executor in this process, its heartbeats' last.
    pub(crate) fn executor_clients(&self) -> (&Client, Client) {
        let background = self.background.as_ref();
        let heartbeats = background.map_or(&self.client, |found| &found.heartbeat_client);
        (&self.client, heartbeats.clone())
    }

    /// Remembers that this process may have come to own a session.
    pub(crate) fn touch(&self, session: SessionId) {
        if let Some(embedded) = &self.embedded {
            embedded.touch(session);
        }
    }

    /// Keeps a session for this process, where there is no server to do that for all. Gives who has it
    /// instead.
    pub(crate) async fn keep(&self, session: SessionId) -> anyhow::Result<Option<Rejection>> {
        match &self.embedded {
            Some(embedded) => embedded.acquire(session).await,
            None => Ok(None),
        }
    }

    /// Gives up what this process owns.
    pub(crate) async fn close(self) {
        if let Some(embedded) = self.embedded {
            embedded.close().await;
        }
    }
}
