//! The command backend with programs in processes of their own.

#![expect(clippy::unwrap_used, reason = "test code outside of test functions")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::{Fixture, connections, eventually, processes_with, unique, unique_seconds};
use tapedeck_executor::backend::command::{CommandBackend, CommandOptions, Format, PromptVia};
use tapedeck_executor::backend::{AgentEvent, Backend, FailureCode, Outcome, OutcomeStatus};
use tokio::time::Instant;

const NONE: [i32; 0] = [];

async fn run(command: &str, via: Option<PromptVia>, prompt: &str) -> (Outcome, Vec<AgentEvent>) {
    let fixture = Fixture::new();
    let (environment, launcher) = (Fixture::environment(), fixture.launcher.clone());
    let options = CommandOptions {
        prompt: via,
        line_limit: 1 << 20,
        ..CommandOptions::default()
    };
    let backend = CommandBackend::new(command, environment, launcher, options).unwrap();
    let (io, mut ends) = connections(1000);
    let mut turn = fixture.turn(&unique("run"), "");
    prompt.clone_into(&mut turn.prompt_with_context);
    let outcome = backend.run(turn, io).await;
    let mut events = Vec::new();
    while let Some(event) = ends.events.recv().await {
        events.push(event);
    }
    (outcome, events)
}

fn text(events: &[AgentEvent]) -> String {
    events
        .iter()
        .map(|event| event.payload["content"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn lines_become_deltas_and_the_exit_code_the_result() {
    let (outcome, events) = run("sh -c 'echo one; printf two'", None, "p").await;
    assert_eq!(outcome.status, OutcomeStatus::Completed);
    assert_eq!(outcome.result, json!({"exit_code": 0, "signal": null}));
    let expected = ["one\n", "two"].map(|content| AgentEvent {
        kind: "StreamDelta".to_owned(),
        payload: json!({"content": content, "role": "assistant"}),
    });
    assert_eq!(events, expected);
}

#[tokio::test]
async fn the_prompt_arrives_whole_by_argument_stdin_and_variable() {
    let prompt = "a 'b' \"c\" $(touch x) `y`\n{prompt} *";
    let by_argument = r#"sh -c 'printf "%s" "$1"; cat' - {prompt}"#;
    let by_variable = r#"sh -c 'printf "%s" "$TAPEDECK_PROMPT"; cat'"#;
    for (command, via) in [
        (by_argument, None),
        (
            r#"sh -c 'printf "%s" "$0"; cat'"#,
            Some(PromptVia::Argument),
        ),
        ("cat", None),
        (by_variable, Some(PromptVia::Environment)),
    ] {
        let (outcome, events) = run(command, via, prompt).await;
        assert_eq!(
            outcome.status,
            OutcomeStatus::Completed,
            "{command}: {outcome:?}"
        );
        assert_eq!(text(&events), prompt, "{command}");
    }
}

#[tokio::test]
async fn a_prompt_too_long_for_an_argument_is_refused_and_passes_by_stdin() {
    let prompt = "x".repeat(200_000);
    let (outcome, _) = run("echo {prompt}", None, &prompt).await;
    assert_eq!(outcome.failure.unwrap().code, FailureCode::AgentStart);
    let (outcome, events) = run("cat", None, &prompt).await;
    assert_eq!(outcome.status, OutcomeStatus::Completed);
    assert_eq!(text(&events), prompt);
}

#[tokio::test]
async fn a_program_that_fails_says_why() {
    let (outcome, _) = run("sh -c 'echo out; echo no luck >&2; exit 4'", None, "p").await;
    assert_eq!(outcome.status, OutcomeStatus::Failed);
    assert_eq!(outcome.result["exit_code"], 4);
    assert_eq!(
        outcome.error().unwrap(),
        "agent_exited: the agent exited with status 4; stderr: no luck"
    );
    let (outcome, _) = run("sh -c 'kill -KILL $$'", None, "p").await;
    assert_eq!(outcome.result, json!({"exit_code": null, "signal": 9}));
    assert_eq!(
        outcome.error().unwrap(),
        "agent_exited: the agent was ended by SIGKILL"
    );
}

#[tokio::test]
async fn a_line_above_the_limit_fails_by_name_and_ends_the_program() {
    let seconds = unique_seconds();
    let command = format!("sh -c 'head -c 2000000 /dev/zero; sleep {seconds}'");
    let (outcome, _) = run(&command, None, "p").await;
    assert_eq!(outcome.failure.unwrap().code, FailureCode::AgentLineTooLong);
    assert_eq!(processes_with(&seconds), NONE);
}

#[tokio::test]
async fn a_cancel_interrupts_and_then_kills() {
    for (trap, exit) in [
        (
            "trap \"echo bye; exit 3\" INT",
            json!({"exit_code": 3, "signal": null}),
        ),
        (
            "trap \"\" INT TERM",
            json!({"exit_code": null, "signal": 9}),
        ),
    ] {
        let seconds = unique_seconds();
        let fixture = Fixture::new();
        let script =
            format!("{trap}; setsid sleep {seconds} & echo ready; while true; do sleep 0.05; done");
        let command = shell_words::join(["sh", "-c", &script]);
        let (environment, launcher) = (Fixture::environment(), fixture.launcher.clone());
        let backend =
            CommandBackend::new(&command, environment, launcher, CommandOptions::default())
                .unwrap();
        let (io, mut ends) = connections(1000);
        let turn = fixture.turn(&unique("run"), "p");
        let (outcome, took) = tokio::join!(backend.run(turn, io), async {
            assert_eq!(
                ends.events.recv().await.unwrap().payload["content"],
                "ready\n"
            );
            let sleep = format!("sleep\0{seconds}\0");
            eventually("the tool command", || !processes_with(&sleep).is_empty()).await;
            ends.cancel.cancel();
            let cancelled = Instant::now();
            while ends.events.recv().await.is_some() {}
            cancelled.elapsed()
        });
        assert_eq!(outcome.status, OutcomeStatus::Cancelled);
        assert_eq!(outcome.result, exit);
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!(processes_with(&seconds), NONE);
    }
}

#[tokio::test]
async fn a_silent_program_is_ended() {
    let seconds = unique_seconds();
    let fixture = Fixture::new();
    let (environment, launcher) = (Fixture::environment(), fixture.launcher.clone());
    let command = format!("sleep {seconds}");
    let backend =
        CommandBackend::new(&command, environment, launcher, CommandOptions::default()).unwrap();
    let (io, _ends) = connections(10);
    let mut turn = fixture.turn(&unique("run"), "p");
    turn.limits.idle = Some(Duration::from_millis(500));
    let outcome = backend.run(turn, io).await;
    assert_eq!(outcome.failure.unwrap().code, FailureCode::AgentIdle);
    assert_eq!(processes_with(&seconds), NONE);
}

/// A program in the format of threads, turns and items, that is told its conversation by `--again`.
async fn thread(script: &str, agent_state: Option<Value>) -> (Outcome, Vec<AgentEvent>) {
    let fixture = Fixture::new();
    fixture.name_place("here");
    let command = shell_words::join(["sh", "-c", script, "program", "{resume}", "-v"]);
    let options = CommandOptions {
        format: Format::CodexJson,
        resume: ["--again", "{session}"].map(str::to_owned).to_vec(),
        ..CommandOptions::default()
    };
    let (environment, launcher) = (Fixture::environment(), fixture.launcher.clone());
    let backend = CommandBackend::new(&command, environment, launcher, options).unwrap();
    let (io, mut ends) = connections(1000);
    let mut turn = fixture.turn(&unique("run"), "p");
    turn.agent_state = agent_state;
    let outcome = backend.run(turn, io).await;
    let mut events = Vec::new();
    while let Some(event) = ends.events.recv().await {
        events.push(event);
    }
    // It is known before the end, which may never be reported.
    if outcome.result["continuity"] != "broken" {
        let early = ends.kept.recv().await;
        assert_eq!(early, outcome.agent_state);
    }
    (outcome, events)
}

/// Shell words that print these lines.
fn printing(lines: &[Value]) -> String {
    let lines = lines.iter().map(|line| format!("echo '{line}'"));
    lines.collect::<Vec<_>>().join("; ")
}

fn said(text: &str) -> Value {
    json!({"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": text}})
}

#[tokio::test]
async fn success_is_the_programs_word_and_its_exit() {
    let (begun, over) = (
        json!({"type": "turn.started"}),
        json!({"type": "turn.completed"}),
    );
    let failed = json!({"type": "turn.failed", "error": {"message": "no credit"}});
    let retrying = json!({"type": "error", "message": "once more"});
    for (lines, exit, expected) in [
        (vec![&begun, &said("hi"), &over], 0, None),
        (vec![&begun, &retrying, &said("hi"), &over], 0, None),
        (
            vec![&begun, &over],
            0,
            Some("agent_silent: the agent ended its turn without any output"),
        ),
        (
            vec![&begun, &said("hi")],
            0,
            Some("agent_exited: the agent exited with status 0 before it ended its turn"),
        ),
        (
            vec![&begun, &said("hi"), &over],
            3,
            Some("agent_exited: the agent exited with status 3 after its turn had ended"),
        ),
        (
            vec![&begun, &said("hi"), &failed],
            0,
            Some("agent_error: no credit"),
        ),
        (vec![&begun, &retrying], 1, Some("agent_error: once more")),
        (
            vec![&begun, &over, &begun],
            0,
            Some("agent_exited: the agent exited with status 0 before it ended its turn"),
        ),
    ] {
        let lines: Vec<Value> = lines.into_iter().cloned().collect();
        let script = format!("{}; exit {exit}", printing(&lines));
        let (outcome, _) = thread(&script, None).await;
        assert_eq!(outcome.error().as_deref(), expected, "{script}");
        let completed = outcome.status == OutcomeStatus::Completed;
        assert_eq!(completed, expected.is_none(), "{script}");
    }
}

/// A program that prints these lines and ends well.
async fn printed(format: Format, lines: &[Value]) -> (Outcome, String) {
    let fixture = Fixture::new();
    let command = shell_words::join(["sh", "-c", &printing(lines)]);
    let options = CommandOptions {
        format,
        ..CommandOptions::default()
    };
    let (environment, launcher) = (Fixture::environment(), fixture.launcher.clone());
    let backend = CommandBackend::new(&command, environment, launcher, options).unwrap();
    let (io, mut ends) = connections(1000);
    let outcome = backend.run(fixture.turn(&unique("run"), "p"), io).await;
    let mut events = Vec::new();
    while let Some(event) = ends.events.recv().await {
        events.push(event);
    }
    events.retain(|event| event.kind == "StreamDelta");
    (outcome, text(&events))
}

#[tokio::test]
async fn what_stands_only_in_the_last_event_is_told_once() {
    let begun = json!({"type": "system", "subtype": "init", "session_id": "s"});
    let end = |text: &str| json!({"type": "result", "subtype": "success", "is_error": false, "result": text});
    let message =
        |block: &Value| json!({"type": "assistant", "message": {"id": "m", "content": [block]}});
    let (said, thought) = (
        message(&json!({"type": "text", "text": "four"})),
        message(&json!({"type": "thinking", "thinking": "hm"})),
    );
    let event = |event: Value| json!({"type": "stream_event", "event": event});
    let started = event(json!({"type": "message_start", "message": {"id": "m"}}));
    let piece = event(
        json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "four"}}),
    );
    for (lines, expected) in [
        (vec![&begun, &end("one dollar")], "one dollar"),
        (vec![&begun, &thought, &end("four")], "four"),
        (vec![&begun, &said, &end("four")], "four"),
        (vec![&begun, &started, &piece, &said, &end("four")], "four"),
        (vec![&begun, &end("one"), &end("one")], "one"),
    ] {
        let lines: Vec<Value> = lines.into_iter().cloned().collect();
        let (outcome, text) = printed(Format::ClaudeStreamJson, &lines).await;
        assert_eq!(outcome.error(), None, "{lines:?}");
        assert_eq!(text, expected, "{lines:?}");
    }
}

