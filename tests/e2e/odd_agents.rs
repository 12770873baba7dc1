//! Agents that do what no agent should. Whatever it is: the run ends, with an error that says what
//! happened, nothing of the agent is left, and the log has all that it said. Each is the demo agent,
//! run by a real executor.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::{self, is_terminal, prompt, session_of, text};
use crate::http::Request;
use crate::server::{ExecutorOptions, Place, Process, Server, executor, none_marked, resident_kib};
use crate::wait::eventually;

/// A flood alone takes some twenty seconds of an unoptimised agent's own time.
const LIMIT: Duration = Duration::from_mins(5);
/// A cancel with a living executor takes no longer, see rules R14; a loaded machine gets some more.
const CANCEL: Duration = Duration::from_secs(20);
/// What a flood may cost an executor above its idle memory.
const FLOOD_KIB: u64 = 150 * 1024;

/// A server with one executor, and a session.
struct Stage {
    server: Server,
    worker: Process,
    session: String,
}

/// A run that has ended, and the log by then.
struct Played {
    run: Value,
    log: Vec<Value>,
}

impl Stage {
    async fn set(session: Value) -> Self {
        let place = Arc::new(Place::new());
        let server = Server::start(&place).await;
        let worker = executor(&place, &server.url(), &ExecutorOptions::named("x1"));
        let session = session_of(server.address, &session).await;
        Self {
            server,
            worker,
            session,
        }
    }

    async fn yolo() -> Self {
        Self::set(json!({"approval_policy": "yolo"})).await
    }

    async fn interactive() -> Self {
        Self::set(json!({"approval_policy": "interactive"})).await
    }

    fn address(&self) -> SocketAddr {
        self.server.address
    }

    async fn begin(&self, script: &str) -> String {
        prompt(self.address(), &self.session, script).await.0
    }

    async fn has_said(&self, run: &str, words: &str) {
        api::has_said(self.address(), &self.session, run, words).await;
    }

    /// Waits for questions that are open at the same time.
    async fn asked(&self, count: usize) -> Vec<Value> {
        let look = async || {
            let path = "/interactions?status=pending";
            let open = api::list(self.address(), path, "interactions").await;
            (open.len() == count).then_some(open)
        };
        eventually("the questions are open", LIMIT, look).await
    }

    async fn resolve(&self, question: &Value, approved: bool) {
        let id = text(question, "interaction_id");
        let answer = json!({"approved": approved});
        let path = format!("/interactions/{id}/resolve");
        Request::post(path, &answer).send(self.address()).await.ok();
    }

