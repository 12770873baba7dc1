//! Questions that outlive whoever was to carry the answer (faults 10 and 11).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{self, prompt, resume, session_of, text};
use crate::http::Request;
use crate::server::{ExecutorOptions, Place, Server, executor};
use crate::wait::eventually;

on_both_stores! {
    an_open_question_survives_the_server_and_is_answered_once,
    a_question_whose_asker_died_ends_and_the_resumed_run_asks_anew,
    a_form_is_shown_filled_in_and_declined_from_the_command_line,
    a_rule_is_added_listed_and_revoked_from_the_command_line,
}

const LIMIT: Duration = Duration::from_mins(1);
const SCALE: f64 = 0.2;
const SCRIPT: &str = "ask edit {\"path\": \"x\"}; say after";
const UNKNOWN: &str = "018f0000-0000-7000-8000-000000000001";

async fn question(address: SocketAddr, run: &str) -> Value {
    let look = async || {
        let pending = api::list(address, "/interactions?status=pending", "interactions").await;
        pending
            .into_iter()
            .find(|question| question["run_id"] == run)
    };
    eventually("the question is asked", LIMIT, look).await
}

fn resolve(question: &str, approved: bool) -> Request {
    Request::post(
        format!("/interactions/{question}/resolve"),
        &json!({"approved": approved}),
    )
}

/// Whether the one open question is this one, for scripts and for people.
async fn is_listed(place: &Place, server: &Server, id: &str) {
    let url = server.url();
    let listed = place
        .run(&["approvals", "list", "--server", &url, "--json"])
        .await
        .exits(0);
    let listed = &listed.json_lines()[0]["interactions"];
    assert_eq!(
        (
            listed.as_array().unwrap().len(),
            &listed[0]["interaction_id"]
        ),
        (1, &json!(id))
    );
    let table = place
        .run(&["approvals", "list", "--server", &url])
        .await
        .exits(0);
    assert!(
        table.out.contains(id) && table.out.contains("edit"),
        "{}",
        table.out
    );
}

async fn an_open_question_survives_the_server_and_is_answered_once(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let address = server.address;
    let options = ExecutorOptions {
        lease_seconds: 30,
        ..ExecutorOptions::named("x1")
    };
    let _executor = executor(&place, &server.url(), &options);
    let session = session_of(address, &json!({"approval_policy": "interactive"})).await;
    let (run, _) = prompt(address, &session, SCRIPT).await;
    let asked = question(address, &run).await;
    let id = text(&asked, "interaction_id");
    assert_eq!(
        asked["request"]["tool_call"]["tool_name"], "edit",
        "{asked}"
    );
    server.restart().await;

    let shown = server.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(
        (&shown["status"], &shown["pending_interactions"]),
        (&json!("waiting_approval"), &json!(1))
    );
    is_listed(&place, &server, &id).await;

    // Words are no answer: neither a prompt nor one that waits in line (faults 11).
    let path = format!("/sessions/{session}/prompt");
    let yes = server
        .post(&path, &json!({"prompt": "yes, go ahead"}))
        .await;
    assert_eq!(yes.problem(), (409, "session_busy".to_owned()));
    let queued = json!({"prompt": "say queued", "on_active": "enqueue"});
    assert_eq!(server.post(&path, &queued).await.ok()["status"], "queued");
    assert_eq!(question(address, &run).await["status"], "pending");

    let url = server.url();
    let approve = ["approvals", "approve", &id, "--server", &url, "--json"];
    let approved = place.run(&approve).await.exits(0);
    assert_eq!(approved.json_lines()[0]["status"], "approved");
    // The same again is fine, another answer isn't.
    place.run(&approve).await.exits(0);
    let other = resolve(&id, false).send(address).await;
    assert_eq!(other.problem(), (409, "already_resolved".to_owned()));
    assert!(
        other.text().contains("approved"),
        "the recorded answer: {}",
        other.text()
    );
    place
        .run(&["approvals", "deny", &id, "--server", &url])
        .await
        .exits(4);
    let unknown = resolve(UNKNOWN, true).send(address).await;
    assert_eq!(unknown.problem(), (404, "interaction_not_found".to_owned()));

    let ended = api::settled(address, &run).await;
    assert_eq!(
        (&ended["status"], &ended["attempt"]),
        (&json!("completed"), &json!(1))
    );
    let log = api::log(address, &session).await;
    assert_eq!(api::said(&log, &run), "`edit` was allowed.\nafter");
    let asked = log
        .iter()
        .filter(|event| event["kind"] == "ApprovalRequest")
        .count();
    let answered = log
        .iter()
        .filter(|event| event["kind"] == "ApprovalResponse")
        .count();
    assert_eq!((asked, answered), (1, 1));
}

