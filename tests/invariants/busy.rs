//! A database in which everything that can happen has happened: every status, every table, every
//! kind of past.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tapedeck_control_plane::commands::append_events::AppendEvents;
use tapedeck_control_plane::commands::append_tape::AppendTape;
use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_control_plane::commands::save_artifacts::SaveArtifacts;
use tapedeck_control_plane::commands::save_snapshot::SaveSnapshot;
use tapedeck_control_plane::retention::{Folded, Retention};
use tapedeck_control_plane::sweep;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::interaction::Scope;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::Ending;
use tapedeck_domain::tape::upload::{EntryBatch, UploadedEntry};
use tapedeck_domain::token::{Role, TokenTerms};
use tapedeck_domain::{CheckpointId, SessionId};

use crate::control::{Claim, KEEP_DELTAS_MS, NAMESPACE, TestControl, key};
use crate::write_paths::cases::artifact;

/// Fills a database.
pub(crate) async fn fill(t: &TestControl) {
    t.session().await;
    with_a_past(t).await;
    with_questions(t).await;
    with_queues(t).await;
    with_waiting_runs(t).await;
    with_tokens(t).await;
    t.sweep().await;
}

/// Tokens: one of each role, one that ends by itself, one that is revoked.
async fn with_tokens(t: &TestControl) {
    for (role, expires_in_seconds) in [
        (Role::Client, Some(3_600)),
        (Role::Executor, None),
        (Role::Operator, None),
    ] {
        let terms = TokenTerms {
            name: role.to_string(),
            role,
            namespace: None,
            expires_in_seconds,
        };
        let made = t.control.create_token(terms, "client:test", None).await;
        let id = made.unwrap().token.token_id;
        if role == Role::Operator {
            t.control.revoke_token(id, "client:test").await.unwrap();
        }
    }
}

/// Lets so much time pass, with nobody alive, that deltas are folded, and folds them.
pub(crate) async fn fold(t: &TestControl) {
    t.outage(KEEP_DELTAS_MS + 1);
    sweep::start(&t.control).await.unwrap();
    let mut retention = Retention::default();
    let mut runs = 0;
    while let Folded {
        runs: more @ 1.., ..
    } = retention.pass(&t.control).await.unwrap()
    {
        runs += more;
    }
    assert!(runs > 0);
}

/// Uploads one event of each kind that the tape is made of.
async fn work(t: &TestControl, claim: &Claim) {
    let events = [
        ("TurnBegin", json!({})),
        (
            "StreamDelta",
            json!({"content": "one ", "role": "assistant"}),
        ),
        (
            "StreamDelta",
            json!({"content": "two\u{7}", "role": "assistant"}),
        ),
        ("ThinkingDelta", json!({"text": "hm"})),
        (
            "ToolCallBegin",
            json!({"call_id": "c", "tool_name": "shell", "arguments": {"b": 1, "a": 2}}),
        ),
        (
            "ToolResultDelta",
            json!({"call_id": "c", "display_result": "ok", "is_error": false}),
        ),
        (
            "ToolCallEnd",
            json!({"call_id": "c", "status": "completed"}),
        ),
        ("Plan", json!({"entries": []})),
        ("Custom", json!({"ü": [1.5, null, true]})),
    ];
    let check = |(index, (kind, data)): (usize, &(&str, Value))| {
        let id = format!("e{index}");
        Uploaded::check(index, id, (*kind).to_owned(), data, None).unwrap()
    };
    let batch = events.iter().enumerate().map(check).collect();
    let command = AppendEvents {
        proof: claim.proof.clone(),
        batch,
    };
    t.control.append_events(command).await.unwrap();
}

async fn snapshot(t: &TestControl, claim: &Claim) {
    let command = SaveSnapshot {
        proof: claim.proof.clone(),
        messages: vec![json!({"role": "user", "content": "do it"})],
        metadata: Map::new(),
        weight: 100,
    };
    t.control.save_snapshot(command).await.unwrap();
    let command = SaveArtifacts {
        proof: claim.proof.clone(),
        artifacts: vec![artifact("run.patch", "a patch")],
    };
    t.control.save_artifacts(command).await.unwrap();
}

async fn own_tape(t: &TestControl, claim: &Claim) {
    let entry = |kind: &str, payload: Value| UploadedEntry {
        entry_id: None,
        kind: kind.to_owned(),
        payload,
        meta: Some(json!({"note": 1})),
        anchor_type: None,
    };
    let entries = vec![
        entry("assistant_message", json!({"text": "mine"})),
        entry(
            "tool_call",
            json!({"call_id": "x", "tool_name": "t", "result": "r"}),
        ),
    ];
    let command = AppendTape {
        proof: claim.proof.clone(),
        batch: EntryBatch::check(claim.run_id(), entries).unwrap(),
        weight: 100,
    };
    t.control.append_tape(command).await.unwrap();
}

