//! A client that starts sessions and is their executor, too: it claims, uploads, asks, reports, ends
//! its runs, captures places between them, goes back to them and forks from them.

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};

use super::{Captured, World};
use crate::api::{self, Claim, is_terminal, seq, text};
use crate::http::{Answer, Request};

/// The client.
pub(crate) struct Hand {
    world: World,
    pool: String,
    rng: StdRng,
    /// Numbers what it makes up.
    made: u64,
    /// Places of the present session that can be restored.
    places: Vec<Captured>,
}

/// Whether a claim is still good.
enum Held {
    Yes,
    Lost,
}

impl Hand {
    pub(crate) fn new(world: World, number: u64, rng: StdRng) -> Self {
        Self {
            world,
            pool: format!("hand-{number}"),
            rng,
            made: 0,
            places: Vec::new(),
        }
    }

    pub(crate) async fn work(mut self) {
        let world = self.world.clone();
        while !world.stop.is_cancelled() {
            let session = world.session(&self.pool, &mut self.rng).await;
            self.places = Vec::new();
            let working = async {
                for round in 0..self.rng.random_range(2..6) {
                    if !self.one_run(&session, round).await {
                        break;
                    }
                    self.between(&session).await;
                }
            };
            world.followed(&session, working).await;
        }
    }

    fn next(&mut self) -> u64 {
        self.made += 1;
        self.made
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
            held = match self.rng.random_range(0..20) {
                0..=2 => self.ask(&claim).await,
                3 => self.report_messages(&claim).await,
                4 => self.report_entries(&claim).await,
                _ => self.upload(&claim).await,
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
                let number = self.next();
                api::words(&format!("{}-{number}", self.pool), &format!("{number}\n"))
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

    /// All messages so far: one more each time.
    async fn report_messages(&mut self, claim: &Claim) -> Held {
        let run = claim.run_id.clone();
        let known = self
            .world
            .note(|ledger| ledger.snapshots.get(&run).copied());
        let count = known.unwrap_or(0) + 1;
        let body = json!({"messages": messages(count), "metadata": {"count": count}});
        let Some(answer) = self.under(claim, "snapshot", body).await else {
            return Held::Lost;
        };
        assert_eq!(answer.json()["message_count"], count);
        self.world
            .note(|ledger| ledger.snapshots.insert(run, count));
        Held::Yes
    }

    async fn report_entries(&mut self, claim: &Claim) -> Held {
        let entries: Vec<_> = (0..self.rng.random_range(1..5))
            .map(|_| {
                let id = uuid(&mut self.rng);
                let payload = json!({"text": format!("entry {}", self.next())});
                json!({"entry_id": id, "kind": "assistant_message", "payload": payload})
            })
            .collect();
        let body = json!({"tape_entries": entries});
        let Some(answer) = self.under(claim, "tape", body).await else {
            return Held::Lost;
        };
        let answer = answer.json();
        let stored = answer["tape_entries"].as_array().unwrap();
        assert_eq!(stored.len(), entries.len(), "{answer}");
        let session = claim.session_id.clone();
        self.world.note(|ledger| {
            let told = ledger.entries.entry(session).or_default();
            told.extend(stored.iter().cloned());
        });
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

    /// What a person does with an idle session.
    async fn between(&mut self, session: &str) {
        match self.rng.random_range(0..10) {
            0..=3 => self.capture(session).await,
            4..=5 => self.restore(session).await,
            6 => self.fork(session).await,
            _ => {}
        }
    }

    async fn capture(&mut self, session: &str) {
        let label = format!("place {}", self.next());
        let path = format!("/sessions/{session}/checkpoints");
        let body = json!({"label": label});
        let answer = self.world.write(&path, &body, &mut self.rng).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        let answer = answer.json();
        assert_eq!(answer["label"], json!(label));
        let place = Captured {
            checkpoint: text(&answer, "checkpoint_id"),
            seq: seq(&answer),
        };
        self.places.push(place.clone());
        self.world.note(|ledger| {
            let captured = ledger.captured.entry(session.to_owned()).or_default();
            captured.push(place);
        });
    }

    async fn restore(&mut self, session: &str) {
        let Some(place) = self.places.choose(&mut self.rng).cloned() else {
            return;
        };
        let checkpoint = &place.checkpoint;
        let path = format!("/sessions/{session}/checkpoints/{checkpoint}/restore");
        let answer = self.world.write(&path, &json!({}), &mut self.rng).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["latest_checkpoint_id"], json!(checkpoint));
        self.places.retain(|other| other.seq <= place.seq);
        self.world.note(|ledger| {
            let restored = ledger.restored.entry(session.to_owned()).or_default();
            restored.push(place.checkpoint);
        });
    }

    async fn fork(&mut self, session: &str) {
        let Some(place) = self.places.choose(&mut self.rng).cloned() else {
            return;
        };
        let path = format!("/sessions/{session}/fork");
        let body = json!({"checkpoint_id": place.checkpoint});
        let answer = self.world.write(&path, &body, &mut self.rng).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        let fork = text(&answer.json(), "session_id");
        self.world.note(|ledger| {
            ledger.sessions.push(fork.clone());
            ledger.forks.insert(fork, place.checkpoint);
        });
    }
}

/// The messages of a run that has reported `count` of them.
pub(super) fn messages(count: u64) -> Vec<Value> {
    let message = |number| json!({"role": "assistant", "content": format!("message {number}")});
    (1..=count).map(message).collect()
}

/// A random identifier.
fn uuid(rng: &mut StdRng) -> String {
    let hex = format!("{:032x}", rng.random::<u128>());
    let parts = [
        &hex[..8],
        &hex[8..12],
        &format!("4{}", &hex[13..16]),
        &format!("8{}", &hex[17..20]),
        &hex[20..],
    ];
    parts.join("-")
}
