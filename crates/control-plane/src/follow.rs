//! Follows a session's log: a cursor that pulls. Replay and live are one code path; a slow reader
//! costs a cursor, never a queue (design §6, stores §6).

use std::sync::Arc;

use tapedeck_domain::event::EventRecord;
use tapedeck_domain::interaction::{Interaction, InteractionStatus};
use tapedeck_domain::limits::{EVENT_PAGE_MAX, FOLLOW_PAGE_BYTES};
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_store::read::InteractionFilter;
use tapedeck_store::{EventFilter, PageRequest, Target};
use tokio::sync::watch;

use crate::ControlPlane;
use crate::cursor;
use crate::error::{Error, Outcome};
use crate::feed::{HeadHint, SessionFeed, SharedEvent};

/// Where a follower starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// After this number.
    After(u64),
    /// After the newest event.
    Head,
}

/// What to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowRequest {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
    /// From where.
    pub start: Start,
    /// Only this run, to its terminal event.
    pub run_id: Option<RunId>,
    /// Only these kinds; empty is all. The terminal event of a run-scoped stream always comes.
    pub kinds: Vec<String>,
}

/// What a follower sees.
#[derive(Debug, Clone)]
pub enum Followed {
    /// Comes first.
    Open {
        /// The newest event.
        head_seq: u64,
        /// The active run.
        active_run_id: Option<RunId>,
        /// The status of the run that is followed, else of the newest.
        run_status: Option<RunStatus>,
        /// Open questions.
        interactions: Vec<Interaction>,
    },
    /// Events in order.
    Events(Vec<Arc<SharedEvent>>),
    /// Caught up.
    Live {
        /// The newest event.
        head_seq: u64,
    },
    /// Nothing follows.
    End(EndReason),
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The run that is followed has ended.
    Settled,
    /// The run that is followed has ended, and a restore has put it aside.
    Superseded,
    /// The session was deleted.
    Deleted,
    /// The process goes down; reconnect.
    Shutdown,
}

impl EndReason {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Superseded => "superseded",
            Self::Deleted => "deleted",
            Self::Shutdown => "shutdown",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Replay,
    Live,
    Ending(EndReason),
    Done,
}

/// A cursor over a session's log.
#[derive(Debug)]
pub struct Follower {
    control: ControlPlane,
    request: FollowRequest,
    cursor: u64,
    phase: Phase,
    /// Why a run-scoped stream ends.
    settled: EndReason,
    opening: Option<Followed>,
    feed: Arc<SessionFeed>,
    hint: watch::Receiver<HeadHint>,
}

impl Follower {
    /// Opens a follower: every error of the cursor or the target comes before the first frame.
    pub(crate) async fn open(control: ControlPlane, request: FollowRequest) -> Outcome<Self> {
        let feed = control.inner.feed.session(request.session_id);
        let hint = feed.subscribe();
        let reader = control.inner.store.reader();
        let view = reader
            .session(&request.namespace, request.session_id)
            .await?
            .ok_or(Error::NotFound(Target::Session))?;
        let head_seq = view.head.head_seq;
        feed.observe(head_seq);
        let mut cursor = match request.start {
            Start::After(after) => after,
            Start::Head => head_seq,
        };
        cursor::check_head(&view, cursor)?;
        let mut run_status = view.session.summary.last_run_status;
        let mut phase = Phase::Open;
        let mut settled = EndReason::Settled;
        if let Some(run_id) = request.run_id {
            let run = reader
                .run(&request.namespace, run_id)
                .await?
                .filter(|run| run.session_id == request.session_id)
                .ok_or(Error::NotFound(Target::Run))?;
            run_status = Some(run.status);
            if run.superseded_at.is_some() {
                settled = EndReason::Superseded;
            }
            cursor = cursor::within(&run, cursor);
            if cursor::is_past(&run, cursor) {
                phase = Phase::Ending(settled);
            }
        }
        if phase == Phase::Open {
            cursor::check_folds(reader, &view, cursor).await?;
        }
        let pending = InteractionFilter {
            status: Some(InteractionStatus::Pending),
            session_id: Some(request.session_id),
            run_id: request.run_id,
        };
        let page = PageRequest {
            before: None,
            limit: 50,
        };
        let interactions = if view.session.summary.pending_interactions > 0 {
            reader
                .interactions(&request.namespace, &pending, page)
                .await?
                .items
        } else {
            Vec::new()
        };
        let opening = Followed::Open {
            head_seq,
            active_run_id: view.session.summary.active_run_id,
            run_status,
            interactions,
        };
        Ok(Self {
            control,
            request,
            cursor,
            phase,
            settled,
            opening: Some(opening),
            feed,
            hint,
        })
    }

