//! What a run changes is told before its end, and no trouble with that changes the end. These tests
//! run git, so they are on the real clock.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tapedeck_domain::git::Transport;
use tapedeck_protocol::ErrorCode;
use tokio::net::TcpListener;

use super::{LEASE, Running, start_idle, until_stopped};
use crate::backend::OutcomeStatus;
use crate::testing::{FakeServer, Fault, ScriptedAgent, claim, outcome, piece};

/// A run in a new repository, whose agent writes a file.
fn writing(server: &FakeServer, root: &Path) -> Running {
    let made = std::process::Command::new("git")
        .args(["init", "--quiet"])
        .current_dir(root)
        .status();
    assert!(made.unwrap().success());
    let agent = ScriptedAgent::new(|turn, io| async move {
        io.events.send(piece(1)).await.unwrap();
        std::fs::write(turn.workspace.join("new.txt"), "new\n").unwrap();
        outcome(OutcomeStatus::Completed)
    });
    let mut claim = claim(1);
    let workspace = json!({"kind": "local_path", "path": root});
    claim.workspace = serde_json::from_value(workspace).unwrap();
    server.offer(claim);
    start_idle(server, agent, |options| {
        options.workspace_roots = vec![root.to_owned()];
    })
}

fn named(end: &Value) -> &Value {
    &end["result"]["changes"]["files"][0]["path"]
}

#[tokio::test]
async fn changes_are_sent_before_the_end_and_again_byte_for_byte() {
    let (server, root) = (FakeServer::new(LEASE), tempfile::tempdir().unwrap());
    let faults = [Fault::Refused(ErrorCode::Unavailable), Fault::LostAnswer];
    server.fail_next("artifacts", &faults);
    let running = writing(&server, root.path());
    let end = server.wait_for_end().await;
    assert_eq!(
        (&end["status"], named(&end)),
        (&json!("completed"), &json!("new.txt"))
    );
    assert_eq!(end["result"]["stop_reason"], "end_turn");
    let sent = server.seen("artifacts");
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|again| again.body == sent[0].body));
    let sent = sent[2].json();
    let names: Vec<_> = sent["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|sent| &sent["name"])
        .collect();
    assert_eq!(
        names,
        ["run.diff", "run.patch", "session.diff", "session.patch"]
    );
    let patch = sent["artifacts"][1]["content"].as_str().unwrap();
    assert!(
        patch.starts_with("diff --git a/new.txt b/new.txt\n"),
        "{patch}"
    );
    let whats: Vec<_> = server
        .all_seen()
        .into_iter()
        .map(|seen| seen.what)
        .collect();
    let last = |what: &str| whats.iter().rposition(|seen| seen == what);
    assert!(last("artifacts") < last("complete"));
    running.stop().await;
}

#[tokio::test]
async fn a_server_that_takes_no_changes_gets_the_end_all_the_same() {
    for code in [ErrorCode::InvalidRequest, ErrorCode::RouteNotFound] {
        let (server, root) = (FakeServer::new(LEASE), tempfile::tempdir().unwrap());
        server.fail_next("artifacts", &[Fault::Refused(code)]);
        let running = writing(&server, root.path());
        let end = server.wait_for_end().await;
        assert_eq!(
            (&end["status"], named(&end)),
            (&json!("completed"), &json!("new.txt"))
        );
        assert_eq!(server.seen("artifacts").len(), 1);
        running.stop().await;
    }
}

#[tokio::test]
async fn after_a_loss_nothing_more_is_sent() {
    let (server, root) = (FakeServer::new(LEASE), tempfile::tempdir().unwrap());
    server.fail_next("artifacts", &[Fault::Refused(ErrorCode::ClaimLost)]);
    let running = writing(&server, root.path());
    server.wait_for("artifacts", 1).await;
    running.stop().await;
    assert_eq!(server.end(), None);
}

/// A run whose repository is on a server that takes connections and says nothing.
async fn fetching(server: &FakeServer) -> (Running, TcpListener) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let mut claim = claim(1);
    let workspace = json!({"kind": "git", "url": format!("http://{address}/a.git")});
    claim.workspace = serde_json::from_value(workspace).unwrap();
    server.offer(claim);
    let agent = ScriptedAgent::new(|_, io| async move { until_stopped(&io).await });
    let running = start_idle(server, agent, |options| {
        options.git.transports = vec![Transport::Http];
    });
    (running, silent)
}

#[tokio::test]
async fn a_cancel_does_not_wait_for_a_fetch() {
    let server = FakeServer::new(LEASE);
    let (running, silent) = fetching(&server).await;
    let connection = silent.accept().await.unwrap();
    server.cancel();
    let end = server.wait_for_end().await;
    assert_eq!(
        (&end["status"], &end["event_count"]),
        (&json!("cancelled"), &json!(0))
    );
    drop(connection);
    running.stop().await;
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_fetch_and_gives_the_run_back() {
    let server = FakeServer::new(LEASE);
    let (running, silent) = fetching(&server).await;
    let _connection = silent.accept().await.unwrap();
    running.shutdown.now.cancel();
    let drained = tokio::time::timeout(Duration::from_secs(15), running.stop());
    assert_eq!(drained.await.unwrap().handed_back, 1);
    assert_eq!(server.seen("release").len(), 1);
    assert!(server.seen("complete").is_empty());
}
