//! One case for each command of the list: a session in the state that the command needs, and the
//! command itself, which is allowed there and changes something.

use serde_json::{Map, json};
use tapedeck_control_plane::commands::Any;
use tapedeck_control_plane::commands::acquire_owner::AcquireOwner;
use tapedeck_control_plane::commands::append_events::AppendEvents;
use tapedeck_control_plane::commands::append_tape::AppendTape;
use tapedeck_control_plane::commands::ask::Ask;
use tapedeck_control_plane::commands::cancel_run::{CancelRun, CancelTarget};
use tapedeck_control_plane::commands::capture_checkpoint::CaptureCheckpoint;
use tapedeck_control_plane::commands::check_claim::CheckClaim;
use tapedeck_control_plane::commands::claim_run::ClaimRun;
use tapedeck_control_plane::commands::close_session::CloseSession;
use tapedeck_control_plane::commands::configure_session::{ConfigureSession, SettingsPatch};
use tapedeck_control_plane::commands::continue_queue::ContinueQueue;
use tapedeck_control_plane::commands::create_rule::CreateRule;
use tapedeck_control_plane::commands::create_session::CreateSession;
use tapedeck_control_plane::commands::create_token::CreateToken;
use tapedeck_control_plane::commands::delete_checkpoint::DeleteCheckpoint;
use tapedeck_control_plane::commands::delete_session::DeleteSession;
use tapedeck_control_plane::commands::drain_executor::DrainExecutor;
use tapedeck_control_plane::commands::expire_claim::ExpireClaim;
use tapedeck_control_plane::commands::expire_interaction::ExpireInteraction;
use tapedeck_control_plane::commands::flag_unservable::FlagUnservable;
use tapedeck_control_plane::commands::fold_run::FoldRun;
use tapedeck_control_plane::commands::forget_executor::ForgetExecutor;
use tapedeck_control_plane::commands::fork_session::{ForkPoint, ForkSession};
use tapedeck_control_plane::commands::heartbeat::{ClaimProof, Heartbeat};
use tapedeck_control_plane::commands::keep_house::KeepHouse;
use tapedeck_control_plane::commands::leave_executor::LeaveExecutor;
use tapedeck_control_plane::commands::list_expired::ListExpired;
use tapedeck_control_plane::commands::list_foldable::ListFoldable;
use tapedeck_control_plane::commands::load_context::LoadContext;
use tapedeck_control_plane::commands::mark_alive::MarkAlive;
use tapedeck_control_plane::commands::project_tape::{ProjectTape, TapeOf};
use tapedeck_control_plane::commands::prompt::AdmitPrompt;
use tapedeck_control_plane::commands::record_contact::RecordContact;
use tapedeck_control_plane::commands::release_owner::ReleaseOwner;
use tapedeck_control_plane::commands::release_run::ReleaseRun;
use tapedeck_control_plane::commands::renew_owner::RenewOwner;
use tapedeck_control_plane::commands::repair_session::RepairSession;
use tapedeck_control_plane::commands::resolve_interaction::{QuestionTarget, ResolveInteraction};
use tapedeck_control_plane::commands::restore_session::RestoreSession;
use tapedeck_control_plane::commands::resume::ResumeSession;
use tapedeck_control_plane::commands::revoke_rule::RevokeRule;
use tapedeck_control_plane::commands::revoke_token::RevokeToken;
use tapedeck_control_plane::commands::save_artifacts::SaveArtifacts;
use tapedeck_control_plane::commands::save_snapshot::SaveSnapshot;
use tapedeck_control_plane::commands::settle_run::SettleRun;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::artifact::{Encoding, NewArtifact};
use tapedeck_domain::checkpoint::Fork;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::executor::Report;
use tapedeck_domain::id::RunKey;
use tapedeck_domain::interaction::{Answer, Asked, Question, Reply, Scope, ToolUse};
use tapedeck_domain::resume::Resume;
use tapedeck_domain::rule::{Decision, RuleTerms};
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::{Ending, RunEnd};
use tapedeck_domain::tape::upload::{EntryBatch, UploadedEntry};
use tapedeck_domain::token::{Role, TokenTerms};
use tapedeck_domain::{
    CheckpointId, InteractionId, RuleId, RunId, SessionId, TapeEntryId, TapeId, Timestamp, TokenId,
};

