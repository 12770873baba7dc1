//! Random runs with every mixture of uploads, own entries and snapshots, cut at any point in every
//! way a run can end; after each, what the next run gets is looked at.

use std::collections::BTreeSet;

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_domain::SessionId;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::Ending;
use tapedeck_domain::tape::TapeEntry;
use tapedeck_domain::tape::upload::UploadedEntry;

use super::{assert_answered, own, send, snapshot, upload};
use crate::control::{Claim, NAMESPACE, TestControl};
use crate::restore::{checkpoint, tape};
use crate::seed::Seed;

/// Sessions of a test, each with several runs.
const STORIES: u32 = 12;
const RUNS: usize = 5;
const STEPS: usize = 14;

struct Story<'a> {
    t: &'a TestControl,
    rng: StdRng,
    session: SessionId,
    /// Calls that were begun by this attempt, by any way.
    calls: Vec<String>,
    /// Ids are an agent's own and never come again.
    next_call: usize,
    what: String,
}

pub(super) async fn play(t: &TestControl) {
    let seed = Seed::of_this_run();
    for number in 0..Seed::cases(STORIES) {
        let mut settings = SessionSettings::default();
        settings.run_target.constraints.max_attempts = Some(2);
        let mut story = Story {
            t,
            rng: seed.of(u64::from(number)),
            session: t.session_with(settings).await,
            calls: Vec::new(),
            next_call: 0,
            what: format!("story {number} ({seed})"),
        };
        for run in 0..RUNS {
            story.run(run).await;
        }
        let gone = t
            .control
            .delete_session(NAMESPACE, story.session, true)
            .await;
        gone.unwrap();
    }
}

