//! The agent's questions for permission. It owns the open ones and how an answer becomes one of the
//! options offered; a question must never be left without an answer, some agents hang on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::rpc::{Peer, REQUEST_CANCELLED};
use super::updates::Asked;
use crate::backend::{Answer, ApprovalPolicy, Question, QuestionOption, Questions, Scope};

/// Asks on behalf of the agent, each question in a task of its own.
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

    /// Asks; the agent's request `id` is answered when there is an answer.
    pub(super) fn ask(&mut self, id: Value, asked: Asked, options: &Value) {
        while self.tasks.try_join_next().is_some() {}
        self.asked += 1;
        let options: Vec<_> = options
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(option)
            .collect();
        let question = Question {
            request_id: format!("permission-{}", self.asked),
            tool_name: asked.tool_name,
            call_id: Some(asked.call_id),
            arguments: asked.arguments,
            options,
        };
        let unasked = self.policy == ApprovalPolicy::Auto && asked.only_reads;
        let (questions, peer, stop) = (
            Arc::clone(&self.questions),
            self.peer.clone(),
            self.stop.clone(),
        );
        let entry = self.open.enter(&id);
        self.tasks.spawn(async move {
            let offered = question.options.clone();
            let answer = tokio::select! {
                biased;
                () = stop.cancelled() => Answer::Cancelled,
                () = entry.withdrawn.cancelled() => {
                    let text = "the request was cancelled";
                    return peer.refuse(id, REQUEST_CANCELLED, text).await;
                }
                answer = answer(&*questions, question, unasked) => answer,
            };
            peer.answer(id, outcome(&answer, &offered)).await;
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

async fn answer(questions: &dyn Questions, question: Question, unasked: bool) -> Answer {
    if unasked {
        Answer::Approved { scope: Scope::Once }
    } else {
        questions.ask(question).await
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

fn option(value: &Value) -> Option<QuestionOption> {
    let option_id = value["optionId"].as_str()?.to_owned();
    let name = value["name"].as_str().unwrap_or(&option_id).to_owned();
    let kind = value["kind"].as_str().unwrap_or_default().to_owned();
    Some(QuestionOption {
        option_id,
        name,
        kind,
    })
}

/// Option ids are free text and two options may share a kind, so the first of the best kind is
/// taken. An approval for a session is kept by the server: the agent might remember its own
/// "always" for longer.
fn outcome(answer: &Answer, options: &[QuestionOption]) -> Value {
    let kinds = match answer {
        Answer::Approved {
            scope: Scope::Always,
        } => ["allow_always", "allow_once"],
        Answer::Approved {
            scope: Scope::Once | Scope::Session,
        } => ["allow_once", "allow_always"],
        Answer::Denied { .. } => ["reject_once", "reject_always"],
        Answer::Cancelled => return json!({"outcome": {"outcome": "cancelled"}}),
    };
    let chosen = kinds
        .iter()
        .find_map(|kind| options.iter().find(|option| option.kind == *kind));
    match chosen {
        Some(option) => {
            json!({"outcome": {"outcome": "selected", "optionId": option.option_id}})
        }
        None => json!({"outcome": {"outcome": "cancelled"}}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(answer: &Answer, kinds: &[&str]) -> String {
        let options: Vec<_> = kinds
            .iter()
            .enumerate()
            .map(|(position, kind)| QuestionOption {
                option_id: format!("{kind}/{position}"),
                name: String::new(),
                kind: (*kind).to_owned(),
            })
            .collect();
        let outcome = outcome(answer, &options);
        outcome["outcome"]["optionId"]
            .as_str()
            .unwrap_or("cancelled")
            .to_owned()
    }

    #[test]
    fn an_answer_picks_the_first_option_of_its_kind() {
        let all = [
            "allow_always",
            "allow_once",
            "allow_once",
            "reject_always",
            "reject_once",
        ];
        let approved = |scope| Answer::Approved { scope };
        let denied = Answer::Denied { feedback: None };
        assert_eq!(chosen(&approved(Scope::Once), &all), "allow_once/1");
        assert_eq!(chosen(&approved(Scope::Session), &all), "allow_once/1");
        assert_eq!(chosen(&approved(Scope::Always), &all), "allow_always/0");
        assert_eq!(chosen(&denied, &all), "reject_once/4");
        assert_eq!(chosen(&Answer::Cancelled, &all), "cancelled");
    }

    #[test]
    fn a_missing_kind_falls_back_but_never_to_the_opposite() {
        let denied = Answer::Denied { feedback: None };
        assert_eq!(
            chosen(&denied, &["allow_once", "reject_always"]),
            "reject_always/1"
        );
        assert_eq!(chosen(&denied, &["allow_once"]), "cancelled");
        let approved = Answer::Approved { scope: Scope::Once };
        assert_eq!(
            chosen(&approved, &["reject_once", "allow_always"]),
            "allow_always/1"
        );
        assert_eq!(chosen(&approved, &["reject_once"]), "cancelled");
    }
}
