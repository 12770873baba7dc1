//! The same write again has the same effect: none (faults 9, 16; rules R17).

use std::sync::Arc;

use serde_json::json;
use tapedeck_control_plane::ResumeRequest;
use tapedeck_domain::Rejection;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::Ending;
use tapedeck_store::PageRequest;

use crate::control::{NAMESPACE, TestControl, key};

on_every_store! {
    one_key_and_many_sends_make_one_session,
    one_key_and_many_sends_make_one_run,
    a_key_comes_before_state,
    another_body_under_a_key_is_refused,
    a_refused_command_stores_no_result,
    a_resume_under_a_key_is_made_once,
    old_keys_are_dropped_after_a_week,
}

async fn one_key_and_many_sends_make_one_session(t: TestControl) {
    let t = Arc::new(t);
    let mut sends = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let t = Arc::clone(&t);
        sends.spawn(async move {
            let view = t
                .control
                .create_session(
                    NAMESPACE,
                    SessionSettings::default(),
                    Some(key("create", "k", "b")),
                )
                .await;
            view.unwrap().session.session_id
        });
    }
    let ids = sends.join_all().await;
    assert!(ids.iter().all(|id| *id == ids[0]));
    let page = t
        .control
        .sessions(
            NAMESPACE,
            PageRequest {
                before: None,
                limit: 50,
            },
        )
        .await
        .unwrap();
    assert_eq!(page.items.len(), 1);
}

async fn one_key_and_many_sends_make_one_run(t: TestControl) {
    let session = t.session().await;
    let first = send(&t, session).await;
    for _ in 0..3 {
        assert_eq!(send(&t, session).await, first);
    }
    let t = t.restarted().await;
    assert_eq!(send(&t, session).await, first);
    assert_eq!(t.kinds(session).await, ["RunRequested"]);
}

async fn send(
    t: &TestControl,
    session: tapedeck_domain::SessionId,
) -> tapedeck_control_plane::commands::prompt::Admitted {
    let command = t.prompt_command(
        session,
        "hi",
        OnActive::Reject,
        Some(key("prompt", "k", "b")),
    );
    t.control.prompt(command).await.unwrap()
}

async fn a_key_comes_before_state(t: TestControl) {
    let session = t.session().await;
    let first = send(&t, session).await;
    let claim = t.claim("e1").await;
    // Whatever the run does meanwhile, the answer is the first one.
    assert_eq!(send(&t, session).await, first);
    t.complete(&claim).await;
    assert_eq!(send(&t, session).await, first);
    t.control.close_session(NAMESPACE, session).await.unwrap();
    assert_eq!(send(&t, session).await, first);
}

async fn another_body_under_a_key_is_refused(t: TestControl) {
    let session = t.session().await;
    send(&t, session).await;
    let command = t.prompt_command(
        session,
        "other",
        OnActive::Reject,
        Some(key("prompt", "k", "another body")),
    );
    assert_rejected!(
        t.control.prompt(command).await,
        Rejection::IdempotencyConflict
    );
    // Keys are scoped by operation.
    let command = t.prompt_command(
        session,
        "other",
        OnActive::Enqueue,
        Some(key("elsewhere", "k", "another body")),
    );
    t.control.prompt(command).await.unwrap();
}

async fn a_refused_command_stores_no_result(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let command = t.prompt_command(
        session,
        "hi",
        OnActive::Reject,
        Some(key("prompt", "k", "b")),
    );
    assert_rejected!(
        t.control.prompt(command).await,
        Rejection::SessionBusy { .. }
    );
    t.complete(&claim).await;
    send(&t, session).await;
}

async fn a_resume_under_a_key_is_made_once(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    let mut answers = Vec::new();
    for _ in 0..3 {
        let request = ResumeRequest {
            reason: "user_resume".to_owned(),
            key: Some(key("resume", "k", "b")),
            metadata: json!({"a": 1}).as_object().unwrap().clone(),
            ..ResumeRequest::default()
        };
        answers.push(t.control.resume(NAMESPACE, session, request).await.unwrap());
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

async fn old_keys_are_dropped_after_a_week(t: TestControl) {
    let session = t.session().await;
    let first = send(&t, session).await;
    t.outage(6 * 24 * 3_600_000);
    t.sweep().await;
    assert_eq!(send(&t, session).await, first);
    t.outage(2 * 24 * 3_600_000);
    t.sweep().await;
    let command = t.prompt_command(
        session,
        "hi",
        OnActive::Reject,
        Some(key("prompt", "k", "b")),
    );
    assert_rejected!(
        t.control.prompt(command).await,
        Rejection::SessionBusy { .. }
    );
}
