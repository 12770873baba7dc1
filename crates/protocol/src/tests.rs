//! Requests as clients send them: what passes, what is refused and where the fault is said to be.

use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tapedeck_domain::interaction::{Reply, Scope};
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::{ExecutorAttachment, SessionSettings, WorkspaceKind};
use tapedeck_domain::settle::Ending;
use tapedeck_domain::{CheckpointId, InteractionId, Rejection, RunId, TapeEntryId, Timestamp};
use utoipa::PartialSchema as _;

use crate::executor::{
    ApprovalRequest, ClaimRunRequest, CompleteRequest, HeartbeatRequest, Presented, UploadRequest,
};
use crate::interaction::{ApproveRequest, ResolveRequest};
use crate::run::{PromptRequest, ResumeRequest};
use crate::session::{CreateSessionRequest, UpdateSessionRequest};
use crate::{ErrorCode, Problem};

fn read<T: DeserializeOwned>(body: Value) -> T {
    serde_json::from_value(body).unwrap()
}

/// Paths of what is wrong: those of the check, or `serde` where the body isn't even read.
fn faults<T: DeserializeOwned, U>(
    body: Value,
    check: impl Fn(T) -> Result<U, Vec<FieldError>>,
) -> Vec<String> {
    match serde_json::from_value::<T>(body) {
        Err(_) => vec!["serde".to_owned()],
        Ok(request) => match check(request) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.into_iter().map(|error| error.path).collect(),
        },
    }
}

#[rstest]
#[case(json!({}), &[])]
#[case(json!({"title": "t", "repo_path": "/w", "approval_policy": "auto", "agent": {"x": 1}, "provider": "p",
    "model": "m", "base_url": "http://x", "max_steps": 5, "metadata": {"a": [1]}, "command_id": "c"}), &[])]
#[case(json!({"run_target": {"workspace": {"kind": "git", "url": "https://example.org/a.git", "branch": "b"}}}), &[])]
#[case(json!({"run_target": {"workspace": {"kind": "git", "url": "u", "any": {"thing": 1}}}}),
    &["run_target.workspace.any", "run_target.workspace.url"])]
#[case(json!({"unknown": 1}), &["serde"])]
#[case(json!({"approval_policy": "sometimes"}), &["serde"])]
#[case(json!({"run_target": {"pool": "x"}}), &["serde"])]
#[case(json!({"run_target": {"workspace": {"kind": "nowhere"}}}), &["serde"])]
#[case(json!({"run_target": {"executor": {"labels": {"gpu": 1}}}}), &["serde"])]
#[case(json!({"run_target": {"isolation": {"kind": "none", "x": 1}}}), &["serde"])]
#[case(json!({"max_steps": -1}), &["serde"])]
#[case(json!({"max_steps": 0}), &["max_steps"])]
#[case(json!({"agent": {"max_steps": "many"}}), &["max_steps"])]
#[case(json!({"agent": {"model": 5}}), &["model"])]
#[case(json!({"title": "a\u{0}"}), &["title"])]
#[case(json!({"title": "a".repeat(201)}), &["title"])]
#[case(json!({"command_id": " "}), &["command_id"])]
#[case(json!({"metadata": {"k": ["a\u{0}"]}}), &["metadata.k"])]
#[case(json!({"repo_path": " "}), &["repo_path"])]
#[case(json!({"repo_path": "/w", "run_target": {"workspace": {"kind": "scratch"}}}), &["repo_path"])]
#[case(json!({"run_target": {"workspace": {"kind": "local_path"}}}), &["run_target.workspace.path"])]
#[case(json!({"run_target": {"workspace": {"kind": "local_path", "path": 1}}}), &["run_target.workspace.path"])]
#[case(json!({"run_target": {"executor": {"kind": "remote"}}}), &["run_target.executor.kind"])]
#[case(json!({"run_target": {"executor": {"pool": "a", "worker_pool": "b"}}}), &["run_target.executor.pool"])]
#[case(json!({"run_target": {"executor": {"labels": {"gpu": "\u{0}"}}}}), &["run_target.executor.labels.gpu"])]
#[case(json!({"run_target": {"constraints": {"max_attempts": 0, "idle_timeout_seconds": 86401}}}),
    &["run_target.constraints.max_attempts", "run_target.constraints.idle_timeout_seconds"])]
