//! A database seen from beside: by connections of their own, without the time limits of commands,
//! in transactions that can't write. Whoever looks doesn't migrate.

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgConnection};
use tapedeck_domain::LeaseInstant;
use tapedeck_domain::id::{DeploymentId, LogId};
use tapedeck_store::StoreError;
use tapedeck_store::archive::{Origin, Translation};

use crate::clock::Clock;
use crate::error::from_sqlx;
use crate::open::{connect_options, first_connection, known_schema, schema_version};
use crate::options::Options;

/// One moment of the database, which nobody waits for.
const MOMENT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// A database that others may be writing to.
#[derive(Debug, Clone)]
pub struct PostgresDatabase {
    connect: PgConnectOptions,
    pub(crate) clock: Clock,
}

impl PostgresDatabase {
    /// Looks at a database, which must have the present schema.
    pub async fn open_read_only(options: &Options) -> Result<Self, StoreError> {
        let connect = connect_options(&options.url)?;
        let mut conn = first_connection(&connect, options.acquire_timeout).await?;
        let found = schema_version(&mut conn).await?;
        conn.close().await.map_err(from_sqlx)?;
        let known = known_schema();
        match found.cmp(&known) {
            std::cmp::Ordering::Equal => Ok(Self::new(connect, options.clock.clone())),
            std::cmp::Ordering::Less => Err(StoreError::SchemaTooOld { found, known }),
            std::cmp::Ordering::Greater => Err(StoreError::SchemaTooNew { found, known }),
        }
    }

    /// The same of a database that this process has open.
    pub(crate) fn new(connect: PgConnectOptions, clock: Clock) -> Self {
        Self { connect, clock }
    }

    /// A connection in a transaction of one moment. Closing it is enough to end that.
    pub(crate) async fn moment(&self) -> Result<PgConnection, StoreError> {
        let mut conn = self.connect().await?;
        conn.execute(MOMENT).await.map_err(from_sqlx)?;
        Ok(conn)
    }

    /// A connection.
    pub(crate) async fn connect(&self) -> Result<PgConnection, StoreError> {
        self.connect.connect().await.map_err(from_sqlx)
    }

    /// Who the database is, and the moment from which a copy counts its leases.
    pub(crate) async fn origin(
        &self,
        conn: &mut PgConnection,
    ) -> Result<(Origin, Translation), StoreError> {
        let row = sqlx::query!(
            "SELECT d.deployment_id, d.log_id, d.alive_at FROM deployment d WHERE d.id = 1"
        )
        .fetch_one(&mut *conn)
        .await
        .map_err(from_sqlx)?;
        let now = self.clock.read(&mut *conn).await?;
        let deployment_id = DeploymentId::new(row.deployment_id);
        let alive_at = row.alive_at.map_or(now.lease, LeaseInstant);
        let origin = Origin {
            engine: "postgres".to_owned(),
            schema: schema_version(conn).await?,
            deployment_id,
            log_id: LogId::new(row.log_id),
            created_at: now.wall,
        };
        Ok((origin, Translation::new(deployment_id, alive_at)))
    }
}
