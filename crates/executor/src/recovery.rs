//! The runs of an executor that died, reported by the next one on its state directory: what was
//! spooled is delivered, unchanged, and the run is interrupted, so that it can be resumed without
//! waiting for its lease. It must never begin before the dead one's agents are gone, nor speak in
//! the name of one that lives.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use tapedeck_client::Client;
use tapedeck_domain::settle::Ending;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::batch::Batch;
use crate::files::if_there;
use crate::held::{ClaimKey, Held, Stop};
use crate::instance::Dead;
use crate::kept::{KeptClaim, Reopened};
use crate::run::Ended;
use crate::settle::{End, Settler};
use crate::upload::deliver;

const REASON: &str = "the executor was restarted";

/// Reports all runs of one dead instance, however long the server is away. Dropped before its end, it
/// leaves what is not reported to the next start.
pub(crate) async fn report_runs(dead: Dead, client: Client) {
    let claims = match KeptClaim::all_in(dead.spool()) {
        Ok(claims) => claims,
        Err(error) => {
            tracing::warn!(path = %dead.spool().display(), %error, "spool can't be read");
            return;
        }
    };
    let mut done = true;
    for kept in claims {
        match kept.reopen(&client) {
            Reopened::Ours(key) => report(&kept, key, &client).await,
            Reopened::Unusable => {}
            Reopened::Others => {
                done = false;
                continue;
            }
        }
        kept.remove();
    }
    if done {
        dead.remove();
    }
}

/// Delivers what was spooled, then hands the run back.
#[tracing::instrument(
    name = "recovery",
    skip_all,
    fields(run.id = %key.run_id, run.attempt = key.attempt)
)]
async fn report(kept: &KeptClaim, key: ClaimKey, client: &Client) {
    tracing::info!("reporting the run of an executor that died");
    let held = Arc::new(Held::of(key));
    let delivered = deliver_spooled(kept.events(), &held, client).await;
    let (error, count) = match (delivered, held.stopped()) {
        (_, Some(Stop::Lost(reason))) => {
            tracing::info!(reason, "its claim is over; removing what it spooled");
            return;
        }
        (Ok(count), None) => (REASON.to_owned(), count),
        (Err(text), None) | (_, Some(Stop::Unrecorded(text))) => {
            tracing::warn!(error = text, "what it spooled can't be delivered");
            (format!("{REASON}; {text}"), None)
        }
        (_, Some(Stop::Lapsed | Stop::Drained)) => (REASON.to_owned(), None),
    };
    let end = End {
        ending: Ending::Interrupted,
        ..End::failed(error)
    };
    match Settler::new(held, client.clone())
        .complete(end, count)
        .await
    {
        Ended::Settled | Ended::HandedBack => tracing::info!("it is interrupted"),
        Ended::Lost => tracing::info!("its claim is over"),
    }
}

/// Sends the batches in their order. Gives how many events the run has in all, if any batch says it:
/// what is not in the file any more was acknowledged. The error is what can't be read.
async fn deliver_spooled(
    path: &Path,
    held: &Arc<Held>,
    client: &Client,
) -> Result<Option<u64>, String> {
    let opened = if_there(tokio::fs::File::open(path).await);
    let Some(file) = opened.map_err(|error| format!("its spool can't be read: {error}"))? else {
        // It died before its agent had begun.
        return Ok(None);
    };
    let batch = Batch::new(held);
    let mut lines = BufReader::new(file);
    let mut count = None;
    loop {
        let mut line = Vec::new();
        let read = lines.read_until(b'\n', &mut line).await;
        read.map_err(|error| format!("its spool can't be read: {error}"))?;
        // The end, or a line that was cut off as its writer was killed and so never was sent.
        if line.pop() != Some(b'\n') {
            return Ok(count);
        }
        count = Some(last_number(&line).ok_or("its spool is damaged")?);
        let body = batch.body(&Bytes::from(line));
        if deliver(held, client, body).await.is_err() {
            return Ok(None);
        }
    }
}

/// The number of a batch's last event; they are counted from 1 in each attempt.
fn last_number(line: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Event {
        event_id: String,
    }
    let events: Vec<Event> = serde_json::from_slice(line).ok()?;
    let (_, number) = events.last()?.event_id.rsplit_once('-')?;
    number.parse().ok()
}