use crate::control::{Claim, NAMESPACE, TestControl, claim_request, contact};

/// A command that is allowed and changes something.
pub(crate) struct Case {
    /// The session that it writes to.
    pub(crate) session: SessionId,
    /// The command, for a session of this namespace.
    pub(crate) make: Box<dyn Fn(&str) -> Any + Send + Sync>,
}

impl Case {
    fn new<C: Into<Any>>(
        session: SessionId,
        make: impl Fn(&str) -> C + Send + Sync + 'static,
    ) -> Self {
        Self {
            session,
            make: Box::new(move |namespace| make(namespace).into()),
        }
    }

    pub(crate) fn command(&self) -> Any {
        (self.make)(NAMESPACE)
    }
}

/// Its case of every command of the list.
pub(crate) async fn case(t: &TestControl, name: &str) -> Case {
    if let Some(case) = of_a_claim(t, name).await {
        return case;
    }
    if let Some(case) = of_a_run(t, name).await {
        return case;
    }
    if let Some(case) = of_a_settled_session(t, name).await {
        return case;
    }
    if let Some(case) = of_an_executor(t, name).await {
        return case;
    }
    match of_any_session(t, name).await {
        Some(case) => case,
        None => panic!("`{name}` has no case: add one here, and a row in docs/write-paths.md"),
    }
}

/// What an executor may send of its run under its claim, each with something new.
pub(crate) const CLAIM_WRITES: &[&str] = &[
    "AppendEvents",
    "AppendTape",
    "Ask",
    "CheckClaim",
    "Heartbeat",
    "ReleaseRun",
    "SaveArtifacts",
    "SaveSnapshot",
    "SettleRun",
];

/// New ids for what an executor sends.
pub(crate) type NewIds = (TapeEntryId, InteractionId);

pub(crate) fn new_ids(t: &TestControl) -> NewIds {
    let (entry, question) = (t.control.new_id(), t.control.new_id());
    (TapeEntryId::new(entry), InteractionId::new(question))
}

/// One of [`CLAIM_WRITES`] under this proof.
pub(crate) fn claim_write(name: &str, proof: ClaimProof, ids: NewIds) -> Any {
    match name {
        "AppendEvents" => AppendEvents {
            batch: vec![said("new", "x")],
            proof,
        }
        .into(),
        "AppendTape" => append_tape(proof, vec![entry(ids.0, "mine")]).into(),
        "Ask" => ask(proof, ids.1, "new").into(),
        "CheckClaim" => CheckClaim { proof }.into(),
        "Heartbeat" => Heartbeat {
            proof,
            lease_ms: None,
            report: Report {
                process_id: Some(77),
                ..Report::default()
            },
            agent_state: Some(json!({"session_id": "of another"})),
        }
        .into(),
        "ReleaseRun" => ReleaseRun { proof }.into(),
        "SaveArtifacts" => SaveArtifacts {
            proof,
            artifacts: vec![artifact("run.patch", "a patch")],
        }
        .into(),
        "SaveSnapshot" => SaveSnapshot {
            proof,
            messages: vec![json!({"role": "user", "content": "do it"})],
            metadata: Map::new(),
            weight: 0,
        }
        .into(),
        "SettleRun" => settle(proof, None).into(),
        other => panic!("`{other}` is no write of a claim"),
    }
}

pub(crate) fn artifact(name: &str, content: &str) -> NewArtifact {
    NewArtifact {
        name: name.to_owned(),
        media_type: "text/x-diff".to_owned(),
        encoding: Encoding::Text,
        content: content.to_owned(),
        bytes: content.len() as u64,
    }
}

