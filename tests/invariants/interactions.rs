//! Questions and answers (I14; faults 10, 11; rules R15).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tapedeck_control_plane::Error;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::interaction::{InteractionKind, InteractionStatus, Reply, Scope};
use tapedeck_domain::session::{ApprovalPolicy, SessionSettings, SessionStatus};
use tapedeck_domain::settle::Ending;
use tapedeck_domain::{InteractionId, Rejection};
use tapedeck_store::Target;

use crate::control::{NAMESPACE, TestControl};

on_every_store! {
    approval_answered_once_and_survives_restart,
    many_answers_at_once_have_one_winner,
    asking_again_finds_the_same_question,
    another_question_under_the_same_id_is_refused,
    a_question_ends_with_its_run_and_the_resumed_run_asks_anew,
    a_lost_claim_cancels_its_questions_also_on_requeue,
    a_prompt_answers_no_question,
    a_cancel_ends_open_questions_and_answers_new_ones,
    an_unanswered_question_expires,
    policies_answer_for_the_person,
    a_standing_answer_covers_later_questions_of_its_scope,
    an_unknown_question_is_not_found,
    a_held_question_wakes_with_its_answer,
    form_answered_once_and_survives_restart,
    a_form_waits_whatever_policies_and_rules_say,
    a_form_ends_with_the_agent_that_asked_it,
    an_unanswered_form_expires,
    an_answer_that_does_not_fit_the_form_leaves_it_open,
}

async fn approval_answered_once_and_survives_restart(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q1").await.unwrap();
    assert_eq!(asked.status, InteractionStatus::Pending);
    assert_eq!(
        t.view(session).await.session.summary.status,
        SessionStatus::WaitingApproval
    );
    let t = t.restarted().await;
    let found = t
        .control
        .interaction(NAMESPACE, asked.interaction_id)
        .await
        .unwrap();
    assert_eq!(found, asked);
    let answered = t.answer(asked.interaction_id, true).await.unwrap();
    assert_eq!(answered.status, InteractionStatus::Approved);
    assert_eq!(
        t.view(session).await.session.summary.status,
        SessionStatus::Running
    );
    // The same answer again is fine, another is refused and changes nothing.
    assert_eq!(
        t.answer(asked.interaction_id, true).await.unwrap(),
        answered
    );
    assert_rejected!(
        t.answer(asked.interaction_id, false).await,
        Rejection::AlreadyResolved {
            status: InteractionStatus::Approved,
            ..
        }
    );
    assert_eq!(t.ask(&claim, "q1").await.unwrap(), answered);
    t.complete(&claim).await;
    let kinds = t.kinds(session).await;
    assert_eq!(
        kinds
            .iter()
            .filter(|kind| *kind == "ApprovalRequest")
            .count(),
        1
    );
    assert_eq!(
        kinds
            .iter()
            .filter(|kind| *kind == "ApprovalResponse")
            .count(),
        1
    );
}

async fn many_answers_at_once_have_one_winner(t: TestControl) {
    let t = Arc::new(t);
    let (session, claim) = t.running("e1").await;
    for round in 0..10 {
        let asked = t.ask(&claim, &format!("q{round}")).await.unwrap();
        let mut answers = tokio::task::JoinSet::new();
        for n in 0..8 {
            let t = Arc::clone(&t);
            answers.spawn(async move { t.answer(asked.interaction_id, n % 2 == 0).await });
        }
        let mut statuses = Vec::new();
        while let Some(answer) = answers.join_next().await {
            match answer.unwrap() {
                Ok(interaction) => statuses.push(interaction.status),
                answer => assert_rejected!(answer, Rejection::AlreadyResolved { .. }),
            }
        }
        assert_eq!(statuses.len(), 4);
        assert!(statuses.iter().all(|status| *status == statuses[0]));
    }
    let responses = t
        .kinds(session)
        .await
        .into_iter()
        .filter(|kind| kind == "ApprovalResponse");
    assert_eq!(responses.count(), 10);
}

async fn asking_again_finds_the_same_question(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let first = t.ask(&claim, "q1").await.unwrap();
    assert_eq!(t.ask(&claim, "q1").await.unwrap(), first);
    assert_eq!(
        t.view(session).await.session.summary.pending_interactions,
        1
    );
    t.ask(&claim, "q2").await.unwrap();
    assert_eq!(
        t.view(session).await.session.summary.pending_interactions,
        2
    );
}