#[case(json!({"run_target": {"isolation": {"kind": "x".repeat(101)}}}), &["run_target.isolation.kind"])]
#[case(json!({"run_target": {"annotations": {"a": "\u{0}"}}}), &["run_target.annotations.a"])]
fn create_says_where_a_rule_is_broken(#[case] body: Value, #[case] expected: &[&str]) {
    assert_eq!(faults(body, CreateSessionRequest::check), expected);
}

#[test]
fn short_and_older_names_of_create_are_folded_in() {
    let request: CreateSessionRequest = read(json!({
        "repo_path": "/w",
        "agent": {"model": "old", "command": ["a"]},
        "model": "new",
        "max_steps": 7,
        "run_target": {"executor": {"kind": "external_worker", "worker_pool": "gpu", "worker_id": "x"}},
    }));
    let settings = request.check().unwrap();
    let workspace = settings.run_target.workspace.unwrap();
    assert_eq!(
        (workspace.kind, &workspace.fields["path"]),
        (WorkspaceKind::LocalPath, &json!("/w"))
    );
    let executor = settings.run_target.executor;
    assert_eq!(executor.kind, ExecutorAttachment::LocalAttached);
    assert_eq!(
        (executor.pool.as_str(), executor.executor_id.as_deref()),
        ("gpu", Some("x"))
    );
    assert_eq!(
        Value::Object(settings.agent),
        json!({"model": "new", "command": ["a"], "max_steps": 7})
    );
}

#[test]
fn patch_keeps_what_is_omitted_and_removes_what_is_null() {
    let map = |value: Value| -> Map<String, Value> { serde_json::from_value(value).unwrap() };
    let before = SessionSettings {
        title: Some("t".to_owned()),
        agent: map(json!({"model": "m", "provider": "p", "x": 1})),
        metadata: map(json!({"a": 1, "b": 2})),
        ..SessionSettings::default()
    };
    let change = |body: Value| {
        let request: UpdateSessionRequest = read(body);
        request.check().unwrap().apply(before.clone())
    };
    assert_eq!(change(json!({})), before);
    assert_eq!(change(json!({"title": null})).title, None);
    assert_eq!(change(json!({"title": "u"})).title.as_deref(), Some("u"));
    let agent = change(json!({"model": "n", "provider": null, "agent": {"y": 2}})).agent;
    assert_eq!(Value::Object(agent), json!({"model": "n", "x": 1, "y": 2}));
    let metadata = change(json!({"metadata": {"a": null, "c": 3}})).metadata;
    assert_eq!(Value::Object(metadata), json!({"b": 2, "c": 3}));
}

#[test]
fn a_patch_goes_out_without_what_is_not_set() {
    let request: UpdateSessionRequest = read(json!({"title": null, "model": "m"}));
    assert_eq!(
        serde_json::to_value(&request).unwrap(),
        json!({"title": null, "model": "m"})
    );
}

#[rstest]
#[case(json!({"prompt": "go"}), &[])]
#[case(json!({}), &["prompt"])]
#[case(json!({"prompt": null}), &["prompt"])]
#[case(json!({"prompt": " \n"}), &["prompt"])]
#[case(json!({"prompt": "a\u{0}"}), &["prompt"])]
#[case(json!({"prompt": "a".repeat(256 * 1024)}), &[])]
#[case(json!({"prompt": "a".repeat(256 * 1024 + 1)}), &["prompt"])]
#[case(json!({"prompt": 5}), &["serde"])]
#[case(json!({"prompt": "go", "on_active": "queue"}), &["serde"])]
#[case(json!({"prompt": "", "metadata": {"a": "\u{0}"}}), &["prompt", "metadata.a"])]
fn prompts_are_checked(#[case] body: Value, #[case] expected: &[&str]) {
    assert_eq!(faults(body, PromptRequest::check), expected);
}

#[rstest]
#[case(json!({}), &[])]
#[case(json!({"prompt": ""}), &["prompt"])]
#[case(json!({"resume_reason": ""}), &["resume_reason"])]
#[case(json!({"on_active": "enqueue"}), &["serde"])]
fn resumes_are_checked(#[case] body: Value, #[case] expected: &[&str]) {
    assert_eq!(faults(body, ResumeRequest::check), expected);
}

