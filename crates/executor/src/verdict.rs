//! What a failed call means for a claim, and how long to wait before it is made again. It owns the
//! line between "stop now", "try again" and "never"; it must never decide on the text of an error.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tapedeck_client::{Client, Error, Options};
use tapedeck_protocol::ErrorCode;

/// What an error means for the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The claim is gone: stop now, send nothing more.
    Lost,
    /// The same request may succeed later.
    Retry {
        /// Not before this.
        after: Option<Duration>,
    },
    /// The same request will never succeed.
    Never,
}

impl Verdict {
    /// Judges the error of a call under a claim.
    pub(crate) fn of(error: &Error) -> Self {
        let Some(problem) = error.problem() else {
            // An answer that is not the server's own says nothing about the claim.
            return match error {
                Error::Request(_) => Self::Never,
                _ => Self::Retry { after: None },
            };
        };
        // A server that doesn't have the endpoint says nothing about the claim.
        if problem.code == ErrorCode::RouteNotFound {
            return Self::Never;
        }
        // A credential may be put right while the run goes on, and a fault of the server may pass.
        let passing = matches!(
            problem.code,
            ErrorCode::Forbidden | ErrorCode::Internal | ErrorCode::Unauthorized
        );
        if passing || problem.code.retryable() {
            let after = error.retry_after();
            return Self::Retry { after };
        }
        let gone = matches!(problem.code, ErrorCode::ClaimLost | ErrorCode::RunSettled);
        if gone || matches!(problem.status, 403 | 404) {
            return Self::Lost;
        }
        Self::Never
    }
}

/// An error with its cause, for a run's error text or a log line.
pub(crate) fn told(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|source| format!(": {source}"));
    let code = error.code().map(|code| format!(" ({code})"));
    let (cause, code) = (cause.unwrap_or_default(), code.unwrap_or_default());
    format!("{error}{cause}{code}")
}

/// The client as the executor uses it: each call is made once, since when to make it again depends
/// on the lease, which a client knows nothing of.
pub(crate) fn single_tries(client: Client) -> Client {
    let options = Options {
        retries: 0,
        ..Options::default()
    };
    client.with_options(options)
}

/// Bounds a call; what takes longer has an unknown outcome.
pub(crate) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(limit, call)
        .await
        .unwrap_or(Err(Error::Timeout(limit)))
}

/// Growing pauses between retries, with jitter so that executors don't come back all at once.
#[derive(Debug)]
pub(crate) struct Pauses {
    builder: ExponentialBuilder,
    delays: ExponentialBackoff,
    most: Duration,
}

impl Pauses {
    /// From 100 ms up to `most`.
    pub(crate) fn up_to(most: Duration) -> Self {
        let builder = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(100).min(most))
            .with_max_delay(most)
            .with_jitter()
            .without_max_times();
        Self {
            builder,
            delays: builder.build(),
            most,
        }
    }

    /// The next pause, at least what the server asked for, within reason.
    pub(crate) fn next(&mut self, after: Option<Duration>) -> Duration {
        let own = self.delays.next().unwrap_or(self.most);
        own.max(after.unwrap_or_default().min(Duration::from_secs(30)))
    }

    /// Begins with short pauses again.
    pub(crate) fn reset(&mut self) {
        self.delays = self.builder.build();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::problem;

    #[test]
    fn every_code_means_lost_retry_or_never() {
        let verdict = |code| Verdict::of(&Error::Problem(Box::new(problem(code))));
        for code in [
            ErrorCode::ClaimLost,
            ErrorCode::ClaimTokenInvalid,
            ErrorCode::RunNotFound,
            ErrorCode::RunSettled,
            ErrorCode::SessionNotFound,
        ] {
            assert_eq!(verdict(code), Verdict::Lost, "{code}");
        }
        for code in [
            ErrorCode::Draining,
            ErrorCode::EventsMissing,
            ErrorCode::Forbidden,
            ErrorCode::Internal,
            ErrorCode::Overloaded,
            ErrorCode::StorageFull,
            ErrorCode::Unauthorized,
            ErrorCode::Unavailable,
        ] {
            assert_eq!(verdict(code), Verdict::Retry { after: None }, "{code}");
        }
        for code in [
            ErrorCode::BodyTooLarge,
            ErrorCode::EventIdConflict,
            ErrorCode::InvalidRequest,
            ErrorCode::MalformedRequest,
            ErrorCode::RequestIdConflict,
            ErrorCode::RouteNotFound,
        ] {
            assert_eq!(verdict(code), Verdict::Never, "{code}");
        }
        let unknown = Error::Timeout(Duration::from_secs(1));
        assert_eq!(Verdict::of(&unknown), Verdict::Retry { after: None });
    }

    #[test]
    fn pauses_grow_to_their_bound_and_keep_what_the_server_asked_for() {
        let mut pauses = Pauses::up_to(Duration::from_secs(2));
        let first = pauses.next(None);
        assert!(first < Duration::from_secs(1), "{first:?}");
        let later: Vec<_> = (0..10).map(|_| pauses.next(None)).collect();
        assert!(later[9] >= Duration::from_secs(2), "{later:?}");
        assert!(later[9] <= Duration::from_secs(4), "{later:?}");
        let asked = Some(Duration::from_secs(7));
        assert_eq!(pauses.next(asked), Duration::from_secs(7));
        pauses.reset();
        assert!(pauses.next(None) < Duration::from_secs(1));
    }
}
