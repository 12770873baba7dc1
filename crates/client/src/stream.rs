//! Streams that reconnect by themselves from the last event, notice a connection that has died
//! silently, and yield each event once and in order, or say that they can't. What is followed makes
//! no difference here.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Response;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tapedeck_protocol::stream::RETRY_MS;
use tokio::time::{Instant, Sleep, sleep, timeout_at};

use crate::call::{Call, broken};
use crate::connect::{Client, ResponseBody};
use crate::error::{Error, is_transient_status};
use crate::sse::{Item, Parser, RawFrame};

pub use feed::{FeedFollower, FeedFrame, FeedStart, FollowAll};
pub use frame::{Follow, Frame, Start, StreamEvent, StreamOptions};
pub use session::Follower;

mod feed;
mod frame;
mod session;

const EVENT_STREAM: &str = "text/event-stream";
/// Frames that break the rules at one place of the log before the stream gives up.
const MAX_FAULTS: u32 = 5;

/// What is followed: keeps the place, and knows the frames.
trait Source: Send + 'static {
    /// What is yielded.
    type Frame: Send;

    /// The request that goes on from the place.
    fn call(&self) -> Call;

    /// The place, for the log.
    fn place(&self) -> String;

    /// Takes a frame and moves the place.
    fn take(&mut self, raw: &RawFrame) -> Result<Taken<Self::Frame>, Broken>;
}

/// What a frame was.
enum Taken<F> {
    /// Nothing to yield.
    Nothing,
    /// The connection stands.
    Open(F),
    /// An event.
    Event(F),
    /// Something else to yield.
    Beside(F),
    /// The last one.
    End(F),
}

/// Why a connection is given up.
enum Broken {
    /// It can be opened again.
    Lost(String),
    /// The server broke the rules.
    Fault(String),
}

/// A stream that reconnects by itself. `next` may be dropped at any time without losing anything.
struct Resuming<S: Source> {
    client: Client,
    source: S,
    options: StreamOptions,
    state: State,
    ready: VecDeque<S::Frame>,
    /// The server's `retry:`.
    retry: Duration,
    /// Connections in a row that brought nothing.
    failures: u32,
    /// Frames in a row that broke the rules.
    faults: u32,
    disconnected_since: Instant,
}

enum State {
    Waiting(Pin<Box<Sleep>>),
    Connecting(BoxFuture<'static, Result<Response<ResponseBody>, Error>>),
    Reading(Connection),
    Ended,
}

struct Connection {
    body: ResponseBody,
    parser: Parser,
    dead_at: Instant,
}

impl<S: Source> Resuming<S> {
    fn new(client: &Client, source: S, options: StreamOptions) -> Self {
        Self {
            client: client.clone(),
            source,
            options,
            state: State::Waiting(Box::pin(sleep(Duration::ZERO))),
            ready: VecDeque::new(),
            retry: Duration::from_millis(RETRY_MS),
            failures: 0,
            faults: 0,
            disconnected_since: Instant::now(),
        }
    }

    /// Since when there is no connection.
    fn away_since(&self) -> Option<Instant> {
        match self.state {
            State::Waiting(_) | State::Connecting(_) => Some(self.disconnected_since),
            State::Reading(_) | State::Ended => None,
        }
    }