#[rstest]
#[case(json!({"executor_id": "x"}), &[])]
#[case(json!({"worker_id": "x"}), &[])]
#[case(json!({"worker_id": "x", "executor_id": "x", "lease_seconds": 300, "wait_seconds": 60}), &[])]
#[case(json!({"worker_id": "x", "executor_id": "y"}), &["executor_id"])]
#[case(json!({}), &["executor_id"])]
#[case(json!({"executor_id": "x", "lease_seconds": 4}), &["lease_seconds"])]
#[case(json!({"executor_id": "x", "lease_seconds": 301, "wait_seconds": 61, "max_runs": 0}),
    &["lease_seconds", "wait_seconds", "max_runs"])]
#[case(json!({"executor_id": "x", "claim_token": "t"}), &["serde"])]
#[case(json!({"executor_id": "x", "session_id": "nonsense"}), &["serde"])]
#[case(json!({"executor_id": "x", "capabilities": {"a": "\u{0}"}}), &["capabilities"])]
fn claims_are_checked(#[case] body: Value, #[case] expected: &[&str]) {
    assert_eq!(faults(body, ClaimRunRequest::check), expected);
}

#[test]
fn a_claim_fills_in_the_defaults() {
    let request: ClaimRunRequest = read(json!({"worker_id": "x"}));
    let claim = request.check().unwrap();
    assert_eq!((claim.lease_seconds, claim.wait_seconds), (60, 0));
    let contact = claim.contact;
    assert_eq!(
        (
            contact.executor_id.as_str(),
            contact.executor_kind.as_str(),
            contact.pool.as_str()
        ),
        ("x", "local_cli", "default")
    );
}

#[rstest]
#[case(json!([{"event_id": "e", "event": "Plan", "data": {}, "created_at": "2026-01-01T00:00:00Z"}]), &[])]
#[case(json!([]), &["events"])]
#[case(json!([{"event_id": "e", "event": "Plan", "data": {}},
    {"event_id": "srv:1", "event": "Plan", "data": {}},
    {"event_id": "f", "event": "RunStarted", "data": {}},
    {"event_id": "g", "event": "Plan", "data": [1]}]),
    &["events[1].event_id", "events[2].event", "events[3].data"])]
#[case(json!([{"event_id": "e", "event": "Plan"}]), &["serde"])]
#[case(json!([{"event_id": "e", "event": "Plan", "data": {}, "seq": 1}]), &["serde"])]
#[case(json!([{"event_id": "e", "event": "Plan", "data": {}, "created_at": "9999-12-31T23:59:59.999Z"}]), &[])]
#[case(json!([{"event_id": "e", "event": "Plan", "data": {}, "created_at": "yesterday"}]), &["serde"])]
fn uploads_are_checked(#[case] events: Value, #[case] expected: &[&str]) {
    let body = json!({"executor_id": "x", "claim_token": "1.a", "events": events});
    assert_eq!(faults(body, UploadRequest::check), expected);
}

#[test]
fn an_upload_holds_a_thousand_events_at_most() {
    let event = json!({"event_id": "e", "event": "Plan", "data": {}});
    let body = |count: usize| json!({"executor_id": "x", "claim_token": "1.a", "events": vec![event.clone(); count]});
    assert_eq!(
        faults(body(1_000), UploadRequest::check),
        Vec::<String>::new()
    );
    assert_eq!(faults(body(1_001), UploadRequest::check), ["events"]);
}

#[rstest]
#[case(json!({"request_id": "r", "tool_name": "edit"}), &[])]
#[case(json!({"request_id": "r"}), &["tool_name"])]
#[case(json!({"request_id": "r", "tool_name": "edit", "timeout_seconds": 0}), &["timeout_seconds"])]
#[case(json!({"request_id": "r", "tool_name": "edit", "timeout_seconds": 86401}), &["timeout_seconds"])]
#[case(json!({"request_id": "r", "tool_name": "edit", "wait_seconds": 61}), &["wait_seconds"])]
fn questions_are_checked(#[case] mut body: Value, #[case] expected: &[&str]) {
    body["executor_id"] = json!("x");
    body["claim_token"] = json!("1.a");
    assert_eq!(faults(body, ApprovalRequest::check), expected);
}

