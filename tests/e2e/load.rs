//! The load of the crash test: clients that start sessions, play executors, ask and answer, and keep
//! a ledger of everything they were told. They repeat what got no answer, as real ones do.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Claim, is_terminal, seq, text};
use crate::http::{Answer, Request};
use crate::wait::within;

/// The real executor's pool.
pub(crate) const POOL: &str = "demo";

/// What clients were told.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) sessions: Vec<String>,
    /// Session, run and the number of its `RunRequested`.
    pub(crate) runs: Vec<(String, String, u64)>,
    /// Records by session.
    pub(crate) events: HashMap<String, Vec<Value>>,
    /// Runs that were reported as ended, and how.
    pub(crate) ends: Vec<(String, String)>,
    /// Questions and their last known status.
    pub(crate) questions: HashMap<String, String>,
    /// What followers saw of each session, in order.
    pub(crate) seen: HashMap<String, Vec<(u64, Value)>>,
}

impl Ledger {
    pub(crate) fn size(&self) -> String {
        let count = |map: &HashMap<String, Vec<_>>| map.values().map(Vec::len).sum::<usize>();
        format!(
            "{} sessions, {} runs, {} events, {} ends, {} questions, {} frames",
            self.sessions.len(),
            self.runs.len(),
            count(&self.events),
            self.ends.len(),
            self.questions.len(),
            self.seen.values().map(Vec::len).sum::<usize>(),
        )
    }
}

/// What all clients of one test share.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) address: SocketAddr,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) stop: CancellationToken,
}

impl World {
    pub(crate) fn note<T>(&self, note: impl FnOnce(&mut Ledger) -> T) -> T {
        note(&mut self.ledger.lock().unwrap())
    }

    /// Sends the same bytes until there is an answer that isn't about the server's own state.
    async fn insist(&self, request: &Request) -> Answer {
        let sending = async {
            loop {
                match request.try_send(self.address).await {
                    Ok(answer) if answer.status < 500 && answer.status != 429 => return answer,
                    // Away, draining or overloaded: a moment later again.
                    Ok(_) | Err(_) => sleep(Duration::from_millis(20)).await,
                }
            }
        };
        within(
            "an answer to a request that is repeated",
            Duration::from_mins(1),
            sending,
        )
        .await
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
            assert_eq!(answer.problem().1, "session_busy");
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

    /// Follows a session, through all that happens to the server, until the test ends.
    async fn follow(self, session: String) {
        while !self.stop.is_cancelled() {
            let last = self.note(|ledger| {
                ledger
                    .seen
                    .get(&session)
                    .and_then(|seen| seen.last())
                    .map(|(id, _)| *id)
            });
            let mut request = Request::get(format!("/sessions/{session}/events"));
            if let Some(last) = last {
                request = request.header("last-event-id", last.to_string());
            }
            let Ok(mut frames) = request.try_open(self.address).await else {
                sleep(Duration::from_millis(30)).await;
                continue;
            };
            loop {
                let frame = tokio::select! {
                    () = self.stop.cancelled() => return,
                    frame = frames.next() => frame,
                };
                let Some(frame) = frame else { break };
                if let Some(id) = frame.id {
                    let seen = (id, frame.data);
                    self.note(|ledger| ledger.seen.entry(session.clone()).or_default().push(seen));
                }
            }
        }
    }
}

/// A client that starts sessions and is their executor, too.
pub(crate) struct Hand {
    pub(crate) world: World,
    pub(crate) pool: String,
    pub(crate) rng: StdRng,
    pub(crate) events: u64,
}

/// Whether a claim is still good.
enum Held {
    Yes,
    Lost,
}

impl Hand {
    pub(crate) async fn work(mut self) {
        while !self.world.stop.is_cancelled() {
            let session = self.world.session(&self.pool, &mut self.rng).await;
            let follower = self.world.clone().follow(session.clone());
            let following = async {
                for round in 0..self.rng.random_range(2..5) {
                    if !self.one_run(&session, round).await {
                        break;
                    }
                }
            };
            // A request that is on its way when the test ends is waited for: what it made counts.
            tokio::select! {
                () = following => {}
                () = beside(follower) => {}
            }
        }
    }

    /// One run from prompt to end; `false` if the test ends before.
    async fn one_run(&mut self, session: &str, round: u32) -> bool {
        let kind = if round > 0 && self.rng.random_bool(0.5) {
            "resume"
        } else {
            "prompt"
        };
        let Some(run) = self
            .world
            .admit(session, kind, "by hand", &mut self.rng)
            .await
        else {
            return !self.world.stop.is_cancelled();
        };
        let Some(claim) = self.claim(&run).await else {
            return self.world.settled(&run).await;
        };
        // Acknowledged first, or the claim would end with its short lease.
        let mut held = self
            .under(&claim, "heartbeat", json!({}))
            .await
            .map_or(Held::Lost, |_| Held::Yes);
        for _ in 0..self.rng.random_range(1..12) {
            if self.world.stop.is_cancelled() || matches!(held, Held::Lost) {
                break;
            }
            held = if self.rng.random_bool(0.15) {
                self.ask(&claim).await
            } else {
                self.upload(&claim).await
            };
        }
        // One in six is abandoned, as by an executor that died.
        if matches!(held, Held::Yes) && self.rng.random_bool(0.85) {
            self.complete(&claim).await;
        }
        self.world.settled(&run).await
    }

