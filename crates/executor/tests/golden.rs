//! The formats of the command backend on what real programs have written (tests/agents/record.py):
//! whole lists of events, and how the turn ended.

#![expect(clippy::unwrap_used, reason = "test code outside of test functions")]

mod support;

use std::path::PathBuf;

use serde_json::{Value, json};
use support::{Fixture, connections, eventually, unique};
use tapedeck_executor::backend::command::{CommandBackend, CommandOptions, Format};
use tapedeck_executor::backend::{AgentEvent, Backend, Outcome};
use tokio::time::Instant;

const SCENARIOS: [&str; 9] = [
    "text",
    "thought",
    "tool",
    "failed_tool",
    "not_allowed",
    "error",
    "cancel",
    "cancel_tool",
    "resume",
];

fn recorded(format: Format, file: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    folder.join(format.as_str()).join(file)
}

/// Shell words that write what was recorded, and those that end as the recorded program did.
fn player(format: Format, scenario: &str) -> (String, String) {
    let exits = std::fs::read_to_string(recorded(format, "exits.json")).unwrap();
    let exits: Value = serde_json::from_str(&exits).unwrap();
    let end = match exits[scenario].as_i64().unwrap() {
        signal @ ..0 => format!("kill {signal} $$"),
        code => format!("exit {code}"),
    };
    let file = recorded(format, &format!("{scenario}.jsonl"));
    (format!("cat '{}'", file.display()), end)
}

/// A program that writes what was recorded and ends.
fn ending(format: Format, scenario: &str) -> String {
    let (write, end) = player(format, scenario);
    format!("{write}; {end}")
}

/// The same, but it ends only when it is told to. Until then it writes empty lines, which mean
/// nothing in any format.
fn interrupted(format: Format, scenario: &str) -> String {
    let (write, end) = player(format, scenario);
    // What ends by the signal itself has no trap for it.
    let end = if end.starts_with("kill") {
        "trap - INT; kill -2 $$"
    } else {
        &end
    };
    format!("trap '{end}' INT; {write}; touch ready; while :; do echo; sleep 0.05; done")
}

/// Plays a script as a turn. It is cancelled once the script says that it is ready.
async fn play(format: Format, script: &str, agent_state: Option<Value>) -> Value {
    let fixture = Fixture::new();
    fixture.name_place("here");
    let command = shell_words::join(["sh", "-c", script, "program"]);
    let options = CommandOptions {
        format,
        resume: ["--resume", "{session}"].map(str::to_owned).to_vec(),
        ..CommandOptions::default()
    };
    let (environment, launcher) = (Fixture::environment(), fixture.launcher.clone());
    let backend = CommandBackend::new(&command, environment, launcher, options).unwrap();
    let (io, mut ends) = connections(10_000);
    let mut turn = fixture.turn(&unique("run"), "p");
    turn.agent_state = agent_state;
    let activity = io.activity.clone();
    let running = backend.run(turn, io);
    let outcome = if script.contains("touch ready") {
        let ready = fixture.workspace.join("ready");
        let cancelling = async {
            eventually("the program is ready", || ready.exists()).await;
            // All before this has been read as well.
            let since = Instant::now();
            eventually("it is read", || activity.last() > since).await;
            ends.cancel.cancel();
        };
        tokio::join!(running, cancelling).0
    } else {
        running.await
    };
    let mut events = Vec::new();
    while let Some(event) = ends.events.recv().await {
        events.push(event);
    }
    told(&outcome, &events)
}

fn told(outcome: &Outcome, events: &[AgentEvent]) -> Value {
    let event = |event: &AgentEvent| json!({(event.kind.as_str()): event.payload});
    json!({
        "status": format!("{:?}", outcome.status),
        "error": outcome.error(),
        "result": outcome.result,
        "agent_state": outcome.agent_state,
        "events": events.iter().map(event).collect::<Vec<_>>(),
    })
}

fn compare(format: Format, scenario: &str, told: &Value) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(format!("golden/{format}"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_json_snapshot!(scenario, told));
}

async fn every_scenario(format: Format) {
    for scenario in SCENARIOS {
        let told = match scenario {
            "resume" => {
                let text = play(format, &ending(format, "text"), None).await;
                let state = text["agent_state"].clone();
                play(format, &ending(format, scenario), Some(state)).await
            }
            "cancel" | "cancel_tool" => play(format, &interrupted(format, scenario), None).await,
            _ => play(format, &ending(format, scenario), None).await,
        };
        compare(format, scenario, &told);
    }
}

/// A conversation that isn't there any more: the program says so, and is started again without it.
async fn a_lost_conversation(format: Format) {
    let state = json!({"conversation": "gone", "format": format.as_str(), "place": "here"});
    let (lost, text) = (ending(format, "resume_lost"), ending(format, "text"));
    let script = format!("if [ \"$1\" = --resume ]; then {lost}; else {text}; fi");
    let told = play(format, &script, Some(state)).await;
    assert_eq!(told["status"], "Completed", "{told:#}");
    assert_eq!(told["result"]["continuity"], "broken");
    compare(format, "resume_lost", &told);
}

macro_rules! formats {
    ($($name:ident: $format:expr;)*) => {
        $(
            mod $name {
                use super::*;

                #[tokio::test]
                async fn every_scenario() {
                    super::every_scenario($format).await;
                }

                #[tokio::test]
                async fn a_lost_conversation() {
                    super::a_lost_conversation($format).await;
                }
            }
        )*
    };
}

formats! {
    claude: Format::ClaudeStreamJson;
    codex: Format::CodexJson;
    gemini: Format::GeminiJson;
    opencode: Format::OpencodeJson;
}
