//! What the ACP backend does for an agent: forms for a person, files and terminals.

mod support;

use serde_json::{Value, json};
use support::stage::{NONE, Stage};
use support::{eventually, processes_with, unique_seconds};
use tapedeck_executor::backend::{FormAnswer, OutcomeStatus};

fn form() -> Value {
    json!({"message": "Which one?", "toolCallId": "t", "requestedSchema": {"type": "object",
        "properties": {"pick": {"type": "string", "enum": ["a", "b"]}}, "required": ["pick"]}})
}

#[tokio::test]
async fn a_form_goes_to_a_person_and_the_answer_back() {
    for (answer, told) in [
        (
            FormAnswer::Accepted(json!({"pick": "b"})),
            json!({"action": "accept", "content": {"pick": "b"}}),
        ),
        (FormAnswer::Declined, json!({"action": "decline"})),
        (FormAnswer::Cancelled, json!({"action": "cancel"})),
    ] {
        let (running, mut ends) = Stage::new(&json!([["form", form()]])).begin(100);
        let (asked, reply) = ends.forms.recv().await.unwrap();
        assert_eq!(asked.request_id, "question-1");
        assert_eq!(asked.message, "Which one?");
        assert_eq!(asked.call_id.as_deref(), Some("t"));
        assert_eq!(asked.schema, form()["requestedSchema"]);
        reply.send(answer).unwrap();
        let played = running.finish(&mut ends).await;
        let heard: Value = serde_json::from_str(&played.text()).unwrap();
        assert_eq!(heard, told);
    }
}

