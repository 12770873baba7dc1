//! How the ACP backend opens an agent's session: handshake, authentication, choices, servers of
//! tools, earlier sessions.

#![expect(clippy::unwrap_used, reason = "test code outside of test functions")]

mod support;

use serde_json::{Value, json};
use support::stage::Stage;
use tapedeck_executor::backend::{AgentSettings, FailureCode, OutcomeStatus};

fn state() -> Value {
    json!({"session_id": "old", "agent_name": "scripted", "agent_version": "1.1"})
}

/// Its executor may be killed at any moment, and then a later turn still has the agent's session.
#[tokio::test]
async fn what_a_later_turn_needs_is_kept_before_the_prompt() {
    let (running, mut ends) = Stage::new(&json!([["say", "x"], ["hang"]])).begin(100);
    ends.events.recv().await.unwrap();
    let kept = ends.kept.try_recv().unwrap();
    assert_eq!(kept["session_id"], "s1");
    assert_eq!(kept["agent_name"], "scripted");
    assert!(kept["place"].is_string(), "{kept}");
    ends.kill.cancel();
    running.finish(&mut ends).await;
}

#[tokio::test]
async fn an_earlier_session_is_taken_up_without_its_replay() {
    let resumes = json!({"sessionCapabilities": {"resume": {}}, "loadSession": true});
    let loads = json!({"loadSession": true});
    for (capabilities, method, continuity) in [
        (resumes, "session/resume", "resumed"),
        (loads, "session/load", "loaded"),
    ] {
        let mut stage = Stage::with(json!({"options": {"capabilities": capabilities},
            "steps": [["echo_prompt"]]}));
        stage.turn.agent_state = Some(state());
        let played = stage.play().await;
        assert_eq!(
            played.outcome.status,
            OutcomeStatus::Completed,
            "{:?}",
            played.outcome
        );
        // The agent knows the context.
        assert_eq!(played.text(), "do it");
        assert_eq!(played.received(method).len(), 1);
        assert_eq!(played.received("session/new").len(), 0);
        assert_eq!(played.outcome.result["continuity"], continuity);
        assert_eq!(played.outcome.agent_state.unwrap()["session_id"], "old");
    }
}

#[tokio::test]
async fn a_lost_session_is_replaced_by_a_new_one_with_the_context() {
    let options = json!({"lost": true, "capabilities": {"loadSession": true}});
    let mut stage = Stage::with(json!({"options": options, "steps": [["echo_prompt"]]}));
    stage.turn.agent_state = Some(state());
    let played = stage.play().await;
    assert_eq!(played.text(), "context: do it");
    assert_eq!(played.outcome.result["continuity"], "broken");
    assert_eq!(played.events[0].kind, "TurnStatusDelta");
    assert_eq!(played.events[0].payload["status"], "continuity_broken");
    let reason = played.events[0].payload["reason"].as_str().unwrap();
    assert!(reason.contains("no such session"), "{reason}");
}

#[tokio::test]
async fn an_agent_that_takes_no_session_up_begins_anew_and_has_lost_nothing() {
    let mut stage = Stage::new(&json!([["echo_prompt"]]));
    stage.turn.agent_state = Some(state());
    let played = stage.play().await;
    assert_eq!(played.text(), "context: do it");
    assert_eq!(played.outcome.result["continuity"], "new");
    assert!(!played.kinds().contains(&"TurnStatusDelta"));
}

#[tokio::test]
async fn a_wanted_mode_is_set_and_a_missing_one_fails_the_turn() {
    let modes = json!({"modes": {"currentModeId": "auto",
        "availableModes": [{"id": "auto", "name": "A"}, {"id": "ask", "name": "B"}]}});
    let choices = json!({"configOptions": [{"id": "m", "category": "mode", "type": "select",
        "currentValue": "auto", "options": [{"value": "ask", "name": "B"}]}]});
    let method = "session/set_mode";
    for (new, method) in [
        (modes.clone(), method),
        (choices, "session/set_config_option"),
    ] {
        let mut stage = Stage::with(json!({"options": {"new": new}, "steps": [["say", "x"]]}));
        stage.options.mode = Some("ask".to_owned());
        let played = stage.play().await;
        assert_eq!(
            played.outcome.status,
            OutcomeStatus::Completed,
            "{:?}",
            played.outcome
        );
        assert_eq!(played.received(method).len(), 1);
    }
    let mut stage = Stage::with(json!({"options": {"new": modes}, "steps": [["say", "x"]]}));
    stage.options.mode = Some("plan".to_owned());
    let played = stage.play().await;
    let text = "the agent has no mode `plan` (it offers auto, ask)";
    played.assert_failed(FailureCode::AgentModeMissing, text);
    assert_eq!(played.received("session/prompt").len(), 0);
}