async fn a_question_whose_asker_died_ends_and_the_resumed_run_asks_anew(place: Arc<Place>) {
    let server = Server::scaled(&place, SCALE).await;
    let address = server.address;
    let mut worker = executor(&place, &server.url(), &ExecutorOptions::named("x1"));
    let session = session_of(address, &json!({"approval_policy": "interactive"})).await;
    let (run, _) = prompt(address, &session, SCRIPT).await;
    let first = text(&question(address, &run).await, "interaction_id");
    worker.kill().await;
    assert_eq!(api::settled(address, &run).await["status"], "interrupted");
    let shown = server.get(&format!("/interactions/{first}")).await.ok();
    assert_eq!(shown["status"], "cancelled");
    for approved in [true, false] {
        let late = resolve(&first, approved).send(address).await;
        assert_eq!(late.problem(), (409, "already_resolved".to_owned()));
        assert!(late.text().contains("cancelled"), "{}", late.text());
    }
    let request = text(&shown["request"], "request_id");
    let older = json!({"request_id": request, "approved": true});
    let older = server
        .post(&format!("/sessions/{session}/approve"), &older)
        .await;
    assert_eq!(older.problem(), (409, "already_resolved".to_owned()));

    let _next = executor(&place, &server.url(), &ExecutorOptions::named("x2"));
    let (again, _) = resume(address, &session, SCRIPT).await;
    let second = text(&question(address, &again).await, "interaction_id");
    assert_ne!(first, second);
    assert_eq!(
        resolve(&second, false).send(address).await.ok()["status"],
        "denied"
    );
    assert_eq!(api::settled(address, &again).await["status"], "completed");
    let log = api::log(address, &session).await;
    assert!(
        api::said(&log, &again).contains("`edit` was not allowed"),
        "{log:?}"
    );
    // Nothing of the question was carried out without a yes.
    let done = log
        .iter()
        .filter(|event| event["payload"].to_string().contains("edit done"));
    assert_eq!(done.count(), 0);
}

async fn a_form_is_shown_filled_in_and_declined_from_the_command_line(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let address = server.address;
    let session = session_of(address, &json!({"approval_policy": "yolo"})).await;
    prompt(address, &session, "go").await;
    let claim = api::Claim::take(address, "default").await;
    let form = json!({
        "type": "object",
        "properties": {
            "branch": {"type": "string", "title": "Branch"},
            "push": {"type": "boolean"},
        },
        "required": ["branch"],
    });
    let ask = async |request_id: &str| {
        let body = json!({
            "request_id": request_id, "message": "Where to?", "form": form, "wait_seconds": 0,
        });
        claim.request("question", body).send(address).await.ok()
    };
    let id = text(&ask("q1").await, "interaction_id");
    let url = server.url();
    let run = async |arguments: &[&str]| {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--server", &url]);
        place.run(&arguments).await
    };
    let listed = run(&["approvals", "list"]).await.exits(0);
    assert!(listed.out.contains("Where to?"), "{}", listed.out);
    let shown = run(&["approvals", "show", &id]).await.exits(0);
    assert!(shown.out.contains("branch: Branch"), "{}", shown.out);
    // What doesn't fit is said before anything is sent, or by the server; the question stays open.
    for wrong in [
        &["approvals", "answer", &id, "--field", "brunch=main"][..],
        &["approvals", "answer", &id, "--field", "push=perhaps"],
        &["approvals", "answer", &id, "--field", "push=yes"],
        &["approvals", "answer", &id, "--response", "{}"],
        &["approvals", "approve", &id],
    ] {
        let refused = run(wrong).await;
        assert_ne!(refused.code, Some(0), "{wrong:?}");
        assert_eq!(ask("q1").await["status"], "pending");
    }
    let answer = [
        "approvals",
        "answer",
        &id,
        "--field",
        "branch=main",
        "--field",
        "push=yes",
    ];
    run(&answer).await.exits(0);
    let told = ask("q1").await;
    assert_eq!(told["response"], json!({"branch": "main", "push": true}));
    let other = text(&ask("q2").await, "interaction_id");
    run(&["approvals", "decline", &other]).await.exits(0);
    assert_eq!(ask("q2").await["status"], "denied");
}

async fn a_rule_is_added_listed_and_revoked_from_the_command_line(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let url = server.url();
    let run = async |arguments: &[&str]| {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--server", &url]);
        place.run(&arguments).await
    };
    let rules = |command: &'static str| ["approvals", "rules", command];
    let [approvals, name, add] = rules("add");
    let git = [
        "shell",
        "--match",
        "command=git *",
        "--decision",
        "allow",
        "--json",
    ];
    let added = [&[approvals, name, add][..], &git].concat();
    let added = run(&added).await.exits(0);
    let rule = &added.json_lines()[0];
    assert_eq!(rule["arguments"], json!({"fields": {"command": "git *"}}));
    let id = text(rule, "rule_id");
    let listed = run(&rules("list")).await.exits(0);
    assert!(
        listed.out.contains(&id) && listed.out.contains("command=git *"),
        "{}",
        listed.out
    );
    let shown = run(&[&rules("show")[..], &[&id]].concat()).await.exits(0);
    assert!(shown.out.contains("everywhere"), "{}", shown.out);
    let revoked = run(&[&rules("revoke")[..], &[&id]].concat()).await.exits(0);
    assert!(revoked.out.contains("revoked by"), "{}", revoked.out);
    let listed = run(&rules("list")).await.exits(0);
    assert!(!listed.out.contains(&id), "{}", listed.out);
    let missing = [&rules("show")[..], &[UNKNOWN]].concat();
    run(&missing).await.exits(3);
}