pub(crate) fn said(id: &str, text: &str) -> Uploaded {
    let payload = json!({"content": text, "role": "assistant"});
    Uploaded::check(0, id.to_owned(), "StreamDelta".to_owned(), &payload, None).unwrap()
}

pub(crate) fn entry(id: TapeEntryId, text: &str) -> UploadedEntry {
    UploadedEntry {
        entry_id: Some(id),
        kind: "assistant_message".to_owned(),
        payload: json!({"text": text}),
        meta: None,
        anchor_type: None,
    }
}

pub(crate) fn append_tape(proof: ClaimProof, entries: Vec<UploadedEntry>) -> AppendTape {
    AppendTape {
        batch: EntryBatch::check(proof.run_id, entries).unwrap(),
        proof,
        weight: 0,
    }
}

pub(crate) fn ask(proof: ClaimProof, interaction_id: InteractionId, request_id: &str) -> Ask {
    Ask {
        proof,
        interaction_id,
        question: Question {
            request_id: request_id.to_owned(),
            timeout_seconds: 1,
            asked: Asked::Approval(ToolUse {
                tool_name: "shell".to_owned(),
                tool_kind: None,
                call_id: None,
                arguments: json!({"command": "date"}),
                options: json!([]),
            }),
        },
    }
}

pub(crate) fn any_shell() -> RuleTerms {
    RuleTerms {
        tool_name: "shell".to_owned(),
        arguments: None,
        decision: Decision::Allow,
    }
}

/// A token of a name that no other has.
fn operator(name: TokenId) -> TokenTerms {
    TokenTerms {
        name: name.to_string(),
        role: Role::Operator,
        namespace: None,
        expires_in_seconds: None,
    }
}

pub(crate) fn revoke(
    namespace: &str,
    session_id: Option<SessionId>,
    rule_id: RuleId,
) -> RevokeRule {
    RevokeRule {
        namespace: namespace.to_owned(),
        session_id,
        rule_id,
        by: "client:test".to_owned(),
    }
}

pub(crate) fn settle(proof: ClaimProof, tape: Option<EntryBatch>) -> SettleRun {
    SettleRun {
        proof,
        end: RunEnd {
            ending: Ending::Failed,
            result: None,
            error: Some("it broke".to_owned()),
            recovery_reason: None,
            body_digest: Some(Digest::of_bytes(b"settled by the case")),
        },
        event_count: None,
        agent_state: Some(json!({"state": 1})),
        tape_id: None,
        tape,
    }
}

pub(crate) fn resolve(namespace: &str, target: QuestionTarget) -> ResolveInteraction {
    ResolveInteraction {
        namespace: namespace.to_owned(),
        target,
        answer: Answer {
            reply: Reply::Approval {
                approved: true,
                scope: Scope::Session,
            },
            feedback: None,
        },
        by: "client:test".to_owned(),
    }
}

pub(crate) fn cancel(namespace: &str, session_id: SessionId, run_id: RunId) -> CancelRun {
    CancelRun {
        namespace: namespace.to_owned(),
        target: CancelTarget::Run { session_id, run_id },
        by: "client".to_owned(),
    }
}

pub(crate) fn create(namespace: &str, session_id: SessionId, tape_id: TapeId) -> CreateSession {
    CreateSession {
        namespace: namespace.to_owned(),
        session_id,
        tape_id,
        settings: SessionSettings::default(),
        key: None,
    }
}

pub(crate) fn capture(namespace: &str, session_id: SessionId, id: CheckpointId) -> Any {
    CaptureCheckpoint {
        namespace: namespace.to_owned(),
        session_id,
        checkpoint_id: id,
        label: Some("here".to_owned()),
        key: None,
    }
    .into()
}

