//! Hints between instances over NOTIFY and LISTEN, each on a connection of its own. They are never
//! sent inside a transaction that writes, because a commit with a NOTIFY waits for all others; and
//! nothing waits for them or trusts them: whoever hears may read, and reads from time to time anyway.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool};
use tapedeck_store::{Heard, Hint};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::hints::{self, Hints};

const CHANNEL: &str = "tapedeck_hints";
/// While hints arrive, polls are this much rarer.
const RARER: u32 = 10;
/// Between two tries to connect.
const PAUSE: Duration = Duration::from_millis(250);
/// How long a sending or a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A bounded place for hints with a bell.
#[derive(Debug, Default)]
pub(crate) struct Box {
    waiting: Mutex<Hints>,
    bell: Notify,
}

impl Box {
    fn put(&self, change: impl FnOnce(&mut Hints)) {
        change(&mut self.waiting());
        self.bell.notify_one();
    }

    /// Waits for hints and takes them all. Nothing is lost where the caller gives up.
    async fn take(&self) -> Heard {
        loop {
            if let Some(heard) = self.waiting().take() {
                return heard;
            }
            self.bell.notified().await;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Hints> {
        // Nothing panics while it holds the lock, and hints are whole between any two lines.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What goes out.
#[derive(Debug)]
pub(crate) struct Announcer {
    connect: PgConnectOptions,
    interval: Duration,
    out: Box,
}

impl Announcer {
    pub(crate) fn new(connect: PgConnectOptions, interval: Duration) -> Self {
        Self {
            // Nothing of a hint has to survive anything.
            connect: connect.options([("synchronous_commit", "off")]),
            interval,
            out: Box::default(),
        }
    }

    /// Takes hints, without waiting.
    pub(crate) fn announce(&self, hints: Vec<Hint>) {
        if !hints.is_empty() {
            self.out.put(|waiting| waiting.add(hints));
        }
    }

    /// Sends at once where it was quiet, then at most once an interval, until it is told to stop and
    /// nothing waits.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        let mut conn = None;
        loop {
            let heard = tokio::select! {
                biased;
                heard = self.out.take() => heard,
                () = stop.cancelled() => break,
            };
            match timeout(PATIENCE, self.send(&mut conn, &heard)).await {
                Ok(Ok(())) => sleep(self.interval).await,
                failed => {
                    conn = None;
                    if stop.is_cancelled() {
                        break;
                    }
                    let reason = failed.map_or_else(
                        |_elapsed| "no answer".to_owned(),
                        |sent| {
                            sent.err()
                                .map(|error| error.to_string())
                                .unwrap_or_default()
                        },
                    );
                    tracing::debug!(reason, "hints to other instances were lost");
                    self.out.put(Hints::lose);
                    sleep(PAUSE).await;
                }
            }
        }
        if let Some(conn) = conn
            && let Err(error) = conn.close().await
        {
            tracing::debug!(%error, "the announcing connection did not close well");
        }
    }

    async fn send(&self, conn: &mut Option<PgConnection>, heard: &Heard) -> sqlx::Result<()> {
        // Out of its place while in use: a connection that failed half-way is not used again.
        let mut open = match conn.take() {
            Some(open) => open,
            None => self.connect.connect().await?,
        };
        sqlx::query!(
            "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payloads (payload)",
            CHANNEL,
            &hints::encode(heard),
        )
        .execute(&mut open)
        .await?;
        *conn = Some(open);
        Ok(())
    }
}

/// What comes in.
#[derive(Debug)]
pub(crate) struct Ear {
    inbox: Box,
    healthy: watch::Sender<bool>,
    poll: Duration,
    last_poll: Mutex<Instant>,
}

impl Ear {
    pub(crate) fn new(poll: Duration) -> Self {
        Self {
            inbox: Box::default(),
            healthy: watch::Sender::new(false),
            poll,
            last_poll: Mutex::new(Instant::now()),
        }
    }

    /// The next hints; or that it is time to read again, often while hints may be lost. A poll comes
    /// first, so that no stream of hints puts it off.
    pub(crate) async fn hear(&self) -> Heard {
        let mut healthy = self.healthy.subscribe();
        loop {
            let wait = if *healthy.borrow_and_update() {
                self.poll.saturating_mul(RARER)
            } else {
                self.poll
            };
            let heard = tokio::select! {
                biased;
                () = sleep_until(self.polled_at() + wait) => Heard::ReadAgain,
                heard = self.inbox.take() => heard,
                _changed = healthy.changed() => continue,
            };
            if heard == Heard::ReadAgain {
                *self.last_poll() = Instant::now();
            }
            return heard;
        }
    }

    fn polled_at(&self) -> Instant {
        *self.last_poll()
    }

    fn last_poll(&self) -> MutexGuard<'_, Instant> {
        self.last_poll
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens until it is told to stop, over as many connections as that takes.
    pub(crate) async fn run(&self, connect: PgConnectOptions, stop: &CancellationToken) {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(PATIENCE)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(connect);
        loop {
            let lost = tokio::select! {
                lost = self.listen(&pool) => lost,
                () = stop.cancelled() => break,
            };
            self.healthy.send_replace(false);
            if let Err(error) = lost {
                tracing::debug!(%error, "hints of other instances can't be heard");
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = stop.cancelled() => break,
            }
        }
        self.healthy.send_replace(false);
        pool.close().await;
    }

    /// Listens on one connection until that is lost. What was announced before LISTEN took hold is
    /// lost as well, so whoever hears reads again first.
    async fn listen(&self, pool: &PgPool) -> sqlx::Result<()> {
        let mut listener = PgListener::connect_with(pool).await?;
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        self.inbox.put(Hints::lose);
        self.healthy.send_replace(true);
        while let Some(notification) = listener.try_recv().await? {
            let heard = hints::decode(notification.payload());
            self.inbox.put(|waiting| waiting.add_heard(heard));
        }
        Ok(())
    }
}
