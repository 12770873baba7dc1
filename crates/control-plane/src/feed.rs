//! Wake-ups within the process: which session's head moved, which queue has work, which run
//! changed. Published after COMMIT and only then (rules R18, R21). A hint says "read again" and
//! proves nothing; readers subscribe first, then read, then wait.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::time::LeaseInstant;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_store::Hint;
use tokio::sync::watch;

/// A committed event, shared by all who follow it, with cells for its encoded forms.
#[derive(Debug)]
pub struct SharedEvent {
    /// The record.
    pub record: EventRecord,
    /// Filled by the first who encodes it.
    pub encoded: OnceLock<Bytes>,
    /// As people see it; `None` inside where it has no display form.
    pub display: OnceLock<Option<Bytes>>,
}

impl SharedEvent {
    /// Wraps a record.
    pub fn new(record: EventRecord) -> Arc<Self> {
        Arc::new(Self {
            record,
            encoded: OnceLock::new(),
            display: OnceLock::new(),
        })
    }
}

/// Executor kind and pool: the queues that polls wait for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) executor_kind: String,
    pub(crate) pool: String,
}

impl QueueKey {
    /// What other processes are told where the queue moved.
    pub(crate) fn hint(&self) -> Hint {
        Hint::Queue {
            executor_kind: self.executor_kind.clone(),
            pool: self.pool.clone(),
        }
    }
}

/// A queue that will have work after a back-off, or after a wait for one executor.
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
    /// Executors that were told something, or that may take more runs again.
    pub(crate) executors: Vec<String>,
    pub(crate) deleted: Vec<SessionId>,
    /// Sessions of which events were folded.
    pub(crate) folded: Vec<SessionId>,
    /// Sessions whose tape was left behind: namespace and id.
    pub(crate) project: Vec<(String, SessionId)>,
    pub(crate) alive_at: Option<LeaseInstant>,
}

/// Whether commits wake those who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hints {
    /// Each commit does, at once.
    #[default]
    Sent,
    /// None does: everything must still work, by the store's slow poll (fault 19). For tests.
    Dropped,
}

impl Effects {
    /// What other processes are told of the commit.
    pub(crate) fn hints(&self) -> Vec<Hint> {
        let mut heads: HashMap<SessionId, u64> = HashMap::new();
        for event in &self.events {
            let head = heads.entry(event.session_id).or_default();
            *head = (*head).max(event.session_seq);
        }
        let heads = heads.into_iter().map(|(session_id, head_seq)| Hint::Head {
            session_id,
            head_seq,
        });
        let deleted = self.deleted.iter().copied().map(Hint::Deleted);
        let runs = self.runs.iter().copied().map(Hint::Run);
        let queues = self.queues.iter().map(QueueKey::hint);
        let executors = self.executors.iter().cloned().map(Hint::Executor);
        let ids = deleted.chain(runs).chain(executors);
        heads.chain(ids).chain(queues).collect()
    }
}

/// What a session's watchers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HeadHint {
    /// The highest number seen committed; a monotonic maximum.
    pub(crate) head_seq: u64,
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

/// Counters that move when what somebody waits for may have come, alive while somebody waits.
#[derive(Debug)]
struct Counters<K>(Mutex<HashMap<K, watch::Sender<u64>>>);

impl<K> Default for Counters<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Counters<K> {
    fn subscribe(&self, key: K) -> watch::Receiver<u64> {
        let mut counters = self.0.lock();
        if counters.len() > 64 {
            counters.retain(|_, sender| sender.receiver_count() > 0);
        }
        counters
            .entry(key)
            .or_insert_with(|| watch::Sender::new(0))
            .subscribe()
    }

    fn moved<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if let Some(sender) = self.0.lock().get(key) {
            sender.send_modify(|count| *count += 1);
        }
    }

    fn all_moved(&self) {
        for sender in self.0.lock().values() {
            sender.send_modify(|count| *count += 1);
        }
    }
}

/// The hub of all hints of a process.
#[derive(Debug)]
pub(crate) struct Feed {
    sessions: Mutex<HashMap<SessionId, Weak<SessionFeed>>>,
    queues: Counters<QueueKey>,
    runs: Counters<RunId>,
    executors: Counters<String>,
    /// Moves with every event of any session.
    any: watch::Sender<u64>,
    ring_events: usize,
    ring_bytes: usize,
}