async fn another_question_under_the_same_id_is_refused(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    let first = t.ask(&claim, "q1").await.unwrap();
    assert_rejected!(
        t.ask_for(&claim, "q1", "write").await,
        Rejection::RequestIdConflict { .. }
    );
    let stored = t
        .control
        .interaction(NAMESPACE, first.interaction_id)
        .await
        .unwrap();
    assert_eq!(stored, first);
}

async fn a_question_ends_with_its_run_and_the_resumed_run_asks_anew(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q1").await.unwrap();
    t.pass(65_000).await;
    t.sweep().await;
    let ended = t
        .control
        .interaction(NAMESPACE, asked.interaction_id)
        .await
        .unwrap();
    assert_eq!(ended.status, InteractionStatus::Cancelled);
    assert_rejected!(
        t.answer(asked.interaction_id, true).await,
        Rejection::AlreadyResolved {
            status: InteractionStatus::Cancelled,
            ..
        }
    );
    t.resume(session).await.unwrap();
    let claim = t.claim("e2").await;
    let anew = t.ask(&claim, "q1").await.unwrap();
    assert_ne!(anew.interaction_id, asked.interaction_id);
    assert_eq!(anew.status, InteractionStatus::Pending);
    t.answer(anew.interaction_id, true).await.unwrap();
    t.complete(&claim).await;
}

async fn a_lost_claim_cancels_its_questions_also_on_requeue(t: TestControl) {
    let mut settings = SessionSettings::default();
    settings.run_target.constraints.max_attempts = Some(2);
    let session = t.session_with(settings).await;
    t.prompt(session).await;
    let claim = t.claim("e1").await;
    let asked = t.ask(&claim, "q1").await.unwrap();
    t.pass(65_000).await;
    t.sweep().await;
    let ended = t
        .control
        .interaction(NAMESPACE, asked.interaction_id)
        .await
        .unwrap();
    assert_eq!(ended.status, InteractionStatus::Cancelled);
    assert_eq!(
        t.view(session).await.session.summary.pending_interactions,
        0
    );
    let again = t.claim("e1").await;
    let anew = t.ask(&again, "q1").await.unwrap();
    assert_eq!(anew.status, InteractionStatus::Pending);
}

async fn a_prompt_answers_no_question(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q1").await.unwrap();
    assert_rejected!(
        t.try_prompt(session, OnActive::Reject).await,
        Rejection::SessionBusy { .. }
    );
    t.enqueue(session).await;
    let t = t.restarted().await;
    let found = t
        .control
        .interaction(NAMESPACE, asked.interaction_id)
        .await
        .unwrap();
    assert_eq!(found.status, InteractionStatus::Pending);
}

async fn a_cancel_ends_open_questions_and_answers_new_ones(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q1").await.unwrap();
    t.control
        .cancel_session(NAMESPACE, session, "client")
        .await
        .unwrap();
    let ended = t
        .control
        .interaction(NAMESPACE, asked.interaction_id)
        .await
        .unwrap();
    assert_eq!(ended.status, InteractionStatus::Cancelled);
    assert_eq!(
        t.ask(&claim, "q2").await.unwrap().status,
        InteractionStatus::Cancelled
    );
    t.settle(&claim, Ending::Cancelled).await.unwrap();
}

async fn an_unanswered_question_expires(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q1").await.unwrap();
    for _ in 0..80 {
        t.pass(50_000).await;
        t.beat(&claim).await.unwrap();
    }
    assert_rejected!(
        t.answer(asked.interaction_id, true).await,
        Rejection::AlreadyResolved { .. }
    );
    assert_eq!(t.sweep().await.interactions, 1);
    let expired = t.ask(&claim, "q1").await.unwrap();
    assert_eq!(expired.status, InteractionStatus::Expired);
    assert_eq!(
        t.view(session).await.session.summary.pending_interactions,
        0
    );
    assert_eq!(
        t.view(session).await.session.summary.status,
        SessionStatus::Running
    );
}

