use uuid::Uuid;

use super::*;
use crate::fixture::{RUN, SESSION, after, at};
use crate::id::RuleId;
use crate::rule::{ArgumentPattern, Maker, RuleTerms, made};

fn question() -> Question {
    asking(tool())
}

fn asking(tool: ToolUse) -> Question {
    Question {
        request_id: "q-1".to_owned(),
        timeout_seconds: 60,
        asked: Asked::Approval(tool),
    }
}

fn tool() -> ToolUse {
    ToolUse {
        tool_name: "bash".to_owned(),
        tool_kind: Some("execute".to_owned()),
        call_id: Some("call-1".to_owned()),
        arguments: json!({"command": "rm -r build"}),
        options: json!([{"id": "once", "kind": "allow_once"}]),
    }
}

fn standing(tool_name: &str, session_id: Option<SessionId>, decision: Decision) -> ApprovalRule {
    let maker = Maker {
        rule_id: RuleId::new(Uuid::from_u128(9)),
        namespace: "default".to_owned(),
        by: "ann".to_owned(),
        at: after(0).wall,
    };
    let terms = RuleTerms {
        tool_name: tool_name.to_owned(),
        arguments: None,
        decision,
    };
    made(terms, session_id, None, maker)
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
        interaction.response = Some(recorded(&answer(status == InteractionStatus::Approved)));
        interaction.resolved_at = Some(after(10).wall);
        interaction.resolved_by = Some("ann".to_owned());
    }
    interaction
}

fn answer(approved: bool) -> Answer {
    answer_for(approved, Scope::Once)
}

fn answer_for(approved: bool, scope: Scope) -> Answer {
    Answer {
        reply: Reply::Approval { approved, scope },
        feedback: Some("fine".to_owned()),
    }
}

fn recorded(answer: &Answer) -> Value {
    answer.reply.recorded(answer.feedback.as_deref())
}

#[test]
fn policy_rule_and_cancel_answer_at_once_what_they_cover() {
    let rule = standing("bash", Some(SESSION), Decision::Allow);
    let by_rule = rule.signature();
    let deny = standing("bash", None, Decision::Deny);
    let denied = Some((InteractionStatus::Denied, deny.signature()));
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
        // What is denied stays so, whatever the policy would say.
        (yolo, Some("execute"), false, Some(&deny), denied.clone()),
        (auto, Some("read"), false, Some(&deny), denied),
    ];
    for (policy, tool_kind, cancelling, rule, expected) in cases {
        let question = asking(ToolUse {
            tool_kind: tool_kind.map(str::to_owned),
            ..tool()
        });
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
fn a_denial_says_where_the_arguments_were_too_long_to_be_seen() {
    let mut rule = standing("shell", None, Decision::Deny);
    let command = ("command".to_owned(), "rm *".to_owned());
    rule.terms.arguments = Some(ArgumentPattern::Fields([command].into()));
    let feedback = |command: &str| {
        let long = ToolUse {
            tool_name: "shell".to_owned(),
            arguments: json!({"command": command}),
            ..tool()
        };
        let context = AskContext {
            policy: ApprovalPolicy::Yolo,
            cancelling: false,
            rule: Some(&rule),
        };
        let (_, answer, _) = immediate(&asking(long), &context).unwrap();
        answer["feedback"].as_str().unwrap().to_owned()
    };
    let denied = format!("denied by approval rule {}", rule.rule_id);
    assert_eq!(feedback("rm x"), denied);
    let unseen = format!("{denied}: its arguments are too long to be seen whole");
    assert_eq!(feedback(&"l".repeat(70_000)), unseen);
}

#[test]
fn a_known_request_id_must_come_with_the_same_question() {
    let known = stored(InteractionStatus::Pending);
    assert_eq!(same_question(&known, &question()), Ok(()));
    let conflict = Err(Rejection::RequestIdConflict {
        request_id: "q-1".to_owned(),
    });
    for other in [
        asking(ToolUse {
            arguments: json!({"command": "rm -r /"}),
            ..tool()
        }),
        asking(ToolUse {
            tool_name: "edit".to_owned(),
            ..tool()
        }),
        asking(ToolUse {
            call_id: None,
            ..tool()
        }),
        asking(ToolUse {
            options: json!([]),
            ..tool()
        }),
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
            "kind": "approval",
            "approved": approved,
            "status": status,
            "feedback": "fine",
            "scope": "once",
            "response": null,
            "resolved_by": "ann",
        });
        assert_eq!(event.payload.value(), payload);
    }
}

