//! The load of the chaos tests: clients that start sessions, play executors, ask and answer, capture
//! places and go back to them, and keep a ledger of everything they were told. They repeat what got no
//! answer, as real ones do, and ask whichever server they come upon.

mod checks;
mod hand;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::api::{self, is_terminal, seq, text};
use crate::http::{Answer, Request};
use crate::wait::within;
pub(crate) use hand::Hand;

/// The real executor's pool.
pub(crate) const POOL: &str = "demo";
/// For a request that is repeated, through all that happens to the servers.
const PATIENCE: Duration = Duration::from_mins(1);

/// A captured place.
#[derive(Debug, Clone)]
pub(crate) struct Captured {
    pub(crate) checkpoint: String,
    pub(crate) seq: u64,
}

/// What clients were told.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) sessions: Vec<String>,
    /// Forked sessions with the checkpoint that they start from.
    pub(crate) forks: HashMap<String, String>,
    /// Session, run and the number of its `RunRequested`.
    pub(crate) runs: Vec<(String, String, u64)>,
    /// Records by session.
    pub(crate) events: HashMap<String, Vec<Value>>,
    /// Executors' own entries, by session.
    pub(crate) entries: HashMap<String, Vec<Value>>,
    /// How many messages a run has reported.
    pub(crate) snapshots: HashMap<String, u64>,
    /// Runs that were reported as ended, and how.
    pub(crate) ends: Vec<(String, String)>,
    /// Questions and their last known status.
    pub(crate) questions: HashMap<String, String>,
    /// Places by session, in their order.
    pub(crate) captured: HashMap<String, Vec<Captured>>,
    /// The checkpoints that a session was put back to, in their order.
    pub(crate) restored: HashMap<String, Vec<String>>,
    /// What each follower of a session saw, in order.
    pub(crate) seen: HashMap<(String, usize), Vec<(u64, Value)>>,
}

fn count<K, T>(map: &HashMap<K, Vec<T>>) -> usize {
    map.values().map(Vec::len).sum()
}

impl Ledger {
    pub(crate) fn size(&self) -> String {
        format!(
            "{} sessions ({} forks), {} runs, {} events, {} entries, {} ends, {} questions, \
             {} places, {} restores, {} frames",
            self.sessions.len(),
            self.forks.len(),
            self.runs.len(),
            count(&self.events),
            count(&self.entries),
            self.ends.len(),
            self.questions.len(),
            count(&self.captured),
            count(&self.restored),
            count(&self.seen),
        )
    }
}

/// What all clients of one test share.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    /// How many follow each session.
    pub(crate) followers: usize,
    pub(crate) stop: CancellationToken,
}

impl World {
    pub(crate) fn of(addresses: &[SocketAddr], followers: usize, stop: &CancellationToken) -> Self {
        Self {
            addresses: addresses.to_vec(),
            ledger: Arc::default(),
            followers,
            stop: stop.clone(),
        }
    }

    /// Whichever server a client comes upon.
    pub(crate) fn somewhere(&self) -> SocketAddr {
        self.addresses[rand::rng().random_range(0..self.addresses.len())]
    }

    pub(crate) fn note<T>(&self, note: impl FnOnce(&mut Ledger) -> T) -> T {
        note(&mut self.ledger.lock().unwrap())
    }

    /// Sends the same bytes until there is an answer that isn't about the server's own state.
    pub(crate) async fn insist(&self, request: &Request) -> Answer {
        let last = Mutex::new(String::new());
        let sending = async {
            loop {
                let said = match request.try_send(self.somewhere()).await {
                    Ok(answer) if answer.status < 500 && answer.status != 429 => return answer,
                    // Away, draining or overloaded: a moment later again.
                    Ok(answer) => answer.text(),
                    Err(error) => error.to_string(),
                };
                *last.lock().unwrap() = said;
                sleep(Duration::from_millis(20)).await;
            }
        };
        let answer = tokio::time::timeout(PATIENCE, sending).await;
        answer.unwrap_or_else(|_late| panic!("not answered: {request:?}: {last:?}"))
    }

    /// A write with an idempotency key.
    async fn write(&self, path: &str, body: &Value, rng: &mut StdRng) -> Answer {
        let key = format!("{:032x}", rng.random::<u128>());
        self.insist(&Request::post(path, body).header("idempotency-key", key))
            .await
    }

