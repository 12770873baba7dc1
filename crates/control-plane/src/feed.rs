//! Wake-ups within the process: which session's head moved, which queue has work, which run
//! changed. Published after COMMIT and only then (rules R18, R21). A hint says "read again" and
//! proves nothing; readers subscribe first, then read, then wait.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::time::LeaseInstant;
use tapedeck_domain::{RunId, SessionId};
use tokio::sync::watch;

/// A committed event, shared by all who follow it, with a cell for its encoded form.
#[derive(Debug)]
pub struct SharedEvent {
    /// The record.
    pub record: EventRecord,
    /// Filled by the first who encodes it.
    pub encoded: OnceLock<Bytes>,
}

impl SharedEvent {
    /// Wraps a record.
    pub fn new(record: EventRecord) -> Arc<Self> {
        Arc::new(Self {
            record,
            encoded: OnceLock::new(),
        })
    }
}

/// Executor kind and pool: the queues that polls wait for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) executor_kind: String,
    pub(crate) pool: String,
}

/// A queue that will have work after a back-off.
#[derive(Debug, Clone)]
pub(crate) struct QueueLater {
    pub(crate) key: QueueKey,
    pub(crate) delay: Duration,
}

/// What a commit changed.
#[derive(Debug, Default)]
pub struct Effects {
    pub(crate) events: Vec<EventRecord>,
    pub(crate) queues: Vec<QueueKey>,
    pub(crate) queue_later: Vec<QueueLater>,
    pub(crate) runs: Vec<RunId>,
    pub(crate) deleted: Vec<SessionId>,
    /// Sessions whose tape was left behind: namespace and id.
    pub(crate) project: Vec<(String, SessionId)>,
    pub(crate) alive_at: Option<LeaseInstant>,
}

/// What a session's watchers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HeadHint {
    /// The highest number seen committed; a monotonic maximum.
    pub(crate) head_seq: u64,
    /// Moves when another process may have written, so that watchers read again.
    pub(crate) generation: u64,
    /// The session is gone.
    pub(crate) deleted: bool,
}

/// One session's hint and hot tail, alive while somebody follows it.
#[derive(Debug)]
pub(crate) struct SessionFeed {
    hint: watch::Sender<HeadHint>,
    ring: Mutex<Ring>,
}

impl SessionFeed {
    pub(crate) fn subscribe(&self) -> watch::Receiver<HeadHint> {
        self.hint.subscribe()
    }

    /// Raises the watched head after a read of the store.
    pub(crate) fn observe(&self, head_seq: u64) {
        self.hint.send_if_modified(|hint| {
            let moved = head_seq > hint.head_seq;
            hint.head_seq = hint.head_seq.max(head_seq);
            moved
        });
    }

    /// The events after `cursor`, if the ring continues it exactly.
    pub(crate) fn tail(&self, cursor: u64, limit: usize) -> Option<Vec<Arc<SharedEvent>>> {
        self.ring.lock().after(cursor, limit)
    }
}

/// The newest events of a session, without gaps (rules R21).
#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<SharedEvent>>,
    bytes: usize,
    max_events: usize,
    max_bytes: usize,
}

impl Ring {
    fn push(&mut self, event: Arc<SharedEvent>) {
        if let Some(last) = self.events.back() {
            let expected = last.record.session_seq + 1;
            if event.record.session_seq < expected {
                return;
            }
            if event.record.session_seq > expected {
                self.events.clear();
                self.bytes = 0;
            }
        }
        self.bytes += size(&event);
        self.events.push_back(event);
        while self.events.len() > self.max_events || self.bytes > self.max_bytes {
            let Some(oldest) = self.events.pop_front() else {
                break;
            };
            self.bytes -= size(&oldest);
        }
    }

    fn after(&self, cursor: u64, limit: usize) -> Option<Vec<Arc<SharedEvent>>> {
        let first = self.events.front()?.record.session_seq;
        let last = self.events.back()?.record.session_seq;
        if cursor + 1 < first || cursor >= last {
            return None;
        }
        let skip = usize::try_from(cursor + 1 - first).ok()?;
        Some(self.events.iter().skip(skip).take(limit).cloned().collect())
    }
}

