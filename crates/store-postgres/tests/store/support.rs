//! A store over a database of its own, work from closures, and rows to write.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::future::BoxFuture;
use serde_json::{Map, json};
use sqlx::{Connection as _, PgConnection};
use tapedeck_domain::claim::Claim;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::event::{EventRecord, NewEvent};
use tapedeck_domain::interaction::{Interaction, InteractionKind, InteractionStatus};
use tapedeck_domain::owner::{Authority, SessionHead};
use tapedeck_domain::run::{Attempts, LiveRun, NewRun, RunState, RunStatus};
use tapedeck_domain::session::{Session, SessionSettings, SessionSummary};
use tapedeck_domain::{
    InteractionId, JsonText, LeaseInstant, Now, RunId, RunKey, SessionId, SessionKey, TapeId,
    Timestamp,
};
use tapedeck_store::{EventFilter, Failure, Lane, Store, Tx, Work};
use tapedeck_store_postgres::{Clock, ManualClock, Options, PostgresStore};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::postgres::{Cluster, Database};

pub(crate) const OWNER: &str = "server:test";
pub(crate) const WALL: i64 = 1_700_000_000_000;
pub(crate) const LEASE: i64 = 5_000_000;
/// Nobody's process can be proved dead from here, so every owner's lease counts.
pub(crate) const LOCAL_OWNERS_ARE_DEAD: bool = false;

/// A store on clocks that the test moves, over a database of its own.
pub(crate) struct Fixture {
    pub(crate) store: PostgresStore,
    clock: ManualClock,
    pub(crate) database: Database,
}

fn options(url: &str, clock: &ManualClock) -> Options {
    Options {
        clock: Clock::manual(clock.clone()),
        ..Options::new(url)
    }
}

impl Fixture {
    pub(crate) async fn open() -> Self {
        let clock = ManualClock::new(Timestamp(WALL), LeaseInstant(LEASE));
        let migrated = async |url: String| {
            let store = PostgresStore::open(Options::new(url)).await.unwrap();
            store.close().await;
        };
        let cluster = Cluster::shared().await;
        let database = cluster.database_like("schema", migrated).await;
        let store = PostgresStore::open(options(database.url(), &clock)).await;
        Self {
            store: store.unwrap(),
            clock,
            database,
        }
    }

    /// Another instance over the same database.
    pub(crate) async fn instance(&self) -> PostgresStore {
        let options = options(self.database.url(), &self.clock);
        PostgresStore::open(options).await.unwrap()
    }

    /// A session with its head.
    pub(crate) async fn session(&self, number: u128) -> Session {
        run(&self.store, move |tx| {
            Box::pin(async move {
                let mut session = session(number);
                session.key = tx.insert_session(&session).await?;
                let head = SessionHead::new(session.key, session.session_id, &owner(), tx.now());
                tx.insert_head(&head).await?;
                Ok(session)
            })
        })
        .await
        .unwrap()
    }

    /// The log of a session has every number from 1 to its head, once.
    pub(crate) async fn check_log(&self, number: u128) {
        let head_seq = self.store.reader().head_seq(session_id(number)).await;
        let filter = EventFilter {
            session_id: session_id(number),
            after: 0,
            limit: 10_000,
            max_bytes: usize::MAX,
            run_id: None,
            kinds: Vec::new(),
        };
        let log = self.store.reader().events(&filter).await.unwrap().events;
        let seqs: Vec<_> = log.iter().map(|event| event.session_seq).collect();
        let all: Vec<_> = (1..=head_seq.unwrap().unwrap()).collect();
        assert_eq!(seqs, all);
    }

    /// A run of a session in a state.
    pub(crate) async fn run(&self, session: &Session, number: u128, state: RunState) -> LiveRun {
        let session = session.clone();
        run(&self.store, move |tx| {
            let (session, state) = (session.clone(), state.clone());
            Box::pin(async move {
                let new = new_run(number, state.status());
                let mut live = live_run(&session, number, state);
                live.key = tx.insert_run(session.key, &new).await?;
                tx.insert_live_run(&live).await?;
                Ok(live)
            })
        })
        .await
        .unwrap()
    }
}

/// A place in a transaction where it stands still until the test lets it go on.
pub(crate) struct Pause {
    reached: Semaphore,
    released: Semaphore,
}

impl Pause {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            reached: Semaphore::new(0),
            released: Semaphore::new(0),
        })
    }

    /// Stands still.
    pub(crate) async fn here(&self) {
        self.reached.add_permits(1);
        self.released.acquire().await.unwrap().forget();
    }

    /// Waits until the transaction stands here.
    pub(crate) async fn reached(&self) {
        self.reached.acquire().await.unwrap().forget();
    }

    /// Lets it go on.
    pub(crate) fn release(&self) {
        self.released.add_permits(1);
    }
}

struct Closure<F, T> {
    run: F,
    slot: Arc<Mutex<Option<T>>>,
}

#[async_trait]
impl<F, T> Work for Closure<F, T>
where
    F: for<'a> FnMut(&'a mut dyn Tx) -> BoxFuture<'a, Result<T, Failure>> + Send,
    T: Send,
{
    async fn run(&mut self, tx: &mut dyn Tx) -> Result<(), Failure> {
        let value = (self.run)(tx).await?;
        *self.slot.lock().unwrap() = Some(value);
        Ok(())
    }
}

