//! Watching the demo's runs: prints their events, remembers what it saw, and in the end compares
//! that with the log.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tapedeck_client::{Client, Follow, Follower, Frame, Start, StreamEvent, StreamOptions};
use tapedeck_domain::{RunId, SessionId};
use tapedeck_protocol::event::{EventResponse, EventsQuery};

use super::telling::Telling;

/// What takes longer has failed.
pub(super) const STEP: Duration = Duration::from_secs(25);

/// Watches runs.
#[derive(Debug)]
pub(super) struct Watch {
    client: Client,
    telling: Telling,
    /// The numbers of all events that were followed live.
    seen: Vec<u64>,
    /// Whether a passing line stands where the next event goes.
    pub(super) is_counting: bool,
}

impl Watch {
    /// Nothing was seen yet.
    pub(super) const fn new(client: Client, telling: Telling) -> Self {
        Self {
            client,
            telling,
            seen: Vec::new(),
            is_counting: false,
        }
    }

    /// How many events were seen.
    pub(super) const fn seen(&self) -> usize {
        self.seen.len()
    }

    /// Checks that the log has no gap, that each of these runs has one end and no other run is
    /// there, and that what was seen live is what the log holds; gives the number of events.
    pub(super) async fn check_log(
        &self,
        session: SessionId,
        runs: &[RunId],
    ) -> anyhow::Result<usize> {
        let log = self.log(session).await?;
        let numbers = log.iter().map(|event| event.session_seq);
        ensure!(numbers.eq(1..=log.len() as u64), "the log has a gap");
        let mut ends = BTreeMap::new();
        for event in log.iter().filter(|event| event.kind == "TurnEnd") {
            *ends.entry(event.run_id).or_insert(0) += 1;
        }
        let expected: BTreeMap<_, _> = runs.iter().map(|run| (Some(*run), 1)).collect();
        ensure!(ends == expected, "a run has not exactly one end");
        let of_runs = log.iter().filter(|event| event.run_id.is_some());
        let of_runs: Vec<u64> = of_runs.map(|event| event.session_seq).collect();
        ensure!(
            self.seen == of_runs,
            "what was followed live is not what the log holds"
        );
        Ok(log.len())
    }

    async fn log(&self, session: SessionId) -> anyhow::Result<Vec<EventResponse>> {
        let mut log = Vec::new();
        let mut after = 0;
        loop {
            let query = EventsQuery {
                after: Some(after.to_string()),
                ..EventsQuery::default()
            };
            let page = self.client.events(session, &query).await?;
            if page.events.is_empty() {
                return Ok(log);
            }
            after = page.next_cursor;
            log.extend(page.events);
        }
    }

    /// Follows a run from the event that admitted it.
    pub(super) fn follow(&self, session: SessionId, run: RunId, session_seq: u64) -> Follower {
        let follow = Follow {
            start: Start::After(session_seq.saturating_sub(1)),
            run_id: Some(run),
            kinds: Vec::new(),
        };
        self.client
            .follow(session, follow, StreamOptions::default())
    }

    /// Prints events up to the first that `is_last`.
    pub(super) async fn events(
        &mut self,
        frames: &mut Follower,
        is_last: impl FnMut(&StreamEvent) -> bool,
    ) -> anyhow::Result<()> {
        self.events_for(STEP, frames, is_last).await
    }

    /// The same within a time of its own.
    pub(super) async fn events_for(
        &mut self,
        bound: Duration,
        frames: &mut Follower,
        mut is_last: impl FnMut(&StreamEvent) -> bool,
    ) -> anyhow::Result<()> {
        let mut rendering = self.telling.rendering();
        let (telling, is_counting) = (self.telling, self.is_counting);
        let reading = async {
            loop {
                let event = match frames.next().await.transpose()? {
                    Some(Frame::Event(event)) => event,
                    Some(Frame::Open(_) | Frame::Live(_)) => continue,
                    Some(Frame::End(_)) | None => bail!("the run ended too early"),
                };
                self.seen.push(event.session_seq);
                if let Some(rendering) = &mut rendering {
                    if is_counting {
                        telling.passed()?;
                    }
                    rendering.event(&event)?;
                }
                if is_last(&event) {
                    return Ok(());
                }
            }
        };
        let outcome = tokio::time::timeout(bound, reading).await;
        if let Some(rendering) = &mut rendering {
            rendering.close()?;
        }
        outcome.with_context(|| format!("it took longer than {} s", bound.as_secs()))?
    }
}