    async fn session(&self, pool: &str, rng: &mut StdRng) -> String {
        let target = json!({"executor": {"pool": pool}});
        let body = json!({"run_target": target, "approval_policy": "interactive"});
        let created = self.write("/sessions", &body, rng).await;
        assert_eq!(created.status, 201, "{}", created.text());
        let session = text(&created.json(), "session_id");
        self.note(|ledger| ledger.sessions.push(session.clone()));
        session
    }

    /// A prompt or a resume; `None` if the session is busy.
    async fn admit(
        &self,
        session: &str,
        kind: &str,
        prompt: &str,
        rng: &mut StdRng,
    ) -> Option<String> {
        let path = format!("/sessions/{session}/{kind}");
        let answer = self.write(&path, &json!({"prompt": prompt}), rng).await;
        if answer.status == 409 {
            // After a restore to the beginning there is nothing to resume.
            let code = answer.problem().1;
            assert!(
                ["session_busy", "nothing_to_resume"].contains(&code.as_str()),
                "{code}"
            );
            return None;
        }
        assert_eq!(answer.status, 202, "{}", answer.text());
        let (run, at) = (text(&answer.json(), "run_id"), seq(&answer.json()));
        self.note(|ledger| ledger.runs.push((session.to_owned(), run.clone(), at)));
        Some(run)
    }

    async fn status(&self, run: &str) -> Value {
        self.insist(&Request::get(format!("/runs/{run}")))
            .await
            .ok()
    }

    /// Waits until the run is settled; `false` if the test ends before.
    async fn settled(&self, run: &str) -> bool {
        while !self.stop.is_cancelled() {
            if is_terminal(&self.status(run).await) {
                return true;
            }
            sleep(Duration::from_millis(50)).await;
        }
        false
    }

    /// Works on a session while others follow it; ends when all of them have seen everything.
    async fn followed(&self, session: &str, work: impl Future<Output = ()>) {
        let (goal, _) = watch::channel(u64::MAX);
        let following = (0..self.followers)
            .map(|number| self.follow(session.to_owned(), number, goal.subscribe()));
        let working = async {
            work.await;
            let shown = Request::get(format!("/sessions/{session}"));
            let head = self.insist(&shown).await.ok()["head_seq"].as_u64();
            goal.send_replace(head.unwrap());
        };
        tokio::join!(futures::future::join_all(following), working);
    }

    /// Follows a session, through all that happens to the servers, until it has seen the goal.
    async fn follow(&self, session: String, number: usize, mut goal: watch::Receiver<u64>) {
        let key = (session, number);
        let mut last: u64 = 0;
        while last < *goal.borrow() {
            let mut request = Request::get(format!("/sessions/{}/events", key.0));
            if last > 0 {
                request = request.header("last-event-id", last.to_string());
            }
            let Ok(mut frames) = request.try_open(self.somewhere()).await else {
                sleep(Duration::from_millis(30)).await;
                continue;
            };
            // Some followers change servers for no reason at all.
            let patience = rand::rng().random_range(1..200);
            for _ in 0..patience {
                if last >= *goal.borrow_and_update() {
                    break;
                }
                let frame = tokio::select! {
                    _moved = goal.changed() => continue,
                    frame = frames.next() => frame,
                };
                let Some(frame) = frame else { break };
                if let Some(id) = frame.id {
                    last = id;
                    let seen = (id, frame.data);
                    self.note(|ledger| ledger.seen.entry(key.clone()).or_default().push(seen));
                }
            }
        }
    }
}

/// What the real executor's runs say when nothing is lost.
fn expected_words() -> String {
    format!("begin{}end", api::numbered("chunk", 20))
}

/// A client of the real executors.
pub(crate) async fn prompting(world: World, mut rng: StdRng) {
    while !world.stop.is_cancelled() {
        let session = world.session(POOL, &mut rng).await;
        let working = async {
            for round in 0..3 {
                let kind = if round > 0 && rng.random_bool(0.5) {
                    "resume"
                } else {
                    "prompt"
                };
                let script =
                    "say begin; tool look {\"at\": 1}; stream 20 15; write notes.txt text; say end";
                let Some(run) = world.admit(&session, kind, script, &mut rng).await else {
                    continue;
                };
                if !world.settled(&run).await {
                    return;
                }
            }
        };
        let what = "a client of the real executors comes to an end";
        // A bound for what has no other: followers that see nothing would wait for ever.
        let most = Duration::from_mins(4);
        within(what, most, world.followed(&session, working)).await;
    }
}
