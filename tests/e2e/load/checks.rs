//! Whether everything that clients were told is so: nothing acknowledged is lost or doubled, nobody
//! saw a log that isn't the stored one, and all runs come to an end.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::hand::messages;
use super::{Captured, POOL, World, expected_words};
use crate::api::{self, Claim, is_terminal, seq, text};
use crate::http::Request;
use crate::wait::eventually;

/// For a run to be settled or offered again after all that: lease, sweep, back-off, and a machine
/// that has other things to do.
const RECOVERY: Duration = Duration::from_secs(30);

/// A log by its numbers.
struct Log(Vec<Value>);

impl Log {
    async fn read(address: SocketAddr, session: &str) -> Self {
        let log = api::log(address, session).await;
        api::assert_dense(&log);
        let id = |event: &Value| (event["run_id"].to_string(), text(event, "event_id"));
        let ids: HashSet<_> = log.iter().map(id).collect();
        assert_eq!(ids.len(), log.len(), "no event is stored twice");
        Self(log)
    }

    fn record(&self, seq: u64) -> &Value {
        &self.0[usize::try_from(seq).unwrap() - 1]
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |event| event["kind"] == kind)
    }
}

impl World {
    /// Everything that clients were told about a session's log is so. They may still be at work.
    pub(crate) async fn check_session(&self, session: &str) {
        // What was told first, then the log.
        let (told, seen, runs) = self.note(|ledger| {
            let told = ledger.events.get(session).cloned().unwrap_or_default();
            let seen: Vec<_> = (0..self.followers)
                .filter_map(|number| ledger.seen.get(&(session.to_owned(), number)).cloned())
                .collect();
            (told, seen, ledger.runs.clone())
        });
        let log = Log::read(self.somewhere(), session).await;
        let mut last = 0;
        for event in &told {
            let is = log.record(seq(event));
            assert_eq!(event, is, "an acknowledged event is there unchanged");
            assert!(seq(event) > last, "acknowledged events keep their order");
            last = seq(event);
        }
        for (expected, (id, data)) in seen.iter().flat_map(|seen| (1..).zip(seen)) {
            assert_eq!(*id, expected, "a follower sees all events once, in order");
            let is = log.record(*id);
            assert_eq!(
                (&data["event_id"], &data["type"]),
                (&is["event_id"], &is["kind"]),
                "no number was shown and used again"
            );
        }
        for (_, run, at) in runs.iter().filter(|(of, _, _)| of == session) {
            assert_eq!(
                (&log.record(*at)["kind"], &log.record(*at)["run_id"]),
                (&json!("RunRequested"), &json!(run))
            );
            let ends = log.of_kind("TurnEnd");
            let ends = ends.filter(|event| event["run_id"] == json!(run));
            assert!(ends.count() <= 1, "a run has one terminal event");
        }
    }

    /// Everything that clients were told, once they have all stopped.
    pub(crate) async fn check_all(&self) {
        for session in self.note(|ledger| ledger.sessions.clone()) {
            self.check_session(&session).await;
            self.check_places(&session).await;
        }
        self.check_lists().await;
        self.check_snapshots().await;
    }

    /// Places, restores and what they put aside, played through again.
    async fn check_places(&self, session: &str) {
        let address = self.somewhere();
        let (captured, restored, runs, entries, forked) = self.note(|ledger| {
            let runs = ledger.runs.iter().filter(|(of, _, _)| of == session);
            (
                ledger.captured.get(session).cloned().unwrap_or_default(),
                ledger.restored.get(session).cloned().unwrap_or_default(),
                runs.map(|(_, run, at)| (run.clone(), *at))
                    .collect::<Vec<_>>(),
                ledger.entries.get(session).cloned().unwrap_or_default(),
                ledger.forks.get(session).cloned(),
            )
        });
        let log = Log::read(address, session).await;
        let named = |kind: &str| {
            let events = log.of_kind(kind);
            let named = events.map(|event| text(&event["payload"], "checkpoint_id"));
            named.collect::<Vec<_>>()
        };
        let places: Vec<_> = captured
            .iter()
            .map(|place| place.checkpoint.clone())
            .collect();
        assert_eq!(named("CheckpointCaptured"), places, "each place once");
        assert_eq!(named("SessionRestored"), restored, "each restore once");

        let aside = Aside::play(&log, &captured, &runs);
        let path = format!("/sessions/{session}/checkpoints?include_superseded=true");
        let found = api::list(address, &path, "checkpoints").await;
        assert_eq!(found.len(), captured.len());
        for checkpoint in &found {
            let id = text(checkpoint, "checkpoint_id");
            let by = &checkpoint["superseded_by_checkpoint_id"];
            assert_eq!(by, &json!(aside.checkpoints.get(&id)), "{checkpoint}");
        }
        let path = format!("/sessions/{session}/runs?include_superseded=true");
        let found = api::list(address, &path, "runs").await;
        assert_eq!(found.len(), runs.len(), "no run that nobody was told of");
        for run in &found {
            let by = &run["superseded_by_checkpoint_id"];
            assert_eq!(
                by,
                &json!(aside.runs.get(&text(run, "run_id"))),
                "{run}\n{aside:?}"
            );
        }
        let tape = api::tape(address, session).await;
        for told in &entries {
            let mut same = tape
                .iter()
                .filter(|entry| entry["entry_id"] == told["entry_id"]);
            let entry = same.next().unwrap_or_else(|| panic!("lost: {told}"));
            assert!(same.next().is_none(), "twice: {told}");
            assert_eq!(
                (&entry["position"], &entry["payload"]),
                (&told["position"], &told["payload"])
            );
            let run = text(told, "run_id");
            let by = &entry["superseded_by_checkpoint_id"];
            assert_eq!(by, &json!(aside.runs.get(&run)), "{entry}");
        }
        let shown = Request::get(format!("/sessions/{session}"))
            .send(address)
            .await;
        let origin = &shown.ok()["forked_from"];
        assert_eq!(origin.is_null(), forked.is_none());
        if let Some(checkpoint) = forked {
            assert_eq!(origin["checkpoint_id"], json!(checkpoint));
        }
    }

