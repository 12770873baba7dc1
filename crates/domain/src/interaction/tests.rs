use uuid::Uuid;

use super::*;
use crate::fixture::{RUN, SESSION, after, at};

fn question() -> Question {
    Question {
        request_id: "q-1".to_owned(),
        tool_name: "bash".to_owned(),
        tool_kind: Some("execute".to_owned()),
        call_id: Some("call-1".to_owned()),
        arguments: json!({"command": "rm -r build"}),
        options: json!([{"id": "once", "kind": "allow_once"}]),
        timeout_seconds: 60,
    }
}

fn id() -> InteractionId {
    InteractionId::new(Uuid::from_u128(300))
}

fn stored(status: InteractionStatus) -> Interaction {
    let mut interaction = Interaction {
        interaction_id: id(),
        run_key: RunKey(7),
        run_id: RUN,
        session_id: SESSION,
        attempt: 2,
        request_id: "q-1".to_owned(),
        request_digest: question().digest(),
        kind: InteractionKind::Approval,
        status,
        request: question().request(),
        response: None,
        created_at: after(0).wall,
        expires_at: after(60_000).wall,
        deadline: at(60_000),
        resolved_at: None,
        resolved_by: None,
    };
    if let InteractionStatus::Approved | InteractionStatus::Denied = status {
        interaction.response = Some(answer(status == InteractionStatus::Approved).recorded());
        interaction.resolved_at = Some(after(10).wall);
        interaction.resolved_by = Some("ann".to_owned());
    }
    interaction
}

fn answer(approved: bool) -> Answer {
    Answer {
        approved,
        scope: Scope::Once,
        feedback: Some("fine".to_owned()),
        response: None,
    }
}

#[test]
fn policy_rule_and_cancel_answer_at_once_what_they_cover() {
    let rule = StandingRule {
        scope: Scope::Session,
        tool_name: "bash".to_owned(),
        created_by: id(),
    };
    let by_rule = format!("rule:session:{}", id());
    let approved = |by: &str| Some((InteractionStatus::Approved, by.to_owned()));
    let cancelled = Some((InteractionStatus::Cancelled, "system:cancel".to_owned()));
    let yolo = ApprovalPolicy::Yolo;
    let auto = ApprovalPolicy::Auto;
    let interactive = ApprovalPolicy::Interactive;
    let cases = [
        (yolo, Some("execute"), false, None, approved("policy:yolo")),
        (yolo, None, false, None, approved("policy:yolo")),
        (yolo, Some("execute"), true, Some(&rule), cancelled.clone()),
        (auto, Some("read"), false, None, approved("policy:auto")),
        (auto, Some("search"), false, None, approved("policy:auto")),
        (auto, Some("think"), false, None, approved("policy:auto")),
        (auto, Some("fetch"), false, None, None),
        (auto, Some("READ"), false, None, None),
        (auto, Some("execute"), false, None, None),
        (auto, None, false, None, None),
        (
            auto,
            Some("execute"),
            false,
            Some(&rule),
            approved(&by_rule),
        ),
        (auto, Some("read"), true, None, cancelled.clone()),
        (interactive, Some("read"), false, None, None),
        (
            interactive,
            Some("execute"),
            false,
            Some(&rule),
            approved(&by_rule),
        ),
        (interactive, Some("execute"), true, None, cancelled),
    ];
    for (policy, tool_kind, cancelling, rule, expected) in cases {
        let question = Question {
            tool_kind: tool_kind.map(str::to_owned),
            ..question()
        };
        let decided = immediate(
            &question,
            &AskContext {
                policy,
                cancelling,
                rule,
            },
        );
        let name = format!("{policy} {tool_kind:?} cancelling {cancelling} rule {rule:?}");
        if let Some((status, answer, _)) = &decided {
            let approved = *status == InteractionStatus::Approved;
            assert_eq!(answer["approved"], json!(approved), "{name}");
            assert_eq!(answer["scope"], json!("once"), "{name}");
        }
        assert_eq!(
            decided.map(|(status, _, by)| (status, by)),
            expected,
            "{name}"
        );
    }
}

#[test]
fn a_known_request_id_must_come_with_the_same_question() {
    let known = stored(InteractionStatus::Pending);
    assert_eq!(same_question(&known, &question()), Ok(()));
    let conflict = Err(Rejection::RequestIdConflict {
        request_id: "q-1".to_owned(),
    });
    for other in [
        Question {
            arguments: json!({"command": "rm -r /"}),
            ..question()
        },
        Question {
            tool_name: "edit".to_owned(),
            ..question()
        },
        Question {
            call_id: None,
            ..question()
        },
        Question {
            options: json!([]),
            ..question()
        },
    ] {
        assert_eq!(same_question(&known, &other), conflict);
    }
}

