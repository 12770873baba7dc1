//! Questions as no agent should ask them, and messages that can't be read: each is asked or answered,
//! and the record tells of it.

mod support;

use serde_json::{Value, json};
use support::stage::{Played, Stage, approved};
use tapedeck_executor::backend::{Answer, FormAnswer, OutcomeStatus, Scope};

/// A line that asks for permission, and the step that waits for its answer.
fn asking(call: &str, options: &Value) -> Value {
    let line = format!(
        r#"{{"jsonrpc":"2.0","id":"odd","method":"session/request_permission","params":{{"sessionId":"s1","toolCall":{call},"options":{options}}}}}"#
    );
    json!([["raw", format!("{line}\n")], ["outcome", "odd"]])
}

fn options() -> Value {
    json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"}])
}

/// `[[…]]` around an element.
fn nested(levels: usize) -> String {
    format!("{}1{}", "[".repeat(levels), "]".repeat(levels))
}

fn of_kind<'a>(played: &'a Played, kind: &str) -> Vec<&'a Value> {
    let events = played.events.iter().filter(|event| event.kind == kind);
    events.map(|event| &event.payload).collect()
}

#[tokio::test]
async fn a_question_is_asked_however_deep_its_arguments_are() {
    for levels in [118, 128, 200, 20_000] {
        let input = format!(
            r#"{{"deep":{},"command":"rm x","number":7}}"#,
            nested(levels)
        );
        let call = format!(r#"{{"toolCallId":"t","title":"rm","rawInput":{input}}}"#);
        let (running, mut ends) = Stage::new(&asking(&call, &options())).begin(100);
        let (question, reply) = ends.asked.recv().await.unwrap();
        assert_eq!(question.arguments["command"], "rm x", "{levels}");
        assert_eq!(question.arguments["number"], 7);
        reply.send(approved(Scope::Once)).unwrap();
        let played = running.finish(&mut ends).await;
        assert_eq!(played.text(), " answer yes");
        let told = &of_kind(&played, "ToolCallDelta")[0]["arguments"];
        assert_eq!(told, &question.arguments);
    }
}

#[tokio::test]
async fn an_update_is_recorded_however_deep_it_is() {
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s1","update":{{"sessionUpdate":"brand_new","deep":{}}}}}}}"#,
        nested(200)
    );
    let steps = json!([["raw", format!("{line}\n")], ["say", "done"]]);
    let played = Stage::new(&steps).play().await;
    let raw = of_kind(&played, "agent.raw");
    assert_eq!(raw[0]["update"]["sessionUpdate"], "brand_new");
    assert!(played.outcome.result.get("noise").is_none());
}