    /// Claims the run; `None` if it is gone or the test ends before.
    async fn claim(&mut self, run: &str) -> Option<Claim> {
        while !self.world.stop.is_cancelled() {
            let id = format!("{:032x}", self.rng.random::<u128>());
            let body = json!({
                "executor_id": self.pool, "pool": self.pool, "claim_request_id": id,
                "lease_seconds": 10, "wait_seconds": 2,
            });
            let answer = self
                .world
                .insist(&Request::post("/executor/runs/claim", &body))
                .await;
            match answer.status {
                200 => {
                    let claim = Claim::of(answer.json());
                    assert_eq!(claim.run_id, run, "the pool has one run at a time");
                    return Some(claim);
                }
                404 => assert_eq!(answer.problem().1, "no_run_available"),
                _ => assert_eq!(answer.problem(), (409, "claim_lost".to_owned())),
            }
            if is_terminal(&self.world.status(run).await) {
                return None;
            }
        }
        None
    }

    /// A call under a claim; `None` if the claim is lost.
    async fn under(&self, claim: &Claim, action: &str, body: Value) -> Option<Answer> {
        let answer = self.world.insist(&claim.request(action, body)).await;
        if answer.status == 409 {
            let (_, code) = answer.problem();
            assert!(
                ["claim_lost", "run_settled"].contains(&code.as_str()),
                "{action}: {code}"
            );
            return None;
        }
        assert!(
            (200..300).contains(&answer.status),
            "{action}: {}",
            answer.text()
        );
        Some(answer)
    }

    async fn upload(&mut self, claim: &Claim) -> Held {
        let count = self.rng.random_range(1..20);
        let events: Vec<_> = (0..count)
            .map(|_| {
                self.events += 1;
                api::words(
                    &format!("{}-{}", self.pool, self.events),
                    &format!("{}\n", self.events),
                )
            })
            .collect();
        let Some(answer) = self.under(claim, "events", json!({"events": events})).await else {
            return Held::Lost;
        };
        let records = api::records(&answer.json());
        for (sent, record) in events.iter().zip(&records) {
            assert_eq!(
                (&record["event_id"], &record["payload"]),
                (&sent["event_id"], &sent["data"])
            );
        }
        let session = claim.session_id.clone();
        self.world
            .note(|ledger| ledger.events.entry(session).or_default().extend(records));
        Held::Yes
    }

    /// Asks a person, is the person, and hears the answer.
    async fn ask(&mut self, claim: &Claim) -> Held {
        let id = format!("q{:016x}", self.rng.random::<u64>());
        let body = json!({"request_id": id, "tool_name": "edit", "wait_seconds": 0});
        let Some(asked) = self.under(claim, "approval", body.clone()).await else {
            return Held::Lost;
        };
        let question = text(&asked.json(), "interaction_id");
        self.note_question(&question, "pending");
        let approved: bool = self.rng.random();
        let path = format!("/interactions/{question}/resolve");
        let answered = self
            .world
            .insist(&Request::post(path, &json!({"approved": approved})))
            .await;
        if answered.status == 409 {
            // The claim was lost meanwhile, and the question with it.
            assert_eq!(answered.problem().1, "already_resolved");
            return Held::Lost;
        }
        let status = text(&answered.ok(), "status");
        assert_eq!(status, if approved { "approved" } else { "denied" });
        self.note_question(&question, &status);
        let Some(heard) = self.under(claim, "approval", body).await else {
            return Held::Lost;
        };
        assert_eq!(heard.json()["approved"], approved, "{}", heard.text());
        Held::Yes
    }

    fn note_question(&self, question: &str, status: &str) {
        self.world.note(|ledger| {
            ledger
                .questions
                .insert(question.to_owned(), status.to_owned())
        });
    }

    async fn complete(&mut self, claim: &Claim) {
        let (status, error) = *[("completed", None), ("failed", Some("by chance"))]
            .choose(&mut self.rng)
            .unwrap();
        let body = json!({"status": status, "error": error});
        if let Some(settled) = self.under(claim, "complete", body).await {
            assert_eq!(settled.json()["status"], status);
            self.world
                .note(|ledger| ledger.ends.push((claim.run_id.clone(), status.to_owned())));
        }
    }
}

/// What the real executor's runs say when nothing is lost.
pub(crate) fn expected_words() -> String {
    format!("begin{}end", api::numbered("chunk", 20))
}

/// A client of the real executor.
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
        tokio::select! {
            () = working => {}
            () = beside(world.clone().follow(session.clone())) => {}
        }
    }
}

/// Goes on beside something else and never ends it.
async fn beside(task: impl Future<Output = ()>) {
    task.await;
    std::future::pending::<()>().await;
}
