//! Checkpoints as a person uses them, on the real binary: a place is captured, work goes on, the
//! session is put back, and what comes next knows the right past. Commands and plain requests see
//! the same.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::{self, Claim, prompt, session_in, text};
use crate::http::Request;
use crate::server::{Place, Server};

/// A run in `pool` whose agent says these words, by hand; gives what its executor was handed.
async fn turn(address: SocketAddr, session: &str, pool: &str, words: &str) -> Claim {
    prompt(address, session, words).await;
    let claim = Claim::take(address, pool).await;
    assert_eq!(claim.session_id, session);
    let said = api::words("e1", &format!("said {words}"));
    claim.upload(address, &[said]).await;
    claim.complete(address).await;
    claim
}

/// One line of a command's output as JSON.
async fn command(place: &Place, url: &str, line: &str) -> Value {
    let mut arguments: Vec<_> = line.split(' ').collect();
    arguments.extend(["--json", "--server", url]);
    place.run(&arguments).await.exits(0).json_lines()[0].clone()
}

async fn view(address: SocketAddr, session: &str, what: &str) -> Value {
    let path = format!("/sessions/{session}/{what}");
    Request::get(path).send(address).await.ok()
}

/// What an agent has said, as the tape has it.
fn said(entries: &[Value]) -> Vec<&str> {
    let said = entries
        .iter()
        .filter(|entry| entry["kind"] == "assistant_message");
    said.map(|entry| entry["payload"]["text"].as_str().unwrap())
        .collect()
}

async fn a_session_is_put_back_and_goes_on_from_there(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let (address, url) = (server.address, server.url());
    let session = session_in(address, "back").await;
    let first = turn(address, &session, "back", "one").await;
    let capture = format!("sessions checkpoint {session} --label place");
    let captured = command(&place, &url, &capture).await;
    assert_eq!(captured["label"], "place");
    let checkpoint = text(&captured, "checkpoint_id");
    let second = turn(address, &session, "back", "two").await;
    assert!(
        second.answer["prompt"]
            .as_str()
            .unwrap()
            .contains("said one")
    );
    let result = command(&place, &url, &format!("sessions result {session}")).await;
    assert_eq!(result["run_id"], json!(second.run_id));

    // While a run is active nothing is put back.
    let (third, _) = prompt(address, &session, "three").await;
    let restore = [
        "sessions",
        "restore",
        &session,
        &checkpoint,
        "--server",
        &url,
    ];
    let busy = place.run(&restore).await.exits(4);
    assert!(busy.err.contains(&third), "{}", busy.err);
    let cancel = Request::post(format!("/runs/{third}/cancel"), &json!({}));
    cancel.send(address).await.ok();
    let by_label = ["sessions", "restore", &session, "place", "--server", &url];
    place.run(&by_label).await.exits(0);
    let nowhere = ["sessions", "restore", &session, "nowhere", "--server", &url];
    place.run(&nowhere).await.exits(3);

    // What was acknowledged is there after kill -9.
    server.process.kill().await;
    server.restart().await;
    let (address, url) = (server.address, server.url());
    let shown = command(&place, &url, &format!("sessions show {session}")).await;
    assert_eq!(shown["last_run_id"], json!(first.run_id));
    let tape = view(address, &session, "tape").await;
    assert_eq!(said(tape["entries"].as_array().unwrap()), ["said one"]);
    let all = view(address, &session, "tape?include_superseded=true").await;
    assert_eq!(
        said(all["entries"].as_array().unwrap()),
        ["said one", "said two"]
    );
    let runs = command(&place, &url, &format!("runs list {session}")).await;
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1);
    let runs = command(&place, &url, &format!("runs list {session} --all")).await;
    assert_eq!(runs["runs"].as_array().unwrap().len(), 3);
    let log = api::log(address, &session).await;
    api::assert_dense(&log);
    assert_eq!(log.last().unwrap()["kind"], "SessionRestored");

    let (resumed, _) = api::resume(address, &session, "four").await;
    let claim = Claim::take(address, "back").await;
    assert_eq!(claim.run_id, resumed);
    let given = text(&claim.answer, "prompt");
    assert!(
        given.contains("said one") && !given.contains("said two"),
        "{given}"
    );
    let metadata = &api::run(address, &resumed).await["metadata"];
    assert_eq!(metadata["previous_run_id"], json!(first.run_id));
    assert_eq!(metadata["latest_checkpoint_label"], "place");
    claim.complete(address).await;

    let listed = command(&place, &url, &format!("sessions checkpoints {session}")).await;
    assert_eq!(listed["checkpoints"][0]["checkpoint_id"], json!(checkpoint));
    let delete = format!("sessions delete-checkpoint {session} {checkpoint}");
    command(&place, &url, &delete).await;
    let listed = command(&place, &url, &format!("sessions checkpoints {session}")).await;
    assert_eq!(listed["checkpoints"], json!([]));
    let path = format!("/sessions/{session}/checkpoints/{checkpoint}/restore");
    let gone = Request::post(path, &json!({})).send(address).await;
    assert_eq!(gone.problem(), (409, "checkpoint_superseded".to_owned()));
}

