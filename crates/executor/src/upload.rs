//! The way of a run's events to the server: batched, sealed, spooled, sent in order one at a time,
//! and sent again unchanged until they are acknowledged (rules R12). It owns the count of what is
//! acknowledged; while the spool is full it reads nothing from the agent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::OptionFuture;
use tapedeck_client::Client;
use tapedeck_domain::Timestamp;
use tapedeck_domain::event::uploaded;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::backend::AgentEvent;
use crate::batch::{Batch, Sealed};
use crate::held::{Held, Stop};
use crate::insist::{Refusal, insist};
use crate::spool::Spool;
use crate::verdict::told;

/// How long events wait for others to go with them.
const LINGER: Duration = Duration::from_millis(25);

/// How long events stay in memory alone while others are on their way: what is in the spool by then
/// outlives this process.
const SPOOL_AFTER: Duration = Duration::from_secs(1);

/// How long a full disk is waited for; meanwhile the agent has to wait.
const DISK_LIMIT: Duration = Duration::from_secs(30);

const DISK_PAUSE: Duration = Duration::from_secs(1);

const UPLOAD_LIMIT: Duration = Duration::from_secs(30);

const PAUSE_LIMIT: Duration = Duration::from_secs(3);

/// Asks the uploader to deliver what it was given so far.
pub(crate) type Flush = oneshot::Sender<()>;

/// Questions that may wait for their events at once; more wait for a place.
pub(crate) const FLUSH_QUEUE: usize = 64;

/// Sends the events of one claim.
#[derive(Debug)]
pub(crate) struct Uploader {
    held: Arc<Held>,
    client: Client,
    spool: Spool,
    batch: Batch,
    /// When the oldest unsealed event came.
    since: Instant,
    /// Sealed, and not in the spool because the disk is full.
    unspooled: Option<Sealed>,
    full_since: Option<Instant>,
    acknowledged: u64,
    /// Wait until everything before them is delivered.
    flushing: Vec<Flush>,
}

/// A batch could not be delivered; what that means is in the claim's stop.
#[derive(Debug)]
pub(crate) struct Undelivered;

type Delivery = Pin<Box<dyn Future<Output = Result<u64, Undelivered>> + Send>>;

impl Uploader {
    /// Nothing is sent before [`Self::run`].
    pub(crate) fn new(held: Arc<Held>, client: Client, spool: Spool) -> Self {
        let batch = Batch::new(&held);
        Self {
            held,
            client,
            spool,
            batch,
            since: Instant::now(),
            unspooled: None,
            full_since: None,
            acknowledged: 0,
            flushing: Vec::new(),
        }
    }

    /// Takes an event.
    pub(crate) fn push(&mut self, event: AgentEvent) {
        if !matches!(
            event.kind.as_str(),
            uploaded::TURN_BEGIN | uploaded::TURN_STATUS_DELTA
        ) {
            self.held.note_output();
        }
        if self.batch.is_empty() {
            self.since = Instant::now();
        }
        self.batch.push(event, wall_now());
    }