pub(crate) fn fork(
    namespace: &str,
    source: SessionId,
    point: ForkPoint,
    new: (SessionId, TapeId),
) -> Any {
    ForkSession {
        namespace: namespace.to_owned(),
        source,
        point,
        fork: Fork {
            session_id: new.0,
            tape_id: new.1,
            title: None,
        },
        key: None,
    }
    .into()
}

pub(crate) fn restore(namespace: &str, session_id: SessionId, id: CheckpointId) -> Any {
    RestoreSession {
        namespace: namespace.to_owned(),
        session_id,
        checkpoint_id: id,
        key: None,
    }
    .into()
}

pub(crate) fn delete_checkpoint(namespace: &str, session_id: SessionId, id: CheckpointId) -> Any {
    DeleteCheckpoint {
        namespace: namespace.to_owned(),
        session_id,
        checkpoint_id: id,
    }
    .into()
}

pub(crate) fn resume(
    namespace: &str,
    session_id: SessionId,
    run_id: RunId,
    anchor_id: TapeEntryId,
) -> Any {
    ResumeSession {
        namespace: namespace.to_owned(),
        session_id,
        resume: Resume {
            run_id,
            text: None,
            reason: "user_resume".to_owned(),
            metadata: Map::new(),
            anchor_id,
        },
        key: None,
    }
    .into()
}

/// A session whose run has settled, with a checkpoint before and one run after it.
pub(crate) async fn settled(t: &TestControl) -> (SessionId, CheckpointId, Claim) {
    let (session, first) = t.running("e1").await;
    t.say(&first, "a", "first").await.unwrap();
    t.complete(&first).await;
    let checkpoint = t
        .control
        .capture_checkpoint(NAMESPACE, session, None, None)
        .await
        .unwrap();
    t.prompt(session).await;
    let second = t.claim("e1").await;
    for (id, text) in [("a", "sec"), ("b", "ond")] {
        t.say(&second, id, text).await.unwrap();
    }
    t.complete(&second).await;
    (session, checkpoint.checkpoint_id, second)
}

async fn of_a_claim(t: &TestControl, name: &str) -> Option<Case> {
    let name = CLAIM_WRITES.iter().find(|known| **known == name)?;
    let session = t.session().await;
    t.prompt(session).await;
    let proof = t.claim("e1").await.proof;
    let ids = new_ids(t);
    Some(Case::new(session, move |_| {
        claim_write(name, proof.clone(), ids)
    }))
}

async fn of_a_run(t: &TestControl, name: &str) -> Option<Case> {
    let case = match name {
        "CancelRun" => {
            let (session, claim) = t.running("e1").await;
            let run = claim.run_id();
            Case::new(session, move |namespace| cancel(namespace, session, run))
        }
        "ClaimRun" => {
            let session = t.session().await;
            t.prompt(session).await;
            let request = format!("request-{}", t.control.new_id());
            Case::new(session, move |_| ClaimRun {
                session_id: Some(session),
                ..claim_request("e1", &request)
            })
        }
        "ContinueQueue" => {
            let (session, claim) = t.running("e1").await;
            t.enqueue(session).await;
            t.settle(&claim, Ending::Interrupted).await.unwrap();
            Case::new(session, move |namespace| ContinueQueue {
                namespace: namespace.to_owned(),
                session_id: session,
            })
        }
        "ExpireClaim" => {
            let session = t.session().await;
            t.prompt(session).await;
            let run_id = t.claim("e1").await.run_id();
            t.pass(16_000).await;
            Case::new(session, move |_| ExpireClaim { run_id })
        }
        "ExpireInteraction" => {
            let (session, claim) = t.running("e1").await;
            let interaction_id = InteractionId::new(t.control.new_id());
            let ask = ask(claim.proof, interaction_id, "q");
            t.control.run_alone(ask.into()).await.unwrap();
            t.pass(2_000).await;
            Case::new(session, move |_| ExpireInteraction { interaction_id })
        }
        "ProjectTape" => {
            let (session, claim) = t.running("e1").await;
            t.say(&claim, "a", "not on the tape yet").await.unwrap();
            Case::new(session, move |namespace| ProjectTape {
                target: TapeOf::Session(namespace.to_owned(), session),
            })
        }
        "ResolveInteraction" => {
            let (session, claim) = t.running("e1").await;
            let asked = t.ask(&claim, "q").await.unwrap();
            let interaction_id = asked.interaction_id;
            Case::new(session, move |namespace| {
                let target = QuestionTarget::Interaction {
                    session_id: session,
                    interaction_id,
                };
                resolve(namespace, target)
            })
        }
        _ => return None,
    };
    Some(case)
}

