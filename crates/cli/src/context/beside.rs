//! The configured database as it is seen from beside, while servers may be working on it: nothing
//! is made, migrated, locked or written.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use anyhow::Context as _;
use tapedeck_store::{ArchiveError, Audit, RowSink};
use tapedeck_store_postgres::{self as postgres, PostgresDatabase};
use tapedeck_store_sqlite::SqliteFile;

use crate::config::{self, Config, DatabaseUrl};
use crate::exit::{Exit, Failed};

/// A database that others may have open.
#[derive(Debug)]
pub(crate) enum Beside {
    /// A file.
    File {
        /// The file.
        file: SqliteFile,
        /// Its path.
        path: PathBuf,
    },
    /// A database on PostgreSQL.
    Postgres {
        /// The database.
        database: Box<PostgresDatabase>,
        /// Where it is.
        url: DatabaseUrl,
    },
}

impl Beside {
    /// The one that the configuration names.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Self> {
        config.without_server()?;
        if let Some(url) = &config.database {
            let options = postgres::Options::new(url.expose());
            return Ok(Self::Postgres {
                database: Box::new(PostgresDatabase::open_read_only(&options).await?),
                url: url.clone(),
            });
        }
        let dir = config::expand(&config.data_dir)?;
        Self::file(&SqliteFile::path_in(&dir)).await
    }

    /// A file by its own name.
    pub(crate) async fn file(path: &Path) -> anyhow::Result<Self> {
        let at = path.display();
        match path.metadata() {
            Ok(found) if found.is_dir() => {
                return Err(Failed::usage(format!("`{at}` is a directory")));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let message = format!("there is no database `{at}`");
                return Err(Failed::with(Exit::NotFound, message));
            }
            Err(error) => return Err(error).with_context(|| format!("`{at}` can't be read")),
        }
        Ok(Self::File {
            file: SqliteFile::open_read_only(path).await?,
            path: path.to_path_buf(),
        })
    }

    /// Its checks.
    pub(crate) fn audit(&self) -> &dyn Audit {
        match self {
            Self::File { file, .. } => file,
            Self::Postgres { database, .. } => database.as_ref(),
        }
    }

    /// Gives every row of one moment.
    pub(crate) async fn export(&self, sink: &mut dyn RowSink) -> Result<(), ArchiveError> {
        match self {
            Self::File { file, .. } => file.export(sink).await,
            Self::Postgres { database, .. } => database.export(sink).await,
        }
    }
}

/// Where it is, without a password.
impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => path.display().fmt(f),
            Self::Postgres { url, .. } => url.fmt(f),
        }
    }
}
