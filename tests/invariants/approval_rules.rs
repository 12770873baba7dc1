//! Approval rules: made by hand and by answers, matched, listed and revoked (design §4.7).

use std::time::Duration;

use serde_json::{Value, json};
use tapedeck_control_plane::{Error, PageRequest, RuleFilter};
use tapedeck_domain::digest::Digest;
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::interaction::{Asked, Interaction, InteractionStatus, Scope};
use tapedeck_domain::rule::{ApprovalRule, ArgumentPattern, Decision, RuleTerms};
use tapedeck_domain::session::{ApprovalPolicy, SessionSettings};
use tapedeck_domain::{Rejection, RuleId, SessionId};
use tapedeck_store::Target;

use crate::control::{Claim, NAMESPACE, TestControl};

on_every_store! {
    an_answer_makes_the_narrowest_rule_and_says_so,
    a_rule_answers_what_it_covers_and_nothing_else,
    a_denying_rule_wins_over_policy_and_over_allowing_rules,
    a_revoked_rule_answers_nothing_and_changes_no_answer,
    the_same_rule_stands_once_and_is_made_once_under_its_key,
    rules_are_listed_newest_first_and_go_with_their_session,
}

fn terms(decision: Decision, pattern: Option<&str>) -> RuleTerms {
    RuleTerms {
        tool_name: "shell".to_owned(),
        arguments: pattern.map(|pattern| {
            ArgumentPattern::Fields([("command".to_owned(), pattern.to_owned())].into())
        }),
        decision,
    }
}

async fn make(t: &TestControl, session: Option<SessionId>, terms: RuleTerms) -> ApprovalRule {
    let control = &t.control;
    let made = control.create_rule(NAMESPACE, session, terms, "client:test", None);
    made.await.unwrap()
}

/// Asks for the shell with this command.
async fn ask(t: &TestControl, claim: &Claim, request_id: &str, command: &str) -> Interaction {
    let mut ask = t.ask_command(claim, request_id, "shell");
    let Asked::Approval(tool) = &mut ask.question.asked else {
        panic!("not an approval")
    };
    tool.arguments = json!({"command": command});
    t.control.ask(ask, Duration::ZERO).await.unwrap()
}

async fn listed(t: &TestControl, filter: RuleFilter) -> Vec<ApprovalRule> {
    let page = PageRequest {
        before: None,
        limit: 50,
    };
    t.control
        .rules(NAMESPACE, filter, page)
        .await
        .unwrap()
        .items
}

async fn an_answer_makes_the_narrowest_rule_and_says_so(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = ask(&t, &claim, "q1", "make *").await;
    let id = asked.interaction_id;
    t.answer_in_scope(id, true, Scope::Session).await.unwrap();
    let t = t.restarted().await;
    let rules = listed(&t, RuleFilter::default()).await;
    assert_eq!(rules.len(), 1);
    let rule = &rules[0];
    assert_eq!(rule.session_id, Some(session));
    assert_eq!(rule.interaction_id, Some(id));
    assert_eq!(rule.created_by.as_deref(), Some("client:test"));
    assert_eq!(rule.terms, terms(Decision::Allow, Some("make \\*")));
    let covered = ask(&t, &claim, "q2", "make *").await;
    assert_eq!(covered.status, InteractionStatus::Approved);
    assert_eq!(covered.resolved_by, Some(rule.signature()));
    // A wildcard in the command that was allowed is none in the rule.
    let other = ask(&t, &claim, "q3", "make clean").await;
    assert_eq!(other.status, InteractionStatus::Pending);
    // A no that reaches as far denies from then on, in every session.
    t.answer_in_scope(other.interaction_id, false, Scope::Always)
        .await
        .unwrap();
    let (_, second) = t.running("e2").await;
    let denied = ask(&t, &second, "q1", "make clean").await;
    assert_eq!(denied.status, InteractionStatus::Denied);
    let asked = ask(&t, &second, "q2", "make *").await;
    assert_eq!(asked.status, InteractionStatus::Pending);
    // An answer for once makes none.
    t.answer(asked.interaction_id, true).await.unwrap();
    assert_eq!(listed(&t, RuleFilter::default()).await.len(), 2);
}

async fn a_rule_answers_what_it_covers_and_nothing_else(t: TestControl) {
    make(&t, None, terms(Decision::Allow, Some("git *"))).await;
    let (_, claim) = t.running("e1").await;
    for (request_id, command, expected) in [
        ("q1", "git status", InteractionStatus::Approved),
        ("q2", "git x; rm -rf /", InteractionStatus::Pending),
        ("q3", "git x && rm -rf /", InteractionStatus::Pending),
        ("q4", "git $(rm -rf /)", InteractionStatus::Pending),
        ("q5", "git x\nrm -rf /", InteractionStatus::Pending),
        ("q6", "rm -rf /", InteractionStatus::Pending),
    ] {
        let asked = ask(&t, &claim, request_id, command).await;
        assert_eq!(asked.status, expected, "{command}");
    }
    let other = t.ask_for(&claim, "tool", "edit").await.unwrap();
    assert_eq!(other.status, InteractionStatus::Pending);
    let form = t.ask_form(&claim, "form").await.unwrap();
    assert_eq!(form.status, InteractionStatus::Pending);
}