    async fn check_lists(&self) {
        let address = self.somewhere();
        let (sessions, runs, ends, questions) = self.note(|ledger| {
            (
                ledger.sessions.clone(),
                ledger.runs.clone(),
                ledger.ends.clone(),
                ledger.questions.clone(),
            )
        });
        let found = api::list(address, "/sessions", "sessions").await;
        let found: Vec<_> = found
            .iter()
            .map(|session| text(session, "session_id"))
            .collect();
        let told: HashSet<_> = sessions.iter().collect();
        assert_eq!(found.len(), told.len(), "each session once, and no other");
        assert!(found.iter().all(|session| told.contains(session)));
        let found = api::list(address, "/runs?include_superseded=true", "runs").await;
        let found: HashMap<_, _> = found.iter().map(|run| (text(run, "run_id"), run)).collect();
        let count = runs.len();
        assert_eq!(found.len(), count, "no run exists that nobody was told of");
        for (session, run, _) in &runs {
            assert_eq!(&text(found[run], "session_id"), session);
        }
        for (run, status) in &ends {
            let is = text(found[run], "status");
            assert_eq!(&is, status, "an acknowledged end stays");
        }
        let found = api::list(address, "/interactions", "interactions").await;
        let found: HashMap<_, _> = found
            .iter()
            .map(|question| (text(question, "interaction_id"), question))
            .collect();
        for (question, status) in &questions {
            let now = text(found[question], "status");
            assert!(
                *status == now || status == "pending",
                "{question} was {status} and is {now}"
            );
        }
    }

    async fn check_snapshots(&self) {
        for (run, told) in self.note(|ledger| ledger.snapshots.clone()) {
            let path = format!("/runs/{run}/snapshot");
            let stored = Request::get(path).send(self.somewhere()).await.ok();
            // The last one may have been taken without its client hearing of it.
            let count = stored["metadata"]["count"].as_u64().unwrap();
            assert!(count == told || count == told + 1, "{count} for {told}");
            assert_eq!(stored["messages"], json!(messages(count)));
        }
    }

    /// Every run gets to its end or to an executor that asks, and every session takes a prompt.
    pub(crate) async fn check_recovery(&self) {
        let path = "/runs?include_superseded=true";
        let settled = async || {
            let runs = api::list(self.somewhere(), path, "runs").await;
            let mut stuck = runs
                .iter()
                .filter(|run| !is_terminal(run) && run["status"] != "requested");
            stuck.next().is_none().then_some(runs)
        };
        let runs = eventually("every run is settled or claimable", RECOVERY, settled).await;
        for run in runs.iter().filter(|run| run["status"] == "requested") {
            let session = Request::get(format!("/sessions/{}", text(run, "session_id")));
            let session = session.send(self.somewhere()).await.ok();
            let pool = text(&session["run_target"]["executor"], "pool");
            let claim = Claim::take(self.somewhere(), &pool).await;
            claim.complete(self.somewhere()).await;
        }
        for session in self.note(|ledger| ledger.sessions.clone()) {
            let (run, at) = api::prompt(self.somewhere(), &session, "still there?").await;
            let log = api::log(self.somewhere(), &session).await;
            assert_eq!(log.len() as u64, at, "the session takes a prompt: {run}");
        }
    }

    /// The real executors' completed runs lost nothing of what their agents said; gives how many.
    pub(crate) async fn check_words(&self) -> usize {
        let sessions = api::list(self.somewhere(), "/sessions", "sessions").await;
        let mut complete = 0;
        for session in sessions
            .iter()
            .filter(|session| session["run_target"]["executor"]["pool"] == POOL)
        {
            let log = api::log(self.somewhere(), &text(session, "session_id")).await;
            let ends = log.iter().filter(|event| event["kind"] == "TurnEnd");
            for end in ends.filter(|end| end["payload"]["run_status"] == "completed") {
                assert_eq!(api::said(&log, &text(end, "run_id")), expected_words());
                complete += 1;
            }
        }
        complete
    }
}

/// What restores have put aside, and by which checkpoint.
#[derive(Debug, Default)]
struct Aside {
    runs: HashMap<String, String>,
    checkpoints: HashMap<String, String>,
}

impl Aside {
    /// Plays a log's restores through, one after another.
    fn play(log: &Log, captured: &[Captured], runs: &[(String, u64)]) -> Self {
        let mut aside = Self::default();
        for restored in log.of_kind("SessionRestored") {
            let by = text(&restored["payload"], "checkpoint_id");
            let to = captured.iter().find(|place| place.checkpoint == by);
            let to = to.unwrap_or_else(|| panic!("of no place: {restored}")).seq;
            let between = |at: u64| at > to && at < seq(restored);
            for (run, _) in runs.iter().filter(|(_, at)| between(*at)) {
                aside.runs.entry(run.clone()).or_insert_with(|| by.clone());
            }
            for place in captured.iter().filter(|place| between(place.seq)) {
                let id = place.checkpoint.clone();
                aside.checkpoints.entry(id).or_insert_with(|| by.clone());
            }
        }
        aside
    }
}