#[tokio::test]
async fn a_request_that_can_t_be_read_is_answered_and_leaves_a_trace() {
    for (call, code) in [
        (r#"{"toolCallId":"t","rawInput":{"n":1e999}}"#, -32600),
        (r#"{"title":"nameless"}"#, -32602),
    ] {
        let played = Stage::new(&asking(call, &options())).play().await;
        assert_eq!(played.text(), format!(" answer error {code}"));
        let raw = of_kind(&played, "agent.raw");
        assert_eq!(raw.len(), 1, "{call}");
        assert!(raw[0]["reason"].is_string(), "{}", raw[0]);
        let known = raw[0].to_string();
        assert!(known.contains("session/request_permission"), "{known}");
        assert_eq!(played.outcome.status, OutcomeStatus::Completed);
    }
}

#[tokio::test]
async fn a_question_and_its_events_call_a_call_the_same() {
    let (long, nul) = ("i".repeat(205), "a\0b");
    for (id, title) in [(long.as_str(), "rm"), (nul, "r\0m"), ("t", &long)] {
        let call = json!({"toolCallId": id, "title": title, "kind": "exe\0cute",
            "rawInput": {"n\0": "x\0"}});
        let mut odd = options();
        odd[0]["name"] = json!("Y\0es");
        let (running, mut ends) = Stage::new(&asking(&call.to_string(), &odd)).begin(100);
        let (question, reply) = ends.asked.recv().await.unwrap();
        let shown = serde_json::to_string(&(
            &question.call_id,
            &question.tool_name,
            &question.tool_kind,
            &question.arguments,
            &question.options,
        ));
        assert!(!shown.unwrap().contains("\\u0000"), "{question:?}");
        let call_id = question.call_id.clone().unwrap();
        assert!(call_id.chars().count() <= 200, "{call_id}");
        assert!(question.tool_name.chars().count() <= 200);
        reply.send(approved(Scope::Once)).unwrap();
        let played = running.finish(&mut ends).await;
        assert_eq!(played.text(), " answer yes");
        for kind in ["ToolCallBegin", "ToolCallDelta", "ToolCallEnd"] {
            let told = of_kind(&played, kind)[0];
            assert_eq!(told["call_id"], call_id, "{kind}");
            assert_eq!(told["tool_name"], question.tool_name, "{kind}");
        }
    }
}

#[tokio::test]
async fn arguments_and_options_together_are_small_enough_to_be_asked() {
    let option = |kind: &str| json!({"optionId": kind, "name": "n".repeat(5000), "kind": kind});
    let many: Vec<Value> = ["allow_once", "reject_once"].map(option).to_vec();
    let call = json!({"toolCallId": "t", "rawInput": {"a": "l".repeat(60_000)}});
    let (running, mut ends) = Stage::new(&asking(&call.to_string(), &json!(many))).begin(100);
    let (question, reply) = ends.asked.recv().await.unwrap();
    assert_eq!(question.options.len(), 2);
    assert!(
        question
            .options
            .iter()
            .all(|option| option.name.len() <= 200)
    );
    reply.send(approved(Scope::Once)).unwrap();
    assert_eq!(running.finish(&mut ends).await.text(), " answer allow_once");
}

#[tokio::test]
async fn a_question_that_reaches_nobody_is_told_of() {
    let call = r#"{"toolCallId":"t","title":"rm"}"#;
    let said = |played: &Played, told: &str, word: &str| {
        assert_eq!(played.text(), format!(" answer {told}"));
        let errors = of_kind(played, "Error");
        assert_eq!(errors.len(), 1, "{:?}", played.events);
        assert_eq!(
            (&errors[0]["call_id"], &errors[0]["tool_name"]),
            (&json!("t"), &json!("rm"))
        );
        assert_eq!(errors[0]["status"], word);
        assert_eq!(errors[0]["resolved_by"], "system:executor");
        assert!(!errors[0]["error"].as_str().unwrap().is_empty());
    };
    // No way to say yes.
    let no = json!([{"optionId": "no", "name": "No", "kind": "reject_once"}]);
    said(&Stage::new(&asking(call, &no)).play().await, "no", "denied");
    let odd = json!([{"optionId": "maybe", "name": "Maybe", "kind": "perhaps"}]);
    said(
        &Stage::new(&asking(call, &odd)).play().await,
        "cancelled",
        "cancelled",
    );
    // The server doesn't take it.
    let (running, mut ends) = Stage::new(&asking(call, &options())).begin(100);
    let (_question, reply) = ends.asked.recv().await.unwrap();
    reply.send(Answer::Unasked("refused".to_owned())).unwrap();
    said(&running.finish(&mut ends).await, "no", "denied");
}

#[tokio::test]
async fn a_form_that_reaches_nobody_is_told_of() {
    let form =
        json!({"message": "which?", "toolCallId": "t\0", "requestedSchema": {"type": "object"}});
    let (running, mut ends) = Stage::new(&json!([["form", form]])).begin(100);
    let (asked, reply) = ends.forms.recv().await.unwrap();
    assert_eq!(asked.call_id.as_deref(), Some("t\u{fffd}"));
    reply
        .send(FormAnswer::Unasked("refused".to_owned()))
        .unwrap();
    let played = running.finish(&mut ends).await;
    assert_eq!(played.text(), r#"{"action": "cancel"}"#);
    let errors = of_kind(&played, "Error");
    assert_eq!(
        (&errors[0]["message"], &errors[0]["status"]),
        (&json!("which?"), &json!("cancelled"))
    );
}