    /// Sends until the last sender of events is gone and all is acknowledged, or the claim is lost.
    /// Gives the number of events that the server has acknowledged.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<AgentEvent>,
        mut flushes: mpsc::Receiver<Flush>,
    ) -> u64 {
        let held = Arc::clone(&self.held);
        tokio::select! {
            biased;
            () = held.lost() => {}
            () = self.pump(&mut events, &mut flushes) => {}
        }
        self.acknowledged
    }

    async fn pump(
        &mut self,
        events: &mut mpsc::Receiver<AgentEvent>,
        flushes: &mut mpsc::Receiver<Flush>,
    ) {
        let mut open = true;
        let mut delivery: OptionFuture<Delivery> = None.into();
        let mut sending = false;
        loop {
            if let Err(error) = self.seal_what_is_due(open, sending).await {
                let text = format!("the executor can't spool events: {error}");
                self.held.stop(Stop::Unrecorded(text));
                events.close();
                open = false;
                self.batch.clear();
                self.unspooled = None;
            }
            if !sending && let Some(next) = self.next_delivery().await {
                delivery = Some(next).into();
                sending = true;
            }
            let delivered = !sending && self.is_empty();
            if !open && delivered {
                return;
            }
            if delivered && events.is_empty() {
                for flush in self.flushing.drain(..) {
                    // Whoever asked may have given up.
                    let _ = flush.send(());
                }
            }
            let room = open && !self.batch.is_full() && self.unspooled.is_none();
            let (due, waiting) = self.next_look(sending);
            tokio::select! {
                biased;
                Some(delivered) = &mut delivery, if sending => {
                    sending = false;
                    let Ok(count) = delivered else { return };
                    self.acknowledged += count;
                    if let Err(error) = self.spool.acknowledge().await {
                        tracing::warn!(%error, "spool could not be shrunk");
                    }
                }
                event = events.recv(), if room => match event {
                    Some(event) => self.push(event),
                    None => open = false,
                },
                Some(flush) = flushes.recv() => self.flushing.push(flush),
                () = sleep_until(due), if waiting => {}
            }
        }
    }

    /// Seals full batches, and any that has waited long enough; behind a slow server that is longer,
    /// so that batches grow instead of becoming more.
    async fn seal_what_is_due(&mut self, open: bool, sending: bool) -> io::Result<()> {
        while self.spool_sealed().await? {
            let behind = sending || !self.spool.is_empty();
            let waited = self.since.elapsed() >= if behind { SPOOL_AFTER } else { LINGER };
            let asked = !self.flushing.is_empty();
            let due = self.batch.is_full() || !open || waited || asked;
            if self.batch.is_empty() || !due || self.spool.is_full() {
                break;
            }
            self.unspooled = Some(self.batch.seal()?);
            self.since = Instant::now();
        }
        Ok(())
    }

    /// `false` while the disk has no room for what is sealed.
    async fn spool_sealed(&mut self) -> io::Result<bool> {
        let Some(sealed) = &self.unspooled else {
            return Ok(true);
        };
        let pushed = self.spool.push(sealed.events.clone(), sealed.count).await;
        match pushed {
            Ok(()) => {
                self.unspooled = None;
                if self.full_since.take().is_some() {
                    tracing::info!(run.id = %self.held.run_id, "the disk has room again");
                }
                Ok(true)
            }
            Err(error) if is_full(&error) => {
                let since = *self.full_since.get_or_insert_with(|| {
                    tracing::warn!(run.id = %self.held.run_id, %error, "the agent waits for the disk");
                    Instant::now()
                });
                if since.elapsed() < DISK_LIMIT {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
            Err(error) => Err(error),
        }
    }

    fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.unspooled.is_none() && self.spool.is_empty()
    }

    /// When there may be something to seal or to spool without anything else happening, if ever.
    fn next_look(&self, sending: bool) -> (Instant, bool) {
        if self.unspooled.is_some() {
            return (Instant::now() + DISK_PAUSE, true);
        }
        let after = if sending { SPOOL_AFTER } else { LINGER };
        let held_up = sending && self.spool.is_full();
        (self.since + after, !self.batch.is_empty() && !held_up)
    }

    async fn next_delivery(&mut self) -> Option<Delivery> {
        let (events, count) = match self.spool.oldest().await {
            Ok(oldest) => oldest?,
            Err(error) => {
                let text = format!("the executor can't read its spool: {error}");
                self.held.stop(Stop::Unrecorded(text));
                return Some(Box::pin(async { Err(Undelivered) }));
            }
        };
        let body = self.batch.body(&events);
        let (held, client) = (Arc::clone(&self.held), self.client.clone());
        Some(Box::pin(async move {
            deliver(&held, &client, body).await?;
            Ok(count)
        }))
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Sends the same bytes until there is a definite answer.
pub(crate) async fn deliver(held: &Held, client: &Client, body: Bytes) -> Result<(), Undelivered> {
    let call = || client.upload(held.run_id, body.clone());
    match insist(held, UPLOAD_LIMIT, PAUSE_LIMIT, call).await {
        Ok(_recorded) => Ok(()),
        Err(Refusal::Lost) => Err(Undelivered),
        Err(Refusal::Never(error)) => {
            let text = format!("the server refused the agent's events: {}", told(&error));
            held.stop(Stop::Unrecorded(text));
            Err(Undelivered)
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "an executor stamps what it saw; nothing is decided by it"
)]
fn wall_now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = since.map_or(0, |since| since.as_millis());
    Timestamp(i64::try_from(millis).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeServer, claim, piece};

    /// An uploader whose disk is full, with an event.
    fn full_disk() -> Uploader {
        let server = FakeServer::new(Duration::from_mins(1));
        let spool = Spool::create(std::path::Path::new("/dev/full"), 1024).unwrap();
        let held = Arc::new(Held::new(&claim(1)));
        let mut uploader = Uploader::new(held, server.client(), spool);
        uploader.push(piece(1));
        uploader
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_disk_is_waited_for_and_what_was_sealed_goes_first() {
        let mut uploader = full_disk();
        uploader.seal_what_is_due(false, false).await.unwrap();
        uploader.push(piece(2));
        uploader.seal_what_is_due(false, false).await.unwrap();
        let sealed = uploader.unspooled.clone().unwrap();
        assert!(uploader.spool.is_empty() && !uploader.is_empty());

        let dir = tempfile::tempdir().unwrap();
        uploader.spool = Spool::create(&dir.path().join("spool"), 1024).unwrap();
        uploader.seal_what_is_due(false, false).await.unwrap();
        let first = uploader.spool.oldest().await.unwrap();
        assert_eq!(first, Some((sealed.events, 1)));
        uploader.spool.acknowledge().await.unwrap();
        assert!(uploader.spool.oldest().await.unwrap().is_some());
        assert_eq!(uploader.full_since, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_stays_full_is_an_error_in_the_end() {
        let mut uploader = full_disk();
        uploader.seal_what_is_due(false, false).await.unwrap();
        tokio::time::sleep(DISK_LIMIT).await;
        let error = uploader.seal_what_is_due(false, false).await.unwrap_err();
        assert!(is_full(&error), "{error}");
    }
}
