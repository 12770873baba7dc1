//! The ACP backend against a scripted agent in a process of its own: turns, questions and ends.

mod support;

use std::time::Duration;

use serde_json::json;
use support::stage::{NONE, Stage, approved, denied};
use support::{Fixture, connections, eventually, processes_with, unique_seconds};
use tapedeck_executor::backend::acp::{AcpBackend, AcpOptions};
use tapedeck_executor::backend::{
    Answer, ApprovalPolicy, Backend, FailureCode, OutcomeStatus, Scope,
};
use tokio::time::Instant;

#[tokio::test]
async fn a_turn_completes_with_its_events_in_order() {
    let tool = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "ls",
        "kind": "execute", "status": "pending", "rawInput": {"command": "ls"}});
    let done = json!({"sessionUpdate": "tool_call_update", "toolCallId": "t",
        "status": "completed", "rawOutput": "a b"});
    let played = Stage::with(json!({"options": {"early": true, "late": true}, "steps": [
        ["echo_prompt"], ["update", tool], ["update", done], ["say", " done"],
        ["update", {"sessionUpdate": "something_new", "x": 1}]]}))
    .play()
    .await;
    assert_eq!(
        played.outcome.status,
        OutcomeStatus::Completed,
        "{:?}",
        played.outcome
    );
    assert_eq!(played.outcome.result["stop_reason"], "end_turn");
    assert_eq!(played.outcome.result["continuity"], "new");
    assert_eq!(played.text(), "early context: do it done");
    let expected = [
        "StreamDelta",
        "StreamDelta",
        "ToolCallBegin",
        "ToolCallDelta",
        "ToolResultDelta",
        "ToolCallEnd",
        "StreamDelta",
        "agent.raw",
    ];
    assert_eq!(played.kinds(), expected);
    let state = played.outcome.agent_state.clone().unwrap();
    assert_eq!(state["session_id"], "s1");
    assert_eq!(state["agent_name"], "scripted");
    assert_eq!(state["agent_version"], "1.2");
    assert!(state["place"].is_string(), "{state}");
    let hello = &played.received("initialize")[0]["params"];
    assert_eq!(hello["protocolVersion"], 1);
    assert_ne!(hello["clientCapabilities"]["terminal"], true);
    assert_ne!(hello["clientCapabilities"]["fs"]["writeTextFile"], true);
    let new = &played.received("session/new")[0]["params"];
    assert_eq!(new["cwd"].as_str(), played.fixture.workspace.to_str());
    assert_eq!(new["mcpServers"], json!([]));
}