async fn policies_answer_for_the_person(t: TestControl) {
    let settings = SessionSettings {
        approval_policy: ApprovalPolicy::Yolo,
        ..SessionSettings::default()
    };
    let session = t.session_with(settings).await;
    t.prompt(session).await;
    let claim = t.claim("e1").await;
    let answered = t.ask(&claim, "q1").await.unwrap();
    assert_eq!(answered.status, InteractionStatus::Approved);
    assert_eq!(answered.resolved_by.as_deref(), Some("policy:yolo"));
    let kinds = t.kinds(session).await;
    assert!(kinds.ends_with(&["ApprovalRequest".to_owned(), "ApprovalResponse".to_owned()]));
}

async fn a_standing_answer_covers_later_questions_of_its_scope(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q1").await.unwrap();
    t.answer_in_scope(asked.interaction_id, true, Scope::Session)
        .await
        .unwrap();
    let covered = t.ask(&claim, "q2").await.unwrap();
    assert_eq!(covered.status, InteractionStatus::Approved);
    assert!(covered.resolved_by.unwrap().starts_with("rule:session:"));
    assert_eq!(
        t.ask_for(&claim, "q3", "write").await.unwrap().status,
        InteractionStatus::Pending
    );
    t.complete(&claim).await;
    // Later runs of the session, too; other sessions are asked.
    t.prompt(session).await;
    let claim = t.claim("e1").await;
    assert_eq!(
        t.ask(&claim, "q1").await.unwrap().status,
        InteractionStatus::Approved
    );
    let (_, other) = t.running("e2").await;
    let asked = t.ask(&other, "q1").await.unwrap();
    assert_eq!(asked.status, InteractionStatus::Pending);
    t.answer_in_scope(asked.interaction_id, true, Scope::Always)
        .await
        .unwrap();
    let (_, third) = t.running("e3").await;
    assert_eq!(
        t.ask(&third, "q1").await.unwrap().status,
        InteractionStatus::Approved
    );
}

async fn an_unknown_question_is_not_found(t: TestControl) {
    let unknown = InteractionId::new(t.control.new_id());
    let answer = t.answer(unknown, true).await;
    assert!(
        matches!(answer, Err(Error::NotFound(Target::Interaction))),
        "{answer:?}"
    );
}

