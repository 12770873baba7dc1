//! Calls under a claim that are made again until the server says something definite. It owns what a
//! lost claim does to its run; how long to go on is the caller's to bound.

use std::time::Duration;

use tapedeck_client::Error;
use tokio::time::sleep;

use crate::held::{Held, Stop};
use crate::verdict::{Pauses, Verdict, told, within};

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The claim is gone, and the run has been told.
    Lost,
    /// The server will never take this.
    Never(Error),
}

/// Makes a call until it is answered, each time for at most `limit`, with growing pauses up to
/// `longest` between.
pub(crate) async fn insist<T, Call>(
    held: &Held,
    limit: Duration,
    longest: Duration,
    call: impl Fn() -> Call,
) -> Result<T, Refusal>
where
    Call: Future<Output = Result<T, Error>>,
{
    let mut pauses = Pauses::up_to(longest);
    loop {
        let error = match within(limit, call()).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        match Verdict::of(&error) {
            Verdict::Retry { after } => {
                tracing::debug!(run.id = %held.run_id, error = told(&error), "it will be sent again");
                sleep(pauses.next(after)).await;
            }
            Verdict::Lost => {
                held.stop(Stop::Lost(told(&error)));
                return Err(Refusal::Lost);
            }
            Verdict::Never => return Err(Refusal::Never(error)),
        }
    }
}
