//! The look-out for other processes' writes (rules R8). It learns that the database has changed and
//! never what: a move only means that it is worth reading again.

use std::time::Duration;

use sqlx::{Connection as _, SqliteConnection};
use tapedeck_store::{Heard, StoreError};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::error::from_sqlx;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Watches a database that other processes may write to, or nothing.
pub(crate) struct Watch {
    seen: Mutex<Option<Seen>>,
    closing: CancellationToken,
}

struct Seen {
    /// It never writes, so that its counter moves for every commit: this process's own as well.
    conn: SqliteConnection,
    version: i64,
}

impl Watch {
    /// For a database that nobody else writes to.
    pub(crate) fn nothing() -> Self {
        Self {
            seen: Mutex::new(None),
            closing: CancellationToken::new(),
        }
    }

    /// Watches from here on.
    pub(crate) async fn over(mut conn: SqliteConnection) -> Result<Self, StoreError> {
        let version = data_version(&mut conn).await?;
        Ok(Self {
            seen: Mutex::new(Some(Seen { conn, version })),
            ..Self::nothing()
        })
    }

    /// Waits for a move since the last call, or since the start.
    pub(crate) async fn hear(&self) -> Result<Heard, StoreError> {
        let heard = self.closing.run_until_cancelled(self.wait()).await;
        heard.unwrap_or_else(|| {
            Err(StoreError::Unavailable {
                reason: "the store is closed".to_owned(),
            })
        })
    }

    async fn wait(&self) -> Result<Heard, StoreError> {
        loop {
            // Also before the first look: whoever listens in a loop reads again this often at most.
            sleep(PAUSE).await;
            match self.has_moved().await? {
                Some(true) => return Ok(Heard::ReadAgain),
                Some(false) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// `None` where nothing is watched.
    async fn has_moved(&self) -> Result<Option<bool>, StoreError> {
        let mut seen = self.seen.lock().await;
        let Some(Seen { conn, version }) = &mut *seen else {
            return Ok(None);
        };
        let now = data_version(conn).await?;
        Ok(Some(std::mem::replace(version, now) != now))
    }

    /// Ends every wait.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        let seen = self.seen.lock().await.take();
        if let Some(Seen { conn, .. }) = seen
            && let Err(error) = conn.close().await
        {
            tracing::debug!(error = %error, "the watching connection did not close well");
        }
    }
}

async fn data_version(conn: &mut SqliteConnection) -> Result<i64, StoreError> {
    sqlx::query_scalar!("PRAGMA data_version")
        .fetch_one(conn)
        .await
        .map(Option::unwrap_or_default)
        .map_err(from_sqlx)
}