impl Story<'_> {
    fn pick(&mut self, of: usize) -> usize {
        self.rng.random_range(0..of)
    }

    fn new_call(&mut self) -> String {
        self.next_call += 1;
        let id = format!("call-{}", self.next_call);
        self.calls.push(id.clone());
        id
    }

    fn any_call(&mut self) -> String {
        match self.calls.len() {
            0 => self.new_call(),
            len => {
                let index = self.pick(len);
                self.calls[index].clone()
            }
        }
    }

    async fn run(&mut self, number: usize) {
        let t = self.t;
        if number > 0 && self.pick(2) == 0 {
            t.resume(self.session).await.unwrap();
        } else {
            t.prompt(self.session).await;
        }
        let mut claim = t.claim("e1").await;
        self.look(&claim);
        let steps = self.pick(STEPS);
        self.work(&claim, steps).await;
        if self.pick(4) == 0 {
            // The executor is lost, and another attempt begins.
            t.beat(&claim).await.unwrap();
            t.pass(61_000).await;
            t.sweep().await;
            claim = t.claim("e2").await;
            self.look(&claim);
            let steps = self.pick(STEPS);
            self.work(&claim, steps).await;
        }
        self.end(&claim).await;
        self.check_tape(self.session).await;
        if self.pick(3) == 0 {
            self.go_elsewhere().await;
        }
    }

    async fn work(&mut self, claim: &Claim, steps: usize) {
        self.calls.clear();
        for _ in 0..steps {
            match self.pick(10) {
                0 => {
                    let entries = self.entries();
                    send(self.t, claim, entries).await.unwrap();
                }
                1 => {
                    let messages = self.messages();
                    snapshot(self.t, claim, messages).await;
                }
                _ => {
                    let event = self.event();
                    upload(self.t, claim, &[event]).await;
                }
            }
        }
    }

    fn event(&mut self) -> (&'static str, Value) {
        match self.pick(9) {
            0 => ("StreamDelta", json!({"content": "a", "role": "assistant"})),
            1 => ("ThinkingDelta", json!({"text": "hm"})),
            2 => ("Plan", json!({"entries": []})),
            3 | 4 => {
                let id = self.new_call();
                (
                    "ToolCallBegin",
                    json!({"call_id": id, "tool_name": "shell"}),
                )
            }
            5 => {
                let id = self.any_call();
                (
                    "ToolCallDelta",
                    json!({"call_id": id, "arguments": {"n": 1}}),
                )
            }
            // Results may come late and in pieces, and some agents end a call before its result.
            6 | 7 => {
                let id = self.any_call();
                (
                    "ToolResultDelta",
                    json!({"call_id": id, "display_result": "r", "is_error": false}),
                )
            }
            _ => {
                let id = self.any_call();
                let status = ["completed", "failed"].get(self.pick(3)).copied();
                ("ToolCallEnd", json!({"call_id": id, "status": status}))
            }
        }
    }

    /// An executor's own entries, with and without results.
    fn entries(&mut self) -> Vec<UploadedEntry> {
        let mut entries = vec![own("assistant_message", json!({"text": "own"}))];
        for _ in 0..self.pick(3) {
            let id = self.new_call();
            let mut call = json!({"call_id": id, "tool_name": "shell", "arguments": {}});
            let form = self.pick(3);
            if form == 0 {
                call["result"] = json!("at once");
            }
            entries.push(own("tool_call", call));
            if form == 1 {
                entries.push(own(
                    "tool_result",
                    json!({"call_id": id, "result": "apart"}),
                ));
            }
        }
        if self.pick(3) == 0 {
            entries.push(own("anchor", json!({"note": self.next_call})));
        }
        // Two batches of a run may look alike; each is a new one.
        entries[0].payload["n"] = json!(self.rng.random::<u64>());
        entries
    }

    /// Provider messages of both common forms, cut anywhere and with answers lost and doubled.
    fn messages(&mut self) -> Vec<Value> {
        let mut messages = vec![json!({"role": "user", "content": "do it"})];
        for _ in 0..self.pick(4) {
            let ids: Vec<_> = (0..=self.pick(2)).map(|_| self.new_call()).collect();
            let by_blocks = self.pick(2) == 0;
            let answers = |id: &String| {
                if by_blocks {
                    json!({"type": "tool_result", "tool_use_id": id, "content": "r"})
                } else {
                    json!({"role": "tool", "tool_call_id": id, "content": "r"})
                }
            };
            let mut answered = Vec::new();
            for id in &ids {
                for _ in 0..self.pick(3) {
                    answered.push(answers(id));
                }
            }
            if by_blocks {
                let used = ids.iter().map(|id| json!({"type": "tool_use", "id": id}));
                let content = used.collect::<Vec<_>>();
                messages.push(json!({"role": "assistant", "content": content}));
                messages.push(json!({"role": "user", "content": answered}));
            } else {
                let calls = ids.iter().map(|id| json!({"id": id})).collect::<Vec<_>>();
                messages.push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
                messages.extend(answered);
            }
        }
        let cut = 1 + self.pick(messages.len());
        messages.truncate(cut);
        messages
    }

    async fn end(&mut self, claim: &Claim) {
        let t = self.t;
        let settled = match self.pick(8) {
            0 => t.settle(claim, Ending::Completed).await,
            1 => t.settle(claim, Ending::Failed).await,
            2 => match t.settle(claim, Ending::Interrupted).await {
                // Another attempt is left, and is given back as well.
                Ok(run) if run.status == RunStatus::Requested => {
                    let last = t.claim("e3").await;
                    self.look(&last);
                    let steps = self.pick(STEPS);
                    self.work(&last, steps).await;
                    t.settle(&last, Ending::Interrupted).await
                }
                settled => settled,
            },
            3 => {
                let cancelled = t
                    .control
                    .cancel_session(NAMESPACE, self.session, "client")
                    .await;
                cancelled.unwrap();
                t.settle(claim, Ending::Cancelled).await
            }
            4 => {
                let entries = self.entries();
                let batch = super::EntryBatch::check(claim.run_id(), entries).unwrap();
                let settle = super::cases::settle(claim.proof.clone(), Some(batch));
                t.control.settle_run(settle).await
            }
            5 => {
                // A cancel that the executor doesn't live to see.
                t.beat(claim).await.unwrap();
                let cancelled = t
                    .control
                    .cancel_session(NAMESPACE, self.session, "client")
                    .await;
                cancelled.unwrap();
                t.pass(61_000).await;
                t.sweep().await;
                return;
            }
            6 => {
                // Another owner takes the session over, and gives it back.
                t.pass(300_000).await;
                let other = TestControl::owned_by(t.store.shared(), "server:other").await;
                other
                    .control
                    .acquire_owner(NAMESPACE, self.session)
                    .await
                    .unwrap();
                other
                    .control
                    .release_owner(NAMESPACE, self.session)
                    .await
                    .unwrap();
                return;
            }
            _ => {
                // Lost for good: as often as there are attempts.
                t.beat(claim).await.unwrap();
                t.pass(61_000).await;
                t.sweep().await;
                if let Ok(last) = t.try_claim("e3").await {
                    t.beat(&last).await.unwrap();
                    t.pass(61_000).await;
                    t.sweep().await;
                }
                return;
            }
        };
        settled.unwrap();
    }

    /// The session goes on from a checkpoint, or as a fork of itself.
    async fn go_elsewhere(&mut self) {
        let t = self.t;
        if self.pick(2) == 0 {
            let here = checkpoint(t, self.session, "here").await;
            t.prompt(self.session).await;
            let claim = t.claim("e1").await;
            let steps = self.pick(STEPS);
            self.work(&claim, steps).await;
            self.end(&claim).await;
            let id = here.checkpoint_id;
            t.control
                .restore_session(NAMESPACE, self.session, id, None)
                .await
                .unwrap();
        } else {
            let forked =
                t.control
                    .fork_session(NAMESPACE, self.session, ForkPoint::Head, None, None);
            let fork = forked.await.unwrap().session.session_id;
            self.check_tape(fork).await;
            t.control
                .delete_session(NAMESPACE, fork, false)
                .await
                .unwrap();
        }
        self.check_tape(self.session).await;
    }

    async fn check_tape(&self, session: SessionId) {
        let entries = tape(self.t, session, false).await;
        let entries: Vec<_> = entries.iter().map(TapeEntry::shown).collect();
        assert_answered(&entries, &self.what);
    }

    /// What a claimed run was given.
    fn look(&self, claim: &Claim) {
        let Some(context) = &claim.claimed.resume_context else {
            return;
        };
        assert_answered(context["tape_tail"].as_array().unwrap(), &self.what);
        if let Some(messages) = context["message_snapshot"]["messages"].as_array() {
            assert_messages_answered(messages, &self.what);
        }
    }
}

