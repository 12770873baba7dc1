//! The control plane inside this process, on the local database: an owner of its own with a short
//! lease, beside other processes of its kind (rules R5, R8).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tapedeck_client::Client;
use tapedeck_control_plane::ids::{IdSource as _, TimeOrdered};
use tapedeck_control_plane::{ControlPlane, Error, Hints, Lifecycle, Options, StoreError};
use tapedeck_domain::owner::Authority;
use tapedeck_domain::session::DEFAULT_NAMESPACE;
use tapedeck_domain::{Rejection, SessionId};
use tapedeck_server::ServerState;
use tapedeck_store_sqlite::{self as sqlite, SqliteStore};

use crate::config::{self, Config, Durability};

/// Events and bytes of a followed session that are kept in memory.
const RING: (usize, usize) = (256, 1 << 20);
/// For the loops of the control plane to end.
const FINISH: Duration = Duration::from_secs(5);

/// The control plane inside this process.
#[derive(Debug)]
pub(crate) struct Embedded {
    control: ControlPlane,
    lifecycle: Lifecycle,
    dir: PathBuf,
    touched: Mutex<BTreeSet<SessionId>>,
}

impl Embedded {
    /// Opens the database of the configured data directory and starts the control plane.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Self> {
        let timing = config.timings();
        let owner_id = format!("cli:{}", TimeOrdered.next());
        let mode = sqlite::Mode::Embedded {
            owner_id: owner_id.clone(),
        };
        let (store, dir) = open_store(config, mode).await?;
        let lifecycle = Lifecycle::new();
        let control = ControlPlane::new(Options {
            store: Arc::new(store),
            authority: Authority {
                owner_id,
                epoch: None,
                lease_ms: timing.local_owner_lease_ms,
            },
            timing,
            ids: Arc::new(TimeOrdered),
            lifecycle: lifecycle.clone(),
            ring_events: RING.0,
            ring_bytes: RING.1,
            hints: Hints::Sent,
        });
        control.start().await?;
        Ok(Self {
            control,
            lifecycle,
            dir,
            touched: Mutex::default(),
        })
    }

    /// A client of the server's own router, so that local and remote are one path.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let state = ServerState::local(self.control.clone(), env!("CARGO_PKG_VERSION"));
        Ok(Client::in_process(tapedeck_server::router(state), None)?)
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// How often a session that is kept must be acquired again.
    pub(crate) fn renewal(&self) -> Duration {
        let lease_ms = self.control.timing().local_owner_lease_ms;
        Duration::from_millis(lease_ms.unsigned_abs()) / 3
    }

    /// Acquires a session for this process, again if it has it. Where another process has it, that
    /// is said instead.
    pub(crate) async fn acquire(&self, session: SessionId) -> anyhow::Result<Option<Rejection>> {
        let acquired = self.control.acquire_owner(DEFAULT_NAMESPACE, session).await;
        match acquired {
            Ok(_) => {
                self.touch(session);
                Ok(None)
            }
            Err(Error::Rejected(rejection @ Rejection::OwnedElsewhere { .. })) => {
                Ok(Some(rejection))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Remembers that this process may have come to own a session.
    pub(crate) fn touch(&self, session: SessionId) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched.insert(session);
    }

    /// Releases the sessions and ends. What isn't released lapses with this process's lock.
    pub(crate) async fn close(self) {
        let touched = self
            .touched
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for session in touched {
            let released = self.control.release_owner(DEFAULT_NAMESPACE, session).await;
            if let Err(error) = released {
                tracing::debug!(%session, %error, "a session was not released");
            }
        }
        self.lifecycle.finish(FINISH).await;
        self.control.store().close().await;
    }
}

/// Opens the database of the configured data directory; gives the directory's one name, too.
pub(crate) async fn open_store(
    config: &Config,
    mode: sqlite::Mode,
) -> anyhow::Result<(SqliteStore, PathBuf)> {
    let dir = config::make_private_dir(&config.data_dir)?;
    let options = sqlite::Options {
        durability: match config.store.durability {
            Durability::Full => sqlite::Durability::Full,
            Durability::Relaxed => sqlite::Durability::Relaxed,
        },
        ..sqlite::Options::new(&dir, mode)
    };
    let opened: Result<SqliteStore, StoreError> = SqliteStore::open(options).await;
    Ok((opened?, dir))
}
