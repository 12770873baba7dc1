//! A database file seen from beside: by connections that can't write, take no lock of the directory
//! and so may be there while a server holds it. Whoever looks doesn't migrate.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, SqliteConnection};
use tapedeck_domain::LeaseInstant;
use tapedeck_domain::id::{DeploymentId, LogId};
use tapedeck_store::StoreError;
use tapedeck_store::archive::{Origin, Translation};

use crate::clock::Clock;
use crate::encode::At;
use crate::error::{from_sqlx, in_file, internal, of_path};
use crate::open::{FILE, known_schema, schema_version};

/// How long a look waits while a server starts or checkpoints.
const BUSY: Duration = Duration::from_secs(30);

/// A database file that others may be writing to.
#[derive(Debug, Clone)]
pub struct SqliteFile {
    path: PathBuf,
    pub(crate) clock: Clock,
}

impl SqliteFile {
    /// Where the database of a data directory is.
    pub fn path_in(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Looks at a file, which must be there and have the present schema.
    pub async fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let file = Self::new(path, Clock::system());
        let mut conn = file.connect().await?;
        let found = schema_version(&mut conn).await.map_err(in_file(path))?;
        let known = known_schema();
        match found.cmp(&known) {
            std::cmp::Ordering::Equal => Ok(file),
            std::cmp::Ordering::Less => Err(StoreError::SchemaTooOld { found, known }),
            std::cmp::Ordering::Greater => Err(StoreError::SchemaTooNew { found, known }),
        }
    }

    /// The same of a file that this process has open.
    pub(crate) fn new(path: &Path, clock: Clock) -> Self {
        Self {
            path: path.to_path_buf(),
            clock,
        }
    }

    /// A connection that can't write.
    pub(crate) async fn connect(&self) -> Result<SqliteConnection, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(&self.path)
            .read_only(true)
            .busy_timeout(BUSY)
            .disable_statement_logging()
            .pragma("temp_store", "MEMORY");
        options
            .connect()
            .await
            .map_err(|error| match from_sqlx(error) {
                StoreError::Internal(source) => match source.downcast_ref::<std::io::Error>() {
                    Some(error) => of_path(&self.path, error),
                    None => internal(format!("`{}`: {source}", self.path.display())),
                },
                other => in_file(&self.path)(other),
            })
    }

    /// A connection that can write, beside an idle writer of this process.
    pub(crate) async fn connect_to_write(&self) -> Result<SqliteConnection, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(&self.path)
            .foreign_keys(true)
            .busy_timeout(BUSY)
            .disable_statement_logging();
        options.connect().await.map_err(from_sqlx)
    }

    /// Who the database is, and the moment from which a copy counts its leases.
    pub(crate) async fn origin(
        &self,
        conn: &mut SqliteConnection,
    ) -> Result<(Origin, Translation), StoreError> {
        let row =
            sqlx::query!("SELECT deployment_id, log_id, alive_at FROM deployment WHERE id = 1")
                .fetch_one(&mut *conn)
                .await
                .map_err(from_sqlx)?;
        let at = At::new("deployment", &1);
        let deployment_id = at.id("deployment_id", &row.deployment_id, DeploymentId::new)?;
        let alive_at = row
            .alive_at
            .map_or_else(|| self.clock.lease(), LeaseInstant);
        let origin = Origin {
            engine: "sqlite".to_owned(),
            schema: schema_version(conn).await?,
            deployment_id,
            log_id: at.id("log_id", &row.log_id, LogId::new)?,
            created_at: self.clock.wall(),
        };
        Ok((origin, Translation::new(deployment_id, alive_at)))
    }
}