/// Programs that cut a text in the middle of a character write one half of it.
#[tokio::test]
async fn half_a_character_costs_no_more_than_itself() {
    let chunk = |text: &str| {
        let update = json!({"sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": text}});
        let params = json!({"sessionId": "s1", "update": update});
        json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string()
    };
    let half = chunk("one HALF two").replace("HALF", "\\ud83d");
    let asked = json!({"jsonrpc": "2.0", "id": 77, "method": "session/request_permission",
        "params": {"sessionId": "s1", "toolCall": {"toolCallId": "t", "title": "HALF"},
            "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]}});
    let asked = asked.to_string().replace("HALF", "\\ude00");
    let steps = json!([["raw", format!("{half}\n{asked}\n")], ["outcome", 77]]);
    let (running, mut ends) = Stage::new(&steps).begin(100);
    let (question, reply) = ends.asked.recv().await.unwrap();
    assert_eq!(question.tool_name, "\u{fffd}");
    reply.send(approved(Scope::Once)).unwrap();
    let played = running.finish(&mut ends).await;
    assert_eq!(played.text(), "one \u{fffd} two answer yes");
}

#[tokio::test]
async fn reports_of_no_known_shape_end_nothing_and_are_kept_whole() {
    let unknown = json!({"sessionUpdate": "something_new", "x": 1});
    let mut odd = Vec::new();
    for params in [
        json!("x"),
        json!([1]),
        json!({"sessionId": "s1", "update": "x"}),
    ] {
        let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
        odd.push(json!(["raw", format!("{line}\n")]));
    }
    odd.push(json!(["update", unknown]));
    odd.push(json!(["say", "done"]));
    let played = Stage::new(&json!(odd)).play().await;
    assert_eq!(played.text(), "done");
    let last = played
        .events
        .iter()
        .rfind(|event| event.kind == "agent.raw");
    assert_eq!(last.unwrap().payload, json!({ "update": unknown }));
}

#[tokio::test]
async fn a_permission_is_answered_by_the_kind_of_option() {
    for (answer, option) in [
        (approved(Scope::Once), "the-allow_once"),
        (approved(Scope::Always), "the-allow_always"),
        (denied(), "the-reject_once"),
        (Answer::Cancelled, "cancelled"),
    ] {
        let (running, mut ends) = Stage::new(&json!([["ask", "t", "rm x"]])).begin(100);
        let (question, reply) = ends.asked.recv().await.unwrap();
        assert_eq!(question.request_id, "permission-1");
        assert_eq!(
            (question.tool_name.as_str(), &question.arguments),
            ("rm x", &json!({"n": 1}))
        );
        assert_eq!(question.call_id.as_deref(), Some("t"));
        assert_eq!(question.options.len(), 4);
        reply.send(answer).unwrap();
        let played = running.finish(&mut ends).await;
        assert_eq!(played.text(), format!("answer {option}"));
        // The request was the first and last that was heard of the call.
        let expected = [
            "ToolCallBegin",
            "ToolCallDelta",
            "StreamDelta",
            "ToolCallEnd",
        ];
        assert_eq!(played.kinds(), expected);
        assert_eq!(played.events[3].payload["status"], "unknown");
    }
}

#[tokio::test]
async fn two_permissions_are_open_at_once_and_may_be_answered_in_any_order() {
    let (running, mut ends) = Stage::new(&json!([["ask_two"]])).begin(100);
    let (first, first_reply) = ends.asked.recv().await.unwrap();
    let (second, second_reply) = ends.asked.recv().await.unwrap();
    // Each is asked in a task of its own, so they may come in either order.
    let reply_of = |name: &str| usize::from(first.tool_name != name);
    assert_ne!(first.request_id, second.request_id);
    let mut replies = [Some(first_reply), Some(second_reply)];
    let two = replies[reply_of("two")].take().unwrap();
    two.send(approved(Scope::Once)).unwrap();
    let one = replies[reply_of("one")].take().unwrap();
    one.send(denied()).unwrap();
    let played = running.finish(&mut ends).await;
    assert_eq!(played.text(), "answers the-reject_once the-allow_once");
}

#[tokio::test]
async fn what_only_reads_passes_unasked_under_the_auto_policy() {
    let mut stage = Stage::new(&json!([
        ["ask", "t", "look", "read"],
        ["ask", "u", "do", "execute"]
    ]));
    stage.turn.approval_policy = ApprovalPolicy::Auto;
    let (running, mut ends) = stage.begin(100);
    let (question, reply) = ends.asked.recv().await.unwrap();
    assert_eq!(question.tool_name, "do");
    reply.send(denied()).unwrap();
    let played = running.finish(&mut ends).await;
    assert_eq!(played.text(), "answer the-allow_onceanswer the-reject_once");
}

#[tokio::test]
async fn a_withdrawn_permission_is_dropped_and_answered() {
    let played = Stage::new(&json!([["ask_and_withdraw"]])).play().await;
    assert_eq!(played.text(), "answer error -32800");
    assert_eq!(played.outcome.status, OutcomeStatus::Completed);
}

#[tokio::test]
async fn unknown_requests_are_refused_and_noise_is_counted_and_not_answered() {
    let played = Stage::new(&json!([
        ["raw", "Loading...\n\u{ff}\u{fe}\n[1,2]\n\n"],
        ["raw", "{\"jsonrpc\":\"2.0\",\"method\":\"_x/y\"}\n"],
        ["request", "fs/write_text_file"]
    ]))
    .play()
    .await;
    assert_eq!(played.text(), "code -32601");
    assert_eq!(played.outcome.status, OutcomeStatus::Completed);
    assert_eq!(played.outcome.result["noise"]["lines"], 3);
    assert_eq!(
        played.outcome.result["noise"]["first"][1],
        "\u{fffd}\u{fffd}"
    );
}

#[tokio::test]
async fn a_cancel_answers_open_questions_and_ends_with_the_agents_word() {
    let (running, mut ends) =
        Stage::new(&json!([["ask", "t", "rm x"], ["await_cancel"]])).begin(100);
    let (_question, reply) = ends.asked.recv().await.unwrap();
    ends.cancel.cancel();
    let played = running.finish(&mut ends).await;
    assert!(reply.is_closed());
    assert_eq!(played.outcome.status, OutcomeStatus::Cancelled);
    assert_eq!(played.outcome.result["stop_reason"], "cancelled");
    assert_eq!(played.text(), "answer cancelled");
    assert_eq!(played.received("session/cancel").len(), 1);
    assert_eq!(played.events.last().unwrap().payload["status"], "cancelled");
}

#[tokio::test]
async fn an_agent_that_ignores_a_cancel_is_killed_with_all_its_tools() {
    let seconds = unique_seconds();
    let stage = Stage::with(json!({"options": {"ignore_signals": true},
        "steps": [["say", "x"], ["tool_command", seconds], ["hang"]]}));
    let (running, mut ends) = stage.begin(100);
    let sleep = format!("sleep\0{seconds}\0");
    eventually("the tool command", || !processes_with(&sleep).is_empty()).await;
    ends.cancel.cancel();
    let cancelled = Instant::now();
    let played = running.finish(&mut ends).await;
    assert_eq!(played.outcome.status, OutcomeStatus::Cancelled);
    assert!(
        cancelled.elapsed() < Duration::from_secs(10),
        "{:?}",
        cancelled.elapsed()
    );
    assert_eq!(processes_with(&seconds), NONE);
}

#[tokio::test]
async fn a_lost_claim_kills_at_once_and_nothing_more_is_sent() {
    let seconds = unique_seconds();
    let stage = Stage::with(json!({"options": {"ignore_signals": true},
        "steps": [["ask", "t", "x"], ["hang"]], "seconds": seconds}));
    let (running, mut ends) = stage.begin(100);
    let (_question, reply) = ends.asked.recv().await.unwrap();
    ends.kill.cancel();
    let killed = Instant::now();
    let played = running.finish(&mut ends).await;
    assert!(
        killed.elapsed() < Duration::from_secs(3),
        "{:?}",
        killed.elapsed()
    );
    assert!(reply.is_closed());
    assert_eq!(played.outcome.status, OutcomeStatus::Cancelled);
    assert_eq!(played.kinds(), ["ToolCallBegin", "ToolCallDelta"]);
    assert_eq!(processes_with(&seconds), NONE);
}

#[tokio::test]
async fn a_passed_deadline_is_a_failure_that_says_so() {
    let (running, mut ends) = Stage::new(&json!([["say", "x"], ["hang"]])).begin(100);
    ends.events.recv().await.unwrap();
    ends.lease.send_replace(Instant::now());
    let played = running.finish(&mut ends).await;
    played.assert_failed(
        FailureCode::AgentExited,
        "its lease was not renewed in time",
    );
}

#[tokio::test]
async fn a_crash_in_mid_turn_names_the_exit_status_and_the_end_of_stderr() {
    let tool = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "ls"});
    let mut stage = Stage::new(&json!([
        ["update", tool],
        ["stderr", "panic: key sk-very-secret\n"],
        ["exit", 3]
    ]));
    stage.pairs = vec![("X_API_KEY".to_owned(), "sk-very-secret".to_owned())];
    let played = stage.play().await;
    let text = "the agent exited with status 3 before it answered `session/prompt`; \
                stderr: panic: key [redacted]";
    played.assert_failed(FailureCode::AgentExited, text);
    assert_eq!(played.kinds(), ["ToolCallBegin", "ToolCallEnd"]);
    assert_eq!(played.events[1].payload["status"], "unknown");
    assert!(played.outcome.agent_state.is_some());
}

