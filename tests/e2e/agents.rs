//! Attaching agents: the table of them, `agents list|show|check`, and programs whose output has a
//! format, all on the real binary.

use serde_json::{Value, json};

use crate::api::text;
use crate::server::Place;

/// A program in the format of threads, turns and items. It keeps nothing, but remembers the word.
const PROGRAM: &str = r#"#!/bin/sh
case "$*" in
  --version) echo "thready 2.0"; exit ;;
  "resume t-1 -") answer="it was tangerine" ;;
  *) answer=ready ;;
esac
prompt=$(cat)
echo '{"type":"thread.started","thread_id":"t-1"}'
case "$prompt" in
  *Count*) trap 'exit 1' INT; while :; do sleep 0.05; done ;;
  *shell*) echo checked >tapedeck-check.txt
    echo '{"type":"item.completed","item":{"id":"c","type":"command_execution","command":"echo","status":"completed","exit_code":0,"aggregated_output":""}}' ;;
esac
echo "{\"type\":\"item.completed\",\"item\":{\"id\":\"i\",\"type\":\"agent_message\",\"text\":\"$answer\"}}"
echo '{"type":"turn.completed","usage":{"output_tokens":1}}'
"#;

const TABLE: &str = r#"
[thready]
title = "A program of this test"
[thready.command]
programs = ["thready"]
arguments = ["{resume}", "-"]
format = "codex-json"
resume = ["resume", "{session}"]
[thready.check]
cancel = "Count"
[hasty]
title = "Acts before it asks"
[hasty.acp]
programs = ["{tapedeck}"]
arguments = ["demo-agent", "--state-dir", "{state}/hasty"]
[hasty.check]
prompt = "say ready"
permission = "write tapedeck-check.txt unasked"
cancel = "stream 100000 20"
recall = "say nothing"
"#;

/// A place whose table has two more agents, and that has this program.
fn place() -> (Place, Vec<(String, String)>) {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let (bin, table) = (place.path("bin"), place.path("agents.toml"));
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::write(bin.join("thready"), PROGRAM).unwrap();
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(bin.join("thready"), mode).unwrap();
    std::fs::write(&table, TABLE).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let table = table.to_str().unwrap().to_owned();
    let variables = vec![
        ("PATH".to_owned(), path),
        ("TAPEDECK_AGENTS_FILE".to_owned(), table),
    ];
    (place, variables)
}

async fn run(
    place: &Place,
    variables: &[(String, String)],
    arguments: &[&str],
) -> crate::server::Output {
    let what = arguments.join(" ");
    let mut command = place.command(arguments);
    command.envs(variables.iter().cloned());
    let output = crate::wait::within(&what, std::time::Duration::from_mins(2), command.output());
    crate::server::Output::of(&what, &output.await.unwrap())
}

fn steps(report: &Value) -> Vec<(String, String)> {
    let steps = report["steps"].as_array().unwrap().iter();
    steps
        .map(|step| (text(step, "step"), text(step, "result")))
        .collect()
}

fn pairs(steps: &[(&str, &str)]) -> Vec<(String, String)> {
    let steps = steps.iter();
    steps
        .map(|(step, result)| ((*step).to_owned(), (*result).to_owned()))
        .collect()
}

