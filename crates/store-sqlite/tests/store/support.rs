//! A store in a directory of its own, work from closures, and rows to write.

use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::future::BoxFuture;
use serde_json::{Map, json};
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
use tapedeck_store::{Failure, Lane, Store, Tx, Work};
use tapedeck_store_sqlite::{Clock, ManualClock, Mode, Options, SqliteStore};
use tempfile::TempDir;
use uuid::Uuid;

pub(crate) const OWNER: &str = "server:test";
pub(crate) const WALL: i64 = 1_700_000_000_000;
pub(crate) const LEASE: i64 = 5_000_000;
/// On a server over a file no local owner can be alive, so the lease of one doesn't count.
pub(crate) const LOCAL_OWNERS_ARE_DEAD: bool = true;

/// A store on clocks that the test moves.
pub(crate) struct Fixture {
    pub(crate) store: SqliteStore,
    pub(crate) clock: ManualClock,
    pub(crate) dir: TempDir,
}

pub(crate) fn manual() -> ManualClock {
    ManualClock::new(Timestamp(WALL), LeaseInstant(LEASE))
}

pub(crate) fn options(dir: &Path, clock: &ManualClock) -> Options {
    Options {
        clock: Clock::manual(clock.clone(), "boot-a"),
        ..Options::new(dir, Mode::Server)
    }
}

impl Fixture {
    pub(crate) async fn open() -> Self {
        Self::with(|_| ()).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let dir = TempDir::new().unwrap();
        let clock = manual();
        let mut options = options(dir.path(), &clock);
        change(&mut options);
        let store = SqliteStore::open(options).await.unwrap();
        Self { store, clock, dir }
    }

    /// Closes the store and opens the directory again, on a boot of this name.
    pub(crate) async fn reopen(self, boot_id: &str) -> Self {
        self.store.close().await;
        let options = Options {
            clock: Clock::manual(self.clock.clone(), boot_id),
            ..Options::new(self.dir.path(), Mode::Server)
        };
        let store = SqliteStore::open(options).await.unwrap();
        Self { store, ..self }
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

struct Closure<F, T> {
    run: F,
    slot: Arc<Mutex<Option<T>>>,
    weight: usize,
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

    fn weight(&self) -> usize {
        self.weight
    }
}

/// Runs a closure in a transaction.
pub(crate) async fn run<F, T>(store: &dyn Store, work: F) -> Result<T, Failure>
where
    F: for<'a> FnMut(&'a mut dyn Tx) -> BoxFuture<'a, Result<T, Failure>> + Send + 'static,
    T: Send + 'static,
{
    run_on(store, Lane::Append, None, work).await
}

/// The same on a lane, for a session.
pub(crate) async fn run_on<F, T>(
    store: &dyn Store,
    lane: Lane,
    session: Option<SessionId>,
    work: F,
) -> Result<T, Failure>
where
    F: for<'a> FnMut(&'a mut dyn Tx) -> BoxFuture<'a, Result<T, Failure>> + Send + 'static,
    T: Send + 'static,
{
    let slot = Arc::new(Mutex::new(None));
    let work = Closure {
        run: work,
        slot: Arc::clone(&slot),
        weight: 256,
    };
    store.transact(lane, session, Box::new(work)).await?;
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
        forked_from: None,
        restored_seq: None,
        folded_seq: None,
        created_at: Timestamp(WALL),
        updated_at: Timestamp(WALL),
        last_activity_at: Timestamp(WALL),
        closed_at: None,
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
            folded_from: None,
            attempt: Some(1),
            executor_id: Some("e".to_owned()),
            trace_id: None,
            created_at: Timestamp(WALL - 5),
            recorded_at: Timestamp(WALL),
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
pub(crate) async fn connect(dir: &Path) -> sqlx::SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(dir.join("tapedeck.db"));
    sqlx::ConnectOptions::connect(&options).await.unwrap()
}

/// Runs a statement past the store.
pub(crate) async fn raw(dir: &Path, statement: &'static str) {
    let mut conn = connect(dir).await;
    sqlx::Executor::execute(&mut conn, statement).await.unwrap();
    sqlx::Connection::close(conn).await.unwrap();
}

/// The steps of a statement's plan.
#[expect(
    clippy::disallowed_methods,
    reason = "a plan is no statement of the store"
)]
pub(crate) async fn explain(dir: &Path, statement: &str) -> Vec<String> {
    let mut conn = connect(dir).await;
    let text = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
    let rows = sqlx::query(text).fetch_all(&mut conn).await.unwrap();
    sqlx::Connection::close(conn).await.unwrap();
    rows.iter()
        .map(|row| sqlx::Row::get(row, "detail"))
        .collect()
}

/// Each foreign key's table and column.
#[expect(clippy::disallowed_methods, reason = "a look at the schema itself")]
pub(crate) async fn foreign_keys(dir: &Path) -> Vec<(String, String)> {
    let mut conn = connect(dir).await;
    let keys = sqlx::query_as(
        "SELECT s.name, k.\"from\" FROM sqlite_schema s, pragma_foreign_key_list(s.name) k
         WHERE s.type = 'table'",
    )
    .fetch_all(&mut conn)
    .await
    .unwrap();
    sqlx::Connection::close(conn).await.unwrap();
    keys
}