#[test]
fn the_first_answer_is_recorded_with_its_event() {
    for (approved, status) in [
        (true, InteractionStatus::Approved),
        (false, InteractionStatus::Denied),
    ] {
        let pending = stored(InteractionStatus::Pending);
        let resolved = resolve(pending.clone(), &answer(approved), "ann", after(10)).unwrap();
        let Resolution::First(interaction, event) = resolved else {
            panic!("not the first")
        };
        let expected = Interaction {
            status,
            response: Some(json!({"approved": approved, "scope": "once", "feedback": "fine"})),
            resolved_at: Some(after(10).wall),
            resolved_by: Some("ann".to_owned()),
            ..pending
        };
        assert_eq!(interaction, expected);
        assert_eq!(event.kind, "ApprovalResponse");
        assert_eq!(
            (event.run, event.attempt),
            (Some((RunKey(7), RUN)), Some(2))
        );
        let payload = json!({
            "request_id": "q-1",
            "interaction_id": id(),
            "approved": approved,
            "status": status,
            "feedback": "fine",
            "scope": "once",
            "resolved_by": "ann",
        });
        assert_eq!(event.payload.value(), payload);
    }
}

#[test]
fn the_same_answer_again_is_fine_and_any_other_is_refused() {
    for approved in [true, false] {
        let answered = stored(answer(approved).status());
        let again = resolve(answered.clone(), &answer(approved), "bob", after(90_000)).unwrap();
        assert_eq!(
            again,
            Resolution::Repeated(answered.clone()),
            "the first answer stays"
        );
        let refused = Err(Rejection::AlreadyResolved {
            interaction_id: id(),
            status: answered.status,
        });
        for other in [
            answer(!approved),
            Answer {
                scope: Scope::Always,
                ..answer(approved)
            },
            Answer {
                feedback: None,
                ..answer(approved)
            },
        ] {
            assert_eq!(
                resolve(answered.clone(), &other, "ann", after(20)),
                refused,
                "{other:?}"
            );
        }
    }
}

#[test]
fn a_form_is_no_answer_to_an_approval_whatever_it_says() {
    for response in [
        json!({"approved": false}),
        json!("no"),
        json!({"branch": "main"}),
    ] {
        let form = Answer {
            response: Some(response),
            ..answer(true)
        };
        let refused = resolve(stored(InteractionStatus::Pending), &form, "ann", after(20));
        assert!(
            matches!(&refused, Err(Rejection::Invalid(errors)) if errors[0].path == "response"),
            "{refused:?}"
        );
        let question = Interaction {
            kind: InteractionKind::Question,
            ..stored(InteractionStatus::Pending)
        };
        assert!(resolve(question, &form, "ann", after(20)).is_ok());
    }
}

#[test]
fn an_ended_question_takes_no_answer_and_says_how_it_ended() {
    for status in [InteractionStatus::Expired, InteractionStatus::Cancelled] {
        for approved in [true, false] {
            let refused = resolve(stored(status), &answer(approved), "ann", after(20));
            let expected = Rejection::AlreadyResolved {
                interaction_id: id(),
                status,
            };
            assert_eq!(refused, Err(expected));
        }
    }
}

#[test]
fn an_answer_after_the_deadline_finds_the_question_expired_before_the_sweep_does() {
    let pending = stored(InteractionStatus::Pending);
    assert!(resolve(pending.clone(), &answer(true), "ann", after(59_999)).is_ok());
    let late = resolve(pending, &answer(true), "ann", after(60_000));
    let status = InteractionStatus::Expired;
    assert_eq!(
        late,
        Err(Rejection::AlreadyResolved {
            interaction_id: id(),
            status
        })
    );
}

#[test]
fn a_question_without_an_answer_ends_visibly() {
    for status in [InteractionStatus::Expired, InteractionStatus::Cancelled] {
        let pending = stored(InteractionStatus::Pending);
        let (ended, event) = end(pending.clone(), status, "system:sweep", after(20));
        let expected = Interaction {
            status,
            resolved_at: Some(after(20).wall),
            resolved_by: Some("system:sweep".to_owned()),
            ..pending
        };
        assert_eq!(ended, expected);
        let payload = event.payload.value();
        assert_eq!(
            (&payload["approved"], &payload["status"]),
            (&json!(false), &json!(status))
        );
        assert_eq!(
            (&payload["scope"], &payload["feedback"]),
            (&json!("once"), &Value::Null)
        );
    }
}

#[test]
fn the_request_event_shows_the_tool_call_and_names_the_interaction() {
    let event = request_event(&stored(InteractionStatus::Pending));
    assert_eq!(event.kind, "ApprovalRequest");
    assert_eq!(
        (event.run, event.attempt),
        (Some((RunKey(7), RUN)), Some(2))
    );
    let payload = json!({
        "request_id": "q-1",
        "interaction_id": id(),
        "tool_call": {
            "call_id": "call-1",
            "tool_name": "bash",
            "tool_kind": "execute",
            "arguments": {"command": "rm -r build"},
        },
        "options": [{"id": "once", "kind": "allow_once"}],
        "status": "pending",
            "timeout_seconds": 60,
    });
    assert_eq!(event.payload.value(), payload);
}
