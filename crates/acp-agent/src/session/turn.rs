//! An editor's prompt from its admission to its answer. One at a time; the answer comes after the
//! last update of the run and says honestly how it ended.

use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::Error;
use agent_client_protocol::v1::Responder;
use agent_client_protocol::v1::schema::{PromptResponse, StopReason};
use futures::FutureExt as _;
use serde_json::json;
use tapedeck_client::{Client, StreamEvent};
use tapedeck_domain::RunId;
use tapedeck_domain::queue::Unservable;
use tapedeck_domain::text::beginning;
use tapedeck_protocol::run::{AcceptedResponse, PromptRequest, RunResponse};
use tapedeck_protocol::session::{Change, UpdateSessionRequest};

use super::{Done, Session, Worked};
use crate::failure::{failed, of_call, of_host, unfit};

/// How long a run may wait before anybody is told why.
const PATIENCE: Duration = Duration::from_secs(5);
/// Characters of a prompt that become the session's title.
const TITLE_CHARS: usize = 80;

/// Whether a prompt was taken.
pub(super) type Admitted = Result<(AcceptedResponse, Client), Error>;
/// What a run gave.
pub(super) type Outcome = Result<RunResponse, Error>;

/// A prompt that the editor awaits the end of.
#[derive(Debug)]
pub(super) struct Turn {
    responder: Responder<PromptResponse>,
    /// Its run, once it is admitted.
    run_id: Option<RunId>,
    is_cancelled: bool,
    /// Whether an executor has had it.
    is_claimed: bool,
}

impl Turn {
    /// Whether the run is this turn's.
    pub(super) fn is_of(&self, run_id: Option<RunId>) -> bool {
        self.run_id.is_some() && self.run_id == run_id
    }
}

impl Session {
    /// Admits a prompt. The log stands still meanwhile, so that its run is known before its events.
    pub(super) fn prompt(&mut self, text: String, responder: Responder<PromptResponse>) {
        if self.turn.is_some() || self.opening.is_some() {
            let error = if self.turn.is_some() {
                "a prompt is in progress in this session: wait for its end, or cancel it first"
            } else {
                "the session is still being loaded"
            };
            let _closed = responder.respond_with_error(unfit(error));
            return;
        }
        self.turn = Some(Turn {
            responder,
            run_id: None,
            is_cancelled: false,
            is_claimed: false,
        });
        if self.title.is_none() {
            self.name_after(&text);
        }
        let (desk, id) = (Arc::clone(&self.desk), self.id);
        let errand = desk.errand();
        let work = async move {
            let admitted = async {
                let prepared = desk.host.prepare(id).await;
                prepared.map_err(|error| of_host(&error))?;
                // It may be another one by now, elsewhere.
                let client = desk.client().await?;
                let request = PromptRequest {
                    prompt: Some(text),
                    ..PromptRequest::default()
                };
                let admitted = client.prompt(id, &request).await;
                let admitted = admitted.map_err(|error| of_call(&error, &id.to_string()))?;
                Ok((admitted, client))
            };
            Worked::Admitted(admitted.await, errand)
        };
        self.work = Some(work.boxed());
    }

    pub(super) fn worked(&mut self, worked: Worked) {
        match worked {
            Worked::Admitted(Ok((accepted, client)), _errand) => {
                self.moved_to(client);
                if let Some(turn) = &mut self.turn {
                    turn.run_id = Some(accepted.run_id);
                }
                self.watch(accepted.run_id, None);
                self.cancel_turn();
            }
            Worked::Admitted(Err(error), _errand) => self.fail_turn(error),
            Worked::Result(outcome) => {
                let Some(turn) = self.turn.take() else { return };
                let _closed = turn.responder.respond_with_result(answer_of(*outcome));
            }
        }
    }