/// Fails unless every call in provider messages has exactly one answer, right behind it.
#[track_caller]
pub(super) fn assert_messages_answered(messages: &[Value], what: &str) {
    let ids = |values: &Value, kind: Option<&str>, name: &str| -> Vec<String> {
        let values = values.as_array().into_iter().flatten();
        let of_kind = values.filter(|value| kind.is_none_or(|kind| value["type"] == kind));
        of_kind
            .filter_map(|value| value[name].as_str().map(str::to_owned))
            .collect()
    };
    let mut open: BTreeSet<String> = BTreeSet::new();
    for message in messages {
        let answers = match message["role"].as_str() {
            Some("tool") => vec![message["tool_call_id"].as_str().unwrap().to_owned()],
            _ => ids(&message["content"], Some("tool_result"), "tool_use_id"),
        };
        for answer in &answers {
            assert!(
                open.remove(answer),
                "{what}: an answer to no call: {messages:#?}"
            );
        }
        if message["role"] != "tool" {
            assert!(
                open.is_empty(),
                "{what}: {open:?} have no answer: {messages:#?}"
            );
            open.extend(ids(&message["tool_calls"], None, "id"));
            open.extend(ids(&message["content"], Some("tool_use"), "id"));
        }
    }
    assert!(
        open.is_empty(),
        "{what}: {open:?} have no answer: {messages:#?}"
    );
}
