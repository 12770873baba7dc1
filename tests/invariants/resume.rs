//! Resume: a new linked run with what is needed to go on; nothing else changes (I16; fault 12).

use serde_json::{Value, json};
use tapedeck_control_plane::commands::append_events::AppendEvents;
use tapedeck_domain::Rejection;
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::settle::Ending;

use crate::control::{Claim, TestControl};

on_every_store! {
    resume_creates_linked_run_and_changes_no_other,
    a_session_without_a_settled_run_has_nothing_to_resume,
    the_context_answers_every_tool_call_exactly_once,
    the_context_is_bounded_however_long_the_history,
    a_long_log_is_projected_before_the_resume,
    the_agents_own_state_comes_back,
    an_agents_state_outlives_its_executor,
    a_later_prompt_continues_the_conversation,
}

async fn resume_creates_linked_run_and_changes_no_other(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    t.say(&claim, "a", "Hello").await.unwrap();
    t.say(&claim, "b", " world").await.unwrap();
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    let before = (t.run(claim.run_id()).await, t.log(session).await);
    let resumed = t.resume(session).await.unwrap();
    let run = t.run(resumed.run_id).await;
    assert_eq!(run.parent_run_id, Some(claim.run_id()));
    assert_eq!(run.status, RunStatus::Requested);
    assert_eq!(run.prompt, "Continue from the last known state.");
    let end = before.1.last().unwrap();
    let expected = json!({
        "previous_run_id": claim.run_id(),
        "resume_from_run_id": claim.run_id(),
        "resume_from_event_id": end.event_id,
        "resume_reason": "user_resume",
        "resume_context_injected": true,
        "resume_context_strategy": "checkpoint+tape_tail+message_snapshot",
        "checkpoint_count": 0,
        "resume_boundary_anchor_type": "resume_boundary",
        "resume_plan_note_included": false,
        "resume_tape_tail_entry_count": 3,
        "tape_entry_count": 3,
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(run.metadata.get(key), Some(value), "{key}");
    }
    assert!(run.metadata["resume_boundary_anchor_id"].is_string());
    for absent in ["latest_checkpoint_id", "latest_message_snapshot_id"] {
        assert_eq!(run.metadata.get(absent), None, "{absent}");
    }
    // Nothing else has changed: the old run and the old log are as they were.
    let log = t.log(session).await;
    assert_eq!(t.run(claim.run_id()).await, before.0);
    assert_eq!(log[..before.1.len()], before.1[..]);
    assert_eq!(log.len(), before.1.len() + 1);
    let requested = log.last().unwrap();
    assert_eq!(
        (requested.kind.as_str(), requested.session_seq),
        ("RunRequested", resumed.session_seq)
    );
    assert_eq!(
        requested.payload.value()["previous_run_id"],
        json!(claim.run_id())
    );
    // The executor gets both the composed prompt and the structure.
    let next = t.claim("e2").await;
    let context = next.claimed.resume_context.clone().unwrap();
    assert_eq!(context["raw_prompt"], "Continue from the last known state.");
    let composed = context["composed_prompt"].as_str().unwrap();
    assert!(composed.contains("Assistant: Hello world"), "{composed}");
    assert!(
        composed.ends_with("Continue from the last known state."),
        "{composed}"
    );
    t.complete(&next).await;
}

async fn a_session_without_a_settled_run_has_nothing_to_resume(t: TestControl) {
    let session = t.session().await;
    assert_rejected!(t.resume(session).await, Rejection::NothingToResume);
    t.prompt(session).await;
    assert_rejected!(t.resume(session).await, Rejection::SessionBusy { .. });
}

async fn upload_kinds(t: &TestControl, claim: &Claim, events: &[(&str, &str, Value)]) {
    let batch = events
        .iter()
        .enumerate()
        .map(|(n, (id, kind, data))| {
            Uploaded::check(n, (*id).to_owned(), (*kind).to_owned(), data, None).unwrap()
        })
        .collect();
    t.control
        .append_events(AppendEvents {
            proof: claim.proof.clone(),
            batch,
        })
        .await
        .unwrap();
}

async fn the_context_answers_every_tool_call_exactly_once(t: TestControl) {
    // The run is cut after each prefix of a turn with tool calls; the next run's context holds each
    // call that was begun once, with an answer.
    let turn: Vec<(&str, &str, Value)> = vec![
        (
            "1",
            "StreamDelta",
            json!({"content": "let me look", "role": "assistant"}),
        ),
        (
            "2",
            "ToolCallBegin",
            json!({"call_id": "c1", "tool_name": "shell"}),
        ),
        (
            "3",
            "ToolCallDelta",
            json!({"call_id": "c1", "tool_name": "shell", "arguments": {"command": "ls"}}),
        ),
        (
            "4",
            "ToolResultDelta",
            json!({"call_id": "c1", "display_result": "a.txt", "is_error": false}),
        ),
        (
            "5",
            "ToolCallEnd",
            json!({"call_id": "c1", "status": "completed"}),
        ),
        (
            "6",
            "ToolCallBegin",
            json!({"call_id": "c2", "tool_name": "write"}),
        ),
        (
            "7",
            "StreamDelta",
            json!({"content": "done", "role": "assistant"}),
        ),
    ];
    for cut in 1..=turn.len() {
        let (session, claim) = t.running("e1").await;
        upload_kinds(&t, &claim, &turn[..cut]).await;
        t.settle(&claim, Ending::Interrupted).await.unwrap();
        t.resume(session).await.unwrap();
        let next = t.claim("e1").await;
        let context = next.claimed.resume_context.clone().unwrap();
        let tail = context["tape_tail"].as_array().unwrap();
        let calls: Vec<_> = tail
            .iter()
            .filter(|entry| entry["kind"] == "tool_call")
            .collect();
        let begun = [2, 6].iter().filter(|first| **first <= cut).count();
        assert_eq!(calls.len(), begun, "cut {cut}");
        assert!(
            calls
                .iter()
                .all(|call| call["payload"]["result"].is_string()),
            "cut {cut}"
        );
        t.complete(&next).await;
    }
}

async fn the_context_is_bounded_however_long_the_history(t: TestControl) {
    let session = t.session().await;
    for round in 0..60 {
        t.prompt(session).await;
        let claim = t.claim("e1").await;
        t.say(&claim, "a", &format!("{round} {}", "y".repeat(2_000)))
            .await
            .unwrap();
        t.complete(&claim).await;
    }
    t.resume(session).await.unwrap();
    let next = t.claim("e1").await;
    let context = next.claimed.resume_context.clone().unwrap();
    assert!(context["tape_tail"].as_array().unwrap().len() <= 40);
    let composed = context["composed_prompt"].as_str().unwrap();
    assert!(composed.len() < 40 * 1024, "{}", composed.len());
    assert!(composed.contains("59 yyy"), "the newest is there");
    assert!(
        !composed.contains("\nAssistant: 3 yyy"),
        "the oldest is not"
    );
}

async fn a_long_log_is_projected_before_the_resume(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    for batch in 0..5 {
        let ids: Vec<_> = (0..400).map(|n| format!("{batch}-{n}")).collect();
        let events: Vec<_> = ids
            .iter()
            .map(|id| (id.as_str(), json!({"content": "z", "role": "assistant"})))
            .collect();
        t.upload(&claim, &events).await.unwrap();
    }
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    let resumed = t.resume(session).await.unwrap();
    assert_eq!(t.run(resumed.run_id).await.metadata["tape_entry_count"], 3);
}

async fn the_agents_own_state_comes_back(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let state = json!({"session_id": "agent-7"});
    t.settle_with_state(&claim, Ending::Interrupted, Some(state.clone()))
        .await;
    t.resume(session).await.unwrap();
    let next = t.claim("e1").await;
    assert_eq!(next.claimed.resume_context.unwrap()["agent_state"], state);
}

/// An executor that is killed says nothing any more, so it has said it before.
async fn an_agents_state_outlives_its_executor(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    for number in [6, 7] {
        let state = json!({"session_id": format!("agent-{number}")});
        t.beat_with_state(&claim, Some(state)).await.unwrap();
        t.beat(&claim).await.unwrap();
    }
    t.pass(120_000).await;
    t.sweep().await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Interrupted);
    t.resume(session).await.unwrap();
    let next = t.claim("e2").await;
    let context = next.claimed.resume_context.unwrap();
    assert_eq!(context["agent_state"], json!({"session_id": "agent-7"}));
    // Whoever has lost the claim changes nothing of it.
    let late = t.beat_with_state(&claim, Some(json!("late"))).await;
    late.unwrap_err();
}

async fn a_later_prompt_continues_the_conversation(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    assert_eq!(claim.claimed.resume_context, None, "there is no past yet");
    t.say(&claim, "a", "forty-two").await.unwrap();
    let queued = t.enqueue(session).await;
    let state = json!({"session_id": "agent-7"});
    t.settle_with_state(&claim, Ending::Completed, Some(state.clone()))
        .await;
    // The queued prompt was admitted before the answer came, and still sees it.
    let next = t.claim("e2").await;
    assert_eq!(next.run_id(), queued.run_id);
    let context = next.claimed.resume_context.clone().unwrap();
    assert_eq!(context["agent_state"], state);
    assert_eq!(context["raw_prompt"], "do it");
    let composed = context["composed_prompt"].as_str().unwrap();
    assert!(composed.contains("Assistant: forty-two"), "{composed}");
    assert!(composed.ends_with("do it"), "{composed}");
    // It is no resume: nothing of one is recorded.
    let run = t.run(queued.run_id).await;
    assert_eq!(run.parent_run_id, None);
    assert!(run.metadata.is_empty());
}