#[rstest]
#[case(json!({"approved": true, "scope": "session", "feedback": "f"}), &[])]
#[case(json!({"response": {"a": 1}}), &[])]
#[case(json!({}), &["approved"])]
#[case(json!({"approved": true, "response": {}}), &["approved"])]
#[case(json!({"declined": true, "feedback": "f"}), &[])]
#[case(json!({"declined": false}), &["declined"])]
#[case(json!({"declined": true, "response": {}}), &["response"])]
#[case(json!({"declined": true, "scope": "always"}), &["scope"])]
#[case(json!({"approved": "yes"}), &["serde"])]
#[case(json!({"approved": true, "feedback": "\u{0}"}), &["feedback"])]
fn answers_are_checked(#[case] body: Value, #[case] expected: &[&str]) {
    assert_eq!(faults(body, ResolveRequest::check), expected);
}

#[test]
fn older_answers_name_the_question() {
    assert_eq!(
        faults(json!({}), ApproveRequest::check),
        ["request_id", "approved"]
    );
    let request: ApproveRequest = read(json!({"request_id": "r", "approved": false}));
    let (request_id, answer) = request.check().unwrap();
    assert_eq!(request_id, "r");
    let no = Reply::Approval {
        approved: false,
        scope: Scope::Once,
    };
    assert_eq!(answer.reply, no);
}

#[test]
fn a_claim_is_read_from_a_body_that_breaks_other_rules() {
    let body = json!({"worker_id": "x", "claim_token": "1.a", "events": 5, "unknown": true});
    assert_eq!(Presented::of(&body).unwrap().executor_id, "x");
    let errors = Presented::of(&json!({"executor_id": 5})).unwrap_err();
    let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["executor_id", "executor_id", "claim_token"]);
    assert!(Presented::of(&json!([])).is_err());
    let request: HeartbeatRequest =
        read(json!({"executor_id": "x", "worker_id": "y", "claim_token": "t"}));
    assert_eq!(request.check().unwrap_err()[0].path, "executor_id");
}

#[test]
fn the_same_end_is_recognised_whatever_claim_reports_it() {
    let check = |body: Value| {
        let request: CompleteRequest = read(body);
        request.check(run()).unwrap()
    };
    let first = check(
        json!({"executor_id": "x", "claim_token": "1.a", "status": "completed",
        "result": {"b": 1, "a": 2}, "event_count": 3}),
    );
    let again = check(
        json!({"worker_id": "x", "claim_token": "2.b", "status": "completed",
        "result": {"a": 2, "b": 1}, "event_count": 3}),
    );
    let other = check(
        json!({"executor_id": "x", "claim_token": "1.a", "status": "failed",
        "result": {"b": 1, "a": 2}, "event_count": 3}),
    );
    assert_eq!(first.ending, Ending::Completed);
    assert_eq!(first.digest, again.digest);
    assert_ne!(first.digest, other.digest);
    let body = json!({"executor_id": "x", "claim_token": "1.a"});
    assert_eq!(faults(body, check_complete), ["status"]);
    let entry = json!({"kind": "plan", "payload": {}});
    let with = |entries: Value| {
        json!({"executor_id": "x", "claim_token": "1.a", "status": "completed",
            "tape_entries": entries})
    };
    let (own, none) = (check(with(json!([entry]))), check(with(json!([]))));
    assert!(own.tape.is_some() && none.tape.is_none());
    assert_ne!(
        own.digest, none.digest,
        "the entries are part of the report"
    );
    let broken = with(json!([entry, {"kind": "note", "payload": {}}]));
    assert_eq!(faults(broken, check_complete), ["tape_entries[1].kind"]);
}

fn run() -> RunId {
    RunId::new("01890000-0000-7000-8000-000000000002".parse().unwrap())
}

fn check_complete(
    request: CompleteRequest,
) -> Result<crate::executor::CheckedComplete, Vec<FieldError>> {
    request.check(run())
}