    /// Looks from time to time whether anybody can serve a run that waits. What was told already is
    /// not told again.
    fn watch(&mut self, run_id: RunId, told: Option<String>) {
        let (desk, client, id) = (Arc::clone(&self.desk), self.client.clone(), self.id);
        let task = async move {
            loop {
                tokio::time::sleep(PATIENCE).await;
                let trouble = desk.host.trouble(id).await;
                match client.run(run_id).await {
                    Ok(run) if run.claimed_at.is_some() || run.status.is_terminal() => {
                        return Done::Nothing;
                    }
                    Ok(run) => {
                        if let Some(reason) = trouble {
                            return Done::Hopeless(run_id, reason);
                        }
                        let why = why_it_waits(run.unservable.as_deref());
                        if told.as_ref() != Some(&why) {
                            return Done::Waits(run_id, why);
                        }
                    }
                    // The log tells when the server is back.
                    Err(_away) => {}
                }
            }
        };
        self.tasks.push(task.boxed());
    }

    /// An executor has the run.
    pub(super) fn claimed(&mut self, run_id: Option<RunId>) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.is_of(run_id)) {
            turn.is_claimed = true;
        }
    }

    /// Says why nobody takes a run that still waits.
    pub(super) fn waits(&mut self, run_id: RunId, why: String) {
        if self.is_awaited(run_id) {
            let remark = self.mapping.remark(&format!("{run_id}/waits"), &why);
            self.push([remark]);
            self.watch(run_id, Some(why));
        }
    }

    /// Whether the turn's run still waits for an executor.
    fn is_awaited(&self, run_id: RunId) -> bool {
        let turn = self.turn.as_ref();
        turn.is_some_and(|turn| turn.is_of(Some(run_id)) && !turn.is_claimed)
    }

    /// Ends a turn whose run nobody will execute: left in the queue, it would be in the way of the
    /// next.
    pub(super) fn is_hopeless(&mut self, run_id: RunId, reason: &str) {
        if !self.is_awaited(run_id) {
            return;
        }
        let client = self.client.clone();
        self.attempt("cancel", async move {
            client.cancel_run(run_id).await.map(drop)
        });
        self.fail_turn(failed(reason).data(json!({"runId": run_id})));
    }

    /// The end of the turn's run has been told; what is missing is how the agent stopped.
    pub(super) fn turn_ended(&mut self, event: &StreamEvent) -> Result<(), Error> {
        let Some(run_id) = event.run_id else {
            return Ok(());
        };
        let status = event.text("run_status").unwrap_or_default();
        let is_cancelled = self.turn.as_ref().is_some_and(|turn| turn.is_cancelled);
        if is_cancelled || status == "cancelled" {
            return self.answer(Ok(PromptResponse::new(StopReason::Cancelled)));
        }
        if status == "completed" {
            let client = self.client.clone();
            let work = async move {
                let run = client.run(run_id).await;
                Worked::Result(Box::new(run.map_err(|error| of_call(&error, ""))))
            };
            self.work = Some(work.boxed());
            return Ok(());
        }
        let error = event.text("error").unwrap_or("no reason is known");
        let message = match status {
            "interrupted" => format!("the run was interrupted: {error}; send a prompt to go on"),
            _ => format!("the run failed: {error}"),
        };
        let data = json!({"runId": run_id, "runStatus": status});
        self.answer(Err(failed(message).data(data)))
    }

    fn answer(&mut self, answer: Result<PromptResponse, Error>) -> Result<(), Error> {
        match self.turn.take() {
            Some(turn) => turn.responder.respond_with_result(answer),
            None => Ok(()),
        }
    }

    /// The editor has closed the session with a prompt in progress, which is a cancel, too.
    pub(super) fn end_turn_as_cancelled(&mut self) {
        let _closed = self.answer(Ok(PromptResponse::new(StopReason::Cancelled)));
    }

    /// Answers the prompt with an error. Its run may go on.
    pub(super) fn fail_turn(&mut self, error: Error) {
        let _closed = self.answer(Err(error));
    }

    /// The editor cancels: its own turn, or whatever the session is doing.
    pub(super) fn cancel(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.is_cancelled = true;
            return self.cancel_turn();
        }
        if self.active_run.is_none() {
            return;
        }
        let (client, id) = (self.client.clone(), self.id);
        self.attempt("cancel", async move {
            client.cancel_session(id).await.map(drop)
        });
    }

    /// Cancels the turn's run if that is wanted and the run is known. Once more does no harm.
    pub(super) fn cancel_turn(&mut self) {
        let Some(turn) = self.turn.as_ref().filter(|turn| turn.is_cancelled) else {
            return;
        };
        if let Some(run_id) = turn.run_id {
            let client = self.client.clone();
            self.attempt("cancel", async move {
                client.cancel_run(run_id).await.map(drop)
            });
        }
    }

    /// A question came back unanswered because the person ended the turn. `false` where the turn is
    /// another editor's: then it stays open for whoever awaits its end.
    pub(super) fn turn_given_up(&mut self, run_id: RunId) -> bool {
        let turn = self.turn.as_ref();
        let is_own = turn.is_some_and(|turn| turn.is_of(Some(run_id)));
        if is_own {
            self.cancel();
        }
        is_own
    }

    /// Names a session after its first prompt.
    fn name_after(&mut self, prompt: &str) {
        let Some(title) = title_of(prompt) else {
            return;
        };
        let (client, id) = (self.client.clone(), self.id);
        let change = UpdateSessionRequest {
            title: Change::Set(title),
            ..UpdateSessionRequest::default()
        };
        self.attempt("title", async move {
            client.update_session(id, &change).await.map(drop)
        });
    }

    /// Does something beside the log whose failure only the log tells.
    fn attempt(
        &mut self,
        what: &'static str,
        call: impl Future<Output = tapedeck_client::Result<()>> + Send + 'static,
    ) {
        let id = self.id;
        let errand = self.desk.errand();
        let task = async move {
            let _errand = errand;
            if let Err(error) = call.await {
                tracing::warn!(session.id = %id, what, %error, "a call about a session failed");
            }
            Done::Nothing
        };
        self.tasks.push(task.boxed());
    }
}