#[test]
fn the_same_answer_again_is_fine_and_any_other_is_refused() {
    for approved in [true, false] {
        let answered = stored(answer(approved).reply.status());
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
            answer_for(approved, Scope::Always),
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

fn form() -> Question {
    let schema = json!({
        "type": "object",
        "properties": {"branch": {"type": "string", "minLength": 2}, "push": {"type": "boolean"}},
        "required": ["branch"],
    });
    Question {
        request_id: "q-1".to_owned(),
        timeout_seconds: 60,
        asked: Asked::Form(FormRequest {
            message: "Which branch?".to_owned(),
            schema,
            call_id: None,
        }),
    }
}

fn stored_form(status: InteractionStatus) -> Interaction {
    Interaction {
        kind: InteractionKind::Question,
        request: form().request(),
        request_digest: form().digest(),
        ..stored(status)
    }
}

fn filled(response: Value) -> Answer {
    Answer {
        reply: Reply::Response(response),
        feedback: None,
    }
}

fn declined() -> Answer {
    Answer {
        reply: Reply::Declined,
        feedback: None,
    }
}

#[test]
fn nobody_but_a_person_fills_in_a_form() {
    let rule = standing("question", None, Decision::Allow);
    for policy in ApprovalPolicy::ALL {
        for rule in [None, Some(&rule)] {
            let mut context = AskContext {
                policy: *policy,
                cancelling: false,
                rule,
            };
            assert_eq!(immediate(&form(), &context), None, "{policy}");
            context.cancelling = true;
            let (status, _, by) = immediate(&form(), &context).unwrap();
            assert_eq!(status, InteractionStatus::Cancelled);
            assert_eq!(by, "system:cancel");
        }
    }
}

#[test]
fn a_form_is_answered_by_its_fields_and_an_approval_by_yes_or_no() {
    let wrong = |kind: Interaction, answer: &Answer, path: &str| {
        let refused = resolve(kind, answer, "ann", after(20));
        assert!(
            matches!(&refused, Err(Rejection::Invalid(errors)) if errors[0].path == path),
            "{refused:?}"
        );
    };
    let pending = InteractionStatus::Pending;
    for response in [
        json!({"approved": true}),
        json!("yes"),
        json!({"branch": "main"}),
    ] {
        wrong(stored(pending), &filled(response), "response");
    }
    wrong(stored(pending), &declined(), "declined");
    wrong(stored_form(pending), &answer(true), "approved");
    for approved in [true, false] {
        for scope in [Scope::Session, Scope::Always] {
            wrong(stored_form(pending), &answer_for(approved, scope), "scope");
        }
    }
    for (response, path) in [
        (json!({}), "response.branch"),
        (json!({"branch": "x"}), "response.branch"),
        (json!({"branch": "main", "push": 1}), "response.push"),
        (json!({"branch": "main", "pull": true}), "response.pull"),
        (json!(["main"]), "response"),
        (json!(null), "response"),
    ] {
        wrong(stored_form(pending), &filled(response), path);
    }
}

#[test]
fn a_filled_in_form_is_recorded_with_its_event_and_the_first_one_stands() {
    let response = json!({"branch": "main", "push": true});
    let resolved = resolve(
        stored_form(InteractionStatus::Pending),
        &filled(response.clone()),
        "ann",
        after(10),
    );
    let Ok(Resolution::First(answered, event)) = resolved else {
        panic!("{resolved:?}")
    };
    assert_eq!(answered.status, InteractionStatus::Approved);
    let recorded =
        json!({"approved": true, "scope": "once", "feedback": null, "response": response});
    assert_eq!(answered.response, Some(recorded));
    let payload = event.payload.value();
    assert_eq!(payload["kind"], json!("question"));
    assert_eq!(payload["response"], response);
    let again = resolve(answered.clone(), &filled(response), "bob", after(20)).unwrap();
    assert_eq!(again, Resolution::Repeated(answered.clone()));
    // Another answer is refused as late before anybody asks whether it fits the form.
    for other in [
        filled(json!({"branch": "dev"})),
        filled(json!({})),
        declined(),
        answer_for(false, Scope::Once),
    ] {
        let refused = resolve(answered.clone(), &other, "bob", after(20));
        let status = InteractionStatus::Approved;
        let interaction_id = id();
        assert_eq!(
            refused,
            Err(Rejection::AlreadyResolved {
                interaction_id,
                status
            })
        );
    }
}

#[test]
fn a_form_can_be_declined_by_its_own_word_and_by_an_older_client_s_no() {
    for no in [
        declined(),
        Answer {
            feedback: None,
            ..answer(false)
        },
    ] {
        let pending = stored_form(InteractionStatus::Pending);
        let Ok(Resolution::First(ended, event)) = resolve(pending, &no, "ann", after(10)) else {
            panic!("not the first")
        };
        assert_eq!(ended.status, InteractionStatus::Denied);
        let recorded = json!({"approved": false, "scope": "once", "feedback": null});
        assert_eq!(ended.response, Some(recorded));
        assert_eq!(event.payload.value()["response"], Value::Null);
        let again = resolve(ended.clone(), &declined(), "bob", after(20));
        assert_eq!(again, Ok(Resolution::Repeated(ended)));
    }
}

#[test]
fn a_form_and_an_approval_under_one_id_are_two_questions() {
    let known = stored_form(InteractionStatus::Pending);
    assert_eq!(same_question(&known, &form()), Ok(()));
    assert!(same_question(&known, &question()).is_err());
    let request = form().request();
    assert_eq!(request["message"], json!("Which branch?"));
    assert_eq!(request["tool_call"]["tool_name"], json!("question"));
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
        "kind": "approval",
        "timeout_seconds": 60,
    });
    assert_eq!(event.payload.value(), payload);
}
