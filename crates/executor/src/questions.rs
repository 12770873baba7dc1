//! The agent's questions, carried to the server and its answers back. It owns the waiting, over
//! outages too; it must never take silence, a refusal or a lost claim for a yes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_client::Client;
use tapedeck_domain::interaction::{InteractionStatus, Scope as AnswerScope};
use tapedeck_protocol::executor::{
    ApprovalRequest, ApprovalResponse, QuestionRequest, QuestionResponse,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::backend::{Answer, Form, FormAnswer, Question, Questions, Scope};
use crate::held::Held;
use crate::insist::{Refusal, insist};
use crate::upload::Flush;
use crate::verdict::told;

/// How long one request is held; then the same question goes on waiting.
const HOLD_SECONDS: u32 = 30;

const ANSWER_LIMIT: Duration = Duration::from_secs(45);

const PAUSE_LIMIT: Duration = Duration::from_secs(3);

/// For the heartbeats to hear of a cancel that a question heard of first.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// Asks under one claim.
#[derive(Debug)]
pub(crate) struct RunQuestions {
    pub(crate) held: Arc<Held>,
    pub(crate) client: Client,
    /// How long a question stays open; the server's default if not given.
    pub(crate) timeout_seconds: Option<u32>,
    /// To the uploader.
    pub(crate) flushes: mpsc::Sender<Flush>,
}

#[async_trait]
impl Questions for RunQuestions {
    async fn ask(&self, question: Question) -> Answer {
        tokio::select! {
            biased;
            () = self.held.kill.cancelled() => Answer::Cancelled,
            () = self.held.cancel.cancelled() => Answer::Cancelled,
            answer = self.answer(question) => answer,
        }
    }

    fn takes_forms(&self) -> bool {
        true
    }

    async fn ask_form(&self, form: Form) -> FormAnswer {
        tokio::select! {
            biased;
            () = self.held.kill.cancelled() => FormAnswer::Cancelled,
            () = self.held.cancel.cancelled() => FormAnswer::Cancelled,
            answer = self.form_answer(form) => answer,
        }
    }
}

/// Why there is no answer.
enum Unanswered {
    /// The claim is gone.
    Lost,
    /// The server will never take this question.
    Refused(String),
}

impl RunQuestions {
    async fn answer(&self, question: Question) -> Answer {
        let request = self.request(question);
        let call = || self.client.ask(self.held.run_id, &request);
        match self.asked(call, answer).await {
            Ok(Answer::Cancelled) => {
                self.hear_of_cancel().await;
                Answer::Cancelled
            }
            Ok(answer) => answer,
            Err(Unanswered::Lost) => Answer::Cancelled,
            Err(Unanswered::Refused(text)) => Answer::Unasked(text),
        }
    }

    /// A form that the server doesn't take reaches nobody, so nobody answers it.
    async fn form_answer(&self, form: Form) -> FormAnswer {
        let request = self.form_request(form);
        let call = || self.client.ask_question(self.held.run_id, &request);
        match self.asked(call, form_answer).await {
            Ok(FormAnswer::Cancelled) => {
                self.hear_of_cancel().await;
                FormAnswer::Cancelled
            }
            Ok(answer) => answer,
            Err(Unanswered::Lost) => FormAnswer::Cancelled,
            Err(Unanswered::Refused(text)) => FormAnswer::Unasked(text),
        }
    }

    /// Asks until there is an answer; `settled` is `None` while the question is open.
    async fn asked<Response, Settled, Asking>(
        &self,
        call: impl Fn() -> Asking,
        settled: impl Fn(Response) -> Option<Settled>,
    ) -> Result<Settled, Unanswered>
    where
        Asking: Future<Output = Result<Response, tapedeck_client::Error>>,
    {
        // Whoever was asked may have been shown it: the run can't start again as if nothing was.
        self.held.note_output();
        self.deliver_earlier_events().await;
        loop {
            match insist(&self.held, ANSWER_LIMIT, PAUSE_LIMIT, &call).await {
                Ok(response) => {
                    if let Some(settled) = settled(response) {
                        return Ok(settled);
                    }
                }
                Err(Refusal::Lost) => return Err(Unanswered::Lost),
                Err(Refusal::Never(error)) => {
                    let text = format!("the question could not be asked: {}", told(&error));
                    tracing::warn!(run.id = %self.held.run_id, error = text, "question refused");
                    return Err(Unanswered::Refused(text));
                }
            }
        }
    }

    /// The server cancels a question with its run. The run has to know of that before its agent does,
    /// or the agent's turn would seem to end by itself. Whoever asks stops waiting as soon as the
    /// cancel is known.
    async fn hear_of_cancel(&self) {
        sleep(CANCEL_LIMIT).await;
    }

    /// What the agent did before it asked comes before the question in the log.
    async fn deliver_earlier_events(&self) {
        let (flush, flushed) = oneshot::channel();
        if self.flushes.send(flush).await.is_ok() {
            // An error means that the uploader has ended; the question then meets the same end.
            let _ = flushed.await;
        }
    }

    fn request(&self, question: Question) -> ApprovalRequest {
        let options = serde_json::to_value(&question.options).unwrap_or(Value::Null);
        ApprovalRequest {
            executor_id: Some(self.held.executor_id.clone()),
            claim_token: Some(self.held.token.expose().to_owned()),
            request_id: Some(question.request_id),
            tool_name: Some(question.tool_name),
            tool_kind: question.tool_kind,
            arguments: Some(question.arguments),
            call_id: question.call_id,
            options: Some(options),
            timeout_seconds: self.timeout_seconds,
            wait_seconds: Some(HOLD_SECONDS),
            ..ApprovalRequest::default()
        }
    }

    fn form_request(&self, form: Form) -> QuestionRequest {
        QuestionRequest {
            executor_id: Some(self.held.executor_id.clone()),
            claim_token: Some(self.held.token.expose().to_owned()),
            request_id: Some(form.request_id),
            message: Some(form.message),
            form: Some(form.schema),
            call_id: form.call_id,
            timeout_seconds: self.timeout_seconds,
            wait_seconds: Some(HOLD_SECONDS),
            ..QuestionRequest::default()
        }
    }
}

/// `None` while the form is open. What was filled in fits the form, which the server has checked.
fn form_answer(response: QuestionResponse) -> Option<FormAnswer> {
    Some(match response.status {
        InteractionStatus::Pending => return None,
        InteractionStatus::Approved => FormAnswer::Accepted(response.response.unwrap_or_default()),
        InteractionStatus::Denied => FormAnswer::Declined,
        InteractionStatus::Expired | InteractionStatus::Cancelled => FormAnswer::Cancelled,
    })
}

/// `None` while the question is open.
fn answer(response: ApprovalResponse) -> Option<Answer> {
    Some(match response.status {
        InteractionStatus::Pending => return None,
        InteractionStatus::Approved => Answer::Approved {
            scope: scope(response.scope),
        },
        InteractionStatus::Denied => Answer::Denied {
            scope: scope(response.scope),
            feedback: response.feedback,
        },
        InteractionStatus::Expired => Answer::Denied {
            scope: Scope::Once,
            feedback: Some("nobody answered in time".to_owned()),
        },
        InteractionStatus::Cancelled => Answer::Cancelled,
    })
}

fn scope(scope: Option<AnswerScope>) -> Scope {
    match scope {
        None | Some(AnswerScope::Once) => Scope::Once,
        Some(AnswerScope::Session) => Scope::Session,
        Some(AnswerScope::Always) => Scope::Always,
    }
}