#[test]
fn problems_carry_what_their_code_promises() {
    let run_id = RunId::new("01890000-0000-7000-8000-000000000002".parse().unwrap());
    let busy = Problem::from(&Rejection::SessionBusy {
        active_run_id: run_id,
    });
    assert_eq!(
        serde_json::to_value(&busy).unwrap(),
        json!({
            "type": "urn:tapedeck:problem:session_busy",
            "title": "A run is active",
            "status": 409,
            "detail": format!("run {run_id} is active"),
            "code": "session_busy",
            "retryable": false,
            "active_run_id": run_id,
        })
    );
    let elsewhere = Rejection::OwnedElsewhere {
        owner_id: "cli:1".to_owned(),
        until: Timestamp(0),
    };
    let problem = Problem::from(&elsewhere).retry_after_ms(5);
    let read_back: Problem = read(serde_json::to_value(&problem).unwrap());
    assert_eq!(read_back, problem);
    assert_eq!(read_back.extensions.owner_id.as_deref(), Some("cli:1"));
    let invalid = Problem::from(&Rejection::invalid("a.b", "is wrong"));
    assert_eq!(
        (invalid.status, invalid.errors[0].path.as_str()),
        (422, "a.b")
    );
    assert_eq!(invalid.detail, "`a.b` is wrong");
}

#[test]
fn every_rejection_has_the_status_of_the_contract() {
    let table: Vec<(ErrorCode, u16)> = every_rejection()
        .iter()
        .map(|rejection| {
            let problem = Problem::from(rejection);
            assert_eq!(problem.code, ErrorCode::of(rejection));
            (problem.code, problem.status)
        })
        .collect();
    for (code, status) in table {
        let expected = match code.as_str() {
            "claim_token_invalid" => 403,
            "no_run_available" => 404,
            "invalid_request" => 422,
            _ => 409,
        };
        assert_eq!(status, expected, "{code}");
    }
}

fn every_rejection() -> Vec<Rejection> {
    let run_id = RunId::new("01890000-0000-7000-8000-000000000002".parse().unwrap());
    vec![
        Rejection::AlreadyResolved {
            interaction_id: InteractionId::new(run_id.uuid()),
            status: tapedeck_domain::interaction::InteractionStatus::Denied,
        },
        Rejection::ArtifactConflict {
            name: "run.patch".to_owned(),
        },
        Rejection::CheckpointSuperseded {
            checkpoint_id: CheckpointId::new(run_id.uuid()),
        },
        Rejection::ClaimLost,
        Rejection::ClaimTokenInvalid,
        Rejection::EntryIdConflict {
            entry_id: TapeEntryId::new(run_id.uuid()),
        },
        Rejection::EventIdConflict {
            event_id: "e".to_owned(),
        },
        Rejection::EventsMissing {
            expected: 2,
            stored: 1,
        },
        Rejection::IdempotencyConflict,
        Rejection::invalid("a", "b"),
        Rejection::NoRunAvailable,
        Rejection::NothingToResume,
        Rejection::OwnedElsewhere {
            owner_id: "o".to_owned(),
            until: Timestamp(0),
        },
        Rejection::OwnerLeaseExpired,
        Rejection::QueueFull { limit: 1 },
        Rejection::RequestIdConflict {
            request_id: "r".to_owned(),
        },
        Rejection::RunCancelling,
        Rejection::RunHasOutput,
        Rejection::RunSettled {
            status: RunStatus::Failed,
        },
        Rejection::SessionBusy {
            active_run_id: run_id,
        },
        Rejection::SessionClosed,
        Rejection::StaleEpoch,
    ]
}

#[test]
fn the_schema_of_an_answer_lists_every_key_as_required() {
    let schema = serde_json::to_value(crate::session::SessionResponse::schema()).unwrap();
    let required: Vec<&str> = schema["required"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let properties: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(required.len(), properties.len(), "{schema:#}");
    assert_eq!(schema["properties"]["session_id"]["format"], "uuid");
    assert_eq!(schema["properties"]["created_at"]["format"], "date-time");
    let words = serde_json::to_value(crate::schema::RunStatus::schema()).unwrap();
    assert_eq!(
        words["enum"].as_array().unwrap().len(),
        RunStatus::ALL.len()
    );
}