fn settings(agent: &Value) -> AgentSettings {
    AgentSettings::of(agent.as_object().unwrap()).unwrap()
}

#[tokio::test]
async fn what_an_agent_advertises_is_in_the_result() {
    let capabilities = json!({"loadSession": true, "promptCapabilities": {"image": true}});
    let stage = Stage::with(json!({"options": {"capabilities": capabilities,
        "auth_methods": [{"id": "key", "name": "Key"}]}, "steps": [["say", "x"]]}));
    let played = stage.play().await;
    let expected = json!({"name": "scripted", "version": "1.2", "protocol_version": 1,
        "capabilities": capabilities, "auth_methods": ["key"]});
    assert_eq!(played.outcome.result["agent"], expected);
    let hello = &played.received("initialize")[0]["params"]["clientCapabilities"];
    assert_eq!(hello["session"]["configOptions"], json!({"boolean": {}}));
    assert_eq!(hello["elicitation"], json!({"form": {}}));
    assert_eq!(played.received("authenticate").len(), 0);
}

#[tokio::test]
async fn an_agent_that_is_locked_is_opened_by_the_configured_method_only() {
    let script = json!({"options": {"locked": true, "auth_methods": [
        {"id": "key", "name": "API key"}, {"id": "web", "name": "Browser", "type": "terminal"}]},
        "steps": [["say", "in"]]});
    let mut stage = Stage::with(script.clone());
    stage.options.auth_method = Some("key".to_owned());
    let played = stage.play().await;
    assert_eq!(played.text(), "in", "{:?}", played.outcome);
    assert_eq!(
        played.received("authenticate")[0]["params"]["methodId"],
        "key"
    );

    let played = Stage::with(script.clone()).play().await;
    let methods = "it offers `key` (API key), `web` (Browser, at a terminal)";
    played.assert_failed(FailureCode::AgentAuthRequired, methods);

    for wanted in ["other", "web"] {
        let mut stage = Stage::with(script.clone());
        stage.options.auth_method = Some(wanted.to_owned());
        let played = stage.play().await;
        played.assert_failed(FailureCode::AgentAuthRequired, methods);
        assert_eq!(played.received("session/new").len(), 0);
    }
    // An earlier session isn't lost because nobody is logged in.
    let mut script = script;
    script["options"]["capabilities"] = json!({"loadSession": true});
    let mut stage = Stage::with(script);
    stage.turn.agent_state = Some(state());
    let played = stage.play().await;
    played.assert_failed(FailureCode::AgentAuthRequired, "`session/load` failed");
    assert_eq!(played.outcome.agent_state, Some(state()));
}

#[tokio::test]
async fn a_sessions_choices_are_made_in_each_shape_and_told_in_the_result() {
    let new = json!({
        "modes": {"currentModeId": "auto", "availableModes": [{"id": "auto"}, {"id": "ask"}]},
        "models": {"currentModelId": "small", "availableModels": [{"modelId": "big"}]},
        "configOptions": [{"id": "web", "type": "boolean", "currentValue": false}]});
    let wanted = json!({"mode": "ask", "model": "big", "options": {"web": true}});
    for capability in ["none", "loadSession"] {
        let mut stage = Stage::with(json!({"options": {"new": new,
            "capabilities": {capability: true}}, "steps": [["say", "x"]]}));
        stage.turn.settings = settings(&wanted);
        stage.options.mode = Some("auto".to_owned());
        stage.turn.agent_state = (capability == "loadSession").then(state);
        let played = stage.play().await;
        assert_eq!(
            played.outcome.status,
            OutcomeStatus::Completed,
            "{:?}",
            played.outcome
        );
        assert_eq!(played.outcome.result["choices"], wanted);
        let value = |method: &str, field: &str| played.received(method)[0]["params"][field].clone();
        assert_eq!(value("session/set_model", "modelId"), "big");
        assert_eq!(value("session/set_mode", "modeId"), "ask");
        assert_eq!(value("session/set_config_option", "value"), true);
        assert_eq!(value("session/set_config_option", "type"), "boolean");
    }
}