#[tokio::test]
async fn a_good_end_without_a_word_or_a_deed_is_a_failure_in_every_format() {
    for (format, end) in [
        (
            Format::ClaudeStreamJson,
            json!({"type": "result", "subtype": "success", "is_error": false, "result": ""}),
        ),
        (Format::CodexJson, json!({"type": "turn.completed"})),
        (
            Format::GeminiJson,
            json!({"type": "result", "status": "success"}),
        ),
        (
            Format::OpencodeJson,
            json!({"type": "step_finish", "part": {}}),
        ),
    ] {
        let (outcome, _) = printed(format, &[end]).await;
        let failure = outcome.failure.unwrap();
        assert_eq!(failure.code, FailureCode::AgentSilent, "{format}");
    }
}

#[tokio::test]
async fn a_line_that_is_not_understood_is_kept_whole() {
    let odd = json!({"type": "brand.new", "x": [1, {"y": null}]});
    let script = printing(&[odd.clone(), said("hi"), json!({"type": "turn.completed"})]);
    let script = format!("echo warning: old; echo '[1]'; echo; {script}");
    let (outcome, events) = thread(&script, None).await;
    assert_eq!(outcome.status, OutcomeStatus::Completed);
    let raw: Vec<_> = events
        .iter()
        .filter(|event| event.kind == "agent.raw")
        .map(|event| event.payload["line"].clone())
        .collect();
    assert_eq!(raw, [json!("warning: old"), json!("[1]"), odd]);
}

