//! The calls whose answers must not get lost, each with what it needs before it.

use std::time::Duration;

use serde_json::json;
use tapedeck_control_plane::commands::append_tape::AppendTape;
use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_control_plane::{Outcome, ResumeRequest};
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::interaction::{Answer, Reply, Scope};
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::Ending;
use tapedeck_domain::tape::upload::{EntryBatch, UploadedEntry};
use tapedeck_domain::{CheckpointId, InteractionId, SessionId};

use crate::control::{Claim, NAMESPACE, TestControl, claim_request, key};

/// A call that a client repeats until it has an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Create,
    Prompt,
    Enqueue,
    Resume,
    Claim,
    Beat,
    Append,
    OwnTape,
    Ask,
    Approve,
    ApproveByRequest,
    Complete,
    CancelRun,
    Capture,
    Restore,
    Fork,
}

pub(super) const CALLS: &[Call] = &[
    Call::Create,
    Call::Prompt,
    Call::Enqueue,
    Call::Resume,
    Call::Claim,
    Call::Beat,
    Call::Append,
    Call::OwnTape,
    Call::Ask,
    Call::Approve,
    Call::ApproveByRequest,
    Call::Complete,
    Call::CancelRun,
    Call::Capture,
    Call::Restore,
    Call::Fork,
];

/// A session of a call's own.
pub(super) struct Scene {
    call: Call,
    /// Names the call's key.
    number: u32,
    pub(super) session: SessionId,
    claim: Option<Claim>,
    question: Option<InteractionId>,
    checkpoint: Option<CheckpointId>,
}

impl Scene {
    /// What comes before the call.
    pub(super) async fn set(t: &TestControl, call: Call, number: u32) -> Self {
        let mut scene = Self {
            call,
            number,
            session: t.session().await,
            claim: None,
            question: None,
            checkpoint: None,
        };
        match call {
            Call::Create | Call::Prompt => {}
            Call::Claim => {
                t.prompt(scene.session).await;
            }
            Call::Resume | Call::Capture | Call::Fork => scene.past(t).await,
            Call::Restore => {
                scene.past(t).await;
                let captured = t
                    .control
                    .capture_checkpoint(NAMESPACE, scene.session, None, None);
                scene.checkpoint = Some(captured.await.unwrap().checkpoint_id);
                scene.past(t).await;
            }
            Call::Enqueue
            | Call::Beat
            | Call::Append
            | Call::OwnTape
            | Call::Ask
            | Call::Complete
            | Call::CancelRun => scene.begin(t).await,
            Call::Approve | Call::ApproveByRequest => {
                scene.begin(t).await;
                let asked = t.ask(scene.claim(), "question").await.unwrap();
                scene.question = Some(asked.interaction_id);
            }
        }
        scene
    }

    fn claim(&self) -> &Claim {
        self.claim.as_ref().unwrap()
    }

    async fn begin(&mut self, t: &TestControl) {
        t.prompt(self.session).await;
        let mut command = claim_request("e", &t.control.new_id().to_string());
        command.session_id = Some(self.session);
        self.claim = Some(t.claim_as(command).await.unwrap());
    }

    async fn past(&mut self, t: &TestControl) {
        self.begin(t).await;
        t.say(self.claim(), "said", "before").await.unwrap();
        t.complete(self.claim()).await;
        self.claim = None;
    }

    /// Makes the call, the same each time; gives what a client makes of the answer.
    pub(super) async fn make(&self, t: &TestControl) -> Outcome<String> {
        if self.claim.is_some() && self.call != Call::Enqueue {
            self.make_of_run(t).await
        } else {
            self.make_of_session(t).await
        }
    }

    async fn make_of_session(&self, t: &TestControl) -> Outcome<String> {
        let (session, control) = (self.session, &t.control);
        let key = |operation: &str| Some(key(operation, &format!("key-{}", self.number), "body"));
        let admit = |on_active| t.prompt_command(session, "do it", on_active, key("prompt"));
        Ok(match self.call {
            Call::Create => {
                let settings = SessionSettings::default();
                let made = control.create_session(NAMESPACE, settings, key("create"));
                made.await?.session.session_id.to_string()
            }
            Call::Prompt => format!("{:?}", control.prompt(admit(OnActive::Reject)).await?),
            Call::Enqueue => format!("{:?}", control.prompt(admit(OnActive::Enqueue)).await?),
            Call::Resume => {
                let request = ResumeRequest {
                    reason: "user_resume".to_owned(),
                    key: key("resume"),
                    ..ResumeRequest::default()
                };
                format!("{:?}", control.resume(NAMESPACE, session, request).await?)
            }
            Call::Claim => {
                let mut command = claim_request("e", &format!("request-{}", self.number));
                command.session_id = Some(session);
                let claim = t.claim_as(command).await?;
                let (run, attempt) = (claim.run_id(), claim.claimed.attempt);
                format!("{run} {attempt} {}", claim.proof.token.secret())
            }
            Call::Capture => {
                let label = Some("kept".to_owned());
                let captured =
                    control.capture_checkpoint(NAMESPACE, session, label, key("capture"));
                format!("{:?}", captured.await?)
            }
            Call::Restore => {
                let to = self.checkpoint.unwrap();
                let restored = control.restore_session(NAMESPACE, session, to, key("restore"));
                format!("{:?}", restored.await?.session.summary)
            }
            Call::Fork => {
                let point = ForkPoint::Head;
                let forked = control.fork_session(NAMESPACE, session, point, None, key("fork"));
                forked.await?.session.session_id.to_string()
            }
            other => panic!("{other:?} is of a run"),
        })
    }

    async fn make_of_run(&self, t: &TestControl) -> Outcome<String> {
        let (claim, control) = (self.claim(), &t.control);
        Ok(match self.call {
            Call::Beat => format!("{:?}", t.beat(claim).await?),
            Call::Append => {
                let first = json!({"content": "a", "role": "assistant"});
                let batch = [("a", first.clone()), ("b", first)];
                format!("{:?}", t.upload(claim, &batch).await?)
            }
            Call::OwnTape => {
                let entry = UploadedEntry {
                    entry_id: None,
                    kind: "assistant_message".to_owned(),
                    payload: json!({"text": "mine"}),
                    meta: None,
                    anchor_type: None,
                };
                let command = AppendTape {
                    proof: claim.proof.clone(),
                    batch: EntryBatch::check(claim.run_id(), vec![entry]).unwrap(),
                    weight: 100,
                };
                format!("{:?}", control.append_tape(command).await?)
            }
            Call::Ask => {
                let ask = t.ask_command(claim, "question", "shell");
                format!("{:?}", control.ask(ask, Duration::ZERO).await?)
            }
            Call::Approve => format!("{:?}", t.answer(self.question.unwrap(), true).await?),
            Call::ApproveByRequest => {
                let answer = Answer {
                    reply: Reply::Approval {
                        approved: true,
                        scope: Scope::Session,
                    },
                    feedback: Some("go".to_owned()),
                };
                let (name, by) = ("question".to_owned(), "client:test");
                let answered = control.resolve_request(NAMESPACE, self.session, name, answer, by);
                format!("{:?}", answered.await?)
            }
            Call::Complete => format!("{:?}", t.settle(claim, Ending::Completed).await?),
            Call::CancelRun => {
                let cancelled = control.cancel_run(NAMESPACE, claim.run_id(), "client");
                format!("{:?}", cancelled.await?)
            }
            other => panic!("{other:?} is of a session"),
        })
    }
}