    /// Waits for the end of a run and checks what holds for every end.
    async fn ended(&self, run: &str) -> Played {
        let address = self.address();
        let look = async || {
            let run = api::run(address, run).await;
            is_terminal(&run).then_some(run)
        };
        let ended = eventually("the run ends", LIMIT, look).await;
        none_marked(&format!("TAPEDECK_RUN={run}"), CANCEL).await;
        let log = api::log(address, &self.session).await;
        api::assert_dense(&log);
        let of_run = |kind: &str| {
            let events = log.iter().filter(|event| event["run_id"] == json!(run));
            let events = events.filter(|event| event["kind"] == kind);
            events
                .map(|event| event["payload"]["call_id"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(of_run("TurnEnd").len(), 1);
        let (mut begun, mut finished) = (of_run("ToolCallBegin"), of_run("ToolCallEnd"));
        begun.sort_by_key(Value::to_string);
        finished.sort_by_key(Value::to_string);
        assert_eq!(begun, finished, "every call ends once");
        let open = api::list(address, "/interactions?status=pending", "interactions").await;
        assert!(open.is_empty(), "{open:?}");
        Played { run: ended, log }
    }

    async fn play(&self, script: &str) -> Played {
        let run = self.begin(script).await;
        self.ended(&run).await
    }

    /// The same executor serves the same session as before.
    async fn goes_on(mut self) {
        let after = self.play("say as before").await;
        after.is("completed");
        assert_eq!(after.said(), "as before");
        assert!(self.worker.exited().is_none());
    }
}

impl Played {
    #[track_caller]
    fn is(&self, status: &str) {
        let found = (&self.run["status"], &self.run["attempt"]);
        assert_eq!(found, (&json!(status), &json!(1)), "{}", self.run);
    }

    /// It failed, and says why in these words.
    #[track_caller]
    fn failed(&self, words: &[&str]) {
        self.is("failed");
        let error = text(&self.run, "error");
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    }

    fn said(&self) -> String {
        api::said(&self.log, &text(&self.run, "run_id"))
    }

    /// How the tool calls ended.
    fn calls(&self) -> Vec<String> {
        let ends = self.log.iter().filter(|event| {
            event["kind"] == "ToolCallEnd" && event["run_id"] == self.run["run_id"]
        });
        ends.map(|event| text(&event["payload"], "status"))
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_before_in_and_after_a_tool_call_fails_the_run_and_keeps_what_was_said() {
    let stage = Stage::yolo().await;
    for (script, calls) in [
        ("say begin; crash; tool grep", &[][..]),
        (
            "say begin; begin grep {\"for\": \"x\"}; crash",
            &["unknown"],
        ),
        ("say begin; tool grep; crash", &["completed"]),
    ] {
        let played = stage.play(script).await;
        played.failed(&["agent_exited", "SIGABRT", "session/prompt"]);
        assert_eq!(played.said(), "begin", "{script}");
        assert_eq!(played.calls(), calls, "{script}");
    }
    let played = stage.play("say begin; crash 7").await;
    played.failed(&["agent_exited", "status 7"]);
    stage.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_in_mid_turn_is_no_success() {
    let stage = Stage::yolo().await;
    let played = stage.play("say begin; spawn; begin grep; exit").await;
    played.failed(&["agent_exited", "status 0", "session/prompt"]);
    assert!(played.said().starts_with("begin"));
    assert_eq!(played.calls(), ["unknown"]);
    stage.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_ends_with_the_silence_that_the_session_allows() {
    let target = json!({"constraints": {"idle_timeout_seconds": 2}});
    let session = json!({"approval_policy": "yolo", "run_target": target});
    let stage = Stage::set(session).await;
    let played = stage.play("say begin; spawn; begin grep; hang").await;
    played.failed(&["agent_idle_timeout", "2 s"]);
    assert_eq!(played.calls().len(), 1);
    stage.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_ten_mib_is_taken_whole_and_one_of_forty_is_refused_by_name() {
    const TEN: usize = 10 << 20;
    let stage = Stage::yolo().await;
    let played = stage.play(&format!("say begin; long {TEN}; say end")).await;
    played.is("completed");
    let said = played.said();
    assert_eq!(said.len(), "begin".len() + TEN + "end".len());
    assert_eq!(said.bytes().filter(|byte| *byte == b'x').count(), TEN);
    let played = stage.play(&format!("say begin; long {}", 40 << 20)).await;
    played.failed(&["agent_line_too_long", "33554432 bytes"]);
    assert_eq!(played.said(), "begin");
    stage.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_stdout_is_counted_and_harms_nothing() {
    let stage = Stage::yolo().await;
    let played = stage.play("say begin; noise; tool grep; say end").await;
    played.is("completed");
    assert_eq!(played.said(), "beginend");
    let noise = &played.run["result"]["noise"];
    assert_eq!(noise["lines"], 4, "{}", played.run);
    assert_eq!(noise["first"][0], "this line is no JSON-RPC");
    stage.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permission_asked_while_cancelling_is_answered_at_once_and_asks_nobody() {
    let stage = Stage::interactive().await;
    let run = stage.begin("say begin; late-ask edit; say never").await;
    stage.has_said(&run, "begin").await;
    let cancelled = cancel(&stage, &run).await;
    let played = stage.ended(&run).await;
    assert!(cancelled.elapsed() < CANCEL);
    played.is("cancelled");
    assert_eq!(played.said(), "begin");
    // The agent had its answer and ended its turn by itself.
    assert_eq!(played.run["result"]["stop_reason"], "cancelled");
    let asked = api::list(stage.address(), "/interactions", "interactions").await;
    assert!(asked.is_empty(), "{asked:?}");
    stage.goes_on().await;
}

/// Cancels a run; gives the time before.
async fn cancel(stage: &Stage, run: &str) -> Instant {
    let begun = Instant::now();
    let path = format!("/runs/{run}/cancel");
    let answer = Request::post(path, &json!({})).send(stage.address()).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    begun
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_permissions_at_once_are_two_questions_with_two_answers() {
    let stage = Stage::interactive().await;
    let run = stage.begin("two-asks; say end").await;
    let open = stage.asked(2).await;
    let of = |tool: &str| {
        let of = |open: &&Value| open["request"]["tool_call"]["tool_name"] == tool;
        open.iter().find(of).unwrap()
    };
    // In the other order than they were asked in.
    stage.resolve(of("second"), true).await;
    stage.asked(1).await;
    stage.resolve(of("first"), false).await;
    let played = stage.ended(&run).await;
    played.is("completed");
    let expected = "`first` was not allowed; going on without it.\n`second` was allowed.\nend";
    assert_eq!(played.said(), expected);
    assert_eq!(played.calls(), ["failed", "completed"]);

    // A cancel takes both back.
    let run = stage.begin("two-asks; say never").await;
    stage.asked(2).await;
    cancel(&stage, &run).await;
    let played = stage.ended(&run).await;
    played.is("cancelled");
    assert_eq!(played.said(), "");
    stage.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_ignores_a_cancel_is_killed_and_its_run_is_cancelled_in_time() {
    let stage = Stage::yolo().await;
    let run = stage
        .begin("say begin; spawn; begin grep; ignore-cancel 300")
        .await;
    stage.has_said(&run, "tick 1\n").await;
    let cancelled = cancel(&stage, &run).await;
    let played = stage.ended(&run).await;
    assert!(cancelled.elapsed() < CANCEL, "{:?}", cancelled.elapsed());
    played.is("cancelled");
    assert_eq!(played.calls(), ["cancelled"]);
    // The executor did it, and not the server's deadline.
    assert_eq!(played.run["recovery_reason"], Value::Null);
    stage.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_a_hundred_thousand_updates_is_kept_whole_in_little_memory() {
    const UPDATES: u64 = 100_000;
    let stage = Stage::yolo().await;
    stage.play("say warm").await.is("completed");
    let idle = resident_kib(stage.worker.pid);
    let run = stage.begin(&format!("flood {UPDATES}; say end")).await;
    let mut most = idle;
    let look = async || {
        most = most.max(resident_kib(stage.worker.pid));
        let run = api::run(stage.address(), &run).await;
        is_terminal(&run).then_some(())
    };
    eventually("the flood ends", LIMIT, look).await;
    let played = stage.ended(&run).await;
    played.is("completed");
    let expected = format!("{}end", api::numbered("update", UPDATES));
    assert!(played.said() == expected, "something is missing or doubled");
    eprintln!("idle {idle} KiB, at most {most} KiB");
    assert!(most - idle <= FLOOD_KIB, "idle {idle} KiB, {most} KiB");
    stage.goes_on().await;
}
