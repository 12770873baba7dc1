//! Claims by long poll. It owns the id that makes a claim replayable: the same one until a poll got
//! a definite answer, then a new one (rules R9). It must never hold two claims for one id.

use std::time::Duration;

use tapedeck_client::{Client, Error, claim_request_id};
use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::executor::{ClaimResponse, ClaimRunRequest};

use crate::verdict::{Pauses, told, within};

/// How long the server may hold a poll.
const WAIT_SECONDS: u32 = 30;

/// For the answer after that.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

const PAUSE_LIMIT: Duration = Duration::from_secs(5);

/// Polls for runs.
#[derive(Debug)]
pub(crate) struct Claims {
    client: Client,
    request: ClaimRunRequest,
    pauses: Pauses,
    /// Whether the server has ever taken a claim of ours as valid.
    accepted: bool,
    away: bool,
}

/// What one poll came to.
#[derive(Debug)]
pub(crate) enum Step {
    /// A run.
    Claimed(Box<ClaimResponse>),
    /// No run is waiting.
    Idle,
    /// No definite answer, or too much to do: again after a pause.
    Away(Duration),
    /// The server will never take this executor's claims.
    Refused(String),
}

impl Claims {
    /// Polls with `request`, whose id and wait are set here.
    pub(crate) fn new(client: Client, request: ClaimRunRequest) -> Self {
        Self {
            client,
            request: ClaimRunRequest {
                claim_request_id: Some(claim_request_id()),
                wait_seconds: Some(WAIT_SECONDS),
                ..request
            },
            pauses: Pauses::up_to(PAUSE_LIMIT),
            accepted: false,
            away: false,
        }
    }

    /// One poll.
    pub(crate) async fn step(&mut self) -> Step {
        let limit = Duration::from_secs(WAIT_SECONDS.into()) + ANSWER_LIMIT;
        match within(limit, self.client.claim(&self.request)).await {
            Ok(claim) => {
                self.answered();
                claim.map_or(Step::Idle, |claim| Step::Claimed(Box::new(claim)))
            }
            Err(error) if error.code() == Some(ErrorCode::ClaimLost) => {
                // The id's claim came and went without us: whoever asks with it gets no run.
                self.answered();
                Step::Idle
            }
            Err(error) => self.failed(&error),
        }
    }

    fn answered(&mut self) {
        self.request.claim_request_id = Some(claim_request_id());
        self.pauses.reset();
        self.accepted = true;
        if std::mem::take(&mut self.away) {
            tracing::info!("the server answers again");
        }
    }

    fn failed(&mut self, error: &Error) -> Step {
        let refused = error
            .problem()
            .is_some_and(|problem| matches!(problem.status, 400 | 401 | 403 | 404 | 405 | 422));
        // Once all was well, a refusal may be a credential that is being renewed.
        if (refused && !self.accepted) || matches!(error, Error::Request(_)) {
            return Step::Refused(told(error));
        }
        if !std::mem::replace(&mut self.away, true) {
            tracing::warn!(error = told(error), "claims fail; trying again");
        }
        Step::Away(self.pauses.next(error.retry_after()))
    }
}
