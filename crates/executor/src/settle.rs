//! The report of a run's end: complete, or give back. It owns the retries until there is a definite
//! answer; the same end is reported with the same bytes each time (rules R11).

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tapedeck_client::Client;
use tapedeck_domain::settle::Ending;
use tapedeck_domain::text::beginning;
use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::executor::{CompleteRequest, ReleaseRequest};
use tokio::time::sleep;

use crate::held::{Held, Stop};
use crate::run::Ended;
use crate::verdict::{Pauses, Verdict, told, within};

const CALL_LIMIT: Duration = Duration::from_secs(30);

const PAUSE_LIMIT: Duration = Duration::from_secs(3);

/// All events are acknowledged before; events that are still missing then will not come.
const MISSING_LIMIT: u32 = 5;

/// Characters of an error text; the server takes twice as many.
const ERROR_CHARS: usize = 8_000;

/// How a run ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) ending: Ending,
    pub(crate) result: Option<Value>,
    pub(crate) error: Option<String>,
    pub(crate) agent_state: Option<Value>,
}

impl End {
    pub(crate) fn failed(error: impl Into<String>) -> Self {
        Self {
            ending: Ending::Failed,
            result: None,
            error: Some(error.into()),
            agent_state: None,
        }
    }
}

/// Reports the end of one run.
#[derive(Debug)]
pub(crate) struct Settler {
    held: Arc<Held>,
    client: Client,
}

enum Reported {
    Ended(Ended),
    /// The server will never take this report.
    Refused(String),
}

impl Settler {
    pub(crate) fn new(held: Arc<Held>, client: Client) -> Self {
        Self { held, client }
    }

    /// Completes the run; `count` of its events are acknowledged, as far as that is known. A report that the server refuses
    /// becomes a plain one that says so.
    pub(crate) async fn complete(&self, end: End, count: Option<u64>) -> Ended {
        let text = match self.report(&end, count).await {
            Reported::Ended(ended) => return ended,
            Reported::Refused(text) => text,
        };
        tracing::warn!(
            error = text,
            "the server refused the report of the run's end"
        );
        let said = end
            .error
            .map(|error| format!("; the run ended with: {error}"));
        let text = format!(
            "the server refused how the run ended ({}): {text}{}",
            end.ending.as_str(),
            said.unwrap_or_default()
        );
        // What did not end well keeps its kind; what did may not be shown as if it was recorded.
        let ending = match end.ending {
            Ending::Completed | Ending::Failed => Ending::Failed,
            Ending::Cancelled | Ending::Interrupted => end.ending,
        };
        let plain = End {
            ending,
            ..End::failed(text)
        };
        match self.report(&plain, None).await {
            Reported::Ended(ended) => ended,
            Reported::Refused(error) => {
                tracing::error!(
                    error,
                    "the run's end can't be reported; its lease will end it"
                );
                Ended::Lost
            }
        }
    }

    /// Gives the run back: as if it had not been claimed, or interrupted once the agent has put
    /// anything out.
    pub(crate) async fn hand_back(&self, count: u64, agent_state: Option<Value>) -> Ended {
        if !self.held.has_output()
            && let Some(ended) = self.release().await
        {
            return ended;
        }
        let why = match self.held.stopped() {
            Some(Stop::Lapsed) => {
                "the executor could not renew its lease in time and stopped the agent"
            }
            Some(Stop::Drained | Stop::Lost(_) | Stop::Unrecorded(_)) | None => {
                "the executor was shut down and stopped the agent"
            }
        };
        let end = End {
            ending: Ending::Interrupted,
            agent_state,
            ..End::failed(why)
        };
        match self.complete(end, Some(count)).await {
            Ended::Settled => Ended::HandedBack,
            ended @ (Ended::HandedBack | Ended::Lost) => ended,
        }
    }

    /// `None` if the run can't be released and has to be completed.
    async fn release(&self) -> Option<Ended> {
        let request = ReleaseRequest {
            executor_id: Some(self.held.executor_id.clone()),
            claim_token: Some(self.held.token.expose().to_owned()),
            ..ReleaseRequest::default()
        };
        let mut pauses = Pauses::up_to(PAUSE_LIMIT);
        let mut unanswered = false;
        loop {
            let call = self.client.release(self.held.run_id, &request);
            let Err(error) = within(CALL_LIMIT, call).await else {
                return Some(Ended::HandedBack);
            };
            match Verdict::of(&error) {
                Verdict::Retry { after } => {
                    unanswered |= error.problem().is_none();
                    sleep(pauses.next(after)).await;
                }
                // An earlier release whose answer was lost looks the same.
                Verdict::Lost if unanswered => return Some(Ended::HandedBack),
                Verdict::Lost => {
                    self.held.stop(Stop::Lost(told(&error)));
                    return Some(Ended::Lost);
                }
                Verdict::Never => return None,
            }
        }
    }

    async fn report(&self, end: &End, count: Option<u64>) -> Reported {
        self.held.note_report();
        let request = CompleteRequest {
            executor_id: Some(self.held.executor_id.clone()),
            claim_token: Some(self.held.token.expose().to_owned()),
            status: Some(end.ending),
            result: end.result.clone(),
            error: end.error.as_deref().map(storable),
            event_count: count,
            agent_state: end.agent_state.clone(),
            ..CompleteRequest::default()
        };
        let mut pauses = Pauses::up_to(PAUSE_LIMIT);
        let mut missing = 0;
        let mut unanswered = false;
        loop {
            let call = self.client.complete(self.held.run_id, &request);
            let Err(error) = within(CALL_LIMIT, call).await else {
                return Reported::Ended(Ended::Settled);
            };
            match Verdict::of(&error) {
                Verdict::Retry { after } => {
                    missing += u32::from(error.code() == Some(ErrorCode::EventsMissing));
                    if missing >= MISSING_LIMIT {
                        return Reported::Refused(told(&error));
                    }
                    unanswered |= error.problem().is_none();
                    // What heartbeats heard meanwhile: settled by a report whose answer was lost.
                    if self.held.is_lost() {
                        return Reported::Ended(settled_or_lost(unanswered));
                    }
                    sleep(pauses.next(after)).await;
                }
                Verdict::Lost => {
                    self.held.stop(Stop::Lost(told(&error)));
                    return Reported::Ended(Ended::Lost);
                }
                Verdict::Never => return Reported::Refused(told(&error)),
            }
        }
    }
}

fn settled_or_lost(unanswered: bool) -> Ended {
    if unanswered {
        Ended::Settled
    } else {
        Ended::Lost
    }
}

fn storable(error: &str) -> String {
    beginning(&error.replace('\0', "\u{fffd}"), ERROR_CHARS)
}
