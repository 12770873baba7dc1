//! What the agent asks of a person. It owns the open questions; one must never be left without an
//! answer, some agents hang on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::rpc::{Peer, REQUEST_CANCELLED};
use super::updates::Asked;
use super::{elicitation, permission};
use crate::backend::{
    Answer, ApprovalPolicy, Form, FormAnswer, Question, QuestionOption, Questions, Scope,
};

/// Asks on behalf of the agent in one turn, each question in a task of its own.
#[derive(Debug)]
pub(super) struct Asking {
    questions: Arc<dyn Questions>,
    policy: ApprovalPolicy,
    peer: Peer,
    stop: CancellationToken,
    open: Arc<Open>,
    tasks: JoinSet<()>,
    asked: u64,
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
        questions: Arc<dyn Questions>,
        policy: ApprovalPolicy,
        peer: Peer,
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
            options: options.clone(),
        };
        let unasked = if !permission::may_be_approved(&options) {
            // Whatever a person says, the agent could only be told no.
            tracing::warn!(
                tool = question.tool_name,
                "a question that offers no yes is denied"
            );
            let (scope, feedback) = (Scope::Once, None);
            Some(Answer::Denied { scope, feedback })
        } else if self.policy == ApprovalPolicy::Auto && asked.only_reads {
            Some(Answer::Approved { scope: Scope::Once })
        } else {
            None
        };
        let questions = Arc::clone(&self.questions);
        let answer = async move {
            let answer = match unasked {
                Some(answer) => answer,
                None => questions.ask(question).await,
            };
            permission::outcome(&answer, &options)
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
        let questions = Arc::clone(&self.questions);
        let answer = async move { elicitation::outcome(questions.ask_form(form).await) };
        self.ask(id, answer, elicitation::outcome(FormAnswer::Cancelled));
    }

    fn request_id(&mut self, word: &str) -> String {
        self.asked += 1;
        format!("{word}-{}", self.asked)
    }

    fn ask(
        &mut self,
        id: Value,
        answer: impl Future<Output = Value> + Send + 'static,
        cancelled: Value,
    ) {
        while self.tasks.try_join_next().is_some() {}
        let (peer, stop) = (self.peer.clone(), self.stop.clone());
        let entry = self.open.enter(&id);
        self.tasks.spawn(async move {
            let result = tokio::select! {
                biased;
                () = stop.cancelled() => cancelled,
                () = entry.withdrawn.cancelled() => {
                    let text = "the request was cancelled";
                    return peer.refuse(id, REQUEST_CANCELLED, text).await;
                }
                result = answer => result,
            };
            peer.answer(id, result).await;
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