    /// The next thing to send; `None` after the end. Waits while there is nothing.
    pub async fn next(&mut self) -> Outcome<Option<Followed>> {
        if let Some(opening) = self.opening.take() {
            if self.phase == Phase::Open {
                self.phase = Phase::Replay;
            }
            return Ok(Some(opening));
        }
        match self.phase {
            Phase::Done => return Ok(None),
            Phase::Ending(reason) => {
                self.phase = Phase::Done;
                return Ok(Some(Followed::End(reason)));
            }
            Phase::Open | Phase::Replay | Phase::Live => {}
        }
        loop {
            if self.control.inner.lifecycle.is_draining() {
                self.phase = Phase::Done;
                return Ok(Some(Followed::End(EndReason::Shutdown)));
            }
            let hint = *self.hint.borrow_and_update();
            if hint.deleted {
                return Ok(Some(self.end(EndReason::Deleted)));
            }
            let events = self.read(hint.head_seq).await?;
            if !events.is_empty() {
                return Ok(Some(Followed::Events(events)));
            }
            if self.phase == Phase::Replay && self.cursor >= hint.head_seq {
                self.phase = Phase::Live;
                return Ok(Some(Followed::Live {
                    head_seq: self.cursor,
                }));
            }
            if self.cursor < hint.head_seq {
                continue;
            }
            if let Some(end) = self.wait().await {
                return Ok(Some(self.end(end)));
            }
        }
    }

    const fn end(&mut self, reason: EndReason) -> Followed {
        self.phase = Phase::Done;
        Followed::End(reason)
    }

    /// Waits for the head to move. A hint may be lost, so the head of what is followed is also read
    /// in a slow poll (`watch_store`), which moves it here.
    async fn wait(&mut self) -> Option<EndReason> {
        tokio::select! {
            changed = self.hint.changed() => changed.is_err().then_some(EndReason::Shutdown),
            () = self.control.inner.lifecycle.soft().cancelled() => Some(EndReason::Shutdown),
        }
    }

    /// Reads after the cursor, from the hot tail if it continues the cursor exactly, else from the
    /// store. `head_seq` was read before, so a slice without a bound proves that the cursor has
    /// reached it.
    async fn read(&mut self, head_seq: u64) -> Outcome<Vec<Arc<SharedEvent>>> {
        if self.cursor >= head_seq {
            return Ok(Vec::new());
        }
        let limit = EVENT_PAGE_MAX;
        if let Some(tail) = self.feed.tail(self.cursor, limit as usize) {
            if let Some(last) = tail.last() {
                self.cursor = last.record.session_seq;
            }
            return Ok(self.select(tail));
        }
        let filter = EventFilter {
            session_id: self.request.session_id,
            after: self.cursor,
            limit,
            max_bytes: FOLLOW_PAGE_BYTES,
            run_id: self.request.run_id,
            kinds: self.kinds_in_store(),
        };
        let slice = self.control.inner.store.reader().events(&filter).await?;
        // A run may be folded while this reader is in the middle of one of its messages. Whoever comes
        // again with the cursor is told where to restart.
        cursor::check_read(self.cursor, slice.events.first())?;
        let last = slice.events.last();
        let last = last.map_or(self.cursor, |row| row.session_seq);
        self.cursor = if slice.bounded {
            last
        } else {
            last.max(head_seq)
        };
        let rows = slice.events.into_iter().map(SharedEvent::new).collect();
        Ok(self.select(rows))
    }

    /// The kinds to read: a run-scoped stream needs its terminal event to know its end.
    fn kinds_in_store(&self) -> Vec<String> {
        let mut kinds = self.request.kinds.clone();
        if !kinds.is_empty() && self.request.run_id.is_some() {
            kinds.push(
                tapedeck_domain::event::EventKind::TurnEnd
                    .as_str()
                    .to_owned(),
            );
        }
        kinds
    }

    /// Keeps what was asked for; a run's terminal event ends a run-scoped stream.
    fn select(&mut self, events: Vec<Arc<SharedEvent>>) -> Vec<Arc<SharedEvent>> {
        let mut selected = Vec::with_capacity(events.len());
        for event in events {
            let record = &event.record;
            if self.request.run_id.is_some() && record.run_id != self.request.run_id {
                continue;
            }
            let ends = self.request.run_id.is_some() && record.is_terminal();
            if ends || self.wants(record) {
                selected.push(event);
            }
            if ends {
                self.phase = Phase::Ending(self.settled);
                break;
            }
        }
        selected
    }

    fn wants(&self, record: &EventRecord) -> bool {
        self.request.kinds.is_empty() || self.request.kinds.contains(&record.kind)
    }
}
