//! The configured database as a server opens it: in the data directory, or on PostgreSQL beside
//! other instances. It knows where the data is and nothing of what is in it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tapedeck_store::{Archive, Audit, Store};
use tapedeck_store_postgres::{self as postgres, PostgresStore};
use tapedeck_store_sqlite::{Mode, SqliteStore};

use crate::config::{Config, DatabaseUrl, HintFate};
use crate::context::open_store;

/// An open database.
#[derive(Debug)]
pub(crate) enum Database {
    /// This process has it for itself.
    Directory {
        /// The store.
        store: Arc<SqliteStore>,
        /// The one name of its directory.
        dir: PathBuf,
    },
    /// Other instances may use it, too.
    Postgres {
        /// The store.
        store: Arc<PostgresStore>,
        /// Where it is.
        url: DatabaseUrl,
    },
}

impl Database {
    /// Opens what the configuration names, making or migrating it if need be.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Self> {
        if let Some(url) = &config.database {
            let options = postgres::Options {
                hints: match config.testing.hints {
                    HintFate::Sent => postgres::Hints::Sent,
                    HintFate::Dropped => postgres::Hints::Dropped,
                },
                ..postgres::Options::new(url.expose())
            };
            let store = PostgresStore::open(options).await?;
            return Ok(Self::Postgres {
                store: Arc::new(store),
                url: url.clone(),
            });
        }
        let (store, dir) = open_store(config, Mode::Server).await?;
        Ok(Self::Directory {
            store: Arc::new(store),
            dir,
        })
    }

    /// The store, whichever it is.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Directory { store, .. } => Arc::<SqliteStore>::clone(store),
            Self::Postgres { store, .. } => Arc::<PostgresStore>::clone(store),
        }
    }

    /// Its rows as a whole.
    pub(crate) fn archive(&self) -> &dyn Archive {
        match self {
            Self::Directory { store, .. } => store.as_ref(),
            Self::Postgres { store, .. } => store.as_ref(),
        }
    }

    /// Its checks.
    pub(crate) fn audit(&self) -> &dyn Audit {
        match self {
            Self::Directory { store, .. } => store.as_ref(),
            Self::Postgres { store, .. } => store.as_ref(),
        }
    }

    /// The data directory, where that holds the database.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            Self::Directory { dir, .. } => Some(dir),
            Self::Postgres { .. } => None,
        }
    }

    /// Resolves when this process can't go on with the database. One on PostgreSQL is at worst away
    /// for a while.
    pub(crate) async fn fatal(&self) {
        match self {
            Self::Directory { store, .. } => store.fatal().await,
            Self::Postgres { .. } => std::future::pending().await,
        }
    }
}

/// Where it is, without a password.
impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { dir, .. } => dir.display().fmt(f),
            Self::Postgres { url, .. } => url.fmt(f),
        }
    }
}
