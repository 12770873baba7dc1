//! The end of a turn: nothing is left running, no tool call and no question open. It owns what the
//! run's result says of the agent and which ends are failures.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::session::{Opened, Stop};
use super::warm::{Left, Pool, Resting};
use super::{AcpOptions, Agent};
use crate::backend::vigil::{Interrupt, Vigil};
use crate::backend::{Failure, FailureCode, Outcome, OutcomeStatus, Turn};

/// An agent whose output ended is given this long to exit, for its exit status.
const EXIT_LIMIT: Duration = Duration::from_secs(2);

/// The same after a cancel, which has to settle within ten seconds in all.
const CANCELLED_GRACE: Duration = Duration::from_secs(1);

/// What is left of a turn when its conversation is over.
pub(super) struct Finish<'a> {
    pub(super) options: &'a AcpOptions,
    pub(super) warm: &'a Pool,
    pub(super) vigil: &'a Vigil,
    pub(super) turn: &'a Turn,
    pub(super) agent: Agent,
    pub(super) session: Option<Opened>,
}

impl Finish<'_> {
    pub(super) async fn outcome(
        mut self,
        end: Option<Result<Value, Stop>>,
        interrupt: Option<Interrupt>,
    ) -> Outcome {
        if matches!(interrupt, Some(Interrupt::Killed)) {
            self.agent.connection.updates().close("cancelled");
            self.agent.process.kill_now().await;
            return interrupted(Interrupt::Killed, json!({}), self.earlier_state());
        }
        let answer = match &end {
            Some(Ok(answer)) => Some(answer),
            Some(Err(_)) | None => None,
        };
        let result = self.result(answer);
        let failure = match end {
            Some(Err(stop)) => Some(self.failure(stop).await),
            Some(Ok(answer)) if interrupt.is_none() => self.silence(&answer),
            Some(Ok(_)) | None => None,
        };
        // The agent's own answer leaves time for a good end; without it there is nothing to save.
        let answered = failure.is_none() && result.contains_key("stop_reason");
        let grace = match (answered, &interrupt) {
            (false, _) => Duration::ZERO,
            (true, None) => self.options.end_grace,
            (true, Some(_)) => self.options.end_grace.min(CANCELLED_GRACE),
        };
        let status = if interrupt.is_some() {
            "cancelled"
        } else {
            "unknown"
        };
        let closing = self.agent.connection.updates().close(status);
        let well = answered && interrupt.is_none();
        let stays = well && self.session.is_some() && self.warm.keeps();
        if !stays && self.end(grace).await.is_none() {
            return interrupted(Interrupt::Killed, json!({}), self.earlier_state());
        }
        let lost = tokio::select! {
            biased;
            () = self.vigil.killed() => true,
            () = self.agent.connection.emit(closing) => false,
        };
        if lost && stays {
            self.agent.process.kill_now().await;
            return interrupted(Interrupt::Killed, json!({}), self.earlier_state());
        }
        let state = self.session.as_ref();
        let state = state.and_then(|session| serde_json::to_value(&session.state).ok());
        let state = state.or_else(|| self.earlier_state());
        if stays {
            self.stay(state.clone()).await;
        }
        let result = Value::Object(result);
        match (interrupt, failure) {
            (Some(interrupt), _) => interrupted(interrupt, result, state),
            (None, Some(failure)) => Outcome::failed(failure, result, state),
            (None, None) => Outcome {
                status: OutcomeStatus::Completed,
                result,
                failure: None,
                agent_state: state,
            },
        }
    }

    fn earlier_state(&self) -> Option<Value> {
        self.turn.agent_state.clone()
    }

    /// Leaves the agent to the session's next run.
    async fn stay(self, state: Option<Value>) {
        let Some(opened) = self.session else { return };
        self.agent.connection.detach();
        let left = Left::after(self.turn, state);
        let agent = self.agent;
        self.warm.keep(Resting { agent, opened }, left).await;
    }

    /// Ends the process; `None` if the claim was lost meanwhile.
    async fn end(&mut self, grace: Duration) -> Option<()> {
        let process = &mut self.agent.process;
        let ended = tokio::select! {
            biased;
            () = self.vigil.killed() => None,
            () = async {
                self.agent.connection.finish_input().await;
                process.kill_tree(grace).await;
            } => Some(()),
        };
        if ended.is_none() {
            process.kill_now().await;
        }
        ended
    }

    fn result(&self, answer: Option<&Value>) -> Map<String, Value> {
        let mut result = Map::new();
        if let Some(answer) = answer {
            result.insert("stop_reason".to_owned(), answer["stopReason"].clone());
            if let Some(usage) = answer.get("usage").filter(|usage| usage.is_object()) {
                result.insert("usage".to_owned(), usage.clone());
            }
        }
        if let Some(session) = &self.session {
            let agent = session.hello.as_json(&self.agent.redactor);
            result.insert("agent".to_owned(), agent);
            let continuity = session.continuity.as_str();
            result.insert("continuity".to_owned(), json!(continuity));
            let choices = self.agent.connection.updates().choices().summary();
            result.insert("choices".to_owned(), Value::Object(choices));
        }
        if let Some(noise) = self.agent.connection.take_noise().as_json() {
            result.insert("noise".to_owned(), noise);
        }
        result
    }

    async fn failure(&self, stop: Stop) -> Failure {
        let process = &self.agent.process;
        let method = match stop {
            Stop::Failed(failure) => return failure,
            Stop::Closed(method) => method,
        };
        if let Some(Err(failure)) = self.agent.connection.ended() {
            return failure;
        }
        if let Ok(exit) = timeout(EXIT_LIMIT, process.wait()).await {
            let when = format!(" before it answered `{method}`");
            let mut failure = Failure::of_exit(exit, &when, process).await;
            // The process knows the secrets of its environment only.
            failure.message = self.agent.redactor.redact(failure.message);
            failure
        } else {
            let text = format!("the agent closed its output before it answered `{method}`");
            Failure::new(FailureCode::AgentExited, text)
        }
    }

    /// An answer without a word or a deed before it hides an error, as a rule.
    fn silence(&self, answer: &Value) -> Option<Failure> {
        let reason = answer["stopReason"].as_str();
        let Some(reason) = reason else {
            let text = "the answer to `session/prompt` has no `stopReason`";
            return Some(Failure::new(FailureCode::AgentProtocol, text));
        };
        if reason == "cancelled" || self.agent.connection.updates().any_output() {
            return None;
        }
        let text = format!("the agent ended its turn (`{reason}`) without any output");
        Some(Failure::new(FailureCode::AgentSilent, text))
    }
}

pub(super) fn interrupted(
    interrupt: Interrupt,
    result: Value,
    agent_state: Option<Value>,
) -> Outcome {
    match interrupt {
        Interrupt::TimedOut(failure) => Outcome::failed(failure, result, agent_state),
        Interrupt::Killed | Interrupt::Cancelled => Outcome {
            status: OutcomeStatus::Cancelled,
            result,
            failure: None,
            agent_state,
        },
    }
}