async fn of_a_settled_session(t: &TestControl, name: &str) -> Option<Case> {
    let needs_one = [
        "CaptureCheckpoint",
        "DeleteCheckpoint",
        "FoldRun",
        "ForkSession",
        "LoadContext",
        "RestoreSession",
        "ResumeSession",
    ];
    if !needs_one.contains(&name) {
        return None;
    }
    let (session, checkpoint, last) = settled(t).await;
    let (id, second_id) = (t.control.new_id(), t.control.new_id());
    Some(match name {
        "CaptureCheckpoint" => Case::new(session, move |namespace| {
            capture(namespace, session, CheckpointId::new(id))
        }),
        "DeleteCheckpoint" => Case::new(session, move |namespace| {
            delete_checkpoint(namespace, session, checkpoint)
        }),
        "FoldRun" => Case::new(session, move |_| FoldRun {
            run_id: last.run_id(),
            folding: None,
        }),
        "ForkSession" => Case::new(session, move |namespace| {
            let new = (SessionId::new(id), TapeId::new(second_id));
            fork(namespace, session, ForkPoint::Checkpoint(checkpoint), new)
        }),
        "LoadContext" => {
            t.prompt(session).await;
            let run_id = t.claim("e1").await.run_id();
            Case::new(session, move |_| LoadContext { run_id })
        }
        "RestoreSession" => Case::new(session, move |namespace| {
            restore(namespace, session, checkpoint)
        }),
        _ => Case::new(session, move |namespace| {
            let anchor = TapeEntryId::new(second_id);
            resume(namespace, session, RunId::new(id), anchor)
        }),
    })
}