/// Why nobody has taken a run yet, as far as the server knows it.
fn why_it_waits(reason: Option<&str>) -> String {
    match reason {
        None => "The run waits for an executor.".to_owned(),
        Some(reason) => {
            let known = reason.parse().ok().map(Unservable::explanation);
            format!("The run waits: {}", known.unwrap_or(reason))
        }
    }
}

/// How a completed run's agent says that it stopped.
fn answer_of(outcome: Outcome) -> Result<PromptResponse, Error> {
    let run = outcome?;
    let word = run
        .result
        .as_ref()
        .and_then(|result| result["stop_reason"].as_str());
    let reason = match word {
        Some("max_tokens") => StopReason::MaxTokens,
        Some("max_turn_requests") => StopReason::MaxTurnRequests,
        Some("refusal") => StopReason::Refusal,
        Some("cancelled") => StopReason::Cancelled,
        Some(_) | None => StopReason::EndTurn,
    };
    Ok(PromptResponse::new(reason))
}

/// The person's own first words, which stand last in a prompt.
fn title_of(prompt: &str) -> Option<String> {
    let words = prompt.rsplit("</context>").next().unwrap_or(prompt);
    let line = words.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(beginning(line, TITLE_CHARS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_after_the_persons_own_words() {
        let prompt = "<context ref=\"a\">\nfn a\n</context>\n\n  fix it\nplease";
        assert_eq!(title_of(prompt).as_deref(), Some("fix it"));
        let long = "ä".repeat(100);
        assert_eq!(title_of(&long).unwrap().chars().count(), TITLE_CHARS + 1);
        assert_eq!(title_of(" \n"), None);
    }
}