async fn a_held_question_wakes_with_its_answer(t: TestControl) {
    let t = Arc::new(t);
    let (_, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q1").await.unwrap();
    let held = {
        let (t, claim) = (Arc::clone(&t), claim.clone());
        t.control.lifecycle().clone().spawn(async move {
            let ask = t.ask_command(&claim, "q1", "shell");
            t.control.ask(ask, Duration::from_secs(30)).await
        })
    };
    t.answer(asked.interaction_id, false).await.unwrap();
    let answered = tokio::time::timeout(Duration::from_secs(10), held)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(answered.status, InteractionStatus::Denied);
}

fn filled(branch: &str) -> Reply {
    Reply::Response(json!({"branch": branch}))
}

async fn form_answered_once_and_survives_restart(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask_form(&claim, "q1").await.unwrap();
    assert_eq!(asked.kind, InteractionKind::Question);
    assert_eq!(asked.status, InteractionStatus::Pending);
    let summary = t.view(session).await.session.summary;
    assert_eq!(summary.status, SessionStatus::WaitingApproval);
    let t = t.restarted().await;
    let id = asked.interaction_id;
    assert_eq!(t.control.interaction(NAMESPACE, id).await.unwrap(), asked);
    let answered = t.reply(id, filled("main")).await.unwrap();
    assert_eq!(answered.status, InteractionStatus::Approved);
    let response = answered.response.clone().unwrap();
    assert_eq!(response["response"], json!({"branch": "main"}));
    // The same answer again is fine, another is refused and changes nothing.
    assert_eq!(t.reply(id, filled("main")).await.unwrap(), answered);
    for other in [filled("dev"), Reply::Declined] {
        assert_rejected!(
            t.reply(id, other).await,
            Rejection::AlreadyResolved {
                status: InteractionStatus::Approved,
                ..
            }
        );
    }
    let t = t.restarted().await;
    assert_eq!(t.ask_form(&claim, "q1").await.unwrap(), answered);
    assert_rejected!(
        t.ask(&claim, "q1").await,
        Rejection::RequestIdConflict { .. }
    );
    t.complete(&claim).await;
    let log = t.log(session).await;
    let of_kind = |kind: &str| {
        let found: Vec<_> = log.iter().filter(|event| event.kind == kind).collect();
        assert_eq!(found.len(), 1, "{kind}");
        found[0].payload.value()
    };
    assert_eq!(of_kind("ApprovalRequest")["message"], "Which branch?");
    let response = of_kind("ApprovalResponse");
    assert_eq!(response["kind"], "question");
    assert_eq!(response["response"], json!({"branch": "main"}));
}

async fn a_form_waits_whatever_policies_and_rules_say(t: TestControl) {
    let settings = SessionSettings {
        approval_policy: ApprovalPolicy::Yolo,
        ..SessionSettings::default()
    };
    let session = t.session_with(settings).await;
    t.prompt(session).await;
    let claim = t.claim("e1").await;
    let asked = t.ask_form(&claim, "q1").await.unwrap();
    assert_eq!(asked.status, InteractionStatus::Pending);
    // A rule about a tool of the very name that forms stand under covers none of them.
    let (_, other) = t.running("e2").await;
    let tool = t.ask_for(&other, "tool", "question").await.unwrap();
    t.answer_in_scope(tool.interaction_id, true, Scope::Always)
        .await
        .unwrap();
    let asked = t.ask_form(&other, "q1").await.unwrap();
    assert_eq!(asked.status, InteractionStatus::Pending);
    let id = asked.interaction_id;
    for scope in [Scope::Session, Scope::Always] {
        let yes = t.answer_in_scope(id, true, scope).await;
        assert_rejected!(yes, Rejection::Invalid(_));
    }
    let declined = t.reply(id, Reply::Declined).await.unwrap();
    assert_eq!(declined.status, InteractionStatus::Denied);
}

async fn a_form_ends_with_the_agent_that_asked_it(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask_form(&claim, "q1").await.unwrap();
    t.pass(65_000).await;
    t.sweep().await;
    let id = asked.interaction_id;
    let ended = t.control.interaction(NAMESPACE, id).await.unwrap();
    assert_eq!(ended.status, InteractionStatus::Cancelled);
    assert_rejected!(
        t.reply(id, filled("main")).await,
        Rejection::AlreadyResolved {
            status: InteractionStatus::Cancelled,
            ..
        }
    );
    t.resume(session).await.unwrap();
    let claim = t.claim("e2").await;
    let anew = t.ask_form(&claim, "q1").await.unwrap();
    assert_ne!(anew.interaction_id, id);
    assert_eq!(anew.status, InteractionStatus::Pending);
    // An agent that ends without waiting for its answer leaves no open question either.
    t.settle(&claim, Ending::Failed).await.unwrap();
    let ended = t.control.interaction(NAMESPACE, anew.interaction_id).await;
    assert_eq!(ended.unwrap().status, InteractionStatus::Cancelled);
    let summary = t.view(session).await.session.summary;
    assert_eq!(summary.pending_interactions, 0);
}

async fn an_unanswered_form_expires(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    let asked = t.ask_form(&claim, "q1").await.unwrap();
    for _ in 0..80 {
        t.pass(50_000).await;
        t.beat(&claim).await.unwrap();
    }
    assert_rejected!(
        t.reply(asked.interaction_id, filled("main")).await,
        Rejection::AlreadyResolved { .. }
    );
    assert_eq!(t.sweep().await.interactions, 1);
    let expired = t.ask_form(&claim, "q1").await.unwrap();
    assert_eq!(expired.status, InteractionStatus::Expired);
}

async fn an_answer_that_does_not_fit_the_form_leaves_it_open(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask_form(&claim, "q1").await.unwrap();
    let id = asked.interaction_id;
    let before = t.store.dump().await;
    for wrong in [
        Reply::Response(json!({})),
        Reply::Response(json!({"branch": 7})),
        Reply::Response(json!({"branch": "main", "other": 1})),
        Reply::Response(json!("main")),
        Reply::Approval {
            approved: true,
            scope: Scope::Once,
        },
    ] {
        assert_rejected!(t.reply(id, wrong).await, Rejection::Invalid(_));
    }
    assert_eq!(t.store.dump().await, before);
    let summary = t.view(session).await.session.summary;
    assert_eq!(summary.pending_interactions, 1);
    t.reply(id, filled("main")).await.unwrap();
}