#[tokio::test]
async fn errors_of_the_agent_fail_the_turn() {
    let error = json!({"code": 400, "message": "model says no", "data": {"hint": "quota"}});
    let played = Stage::new(&json!([["say", "x"], ["error", error]]))
        .play()
        .await;
    let text = "`session/prompt` failed: model says no (code 400); {\"hint\":\"quota\"}";
    played.assert_failed(FailureCode::AgentError, text);

    let played = Stage::new(&json!([])).play().await;
    played.assert_failed(FailureCode::AgentSilent, "(`end_turn`) without any output");

    let played = Stage::with(json!({"options": {"version": 2}})).play().await;
    played.assert_failed(
        FailureCode::AgentProtocol,
        "speaks protocol version 2, not 1",
    );
}

#[tokio::test]
async fn a_line_of_33_mib_fails_the_turn_by_name() {
    let played = Stage::new(&json!([["say", "x"], ["long_line", 33 << 20]]))
        .play()
        .await;
    played.assert_failed(FailureCode::AgentLineTooLong, "agent_line_too_long: ");
    assert!(played.took < Duration::from_secs(20), "{:?}", played.took);
}

#[tokio::test]
async fn a_full_event_queue_stops_the_agent_and_nothing_is_lost() {
    let (running, mut ends) = Stage::new(&json!([["flood", 20_000]])).begin(8);
    let progress = running.fixture.workspace.join("progress");
    let at = || {
        std::fs::read_to_string(&progress)
            .ok()
            .and_then(|text| text.parse::<u32>().ok())
    };
    // The queue and the pipe are full when the agent no longer gets on.
    let mut last = (at(), Instant::now());
    eventually("the agent to be held up", || {
        if at() != last.0 {
            last = (at(), Instant::now());
        }
        last.0.is_some() && last.1.elapsed() > Duration::from_millis(500)
    })
    .await;
    assert!(at().unwrap() < 10_000, "{:?}", at());
    let played = running.finish(&mut ends).await;
    let text = played.text();
    assert!(
        text.split_whitespace()
            .eq((0..20_000).map(|number| number.to_string()))
    );
    assert_eq!(played.outcome.status, OutcomeStatus::Completed);
}