#[expect(clippy::too_many_lines, reason = "a table of commands")]
async fn of_any_session(t: &TestControl, name: &str) -> Option<Case> {
    let session = t.session().await;
    let owned = move |namespace: &str| (namespace.to_owned(), session);
    let case = match name {
        "AcquireOwner" => Case::new(session, move |namespace| {
            let (namespace, session_id) = owned(namespace);
            AcquireOwner {
                namespace,
                session_id,
            }
        }),
        "AdmitPrompt" => {
            let command = t.prompt_command(session, "do it", OnActive::Reject, None);
            Case::new(session, move |namespace| AdmitPrompt {
                namespace: namespace.to_owned(),
                session_id: session,
                prompt: command.prompt.clone(),
                key: None,
            })
        }
        "CloseSession" => Case::new(session, move |namespace| {
            let (namespace, session_id) = owned(namespace);
            CloseSession {
                namespace,
                session_id,
            }
        }),
        "ConfigureSession" => Case::new(session, move |namespace| ConfigureSession {
            namespace: namespace.to_owned(),
            session_id: session,
            patch: SettingsPatch {
                title: Some(Some("changed".to_owned())),
                ..SettingsPatch::default()
            },
        }),
        "CreateRule" => {
            let rule_id = RuleId::new(t.control.new_id());
            Case::new(session, move |namespace| CreateRule {
                namespace: namespace.to_owned(),
                session_id: Some(session),
                rule_id,
                terms: any_shell(),
                by: "client:test".to_owned(),
                key: None,
            })
        }
        "CreateToken" => {
            let token_id = TokenId::new(t.control.new_id());
            Case::new(session, move |_| CreateToken {
                token_id,
                digest: Digest::of_bytes(token_id.uuid().as_bytes()),
                terms: operator(token_id),
                by: "client:test".to_owned(),
                key: None,
            })
        }
        "RevokeToken" => {
            let terms = operator(TokenId::new(t.control.new_id()));
            let made = t.control.create_token(terms, "client:test", None).await;
            let token_id = made.unwrap().token.token_id;
            Case::new(session, move |_| RevokeToken {
                token_id,
                by: "client:test".to_owned(),
            })
        }
        "RevokeRule" => {
            let made = t
                .control
                .create_rule(NAMESPACE, Some(session), any_shell(), "client:test", None)
                .await
                .unwrap();
            Case::new(session, move |namespace| {
                revoke(namespace, Some(session), made.rule_id)
            })
        }
        "CreateSession" => {
            let (id, tape) = (t.control.new_id(), t.control.new_id());
            Case::new(session, move |namespace| {
                create(namespace, SessionId::new(id), TapeId::new(tape))
            })
        }
        "DeleteSession" => Case::new(session, move |namespace| DeleteSession {
            namespace: namespace.to_owned(),
            session_id: session,
            force: true,
        }),
        "KeepHouse" => Case::new(session, |_| KeepHouse),
        "ListExpired" => Case::new(session, |_| ListExpired {
            after_run: RunKey(0),
            after_interaction: None,
            limit: 10,
        }),
        "ListFoldable" => Case::new(session, |_| ListFoldable {
            before: Timestamp(i64::MAX),
            after: (Timestamp(i64::MIN), RunKey(0)),
            limit: 10,
        }),
        "MarkAlive" => Case::new(session, |_| MarkAlive),
        "RecordContact" => Case::new(session, |_| RecordContact {
            contact: contact("met by the case"),
        }),
        "ReleaseOwner" => Case::new(session, move |namespace| {
            let (namespace, session_id) = owned(namespace);
            ReleaseOwner {
                namespace,
                session_id,
            }
        }),
        "RenewOwner" => Case::new(session, move |namespace| {
            let (namespace, session_id) = owned(namespace);
            RenewOwner {
                namespace,
                session_id,
            }
        }),
        "RepairSession" => Case::new(session, move |namespace| RepairSession {
            namespace: namespace.to_owned(),
            session_id: session,
            by: "test".to_owned(),
        }),
        _ => return None,
    };
    Some(case)
}

/// An executor that has been heard of and is gone.
async fn of_an_executor(t: &TestControl, name: &str) -> Option<Case> {
    if name == "FlagUnservable" {
        let mut settings = SessionSettings::default();
        "nowhere".clone_into(&mut settings.run_target.executor.pool);
        let session = t.session_with(settings).await;
        t.prompt(session).await;
        t.pass(t.control.timing().sweep_ms).await;
        return Some(Case::new(session, |_| FlagUnservable {
            after: RunKey(0),
            limit: 100,
        }));
    }
    if !matches!(name, "DrainExecutor" | "ForgetExecutor" | "LeaveExecutor") {
        return None;
    }
    let executor_id = || "gone before the case".to_owned();
    let session = t.session().await;
    let heard_of = RecordContact {
        contact: contact(&executor_id()),
    };
    t.control.run_alone(heard_of.into()).await.unwrap();
    t.pass(t.control.timing().executor_offline_ms).await;
    Some(match name {
        "DrainExecutor" => Case::new(session, move |_| DrainExecutor {
            executor_id: executor_id(),
            draining: true,
        }),
        "LeaveExecutor" => Case::new(session, move |_| LeaveExecutor {
            executor_id: executor_id(),
            instance_id: contact(&executor_id()).instance_id,
        }),
        _ => Case::new(session, move |_| ForgetExecutor {
            executor_id: executor_id(),
        }),
    })
}