    /// The next frame; `None` after the end. An error is the end as well.
    async fn next(&mut self) -> Option<Result<S::Frame, Error>> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(Ok(frame));
            }
            match &mut self.state {
                State::Ended => return None,
                State::Waiting(pause) => {
                    pause.as_mut().await;
                    self.state = State::Connecting(self.connect());
                }
                State::Connecting(connect) => match connect.await {
                    Ok(response) => self.connected(response),
                    Err(error) => {
                        if let Some(error) = self.refused(error) {
                            return Some(Err(error));
                        }
                    }
                },
                State::Reading(connection) => {
                    let read = connection.read(self.options.dead_after()).await;
                    let outcome = read.and_then(|items| self.take(items));
                    if let Err(reason) = outcome
                        && let Some(error) = self.broken(reason)
                    {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    fn connect(&self) -> BoxFuture<'static, Result<Response<ResponseBody>, Error>> {
        let call = self.source.call().accept(EVENT_STREAM);
        let client = self.client.clone();
        Box::pin(async move {
            let response = client.open(call).await?;
            let media_type = response.headers().get(CONTENT_TYPE);
            if media_type.is_some_and(|found| found.as_bytes().starts_with(EVENT_STREAM.as_bytes()))
            {
                return Ok(response);
            }
            Err(client.foreign(None))
        })
    }

    fn connected(&mut self, response: Response<ResponseBody>) {
        let dead_at = Instant::now() + self.options.dead_after();
        let body = response.into_body();
        self.state = State::Reading(Connection {
            body,
            parser: Parser::default(),
            dead_at,
        });
    }

    /// Waits and tries again, or gives the error that ends the stream.
    fn refused(&mut self, error: Error) -> Option<Error> {
        // A stream only reads, so a fault of the server is worth another try too.
        let server =
            |status: http::StatusCode| is_transient_status(status) || status.is_server_error();
        let transient = error.is_transient()
            || match &error {
                Error::Problem(problem) => problem.status >= 500,
                Error::Unexpected { status, .. } => server(*status),
                Error::Transport { .. }
                | Error::Timeout(_)
                | Error::Foreign { .. }
                | Error::Request(_)
                | Error::Stream(_) => false,
            };
        let waited = self.disconnected_since.elapsed();
        if !transient
            || self
                .options
                .give_up_after
                .is_some_and(|bound| waited >= bound)
        {
            self.state = State::Ended;
            return Some(error);
        }
        self.wait(
            error.retry_after().unwrap_or(Duration::ZERO),
            &error.to_string(),
        );
        None
    }

    fn broken(&mut self, reason: Broken) -> Option<Error> {
        match reason {
            Broken::Lost(why) => self.wait(Duration::ZERO, &why),
            Broken::Fault(why) => {
                self.faults += 1;
                if self.faults >= MAX_FAULTS {
                    self.state = State::Ended;
                    return Some(Error::Stream(why));
                }
                self.wait(Duration::ZERO, &why);
            }
        }
        None
    }

    /// Pauses before the next connection: the server's `retry:`, doubled with each failure, spread.
    fn wait(&mut self, at_least: Duration, why: &str) {
        if self.failures == 0 {
            self.disconnected_since = Instant::now();
        }
        let doubled = self.retry.saturating_mul(1 << self.failures.min(16));
        self.failures += 1;
        let bounded = doubled.min(self.options.max_delay.max(self.retry));
        let pause = bounded.mul_f64(rand::random_range(0.5..=1.0)).max(at_least);
        let place = self.source.place();
        tracing::debug!(place, ?pause, why, "a stream reconnects");
        self.state = State::Waiting(Box::pin(sleep(pause)));
    }

    /// Takes what a connection brought, up to the first thing that is wrong.
    fn take(&mut self, items: Vec<Item>) -> Result<(), Broken> {
        for item in items {
            match item {
                Item::Retry(ms) => self.retry = Duration::from_millis(ms),
                Item::Frame(frame) => self.take_frame(&frame)?,
            }
            if matches!(self.state, State::Ended) {
                break;
            }
        }
        Ok(())
    }

    fn take_frame(&mut self, raw: &RawFrame) -> Result<(), Broken> {
        let frame = match self.source.take(raw)? {
            Taken::Nothing => return Ok(()),
            Taken::Open(frame) => {
                self.failures = 0;
                frame
            }
            Taken::Event(frame) => {
                self.failures = 0;
                self.faults = 0;
                frame
            }
            Taken::Beside(frame) => frame,
            Taken::End(frame) => {
                self.state = State::Ended;
                frame
            }
        };
        self.ready.push_back(frame);
        Ok(())
    }
}

impl Connection {
    /// Reads the next bytes; any byte, a comment's too, shows that the connection lives.
    async fn read(&mut self, dead_after: Duration) -> Result<Vec<Item>, Broken> {
        let frame = match timeout_at(self.dead_at, self.body.frame()).await {
            Err(_elapsed) => return Err(Broken::Lost("no sign of life".to_owned())),
            Ok(None) => return Err(Broken::Lost("the connection was closed".to_owned())),
            Ok(Some(Err(source))) => return Err(Broken::Lost(broken(source).to_string())),
            Ok(Some(Ok(frame))) => frame,
        };
        self.dead_at = Instant::now() + dead_after;
        let Ok(bytes) = frame.into_data() else {
            return Ok(Vec::new());
        };
        self.parser
            .push(&bytes)
            .map_err(|error| Broken::Fault(error.to_string()))
    }
}

fn parse<T: DeserializeOwned>(raw: &RawFrame) -> Result<T, Broken> {
    serde_json::from_str(&raw.data)
        .map_err(|error| Broken::Fault(format!("`{}` can't be read: {error}", raw.event)))
}

#[cfg(test)]
mod tests;