fn size(event: &SharedEvent) -> usize {
    event.record.payload.as_str().len() + 200
}

/// The hub of all hints of a process.
#[derive(Debug)]
pub(crate) struct Feed {
    sessions: Mutex<HashMap<SessionId, Weak<SessionFeed>>>,
    queues: Mutex<HashMap<QueueKey, watch::Sender<u64>>>,
    runs: Mutex<HashMap<RunId, watch::Sender<u64>>>,
    ring_events: usize,
    ring_bytes: usize,
}

impl Feed {
    pub(crate) fn new(ring_events: usize, ring_bytes: usize) -> Self {
        Self {
            sessions: Mutex::default(),
            queues: Mutex::default(),
            runs: Mutex::default(),
            ring_events,
            ring_bytes,
        }
    }

    /// The feed of a session, made for its first follower.
    pub(crate) fn session(&self, id: SessionId) -> Arc<SessionFeed> {
        let mut sessions = self.sessions.lock();
        if let Some(feed) = sessions.get(&id).and_then(Weak::upgrade) {
            return feed;
        }
        if sessions.len() > 64 {
            sessions.retain(|_, feed| feed.strong_count() > 0);
        }
        let feed = Arc::new(SessionFeed {
            hint: watch::Sender::new(HeadHint::default()),
            ring: Mutex::new(Ring {
                events: VecDeque::new(),
                bytes: 0,
                max_events: self.ring_events,
                max_bytes: self.ring_bytes,
            }),
        });
        sessions.insert(id, Arc::downgrade(&feed));
        feed
    }

    /// A counter that moves when work for the queue may have come.
    pub(crate) fn queue(&self, key: &QueueKey) -> watch::Receiver<u64> {
        let mut queues = self.queues.lock();
        queues.retain(|_, sender| sender.receiver_count() > 0);
        queues
            .entry(key.clone())
            .or_insert_with(|| watch::Sender::new(0))
            .subscribe()
    }

    /// A counter that moves when the run or one of its questions changes.
    pub(crate) fn run(&self, id: RunId) -> watch::Receiver<u64> {
        let mut runs = self.runs.lock();
        if runs.len() > 64 {
            runs.retain(|_, sender| sender.receiver_count() > 0);
        }
        runs.entry(id)
            .or_insert_with(|| watch::Sender::new(0))
            .subscribe()
    }

    pub(crate) fn queue_moved(&self, key: &QueueKey) {
        if let Some(sender) = self.queues.lock().get(key) {
            sender.send_modify(|count| *count += 1);
        }
    }

    /// Tells everybody to read again: another process has written.
    pub(crate) fn hint_all(&self) {
        let feeds: Vec<_> = self
            .sessions
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        for feed in feeds {
            feed.hint.send_modify(|hint| hint.generation += 1);
        }
        for sender in self.queues.lock().values() {
            sender.send_modify(|count| *count += 1);
        }
        for sender in self.runs.lock().values() {
            sender.send_modify(|count| *count += 1);
        }
    }

    /// Publishes what a commit changed. Called after COMMIT has returned.
    pub(crate) fn publish(&self, effects: Effects) {
        for event in effects.events {
            let feed = self
                .sessions
                .lock()
                .get(&event.session_id)
                .and_then(Weak::upgrade);
            if let Some(feed) = feed {
                let head_seq = event.session_seq;
                feed.ring.lock().push(SharedEvent::new(event));
                feed.observe(head_seq);
            }
        }
        for session in effects.deleted {
            if let Some(feed) = self
                .sessions
                .lock()
                .remove(&session)
                .and_then(|feed| feed.upgrade())
            {
                feed.hint.send_modify(|hint| hint.deleted = true);
            }
        }
        for key in &effects.queues {
            self.queue_moved(key);
        }
        let runs = self.runs.lock();
        for run in &effects.runs {
            if let Some(sender) = runs.get(run) {
                sender.send_modify(|count| *count += 1);
            }
        }
    }
}