#[tokio::test]
async fn a_choice_counts_as_the_agent_shows_it() {
    let options = |current: &str| {
        json!([{"id": "m", "category": "model", "type": "select", "currentValue": current,
            "options": [{"value": "small"}, {"value": "big"}]}])
    };
    let new = json!({"configOptions": options("small")});
    let update = json!({"sessionUpdate": "config_option_update", "configOptions": options("big")});
    let answers = [
        (
            json!({"set_answer": {"configOptions": options("big")}}),
            true,
        ),
        (json!({"set_update": update, "set_answer": {}}), true),
        (
            json!({"set_answer": {"configOptions": options("small")}}),
            false,
        ),
    ];
    for (mut script, holds) in answers {
        script["new"] = new.clone();
        let mut stage = Stage::with(json!({"options": script, "steps": [["say", "x"]]}));
        stage.turn.settings = settings(&json!({"model": "big"}));
        let played = stage.play().await;
        if holds {
            assert_eq!(played.text(), "x", "{:?}", played.outcome);
            // What there is to choose from is in the log, as it stands.
            let mut told = played.events.iter();
            let offered = told.rfind(|event| event.kind == "agent.options");
            assert_eq!(offered.unwrap().payload["options"], options("big"));
        } else {
            let text = "took model `big`, but does not show it";
            played.assert_failed(FailureCode::AgentChoiceUnconfirmed, text);
            assert_eq!(played.received("session/prompt").len(), 0);
        }
    }
    let mut stage = Stage::with(json!({"options": {"new": new}}));
    stage.turn.settings = settings(&json!({"model": "huge"}));
    let text = "no model `huge` (it offers small, big)";
    stage
        .play()
        .await
        .assert_failed(FailureCode::AgentModelMissing, text);
    let mut stage = Stage::with(json!({"options": {"new": new}}));
    stage.turn.settings = settings(&json!({"options": {"effort": "high"}}));
    let text = "no option `effort` (it offers m)";
    stage
        .play()
        .await
        .assert_failed(FailureCode::AgentOptionMissing, text);
}

#[tokio::test]
async fn servers_of_tools_and_directories_reach_the_agent_that_takes_them() {
    let agent = json!({"mcp_servers": [
            {"name": "files", "command": "/bin/files", "env": [{"name": "A_KEY", "value": "sk-mcp"}]},
            {"type": "http", "name": "web", "url": "http://127.0.0.1:1/mcp"}],
        "additional_directories": ["/srv/more"]});
    let capabilities = json!({"mcpCapabilities": {"http": true},
        "sessionCapabilities": {"additionalDirectories": {}, "resume": {}}});
    for earlier in [None, Some(state())] {
        let method = match earlier {
            None => "session/new",
            Some(_) => "session/resume",
        };
        let mut stage = Stage::with(json!({"options": {"capabilities": capabilities},
            "steps": [["say", "the key is sk-mcp"]]}));
        stage.options.session_programs = true;
        stage.turn.settings = settings(&agent);
        stage.turn.agent_state = earlier;
        let played = stage.play().await;
        let params = &played.received(method)[0]["params"];
        assert_eq!(params["mcpServers"][0]["command"], "/bin/files");
        assert_eq!(params["mcpServers"][1]["type"], "http");
        assert_eq!(params["additionalDirectories"], json!(["/srv/more"]));
        assert_eq!(played.text(), "the key is [redacted]");
    }
    let mut stage = Stage::with(json!({"options": {"capabilities": capabilities}}));
    stage.turn.settings = settings(&agent);
    let played = stage.play().await;
    let text = "starts no programs that a session names, as the MCP server `files` is one";
    played.assert_failed(FailureCode::AgentCapabilityMissing, text);

    let mut stage = Stage::with(json!({}));
    stage.options.session_programs = true;
    stage.turn.settings = settings(&agent);
    let played = stage.play().await;
    let text = "takes no MCP servers over http, as `web` is one";
    played.assert_failed(FailureCode::AgentCapabilityMissing, text);
    assert_eq!(played.received("session/new").len(), 0);
}

#[tokio::test]
async fn a_state_that_lies_elsewhere_is_not_tried() {
    let mut stage = Stage::with(json!({"options": {"capabilities": {"loadSession": true}},
        "steps": [["echo_prompt"]]}));
    let mut elsewhere = state();
    elsewhere["place"] = json!("another-machine");
    stage.turn.agent_state = Some(elsewhere);
    let played = stage.play().await;
    assert_eq!(played.text(), "context: do it");
    assert_eq!(played.received("session/load").len(), 0);
    let reason = &played.events[0].payload["reason"];
    assert_eq!(reason, "the state lies with another executor");
    // What it leaves is of this place and is taken up here.
    let left = played.outcome.agent_state.unwrap();
    let mut stage = Stage::with(json!({"options": {"capabilities": {"loadSession": true}},
        "steps": [["echo_prompt"]]}));
    stage.turn.agent_state = Some(left);
    let place = played.fixture.launcher.state_dir.join("place");
    let place = std::fs::read_to_string(place).unwrap();
    stage.fixture.name_place(&place);
    assert_eq!(stage.play().await.text(), "do it");
}