async fn a_fork_goes_its_own_way(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let (address, url) = (server.address, server.url());
    let session = session_in(address, "fork").await;
    turn(address, &session, "fork", "one").await;
    let seq = view(address, &session, "events?after=head").await["head_seq"].clone();
    turn(address, &session, "fork", "two").await;
    let fork = format!("sessions fork {session} --seq {seq} --title other");
    let forked = command(&place, &url, &fork).await;
    assert_eq!(forked["title"], "other");
    let origin = json!({"session_id": session, "checkpoint_id": null, "session_seq": seq});
    assert_eq!(forked["forked_from"], origin);
    let other = text(&forked, "session_id");
    let claim = turn(address, &other, "fork", "three").await;
    let given = text(&claim.answer, "prompt");
    assert!(
        given.contains("said one") && !given.contains("said two"),
        "{given}"
    );
    let line = ["sessions", "tape", &other, "--json", "--server", &url];
    let tape = place.run(&line).await.exits(0).json_lines();
    assert_eq!(said(&tape), ["said one", "said three"]);
    let source = view(address, &session, "tape").await;
    assert_eq!(
        said(source["entries"].as_array().unwrap()),
        ["said one", "said two"]
    );
    let delete = format!("sessions delete {session}");
    command(&place, &url, &delete).await;
    // The fork has all it needs.
    let tape = place.run(&line).await.exits(0).json_lines();
    assert_eq!(said(&tape), ["said one", "said three"]);
}

async fn a_transcript_is_written_in_three_forms(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let (address, url) = (server.address, server.url());
    let session = session_in(address, "words").await;
    turn(address, &session, "words", "one").await;
    let export = |more: &[&str]| {
        let mut line = vec!["sessions", "export", &session, "--server", &url];
        line.extend(more);
        line.iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    let run = async |more: &[&str]| {
        let line = export(more);
        let line: Vec<_> = line.iter().map(String::as_str).collect();
        place.run(&line).await.exits(0)
    };
    let markdown = run(&[]).await.out;
    assert!(markdown.starts_with("# "), "{markdown}");
    assert!(
        markdown.contains("**User**") && markdown.contains("said one"),
        "{markdown}"
    );
    let whole = run(&["--format", "json"]).await.json_lines();
    assert_eq!(whole[0]["session_id"], json!(session));
    let entries = whole[0]["entries"].as_array().unwrap();
    assert_eq!(said(entries), ["said one"]);
    let lines = run(&["--format", "jsonl"]).await.json_lines();
    assert_eq!(&lines, entries);

    let file = place.path("work").join("session.jsonl");
    let written = run(&["--format", "jsonl", "-o", "session.jsonl", "--json"]).await;
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(written.json_lines()[0]["bytes"], bytes.len());
    let path = format!("/sessions/{session}/transcript?format=jsonl");
    let sent = Request::get(path).send(address).await;
    assert_eq!(sent.header("content-type"), Some("application/x-ndjson"));
    assert_eq!(sent.text().as_bytes(), bytes);
    // What fails leaves the file alone.
    let mut line = export(&["-o", "session.jsonl"]);
    line[2] = "018f0000-0000-7000-8000-000000000001".to_owned();
    let line: Vec<_> = line.iter().map(String::as_str).collect();
    place.run(&line).await.exits(3);
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
}

on_both_stores! {
    a_session_is_put_back_and_goes_on_from_there,
    a_fork_goes_its_own_way,
    a_transcript_is_written_in_three_forms,
}

#[tokio::test]
async fn without_a_server_it_is_the_same_and_the_agent_forgets_what_was_put_aside() {
    let place = Place::new();
    let data = place.data();
    let run = async |line: &[&str]| {
        let mut line = line.to_vec();
        line.extend(["--json", "--data-dir", data.to_str().unwrap()]);
        place.run(&line).await.exits(0).json_lines()
    };
    let goal = ["run", "--goal", "say one", "--agent", "demo"];
    let lines = run(&goal).await;
    let session = text(lines.last().unwrap(), "session_id");
    let captured = run(&["sessions", "checkpoint", &session]).await;
    let checkpoint = text(&captured[0], "checkpoint_id");
    let resume = async |prompt: &str| {
        run(&["resume", "--session", &session, "--prompt", prompt]).await;
        run(&["sessions", "result", &session]).await[0]["result"]["continuity"].clone()
    };
    // The agent's own session is taken up as long as it is the session's past.
    let kept = resume("say two").await;
    assert!(kept == "resumed" || kept == "loaded", "{kept}");
    let restored = run(&["sessions", "restore", &session, &checkpoint]).await;
    assert_eq!(restored[0]["checkpoint_count"], 1);
    assert_eq!(resume("say three").await, "new");
    let kept = resume("say four").await;
    assert!(kept == "resumed" || kept == "loaded", "{kept}");
    let tape = run(&["sessions", "tape", &session]).await;
    assert_eq!(said(&tape), ["one", "three", "four"]);

    let forked = run(&["sessions", "fork", &session, "--checkpoint", &checkpoint]).await;
    let fork = text(&forked[0], "session_id");
    let tape = run(&["sessions", "tape", &fork]).await;
    assert_eq!(said(&tape), ["one"]);
    // The fork is driven by the agent that its source was started with.
    run(&["resume", "--session", &fork, "--prompt", "say five"]).await;
    let tape = run(&["sessions", "tape", &fork]).await;
    assert_eq!(said(&tape), ["one", "five"]);
}