async fn run_in(t: &TestControl, session: SessionId, ending: Ending) {
    t.prompt(session).await;
    let claim = t.claim("past").await;
    work(t, &claim).await;
    t.settle(&claim, ending).await.unwrap();
}

async fn checkpoint(t: &TestControl, session: SessionId, label: &str) -> CheckpointId {
    let label = Some(label.to_owned());
    let captured = t
        .control
        .capture_checkpoint(NAMESPACE, session, label, None);
    captured.await.unwrap().checkpoint_id
}

/// Runs that ended in every way, checkpoints, a restore, resumes, forks.
async fn with_a_past(t: &TestControl) {
    let session = t.session().await;
    let mut first = t.prompt_command(session, "first", OnActive::Reject, None);
    first.key = Some(key("prompt", "k", "b"));
    t.control.prompt(first).await.unwrap();
    let claim = t.claim("past").await;
    work(t, &claim).await;
    snapshot(t, &claim).await;
    let state = Some(json!({"session": "s"}));
    t.settle_with_state(&claim, Ending::Completed, state).await;
    run_in(t, session, Ending::Failed).await;
    let kept = checkpoint(t, session, "kept").await;
    run_in(t, session, Ending::Interrupted).await;
    let later = checkpoint(t, session, "later").await;
    let gone = checkpoint(t, session, "gone").await;
    let deleted = t.control.delete_checkpoint(NAMESPACE, session, gone);
    deleted.await.unwrap();
    let restored = t.control.restore_session(NAMESPACE, session, kept, None);
    restored.await.unwrap();
    t.resume(session).await.unwrap();
    let claim = t.claim("past").await;
    work(t, &claim).await;
    own_tape(t, &claim).await;
    t.complete(&claim).await;
    assert!(
        t.control
            .checkpoint(NAMESPACE, later)
            .await
            .unwrap()
            .superseded_at
            .is_some()
    );
    for point in [ForkPoint::Head, ForkPoint::Checkpoint(kept)] {
        let fork = t
            .control
            .fork_session(NAMESPACE, session, point, None, None);
        let fork = fork.await.unwrap().session.session_id;
        run_in(t, fork, Ending::Completed).await;
    }
    let closed = t.session().await;
    run_in(t, closed, Ending::Cancelled).await;
    t.control.close_session(NAMESPACE, closed).await.unwrap();
}

/// Questions that were answered, that ended, and one that is open.
async fn with_questions(t: &TestControl) {
    let (_, claim) = t.running("asks").await;
    for (request, scope) in [("a", Scope::Once), ("b", Scope::Session)] {
        let tool = format!("tool-{request}");
        let asked = t.ask_for(&claim, request, &tool).await.unwrap();
        let answered = t.answer_in_scope(asked.interaction_id, true, scope);
        answered.await.unwrap();
    }
    t.ask_for(&claim, "c", "tool-c").await.unwrap();
    t.settle(&claim, Ending::Failed).await.unwrap();
    let (_, claim) = t.running("asks").await;
    t.ask_for(&claim, "d", "tool-d").await.unwrap();
    t.say(&claim, "e", "waits").await.unwrap();
}

/// Runs behind a running one, behind an interrupted one, and one that was cancelled while it waited.
async fn with_queues(t: &TestControl) {
    let (session, _claim) = t.running("queue").await;
    t.enqueue(session).await;
    let waits = t.enqueue(session).await;
    t.control
        .cancel_run(NAMESPACE, waits.run_id, "client")
        .await
        .unwrap();
    let (held, claim) = t.running("queue").await;
    t.enqueue(held).await;
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    let (cancelled, _claim) = t.running("queue").await;
    t.control
        .cancel_session(NAMESPACE, cancelled, "client")
        .await
        .unwrap();
    let (interrupted, _claim) = t.running("queue").await;
    t.try_prompt(interrupted, OnActive::Interrupt)
        .await
        .unwrap();
}

/// Runs that wait for an executor, for the first time and again, and one that nobody acknowledged.
async fn with_waiting_runs(t: &TestControl) {
    let mut settings = SessionSettings::default();
    settings.run_target.constraints.max_attempts = Some(3);
    let again = t.session_with(settings.clone()).await;
    t.prompt(again).await;
    let claim = t.claim("again").await;
    t.say(&claim, "a", "lost").await.unwrap();
    let released = t.session_with(settings.clone()).await;
    t.prompt(released).await;
    t.claim("again").await;
    "elsewhere".clone_into(&mut settings.run_target.executor.pool);
    settings.run_target.executor.executor_id = Some("pinned".to_owned());
    settings.run_target.executor.labels = BTreeMap::from([
        ("gpu".to_owned(), "yes \"\u{e9}".to_owned()),
        ("arch".to_owned(), "arm".to_owned()),
    ]);
    let pinned = t.session_with(settings).await;
    t.prompt(pinned).await;
}