#[tokio::test]
async fn a_full_event_queue_holds_up_neither_an_answer_nor_a_cancel() {
    let (running, mut ends) = Stage::new(&json!([
        ["ask", "t", "x"],
        ["flood_aside", 20_000],
        ["await_cancel"]
    ]))
    .begin(2);
    let (_question, reply) = ends.asked.recv().await.unwrap();
    // The queue holds the call's two events and is full.
    reply.send(approved(Scope::Once)).unwrap();
    let progress = running.fixture.workspace.join("progress");
    eventually("the answer to arrive", || progress.exists()).await;
    ends.cancel.cancel();
    let log = running.fixture.workspace.join("received.jsonl");
    eventually("the cancel to arrive", || {
        std::fs::read_to_string(&log)
            .unwrap()
            .contains("session/cancel")
    })
    .await;
    let played = running.finish(&mut ends).await;
    assert_eq!(played.outcome.status, OutcomeStatus::Cancelled);
    assert!(
        std::fs::read_to_string(log)
            .unwrap()
            .contains("session/cancel")
    );
}

#[tokio::test]
async fn silence_ends_a_turn_but_an_open_question_is_no_silence() {
    let mut stage = Stage::new(&json!([["ask", "t", "x"], ["hang"]]));
    stage.turn.limits.idle = Some(Duration::from_secs(2));
    stage.options.cancel_grace = Duration::from_millis(100);
    let (mut running, mut ends) = stage.begin(100);
    let (_question, reply) = ends.asked.recv().await.unwrap();
    let early = tokio::time::timeout(Duration::from_secs(3), &mut running.outcome).await;
    assert!(early.is_err(), "{early:?}");
    reply.send(approved(Scope::Once)).unwrap();
    let played = running.finish(&mut ends).await;
    played.assert_failed(FailureCode::AgentIdle, "wrote nothing for 2 s");
    assert!(played.took >= Duration::from_secs(5), "{:?}", played.took);
}

#[tokio::test]
async fn a_turn_that_takes_too_long_is_ended() {
    let mut stage = Stage::new(&json!([["say", "x"], ["await_cancel"]]));
    stage.turn.limits.total = Some(Duration::from_secs(1));
    let played = stage.play().await;
    played.assert_failed(FailureCode::TurnTimeout, "longer than 1 s");
}

#[tokio::test]
async fn an_agent_that_cannot_be_started_is_a_failure_with_its_name() {
    let stage = Stage::new(&json!([]));
    let (io, _ends) = connections(10);
    let launcher = stage.fixture.launcher.clone();
    let environment = Fixture::environment();
    let backend = AcpBackend::new(
        "no-such-agent --acp",
        environment,
        launcher,
        AcpOptions::default(),
    );
    let outcome = backend.unwrap().run(stage.turn, io).await;
    assert_eq!(
        outcome.failure.as_ref().unwrap().code,
        FailureCode::AgentStart
    );
    assert!(
        outcome
            .error()
            .unwrap()
            .contains("cannot start `no-such-agent`")
    );
}
