//! The agent's questions in a session: from the log to the editor, and back out of it when somebody
//! else has answered or the run has ended.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::{AbortHandle, Abortable};
use serde_json::Value;
use tapedeck_client::StreamEvent;
use tapedeck_domain::{InteractionId, RunId};

use super::{Done, Out, Session};
use crate::question::{Left, Question};

impl Session {
    /// An agent asks something.
    pub(super) fn asked_for(&mut self, event: &StreamEvent) {
        let (Some(id), Some(run_id)) = (question_of(event), event.run_id) else {
            return;
        };
        // What a policy or a rule has answered already needs nobody.
        if event.text("status") != Some("pending") {
            return;
        }
        let request = Value::Object(event.data.clone());
        let question = Question {
            id,
            run_id,
            request,
        };
        if self.is_live {
            self.out.push_back(Out::Ask(question));
        } else {
            self.pending.push(question);
        }
    }

    /// A question was answered or has ended, wherever.
    pub(super) fn answered(&mut self, event: &StreamEvent) {
        let Some(id) = question_of(event) else { return };
        self.pending.retain(|question| question.id != id);
        self.out
            .retain(|out| !matches!(out, Out::Ask(question) if question.id == id));
        if let Some((_, withdrawal)) = self.asked.remove(&id) {
            withdrawal.abort();
        }
    }

    /// Puts a question to the person. The tool call it is about is told first.
    pub(super) fn ask(&mut self, question: Question) {
        let (call, told) = self.mapping.asked_about(question.run_id, &question.request);
        let has_call = question.request["tool_call"]["call_id"].is_string();
        let session = self.acp_id.clone();
        let asking = if !question.is_form() {
            if let Some(told) = told {
                // The question comes back to the front once that is sent.
                self.out.push_front(Out::Ask(question));
                self.out.push_front(Out::Update(Box::new(told)));
                return;
            }
            Some(Question::permission(session, call))
        } else if self.desk.wants().forms {
            question.form(session, Some(call).filter(|_| has_call && told.is_none()))
        } else {
            None
        };
        let Some(asking) = asking else {
            return self.ask_elsewhere(&question, "can't show its form");
        };
        let desk = Arc::clone(&self.desk);
        let (editor, client) = (self.editor.clone(), self.client.clone());
        let id = question.id;
        let answer = async move {
            let answer = asking.answer(editor).await;
            // It is sent to its end, even if the editor goes now.
            let errand = desk.errand();
            (answer.send(&client, id).await, errand)
        };
        let (withdrawal, registration) = AbortHandle::new_pair();
        self.asked
            .insert(question.id, (question.run_id, withdrawal));
        let answer = Abortable::new(answer, registration);
        let task = answer.map(|left| match left {
            Ok((left, errand)) => Done::Question(question, left, errand),
            Err(_withdrawn) => Done::Nothing,
        });
        self.tasks.push(task.boxed());
    }

    /// Says where a question can be answered that can't be here.
    fn ask_elsewhere(&mut self, question: &Question, why: &str) {
        let id = question.id;
        let (asks, answer) = if question.is_form() {
            let message = question.request["message"].as_str();
            (message.unwrap_or_default(), "answer")
        } else {
            ("for permission", "approve")
        };
        let text = format!(
            "The agent asks: {asks}\nThis editor {why}; answer it with `tapedeck approvals {answer} {id}`."
        );
        let remark = self.mapping.remark(&format!("{id}/elsewhere"), &text);
        self.out.push_front(Out::Update(Box::new(remark)));
    }

    /// A question has left the editor.
    pub(super) fn left(&mut self, question: Question, left: Left) {
        self.asked.remove(&question.id);
        match left {
            Left::Answered => {}
            Left::Unasked => self.ask_elsewhere(&question, "has given no answer that can be read"),
            Left::Unfit => self.out.push_back(Out::Ask(question)),
            Left::Cancelled if self.turn_given_up(question.run_id) => {}
            Left::Cancelled => self.ask_elsewhere(&question, "has not answered"),
        }
    }

    /// A run has ended, and its questions with it.
    pub(super) fn withdraw_all_of(&mut self, run_id: Option<RunId>) {
        self.pending
            .retain(|question| Some(question.run_id) != run_id);
        self.asked.retain(|_, (asked_by, withdrawal)| {
            let stays = Some(*asked_by) != run_id;
            if !stays {
                withdrawal.abort();
            }
            stays
        });
    }
}

/// The question that an event is about.
fn question_of(event: &StreamEvent) -> Option<InteractionId> {
    event.text("interaction_id")?.parse().ok()
}