#[tokio::test]
async fn a_conversation_is_taken_up_with_the_prompt_alone() {
    let started = json!({"type": "thread.started", "thread_id": "t-1"});
    let over = json!({"type": "turn.completed"});
    // Tells its arguments and its input.
    let echo =
        r#"{"type":"item.completed","item":{"id":"i","type":"agent_message","text":"%s|%s"}}\n"#;
    let script = format!(
        "{}; printf '{echo}' \"$*\" \"$(cat)\"; {}",
        printing(&[started]),
        printing(&[over])
    );
    let (first, events) = thread(&script, None).await;
    assert_eq!(events[0].payload["content"], "-v|context: p");
    assert_eq!(first.result["continuity"], "new");
    let (second, events) = thread(&script, first.agent_state.clone()).await;
    assert_eq!(events[0].payload["content"], "--again t-1 -v|p");
    assert_eq!(second.result["continuity"], "resumed");
    assert_eq!(second.agent_state, first.agent_state);
}

#[tokio::test]
async fn a_state_that_is_not_this_programs_is_not_used() {
    let script = format!(
        "printf '{{\"type\":\"item.completed\",\"item\":{{\"type\":\"agent_message\",\"text\":\"%s\"}}}}\\n' \
         \"$*\"; {}",
        printing(&[json!({"type": "turn.completed"})])
    );
    let state = |conversation: &str, format: &str, place: &str| json!({"conversation": conversation, "format": format, "place": place});
    for (state, reason) in [
        (
            state("t-1", "codex-json", "elsewhere"),
            "the state lies with another executor",
        ),
        (
            state("t-1", "gemini-json", "here"),
            "the state is of another agent",
        ),
        (
            state("--yolo", "codex-json", "here"),
            "the state names no conversation",
        ),
        (
            json!({"session_id": "t-1"}),
            "the state is of another agent",
        ),
    ] {
        let (outcome, events) = thread(&script, Some(state)).await;
        assert_eq!(outcome.result["continuity"], "broken");
        let payload = json!({"status": "continuity_broken", "reason": reason});
        assert_eq!(events[0].payload, payload);
        assert_eq!(events[1].payload["content"], "-v", "its arguments");
    }
}