async fn a_denying_rule_wins_over_policy_and_over_allowing_rules(t: TestControl) {
    let settings = SessionSettings {
        approval_policy: ApprovalPolicy::Yolo,
        ..SessionSettings::default()
    };
    let session = t.session_with(settings).await;
    make(&t, Some(session), terms(Decision::Allow, None)).await;
    let deny = make(&t, None, terms(Decision::Deny, Some("rm *"))).await;
    t.prompt(session).await;
    let claim = t.claim("e1").await;
    let denied = ask(&t, &claim, "q1", "cd /; rm -rf .").await;
    assert_eq!(denied.status, InteractionStatus::Denied);
    assert_eq!(denied.resolved_by, Some(deny.signature()));
    let allowed = ask(&t, &claim, "q2", "ls").await;
    assert_eq!(allowed.status, InteractionStatus::Approved);
}

async fn a_revoked_rule_answers_nothing_and_changes_no_answer(t: TestControl) {
    let rule = make(&t, None, terms(Decision::Allow, None)).await;
    let (_, claim) = t.running("e1").await;
    let before = ask(&t, &claim, "q1", "ls").await;
    assert_eq!(before.status, InteractionStatus::Approved);
    for _ in 0..2 {
        let revoked = t.control.revoke_rule(NAMESPACE, rule.rule_id, "ann").await;
        revoked.unwrap();
    }
    let after = ask(&t, &claim, "q2", "ls").await;
    assert_eq!(after.status, InteractionStatus::Pending);
    assert_eq!(ask(&t, &claim, "q1", "ls").await, before);
    // It is still there for whoever asks what answered.
    let kept = t.control.rule(NAMESPACE, rule.rule_id).await.unwrap();
    assert_eq!(kept.revoked_by.as_deref(), Some("ann"));
    assert_eq!(listed(&t, RuleFilter::default()).await, []);
    let all = RuleFilter {
        include_revoked: true,
        ..RuleFilter::default()
    };
    assert_eq!(listed(&t, all).await, [kept]);
    let unknown = RuleId::new(t.control.new_id());
    let gone = t.control.revoke_rule(NAMESPACE, unknown, "ann").await;
    assert!(
        matches!(gone, Err(Error::NotFound(Target::Rule))),
        "{gone:?}"
    );
}

async fn the_same_rule_stands_once_and_is_made_once_under_its_key(t: TestControl) {
    let session = t.session().await;
    let allow = || terms(Decision::Allow, None);
    let first = make(&t, None, allow()).await;
    assert_eq!(make(&t, None, allow()).await, first);
    for other in [
        make(&t, Some(session), allow()).await,
        make(&t, None, terms(Decision::Deny, None)).await,
    ] {
        assert_ne!(other.rule_id, first.rule_id);
    }
    let create = async |body: Value| {
        let key = IdempotencyKey {
            namespace: NAMESPACE.to_owned(),
            principal: "local".to_owned(),
            operation: "approval-rule".to_owned(),
            key: "k".to_owned(),
            body_digest: Digest::of_json("request", &body),
        };
        let made = t
            .control
            .create_rule(NAMESPACE, None, allow(), "ann", Some(key));
        made.await
    };
    assert_eq!(create(json!(1)).await.unwrap(), first);
    let revoked = t.control.revoke_rule(NAMESPACE, first.rule_id, "ann").await;
    revoked.unwrap();
    assert_eq!(create(json!(1)).await.unwrap().rule_id, first.rule_id);
    assert_rejected!(create(json!(2)).await, Rejection::IdempotencyConflict);
    assert_ne!(make(&t, None, allow()).await.rule_id, first.rule_id);
}

async fn rules_are_listed_newest_first_and_go_with_their_session(t: TestControl) {
    let (one, other) = (t.session().await, t.session().await);
    let of_all = make(&t, None, terms(Decision::Allow, None)).await;
    let own = make(&t, Some(one), terms(Decision::Allow, None)).await;
    let theirs = make(&t, Some(other), terms(Decision::Allow, None)).await;
    let newest_first = [theirs, own.clone(), of_all.clone()];
    assert_eq!(listed(&t, RuleFilter::default()).await, newest_first);
    let of_one = RuleFilter {
        session_id: Some(one),
        include_revoked: false,
    };
    assert_eq!(listed(&t, of_one).await, std::slice::from_ref(&own));
    let mut page = PageRequest {
        before: None,
        limit: 2,
    };
    let filter = RuleFilter::default();
    let first = t.control.rules(NAMESPACE, filter, page).await.unwrap();
    assert_eq!(first.items, newest_first[..2]);
    let elsewhere = t.control.rules("elsewhere", filter, page).await.unwrap();
    assert_eq!(elsewhere.items, []);
    page.before = first.next;
    let last = t.control.rules(NAMESPACE, filter, page).await.unwrap();
    assert_eq!((last.items, last.next), (vec![of_all], None));
    let deleted = t.control.delete_session(NAMESPACE, one, true).await;
    deleted.unwrap();
    let gone = t.control.rule(NAMESPACE, own.rule_id).await;
    assert!(matches!(gone, Err(Error::NotFound(Target::Rule))));
    assert_eq!(listed(&t, RuleFilter::default()).await.len(), 2);
}
