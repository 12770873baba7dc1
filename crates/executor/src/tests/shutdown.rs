use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{LEASE, start, start_idle, until_stopped};
use crate::backend::OutcomeStatus;
use crate::executor::Drained;
use crate::testing::{FakeServer, Fault, ScriptedAgent, outcome, piece};

#[tokio::test(start_paused = true)]
async fn a_drain_takes_no_claims_and_lets_runs_finish() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, io| async move {
        io.events.send(piece(1)).await.unwrap();
        sleep(Duration::from_secs(20)).await;
        outcome(OutcomeStatus::Completed)
    });
    let running = start(&server, agent);
    server.wait_for("events", 1).await;
    let claims = server.seen("claim").len();
    let drained = running.stop().await;
    let expected = Drained {
        settled: 1,
        ..Drained::default()
    };
    assert_eq!(drained, expected);
    assert_eq!(server.end().unwrap()["status"], "completed");
    assert_eq!(server.seen("claim").len(), claims);
    // It says so when it begins to leave and when it is gone.
    let left = server.seen("leave");
    assert_eq!(left.len(), 2);
    let told: serde_json::Value = serde_json::from_slice(&left[1].body).unwrap();
    assert_eq!(told["executor_id"], "box");
    assert!(told["worker_instance_id"].is_string());
}

#[tokio::test(start_paused = true)]
async fn after_the_grace_period_a_run_is_handed_back() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, io| async move {
        io.events.send(piece(1)).await.unwrap();
        until_stopped(&io).await
    });
    let running = start(&server, agent);
    server.wait_for("events", 1).await;
    let begun = Instant::now();
    let drained = running.stop().await;
    assert_eq!(drained.handed_back, 1);
    assert_eq!(begun.elapsed().as_secs(), 30);
    let end = server.end().unwrap();
    assert_eq!(end["status"], "interrupted");
    assert_eq!(end["event_count"], 2);
    let error = end["error"].as_str().unwrap();
    assert!(error.contains("shut down"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_is_not_taken_for_a_loss() {
    let server = FakeServer::new(LEASE);
    let faults = [
        Fault::LostAnswer,
        Fault::Refused(tapedeck_protocol::ErrorCode::ClaimLost),
    ];
    server.fail_next("release", &faults);
    let agent = ScriptedAgent::new(|_, io| async move { until_stopped(&io).await });
    let running = start(&server, agent);
    server.wait_for("events", 1).await;
    running.shutdown.now.cancel();
    let drained = running.task.await.unwrap().unwrap();
    assert_eq!(drained.handed_back, 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_does_not_hold_up_the_exit_for_ever() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, io| async move { until_stopped(&io).await });
    let running = start(&server, agent);
    server.wait_for("events", 1).await;
    server.fail("*", Fault::Unreachable);
    let begun = Instant::now();
    running.shutdown.now.cancel();
    let drained = running.task.await.unwrap().unwrap();
    assert_eq!(drained.lost, 1);
    assert!(begun.elapsed() <= Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn an_idle_executor_ends_at_once() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, _| async { outcome(OutcomeStatus::Completed) });
    let running = start_idle(&server, agent, |_| {});
    server.wait_for("claim", 1).await;
    let begun = Instant::now();
    assert_eq!(running.stop().await, Drained::default());
    assert!(begun.elapsed() < Duration::from_millis(100));
}