#[tokio::test]
async fn a_form_that_is_withdrawn_or_overtaken_by_a_cancel_is_closed() {
    let withdrawn = Stage::new(&json!([["form_and_withdraw", form()]]));
    assert_eq!(withdrawn.play().await.text(), r#"{"code": -32800}"#);

    let (running, mut ends) = Stage::new(&json!([["form", form()], ["await_cancel"]])).begin(100);
    let (_asked, reply) = ends.forms.recv().await.unwrap();
    ends.cancel.cancel();
    let played = running.finish(&mut ends).await;
    assert!(reply.is_closed());
    assert_eq!(played.text(), r#"{"action": "cancel"}"#);
    assert_eq!(played.outcome.status, OutcomeStatus::Cancelled);

    let url = json!({"mode": "url", "message": "m", "url": "u", "elicitationId": "e"});
    let played = Stage::new(&json!([["form", url]])).play().await;
    assert_eq!(played.text(), r#"{"code": -32602}"#);
}

fn call(method: &str, params: &Value) -> Value {
    json!(["call", method, params])
}

#[tokio::test]
async fn files_are_read_and_written_only_if_offered_and_only_inside() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    let mut stage = Stage::new(&json!([]));
    let inside = stage.fixture.workspace.join("made/by/agent");
    let escape = stage.fixture.workspace.join("../secret");
    let steps = json!([
        call(
            "fs/write_text_file",
            &json!({"path": inside, "content": "one\ntwo\n"})
        ),
        call("fs/read_text_file", &json!({"path": inside, "line": 2})),
        call("fs/read_text_file", &json!({"path": secret})),
        call(
            "fs/write_text_file",
            &json!({"path": escape, "content": "x"})
        ),
    ]);
    stage.script = json!({"steps": steps});
    stage.options.client_files = true;
    let played = stage.play().await;
    let expected = r#"{}{"content": "two\n"}{"code": -32602}{"code": -32602}"#;
    assert_eq!(played.text(), expected);
    assert_eq!(
        std::fs::read_to_string(&inside).unwrap_or_default(),
        "one\ntwo\n"
    );
    let hello = &played.received("initialize")[0]["params"]["clientCapabilities"];
    assert_eq!(
        hello["fs"],
        json!({"readTextFile": true, "writeTextFile": true})
    );
    assert_eq!(hello["terminal"], false);

    let played = Stage::with(json!({"steps": steps})).play().await;
    assert_eq!(played.text(), r#"{"code": -32601}"#.repeat(4));
}

#[tokio::test]
async fn a_terminal_runs_in_the_workspace_and_its_output_is_told_and_bounded() {
    let mut stage = Stage::new(&json!([]));
    let shell = |script: &str| json!({"command": "sh", "args": ["-c", script]});
    let mut long = shell("printf 0123456789; exit 3");
    long["outputByteLimit"] = json!(4);
    let terminal = json!({"terminalId": "$terminal"});
    let outside = json!({"command": "pwd", "cwd": "/"});
    let missing = json!({"command": "no-such-program"});
    let shown = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "pwd",
        "status": "completed", "content": [{"type": "terminal", "terminalId": "terminal-1"}]});
    let mut variable = shell("pwd; echo $GREETING >&2");
    variable["env"] = json!([{"name": "GREETING", "value": "hello"}]);
    stage.script = json!({"steps": [
        call("terminal/create", &variable),
        call("terminal/wait_for_exit", &terminal),
        call("terminal/output", &terminal),
        ["update", shown],
        call("terminal/create", &long),
        call("terminal/wait_for_exit", &terminal),
        call("terminal/output", &terminal),
        call("terminal/release", &terminal),
        call("terminal/output", &terminal),
        call("terminal/create", &outside),
        call("terminal/create", &missing),
    ]});
    stage.options.client_terminals = true;
    let played = stage.play().await;
    let workspace = played.fixture.workspace.to_str().unwrap();
    let exit = |code: u32| format!(r#"{{"exitCode": {code}, "signal": null}}"#);
    let expected = [
        r#"{"terminalId": "terminal-1"}"#.to_owned(),
        exit(0),
        format!(
            r#"{{"exitStatus": {}, "output": "{workspace}\nhello\n", "truncated": false}}"#,
            exit(0)
        ),
        r#"{"terminalId": "terminal-2"}"#.to_owned(),
        exit(3),
        format!(
            r#"{{"exitStatus": {}, "output": "6789", "truncated": true}}"#,
            exit(3)
        ),
        "{}".to_owned(),
        r#"{"code": -32602}"#.repeat(2),
        r#"{"code": -32603}"#.to_owned(),
    ];
    assert_eq!(played.text(), expected.concat());
    let results = played
        .events
        .iter()
        .filter(|event| event.kind == "ToolResultDelta");
    let displayed: Vec<_> = results
        .map(|event| &event.payload["display_result"])
        .collect();
    assert_eq!(displayed, [&json!(format!("{workspace}\nhello\n"))]);
}

#[tokio::test]
async fn no_terminal_outlives_the_turn_and_a_killed_one_takes_its_children_along() {
    let seconds = unique_seconds();
    let sleep = |way: &str| json!({"command": "sh", "args": ["-c", format!("{way} sleep {seconds}; wait")]});
    let terminal = json!({"terminalId": "$terminal"});
    let mut stage = Stage::with(json!({"steps": [
        call("terminal/create", &sleep("setsid")),
        call("terminal/kill", &terminal),
        call("terminal/wait_for_exit", &terminal),
        call("terminal/create", &sleep("setsid")),
        ["say", " left running"],
    ]}));
    stage.options.client_terminals = true;
    let played = stage.play().await;
    assert!(played.text().ends_with("left running"), "{}", played.text());
    assert!(
        played.text().contains(r#""signal": "SIGKILL""#) || played.text().contains(r#""exitCode""#)
    );
    assert_eq!(processes_with(&seconds), NONE);
    assert_eq!(played.outcome.status, OutcomeStatus::Completed);

    // A lost claim ends them at once.
    let mut stage = Stage::with(json!({"steps": [
        call("terminal/create", &sleep("setsid")), ["hang"]]}));
    stage.options.client_terminals = true;
    let (running, mut ends) = stage.begin(100);
    eventually("the command", || !processes_with(&seconds).is_empty()).await;
    ends.kill.cancel();
    running.finish(&mut ends).await;
    assert_eq!(processes_with(&seconds), NONE);
}
