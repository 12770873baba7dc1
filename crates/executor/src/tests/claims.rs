use std::collections::HashSet;
use std::time::Duration;

use tapedeck_protocol::ErrorCode;
use tokio::time::timeout;

use super::{LEASE, start, start_idle, until_stopped};
use crate::backend::OutcomeStatus;
use crate::config::ExecutorError;
use crate::testing::{FakeServer, Fault, ScriptedAgent, claim, outcome};

fn ids(server: &FakeServer) -> Vec<String> {
    let polls = server.seen("claim");
    let id = |body: serde_json::Value| body["claim_request_id"].as_str().unwrap().to_owned();
    polls.iter().map(|poll| id(poll.json())).collect()
}

fn quick() -> std::sync::Arc<ScriptedAgent> {
    ScriptedAgent::new(|_, _| async { outcome(OutcomeStatus::Completed) })
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_is_asked_for_with_the_same_id() {
    let server = FakeServer::new(LEASE);
    server.fail_next(
        "claim",
        &[Fault::LostAnswer, Fault::Refused(ErrorCode::Unavailable)],
    );
    let running = start(&server, quick());
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "completed");
    server.wait_for("claim", 4).await;
    let ids = ids(&server);
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids[0], ids[2]);
    assert_ne!(ids[0], ids[3], "after a definite answer the id is new");
    assert!(ids[0].len() >= 32);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_definite_answer_makes_a_new_id() {
    let server = FakeServer::new(LEASE);
    server.fail_next("claim", &[Fault::Refused(ErrorCode::ClaimLost)]);
    let running = start_idle(&server, quick(), |_| {});
    server.wait_for("claim", 4).await;
    let ids = ids(&server);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_more_runs_are_taken_than_there_are_slots() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, io| async move { until_stopped(&io).await });
    let running = start_idle(&server, agent, |options| options.max_runs = 2);
    for attempt in 1..=3 {
        server.offer(claim(attempt));
    }
    server.wait_for("heartbeat", 4).await;
    assert_eq!(server.seen("claim").len(), 2);
    running.shutdown.now.cancel();
    running.task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_can_not_be_acknowledged_starts_no_agent() {
    let server = FakeServer::new(LEASE);
    server.fail("heartbeat", Fault::Unreachable);
    let agent = ScriptedAgent::new(|_, _| async { panic!("must not start") });
    let running = start(&server, agent);
    // The slot is free again: it polls once more.
    server.wait_for("claim", 2).await;
    let whats: HashSet<_> = server
        .all_seen()
        .into_iter()
        .map(|seen| seen.what)
        .collect();
    assert_eq!(whats, HashSet::from(["claim".to_owned()]));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_the_first_claim_ends_the_executor_with_its_reason() {
    let server = FakeServer::new(LEASE);
    server.fail("claim", Fault::Refused(ErrorCode::Unauthorized));
    let running = start_idle(&server, quick(), |_| {});
    let ended = timeout(Duration::from_secs(1), running.task).await.unwrap();
    let Err(ExecutorError::Refused(text)) = ended.unwrap() else {
        panic!("it should be refused")
    };
    assert!(text.contains("unauthorized"), "{text}");
}