#[tokio::test]
async fn installed_agents_are_listed_with_how_they_start() {
    let (place, variables) = place();
    let listed = run(&place, &variables, &["agents", "list", "--json"])
        .await
        .exits(0);
    let listed = &listed.json_lines()[0]["agents"];
    let way = |name: &str| {
        let ways = listed.as_array().unwrap();
        ways.iter()
            .find(|way| way["agent"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(way("demo")["way"], "acp");
    let thready = way("thready");
    assert_eq!(thready["version"], "thready 2.0");
    assert_eq!(thready["format"], "codex-json");
    assert_eq!(thready["way"], "command");
    let all = run(&place, &variables, &["agents", "list", "--all", "--json"])
        .await
        .exits(0);
    let all = &all.json_lines()[0]["agents"];
    let claude = all
        .as_array()
        .unwrap()
        .iter()
        .find(|way| way["agent"] == "claude")
        .unwrap();
    assert_eq!(claude["installed"], false);
    assert!(
        text(claude, "missing").contains("`claude-agent-acp`"),
        "{claude}"
    );

    let shown = run(&place, &variables, &["agents", "show", "demo"])
        .await
        .exits(0);
    assert!(
        shown.out.contains("demo-agent --state-dir"),
        "{}",
        shown.out
    );
    let unknown = run(&place, &variables, &["agents", "show", "nobody"])
        .await
        .exits(3);
    assert!(unknown.err.contains("thready"), "{}", unknown.err);
}

#[tokio::test]
async fn a_check_tells_what_works() {
    let (place, variables) = place();
    let demo = run(&place, &variables, &["agents", "check", "demo", "--json"])
        .await
        .exits(0);
    let report = &demo.json_lines()[0];
    let all_well = [
        ("session", "ok"),
        ("prompt", "ok"),
        ("permission", "ok"),
        ("cancel", "ok"),
        ("resume", "ok"),
    ];
    assert_eq!(steps(report), pairs(&all_well), "{report:#}");
    assert_eq!(
        (&report["ok"], &report["way"]),
        (&json!(true), &json!("acp"))
    );

    // A plain program can't ask, which is worth knowing and no fault.
    let thready = run(
        &place,
        &variables,
        &["agents", "check", "thready", "--json"],
    )
    .await
    .exits(0);
    let report = &thready.json_lines()[0];
    let noted = [
        ("session", "ok"),
        ("prompt", "ok"),
        ("permission", "note"),
        ("cancel", "ok"),
        ("resume", "ok"),
    ];
    assert_eq!(steps(report), pairs(&noted), "{report:#}");
    assert!(
        text(&report["steps"][4], "detail").contains("tangerine"),
        "{report:#}"
    );
}

#[tokio::test]
async fn a_check_finds_what_does_not() {
    let (place, variables) = place();
    let hasty = run(&place, &variables, &["agents", "check", "hasty", "--json"])
        .await
        .exits(8);
    let report = &hasty.json_lines()[0];
    assert_eq!(report["ok"], false);
    assert_eq!(
        steps(report)[2],
        ("permission".to_owned(), "failed".to_owned())
    );
    let detail = text(&report["steps"][2], "detail");
    assert!(detail.contains("without asking"), "{detail}");

    let missing = run(&place, &variables, &["agents", "check", "no-such-program"])
        .await
        .exits(8);
    assert!(
        missing.out.contains("agent_start_failed"),
        "{}",
        missing.out
    );
    let failing = [
        "agents",
        "check",
        "demo",
        "--prompt",
        "fail no luck",
        "--json",
    ];
    let failing = run(&place, &variables, &failing).await.exits(8);
    let report = &failing.json_lines()[0];
    assert_eq!(
        steps(report)[..2],
        pairs(&[("session", "ok"), ("prompt", "failed")])
    );
    assert!(
        text(&report["steps"][1], "detail").contains("no luck"),
        "{report:#}"
    );
    assert_eq!(
        steps(report)[4],
        ("resume".to_owned(), "skipped".to_owned())
    );

    let absent = run(&place, &variables, &["agents", "check", "claude"])
        .await
        .exits(2);
    assert!(absent.err.contains("not on its PATH"), "{}", absent.err);
}

#[tokio::test]
async fn a_program_of_the_table_is_driven_and_goes_on() {
    let (place, variables) = place();
    let data = place.data();
    let data = data.to_str().unwrap();
    let goal = [
        "run",
        "--goal",
        "hello",
        "--command",
        "thready",
        "--json",
        "--data-dir",
        data,
    ];
    let first = run(&place, &variables, &goal).await.exits(0);
    let lines = first.json_lines();
    let said = |lines: &[Value]| {
        let deltas = lines.iter().filter(|line| line["type"] == "StreamDelta");
        deltas.map(|line| text(line, "content")).collect::<String>()
    };
    assert_eq!(said(&lines), "ready");
    // The session remembers its agent, and the agent its conversation.
    let again = [
        "resume",
        "--last",
        "--prompt",
        "and?",
        "--json",
        "--data-dir",
        data,
    ];
    let second = run(&place, &variables, &again).await.exits(0);
    assert_eq!(said(&second.json_lines()), "it was tangerine");

    let wrong = [
        "run",
        "--goal",
        "x",
        "--command",
        "claude",
        "--data-dir",
        data,
    ];
    let wrong = run(&place, &variables, &wrong).await.exits(2);
    assert!(
        wrong.err.contains("the agent `claude` needs `claude`"),
        "{}",
        wrong.err
    );
}
