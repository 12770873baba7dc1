use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tapedeck_protocol::ErrorCode;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::{LEASE, kinds, start, start_idle, start_with, until_stopped};
use crate::backend::{AgentEvent, Answer, Outcome, OutcomeStatus, Question, Scope};
use crate::config::{Backends, Options};
use crate::testing::{FakeServer, Fault, ScriptedAgent, claim, outcome, piece};

fn question() -> Question {
    Question {
        request_id: "permission-1".to_owned(),
        tool_name: "shell".to_owned(),
        tool_kind: Some("execute".to_owned()),
        call_id: Some("call-1".to_owned()),
        arguments: json!({"command": "ls"}),
        options: Vec::new(),
    }
}

/// Answers with these pieces, then ends well.
fn talker(pieces: u32) -> Arc<ScriptedAgent> {
    ScriptedAgent::new(move |_, io| async move {
        for number in 0..pieces {
            io.events.send(piece(number)).await.unwrap();
        }
        outcome(OutcomeStatus::Completed)
    })
}

#[tokio::test(start_paused = true)]
async fn a_run_is_acknowledged_first_and_completed_after_its_events() {
    let server = FakeServer::new(LEASE);
    let running = start(&server, talker(3));
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "completed");
    assert_eq!(end["event_count"], 4);
    assert_eq!(end["result"], json!({"stop_reason": "end_turn"}));
    assert_eq!(end["agent_state"], json!({"session_id": "remembered"}));
    let whats: Vec<_> = server
        .all_seen()
        .into_iter()
        .map(|seen| seen.what)
        .collect();
    assert_eq!(whats[..2], ["claim", "heartbeat"]);
    let position = |what: &str| whats.iter().position(|seen| seen == what).unwrap();
    assert!(position("events") < position("complete"));
    let events = server.events();
    let expected = ["TurnBegin", "StreamDelta", "StreamDelta", "StreamDelta"];
    assert_eq!(kinds(&events), expected);
    let ids: Vec<_> = events.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["1-1", "1-2", "1-3", "1-4"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_diverged_state_is_neither_used_nor_handed_on() {
    let state = json!({"session_id": "old"});
    for (diverged, kept) in [(false, state.clone()), (true, Value::Null)] {
        let server = FakeServer::new(LEASE);
        let given = state.clone();
        let agent = ScriptedAgent::new(move |turn, _| {
            let given = given.clone();
            async move {
                assert_eq!(turn.agent_state, (!diverged).then_some(given));
                assert_eq!(turn.prompt_with_context, "note, then go on");
                Outcome {
                    agent_state: turn.agent_state,
                    ..outcome(OutcomeStatus::Failed)
                }
            }
        });
        let mut claim = claim(1);
        claim.prompt = "note, then go on".to_owned();
        claim.resume_context = Some(json!({
            "raw_prompt": "go on", "agent_state": state, "agent_state_diverged": diverged,
        }));
        server.offer(claim);
        let running = start_idle(&server, agent, |_| {});
        let end = server.wait_for_end().await;
        assert_eq!(end["status"], "failed");
        assert_eq!(end["agent_state"], kept, "diverged: {diverged}");
        running.stop().await;
    }
}

/// What was sealed is what is sent, whatever came to the spool meanwhile (rules R12).
#[tokio::test(start_paused = true)]
async fn an_upload_is_sent_again_byte_for_byte() {
    let server = FakeServer::new(LEASE);
    let faults = [
        Fault::Refused(ErrorCode::Unavailable),
        Fault::LostAnswer,
        Fault::Silence,
        Fault::Refused(ErrorCode::Overloaded),
    ];
    server.fail_next("events", &faults);
    let agent = ScriptedAgent::new(|_, io| async move {
        for number in 0..50 {
            io.events.send(piece(number)).await.unwrap();
            // Merging goes on meanwhile, and must not reach what is sealed.
            io.events.send(piece(number)).await.unwrap();
            sleep(Duration::from_millis(40)).await;
        }
        outcome(OutcomeStatus::Completed)
    });
    let running = start(&server, agent);
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "completed");
    let uploads = server.seen("events");
    for again in &uploads[1..=4] {
        assert_eq!(again.body, uploads[0].body);
    }
    assert_ne!(uploads[5].body, uploads[0].body);
    assert_eq!(running.text(), "xx".repeat(50));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn events_wait_for_others_at_most_25_ms() {
    let server = FakeServer::new(LEASE);
    let (sent, mut times) = mpsc::channel(1);
    let agent = ScriptedAgent::new(move |_, io| {
        let sent = sent.clone();
        async move {
            sleep(Duration::from_secs(5)).await;
            io.events.send(piece(1)).await.unwrap();
            sent.send(Instant::now()).await.unwrap();
            sleep(Duration::from_secs(5)).await;
            outcome(OutcomeStatus::Completed)
        }
    });
    let running = start(&server, agent);
    let sent = times.recv().await.unwrap();
    server.wait_for("events", 2).await;
    let waited = server.seen("events")[1].at - sent;
    assert!(waited <= Duration::from_millis(26), "{waited:?}");
    server.wait_for_end().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_known_within_100_ms() {
    let server = FakeServer::new(LEASE);
    let (sent, mut times) = mpsc::channel(1);
    let agent = ScriptedAgent::new(move |_, io| {
        let sent = sent.clone();
        async move {
            let outcome = until_stopped(&io).await;
            assert!(!io.kill.is_cancelled());
            sent.send(Instant::now()).await.unwrap();
            outcome
        }
    });
    let running = start(&server, agent);
    server.wait_for("events", 1).await;
    sleep(Duration::from_secs(33)).await;
    let cancelled = Instant::now();
    server.cancel();
    let known = times.recv().await.unwrap() - cancelled;
    assert!(known < Duration::from_millis(100), "{known:?}");
    assert_eq!(server.wait_for_end().await["status"], "cancelled");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_goes_on_waiting_over_broken_connections_and_gets_its_answer() {
    let server = FakeServer::new(LEASE);
    let faults = [Fault::LostAnswer, Fault::Unreachable, Fault::Silence];
    server.fail_next("approval", &faults);
    let agent = ScriptedAgent::new(|_, io| async move {
        let answer = io.questions.ask(question()).await;
        let approved = Answer::Approved {
            scope: Scope::Session,
        };
        assert_eq!(answer, approved);
        outcome(OutcomeStatus::Completed)
    });
    let running = start(&server, agent);
    server.wait_for("approval", 4).await;
    server.resolve(true);
    assert_eq!(server.wait_for_end().await["status"], "completed");
    let asked = server.seen("approval");
    assert_eq!(asked[0].json()["request_id"], "permission-1");
    assert!(asked.iter().all(|again| again.body == asked[0].body));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_came_before_a_question_is_delivered_before_it() {
    let server = FakeServer::new(LEASE);
    server.fail_next("events", &[Fault::Unreachable, Fault::Unreachable]);
    let agent = ScriptedAgent::new(|_, io| async move {
        for number in 0..3 {
            io.events.send(piece(number)).await.unwrap();
        }
        io.questions.ask(question()).await;
        outcome(OutcomeStatus::Completed)
    });
    let running = start(&server, agent);
    server.wait_for("approval", 1).await;
    let delivered = ["TurnBegin", "StreamDelta", "StreamDelta", "StreamDelta"];
    assert_eq!(kinds(&server.events()), delivered);
    server.resolve(true);
    assert_eq!(server.wait_for_end().await["event_count"], 4);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_an_open_question_without_an_approval() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, io| async move {
        assert_eq!(io.questions.ask(question()).await, Answer::Cancelled);
        outcome(OutcomeStatus::Cancelled)
    });
    let running = start(&server, agent);
    server.wait_for("approval", 1).await;
    server.cancel();
    assert_eq!(server.wait_for_end().await["status"], "cancelled");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_known_before_its_question_is_answered() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, io| async move {
        assert_eq!(io.questions.ask(question()).await, Answer::Cancelled);
        assert!(io.cancel.is_cancelled());
        outcome(OutcomeStatus::Cancelled)
    });
    let running = start(&server, agent);
    server.wait_for("approval", 1).await;
    server.cancel_questions();
    sleep(Duration::from_secs(1)).await;
    server.cancel();
    assert_eq!(server.wait_for_end().await["status"], "cancelled");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_question_reached_nobody() {
    let server = FakeServer::new(LEASE);
    server.fail("approval", Fault::Refused(ErrorCode::RequestIdConflict));
    let agent = ScriptedAgent::new(|_, io| async move {
        let answer = io.questions.ask(question()).await;
        assert!(matches!(answer, Answer::Unasked(_)), "{answer:?}");
        outcome(OutcomeStatus::Completed)
    });
    let running = start(&server, agent);
    assert_eq!(server.wait_for_end().await["status"], "completed");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_stops_everything_whichever_call_hears_of_it() {
    for what in ["heartbeat", "events", "approval"] {
        for code in [
            ErrorCode::ClaimLost,
            ErrorCode::RunSettled,
            ErrorCode::ClaimTokenInvalid,
            ErrorCode::RunNotFound,
        ] {
            let server = FakeServer::new(LEASE);
            let (sent, mut times) = mpsc::channel(1);
            let agent = ScriptedAgent::new(move |_, io| {
                let sent = sent.clone();
                async move {
                    let asking = async {
                        sleep(Duration::from_secs(40)).await;
                        io.events.send(piece(1)).await.unwrap();
                        io.questions.ask(question()).await
                    };
                    tokio::select! {
                        () = io.kill.cancelled() => {}
                        answer = asking => assert_eq!(answer, Answer::Cancelled),
                    }
                    sent.send(Instant::now()).await.unwrap();
                    // It does not end at once, and what it still says goes nowhere.
                    drop(io.events.send(piece(2)).await);
                    sleep(Duration::from_secs(2)).await;
                    outcome(OutcomeStatus::Cancelled)
                }
            });
            let running = start(&server, agent);
            server.wait_for("events", 1).await;
            sleep(Duration::from_secs(30)).await;
            server.fail(what, Fault::Refused(code));
            let killed = times.recv().await.unwrap();
            // The executor goes on with the next claim.
            let claims = server.seen("claim").len();
            server.wait_for("claim", claims + 1).await;
            let after: Vec<_> = server
                .all_seen()
                .into_iter()
                .filter(|seen| seen.what != "claim" && seen.at > killed)
                .collect();
            assert!(after.is_empty(), "{what} {code}: {after:?}");
            assert_eq!(server.end(), None, "{what} {code}");
            running.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refused_events_fail_the_run_with_the_servers_reason() {
    let server = FakeServer::new(LEASE);
    server.fail_next("events", &[Fault::Refused(ErrorCode::EventIdConflict)]);
    let agent = ScriptedAgent::new(|_, io| async move {
        io.events.send(piece(1)).await.unwrap();
        until_stopped(&io).await
    });
    let running = start(&server, agent);
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "failed");
    assert_eq!(end["event_count"], 0);
    let error = end["error"].as_str().unwrap();
    assert!(error.contains("event_id_conflict"), "{error}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_repeated_unchanged_until_there_is_an_answer() {
    let server = FakeServer::new(LEASE);
    let faults = [
        Fault::LostAnswer,
        Fault::Refused(ErrorCode::StorageFull),
        Fault::Unreachable,
    ];
    server.fail_next("complete", &faults);
    let running = start(&server, talker(1));
    server.wait_for("complete", 3).await;
    let reports = server.seen("complete");
    assert!(reports.iter().all(|again| again.body == reports[0].body));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_completion_becomes_a_failure_that_says_so() {
    let server = FakeServer::new(LEASE);
    server.fail_next("complete", &[Fault::Refused(ErrorCode::InvalidRequest)]);
    let running = start(&server, talker(1));
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "failed");
    assert_eq!(end["result"], json!(null));
    let error = end["error"].as_str().unwrap();
    assert!(
        error.contains("completed") && error.contains("invalid_request"),
        "{error}"
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn events_that_stay_missing_end_the_run_visibly() {
    let server = FakeServer::new(LEASE);
    server.fail_next("complete", &[Fault::Refused(ErrorCode::EventsMissing); 5]);
    let running = start(&server, talker(1));
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "failed");
    assert_eq!(end["event_count"], json!(null));
    let error = end["error"].as_str().unwrap();
    assert!(error.contains("events_missing"), "{error}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_workspace_that_is_refused_fails_the_run_with_the_reason() {
    let server = FakeServer::new(LEASE);
    let mut claim = claim(1);
    let workspace = json!({"kind": "local_path", "path": "/"});
    claim.workspace = serde_json::from_value(workspace).unwrap();
    server.offer(claim);
    let agent = ScriptedAgent::new(|_, _| async { panic!("must not start") });
    let running = start_idle(&server, agent, |_| {});
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "failed");
    assert_eq!(end["event_count"], 0);
    let error = end["error"].as_str().unwrap();
    assert!(error.contains("outside the allowed roots"), "{error}");
    running.stop().await;
}

#[derive(Debug)]
struct NoBackend;

impl Backends for NoBackend {
    fn backend(
        &self,
        _: &tapedeck_protocol::executor::ClaimResponse,
    ) -> Result<Arc<dyn crate::backend::Backend>, String> {
        Err("no agent is configured".to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_broken_backend_fails_the_run_with_the_reason() {
    let server = FakeServer::new(LEASE);
    let without = |options: &mut Options| options.backends = Arc::new(NoBackend);
    let running = start_with(&server, talker(1), without);
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "failed");
    assert_eq!(end["error"], "no agent is configured");
    running.stop().await;

    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, _| async { panic!("a fault of the backend") });
    let running = start(&server, agent);
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "failed");
    let error = end["error"].as_str().unwrap();
    assert!(error.contains("a fault of the backend"), "{error}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn output_is_what_rules_out_a_release_and_a_status_line_is_none() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, io| async move {
        let status = AgentEvent {
            kind: "TurnStatusDelta".to_owned(),
            payload: json!({"status": "starting"}),
        };
        io.events.send(status).await.unwrap();
        until_stopped(&io).await
    });
    let running = start(&server, agent);
    server.wait_for("events", 1).await;
    running.shutdown.now.cancel();
    let drained = running.task.await.unwrap().unwrap();
    assert_eq!(drained.handed_back, 1);
    assert_eq!(server.seen("release").len(), 1);
    assert_eq!(server.seen("complete").len(), 0);
}
