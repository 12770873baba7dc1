//! What the agent asks of a person. It owns the open questions; one must never be left without an
//! answer, some agents hang on it, nor be answered for a person without a trace in the log.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tapedeck_domain::event::uploaded;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::rpc::{Peer, REQUEST_CANCELLED};
use super::updates::Asked;
use super::{elicitation, permission};
use crate::backend::{
    AgentEvent, Answer, ApprovalPolicy, Form, FormAnswer, Question, QuestionOption, Questions,
    Scope,
};
use crate::process::Redactor;

/// Asks on behalf of the agent in one turn, each question in a task of its own.
#[derive(Debug)]
pub(super) struct Asking {
    questions: Arc<dyn Questions>,
    policy: ApprovalPolicy,
    peer: Peer,
    events: mpsc::Sender<AgentEvent>,
    redactor: Redactor,
    stop: CancellationToken,
    open: Arc<Open>,
    tasks: JoinSet<()>,
    asked: u64,
}

/// What an agent is told, and what the log is told of it.
struct Answered {
    result: Value,
    trace: Option<AgentEvent>,
}

impl Answered {
    fn untold(result: Value) -> Self {
        Self {
            result,
            trace: None,
        }
    }
}

#[derive(Debug)]
struct Open {
    withdrawals: Mutex<HashMap<String, CancellationToken>>,
    count: watch::Sender<usize>,
}

impl Asking {
    /// After `stop` all questions, open and new, are answered as cancelled. `count` is kept at the
    /// number of open ones.
    pub(super) fn new(
        (questions, policy): (Arc<dyn Questions>, ApprovalPolicy),
        peer: Peer,
        (events, redactor): (mpsc::Sender<AgentEvent>, Redactor),
        stop: CancellationToken,
        count: watch::Sender<usize>,
    ) -> Self {
        let open = Arc::new(Open {
            withdrawals: Mutex::default(),
            count,
        });
        Self {
            questions,
            policy,
            peer,
            events,
            redactor,
            stop,
            open,
            tasks: JoinSet::new(),
            asked: 0,
        }
    }

    /// Asks for permission; the agent's request `id` is answered when there is an answer.
    pub(super) fn permission(&mut self, id: Value, asked: Asked, options: &Value) {
        let options: Vec<QuestionOption> = options
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(permission::option)
            .collect();
        let question = Question {
            request_id: self.request_id("permission"),
            tool_name: asked.tool_name,
            tool_kind: asked.tool_kind,
            call_id: Some(asked.call_id),
            arguments: asked.arguments,
            options: permission::shown(&options, &self.redactor),
        };
        let unasked = if !permission::may_be_approved(&options) {
            // Whatever a person says, the agent could only be told no.
            let text = "the agent asked for permission and offered no option that allows it";
            tracing::warn!(tool = question.tool_name, "{text}");
            Some(Answer::Unasked(text.to_owned()))
        } else if self.policy == ApprovalPolicy::Auto && asked.only_reads {
            Some(Answer::Approved { scope: Scope::Once })
        } else {
            None
        };
        let (questions, redactor) = (Arc::clone(&self.questions), self.redactor.clone());
        let about = json!({"call_id": question.call_id, "tool_name": question.tool_name});
        let answer = async move {
            let answer = match unasked {
                Some(answer) => answer,
                None => questions.ask(question).await,
            };
            let result = permission::outcome(&answer, &options);
            let told = match result["outcome"]["outcome"].as_str() {
                Some("selected") => "denied",
                Some(_) | None => "cancelled",
            };
            let trace = match answer {
                Answer::Unasked(reason) => Some(unasked_event((about, told), &reason, &redactor)),
                Answer::Approved { .. } | Answer::Denied { .. } | Answer::Cancelled => None,
            };
            Answered { result, trace }
        };
        self.ask(id, answer, permission::cancelled());
    }

    /// Has a form filled in. No policy answers it, only a person can.
    pub(super) fn form(&mut self, id: Value, asked: elicitation::Asked) {
        let form = Form {
            request_id: self.request_id("question"),
            call_id: asked.call_id,
            message: asked.message,
            schema: asked.schema,
        };
        let (questions, redactor) = (Arc::clone(&self.questions), self.redactor.clone());
        let about = json!({"call_id": form.call_id, "message": form.message});
        let answer = async move {
            let answer = questions.ask_form(form).await;
            let trace = match &answer {
                FormAnswer::Unasked(reason) => {
                    Some(unasked_event((about, "cancelled"), reason, &redactor))
                }
                FormAnswer::Accepted(_) | FormAnswer::Declined | FormAnswer::Cancelled => None,
            };
            let result = elicitation::outcome(answer);
            Answered { result, trace }
        };
        self.ask(id, answer, elicitation::outcome(FormAnswer::Cancelled));
    }

    fn request_id(&mut self, word: &str) -> String {
        self.asked += 1;
        format!("{word}-{}", self.asked)
    }

    fn ask(
        &mut self,
        id: Value,
        answer: impl Future<Output = Answered> + Send + 'static,
        cancelled: Value,
    ) {
        while self.tasks.try_join_next().is_some() {}
        let (peer, stop, events) = (self.peer.clone(), self.stop.clone(), self.events.clone());
        let entry = self.open.enter(&id);
        self.tasks.spawn(async move {
            let answered = tokio::select! {
                biased;
                () = stop.cancelled() => Answered::untold(cancelled),
                () = entry.withdrawn.cancelled() => {
                    let text = "the request was cancelled";
                    return peer.refuse(id, REQUEST_CANCELLED, text).await;
                }
                answered = answer => answered,
            };
            // The trace comes first, but a full queue must not hold up the answer.
            let unsent = answered.trace.map(|trace| events.try_send(trace));
            peer.answer(id, answered.result).await;
            if let Some(Err(TrySendError::Full(trace))) = unsent {
                drop(events.send(trace).await);
            }
            drop(entry);
        });
    }

    /// The agent no longer wants an answer.
    pub(super) fn withdraw(&self, id: &Value) {
        let open = self
            .open
            .withdrawals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(withdrawn) = open.get(&id.to_string()) {
            withdrawn.cancel();
        }
    }
}

/// Says that nobody was asked, and who answered instead.
fn unasked_event(
    (mut about, told): (Value, &str),
    reason: &str,
    redactor: &Redactor,
) -> AgentEvent {
    about["error"] = json!(reason);
    about["status"] = json!(told);
    about["resolved_by"] = json!("system:executor");
    AgentEvent::new(uploaded::ERROR, about, redactor)
}

impl Open {
    fn enter(self: &Arc<Self>, id: &Value) -> Entry {
        let (key, withdrawn) = (id.to_string(), CancellationToken::new());
        let mut open = self
            .withdrawals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        open.insert(key.clone(), withdrawn.clone());
        self.count.send_modify(|count| *count += 1);
        Entry {
            open: Arc::clone(self),
            key,
            withdrawn,
        }
    }
}

/// Counts as open until it is dropped.
struct Entry {
    open: Arc<Open>,
    key: String,
    withdrawn: CancellationToken,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut open = self
            .open
            .withdrawals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        open.remove(&self.key);
        self.open
            .count
            .send_modify(|count| *count = count.saturating_sub(1));
    }
}