impl Feed {
    pub(crate) fn new(ring_events: usize, ring_bytes: usize) -> Self {
        Self {
            sessions: Mutex::default(),
            queues: Counters::default(),
            runs: Counters::default(),
            executors: Counters::default(),
            any: watch::Sender::new(0),
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
        self.queues.subscribe(key.clone())
    }

    /// A counter that moves when any session may have a new event.
    pub(crate) fn any(&self) -> watch::Receiver<u64> {
        self.any.subscribe()
    }

    /// A counter that moves when the run or one of its questions changes.
    pub(crate) fn run(&self, id: RunId) -> watch::Receiver<u64> {
        self.runs.subscribe(id)
    }

    /// A counter that moves when the executor is told something or may take more runs.
    pub(crate) fn executor(&self, executor_id: &str) -> watch::Receiver<u64> {
        self.executors.subscribe(executor_id.to_owned())
    }

    pub(crate) fn queue_moved(&self, key: &QueueKey) {
        self.queues.moved(key);
    }

    /// The sessions that are followed.
    pub(crate) fn followed(&self) -> Vec<SessionId> {
        let sessions = self.sessions.lock();
        let alive = sessions.iter().filter(|(_, feed)| feed.strong_count() > 0);
        alive.map(|(id, _)| *id).collect()
    }

    /// Takes what was read of a followed session's head: its newest number, or that it is gone.
    pub(crate) fn observe(&self, session: SessionId, head_seq: Option<u64>) {
        let feed = self.sessions.lock().get(&session).and_then(Weak::upgrade);
        let Some(feed) = feed else { return };
        match head_seq {
            Some(head_seq) => feed.observe(head_seq),
            None => feed.hint.send_modify(|hint| hint.deleted = true),
        }
    }

    /// Makes every held request read again.
    pub(crate) fn wake_held(&self) {
        self.any.send_modify(|count| *count += 1);
        self.queues.all_moved();
        self.runs.all_moved();
    }

    fn session_deleted(&self, session: SessionId) {
        let feed = self.sessions.lock().remove(&session);
        if let Some(feed) = feed.and_then(|feed| feed.upgrade()) {
            feed.hint.send_modify(|hint| hint.deleted = true);
        }
    }

    /// Drops the hot tail of a session whose events were folded (rules R20). Another instance may keep
    /// its own: it gives the deltas as they were, to followers that have not been told of a fold.
    fn forget_ring(&self, session: SessionId) {
        let feed = self.sessions.lock().get(&session).and_then(Weak::upgrade);
        if let Some(feed) = feed {
            let mut ring = feed.ring.lock();
            ring.events.clear();
            ring.bytes = 0;
        }
    }

    /// Takes another process's hint. It proves nothing: whoever is woken reads the store.
    pub(crate) fn heard(&self, hint: Hint) {
        match hint {
            Hint::Head {
                session_id,
                head_seq,
            } => {
                self.observe(session_id, Some(head_seq));
                self.any.send_modify(|count| *count += 1);
            }
            Hint::Deleted(session_id) => self.session_deleted(session_id),
            Hint::Run(run_id) => self.runs.moved(&run_id),
            Hint::Executor(executor_id) => self.executors.moved(executor_id.as_str()),
            Hint::Queue {
                executor_kind,
                pool,
            } => self.queue_moved(&QueueKey {
                executor_kind,
                pool,
            }),
        }
    }

    /// Publishes what a commit changed. Called after COMMIT has returned.
    pub(crate) fn publish(&self, effects: Effects) {
        let any = !effects.events.is_empty();
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
            self.session_deleted(session);
        }
        for session in effects.folded {
            self.forget_ring(session);
        }
        for key in &effects.queues {
            self.queue_moved(key);
        }
        for run in effects.runs {
            self.runs.moved(&run);
        }
        for executor in &effects.executors {
            self.executors.moved(executor.as_str());
        }
        if any {
            self.any.send_modify(|count| *count += 1);
        }
    }
}