/// Runs a closure in a transaction.
pub(crate) async fn run<F, T>(store: &dyn Store, work: F) -> Result<T, Failure>
where
    F: for<'a> FnMut(&'a mut dyn Tx) -> BoxFuture<'a, Result<T, Failure>> + Send + 'static,
    T: Send + 'static,
{
    let slot = Arc::new(Mutex::new(None));
    let work = Closure {
        run: work,
        slot: Arc::clone(&slot),
    };
    store.transact(Lane::Append, None, Box::new(work)).await?;
    Ok(slot.lock().unwrap().take().unwrap())
}

pub(crate) fn owner() -> Authority {
    Authority {
        owner_id: OWNER.to_owned(),
        epoch: None,
        lease_ms: 60_000,
    }
}

pub(crate) fn now() -> Now {
    Now {
        wall: Timestamp(WALL),
        lease: LeaseInstant(LEASE),
        judged: LeaseInstant(LEASE),
    }
}

pub(crate) fn session_id(number: u128) -> SessionId {
    SessionId::new(Uuid::from_u128(number))
}

pub(crate) fn run_id(number: u128) -> RunId {
    RunId::new(Uuid::from_u128(0x1000_0000 + number))
}

pub(crate) fn session(number: u128) -> Session {
    Session {
        key: SessionKey(0),
        session_id: session_id(number),
        namespace: "default".to_owned(),
        settings: SessionSettings::default(),
        tape_id: TapeId::new(Uuid::from_u128(0x2000_0000 + number)),
        summary: SessionSummary::empty(),
        created_at: Timestamp(WALL),
        updated_at: Timestamp(WALL),
        last_activity_at: Timestamp(WALL),
        closed_at: None,
        forked_from: None,
        restored_seq: None,
        folded_seq: None,
    }
}

pub(crate) fn new_run(number: u128, status: RunStatus) -> NewRun {
    NewRun {
        run_id: run_id(number),
        parent_run_id: None,
        prompt: format!("prompt {number}"),
        metadata: Map::new(),
        resume_context: None,
        status,
        admitted_seq: 1,
        requested_at: Timestamp(WALL),
    }
}

pub(crate) fn live_run(session: &Session, number: u128, state: RunState) -> LiveRun {
    LiveRun {
        key: RunKey(0),
        run_id: run_id(number),
        session_key: session.key,
        session_id: session.session_id,
        state,
        attempts: Attempts::new(3),
        place: 0,
        event_count: 0,
        has_output: false,
        pending_interactions: 0,
        turn: None,
        deadline: None,
    }
}

pub(crate) fn claim(executor_id: &str, attempt: u32, expires_at: i64) -> Claim {
    Claim {
        attempt,
        token_hash: Digest::of_bytes(format!("token {executor_id} {attempt}").as_bytes()),
        executor_id: executor_id.to_owned(),
        instance_id: Some(format!("{executor_id}-instance")),
        request_hash: Digest::of_bytes(format!("request {executor_id} {attempt}").as_bytes()),
        acknowledged: true,
        replayed: false,
        expires_at: LeaseInstant(expires_at),
        lease_ms: 60_000,
    }
}

pub(crate) fn event(session: &Session, run: Option<&LiveRun>, seq: u64) -> NewEvent {
    NewEvent {
        run_key: run.map(|run| run.key),
        digest: Some(Digest::of_bytes(format!("event {seq}").as_bytes())),
        record: EventRecord {
            event_id: format!("event-{seq}"),
            session_id: session.session_id,
            session_seq: seq,
            run_id: run.map(|run| run.run_id),
            kind: if seq.is_multiple_of(2) {
                "StreamDelta"
            } else {
                "ThinkingDelta"
            }
            .to_owned(),
            payload: JsonText::from_stored(r#"{"content":"a \"quoted\" line\nand ü 😀","n":1.0}"#),
            attempt: Some(1),
            executor_id: Some("e".to_owned()),
            trace_id: None,
            created_at: Timestamp(WALL - 5),
            recorded_at: Timestamp(WALL),
            folded_from: None,
        },
    }
}

pub(crate) fn question(session: &Session, run: &LiveRun, number: u128) -> Interaction {
    Interaction {
        interaction_id: InteractionId::new(Uuid::from_u128(0x3000_0000 + number)),
        run_key: run.key,
        run_id: run.run_id,
        session_id: session.session_id,
        attempt: 1,
        request_id: format!("request-{number}"),
        request_digest: Digest::of_bytes(b"question"),
        kind: InteractionKind::Approval,
        status: InteractionStatus::Pending,
        request: json!({"tool_call": {"tool_name": "shell"}}),
        response: None,
        created_at: Timestamp(WALL),
        expires_at: Timestamp(WALL + 1_000),
        deadline: LeaseInstant(LEASE + 1_000),
        resolved_at: None,
        resolved_by: None,
    }
}

/// A connection of the test's own, for what no store would do.
pub(crate) async fn connect(database: &Database) -> PgConnection {
    PgConnection::connect(database.url()).await.unwrap()
}

/// What a statement of the test's own gives.
pub(crate) async fn number(conn: &mut PgConnection, statement: &'static str) -> i64 {
    #[expect(clippy::disallowed_methods, reason = "a look past the store")]
    let query = sqlx::query_scalar(statement);
    query.fetch_one(conn).await.unwrap()
}
