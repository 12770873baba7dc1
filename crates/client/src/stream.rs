//! Follows a session's log over SSE: reconnects by itself from the last event, notices a connection
//! that has died silently, and yields each event once and in order, or says that it can't.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use http::Response;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tapedeck_domain::SessionId;
use tapedeck_protocol::stream::{END, EndReason, LIVE, OPEN, RETRY_MS, StreamEnd, StreamOpen};
use tokio::time::{Instant, Sleep, sleep, timeout_at};

use crate::call::{Call, broken};
use crate::connect::{Client, ResponseBody};
use crate::error::{Error, is_transient_status};
use crate::sse::{Item, Parser, RawFrame};

use frame::Envelope;
pub use frame::{Follow, Frame, Start, StreamEvent, StreamOptions};

mod frame;

const EVENT_STREAM: &str = "text/event-stream";
/// Frames that break the rules at one place of the log before the follower gives up.
const MAX_FAULTS: u32 = 5;

/// A stream that reconnects by itself. `next` may be dropped at any time without losing anything.
pub struct Follower {
    client: Client,
    session_id: SessionId,
    follow: Follow,
    options: StreamOptions,
    state: State,
    ready: VecDeque<Frame>,
    /// The last event that was yielded or is ready; `None` before the place of `Start::Head` is known.
    last: Option<u64>,
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

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower")
            .field("session_id", &self.session_id)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// Why a connection is given up.
enum Broken {
    /// It can be opened again.
    Lost(String),
    /// The server broke the rules.
    Fault(String),
}

impl Client {
    /// Follows a session's log.
    pub fn follow(
        &self,
        session_id: SessionId,
        follow: Follow,
        options: StreamOptions,
    ) -> Follower {
        let last = match follow.start {
            Start::Beginning => Some(0),
            Start::After(seq) => Some(seq),
            Start::Head => None,
        };
        Follower {
            client: self.clone(),
            session_id,
            follow,
            options,
            state: State::Waiting(Box::pin(sleep(Duration::ZERO))),
            ready: VecDeque::new(),
            last,
            retry: Duration::from_millis(RETRY_MS),
            failures: 0,
            faults: 0,
            disconnected_since: Instant::now(),
        }
    }
}

impl Follower {
    /// The next frame; `None` after the end. An error is the end as well.
    pub async fn next(&mut self) -> Option<Result<Frame, Error>> {
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

    /// The number after which a new follower would go on.
    pub fn last_seq(&self) -> Option<u64> {
        let queued = self.ready.iter().find_map(|frame| match frame {
            Frame::Event(event) => Some(event.session_seq - 1),
            Frame::Open(_) | Frame::Live(_) | Frame::End(_) => None,
        });
        queued.or(self.last)
    }

    /// The same as a `Stream`.
    pub fn into_stream(self) -> impl Stream<Item = Result<Frame, Error>> + Send {
        futures::stream::unfold(self, |mut follower| async move {
            let item = follower.next().await?;
            Some((item, follower))
        })
    }

    fn connect(&self) -> BoxFuture<'static, Result<Response<ResponseBody>, Error>> {
        let id = self.session_id.to_string();
        let kinds = (!self.follow.kinds.is_empty()).then(|| self.follow.kinds.join(","));
        let call = Call::get(&["sessions", &id, "events"])
            .query("after", self.last.is_none().then_some("head"))
            .query("run_id", self.follow.run_id)
            .query("kinds", kinds)
            .accept(EVENT_STREAM)
            .last_event_id(self.last);
        let client = self.client.clone();
        Box::pin(async move {
            let response = client.open(call).await?;
            let media_type = response.headers().get(CONTENT_TYPE);
            if media_type.is_some_and(|found| found.as_bytes().starts_with(EVENT_STREAM.as_bytes()))
            {
                return Ok(response);
            }
            let status = response.status();
            Err(Error::Unexpected {
                status,
                body: format!("no event stream but {media_type:?}"),
            })
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
                | Error::Decode(_)
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
        tracing::debug!(session.id = %self.session_id, last = ?self.last, ?pause, why, "a stream reconnects");
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
        match raw.event.as_str() {
            // Only events have a number; a frame of the stream's own never does.
            _ if raw.id.is_some() => self.take_event(raw)?,
            OPEN => {
                let open: StreamOpen = parse(raw)?;
                self.last = self.last.or(Some(open.head_seq));
                self.failures = 0;
                self.ready.push_back(Frame::Open(open));
            }
            LIVE => self.ready.push_back(Frame::Live(parse(raw)?)),
            END => {
                let end: StreamEnd = parse(raw)?;
                match end.reason {
                    EndReason::Shutdown => {
                        return Err(Broken::Lost("the server shuts down".to_owned()));
                    }
                    EndReason::Settled | EndReason::Superseded | EndReason::Deleted => {
                        self.state = State::Ended;
                        self.ready.push_back(Frame::End(end));
                    }
                }
            }
            // Frames of a later version.
            other if other.starts_with("stream.") => {}
            _ => self.take_event(raw)?,
        }
        Ok(())
    }

    fn take_event(&mut self, raw: &RawFrame) -> Result<(), Broken> {
        let data: Map<String, Value> = parse(raw)?;
        let envelope = Envelope::deserialize(Value::Object(data.clone()))
            .map_err(|error| Broken::Fault(format!("an event can't be read: {error}")))?;
        let seq = envelope.session_seq;
        if raw.id.as_deref() != Some(&seq.to_string()) {
            return Err(Broken::Fault(format!(
                "event {seq} has the id {:?}",
                raw.id
            )));
        }
        if let Some(last) = self.last {
            if seq <= last {
                tracing::debug!(session.id = %self.session_id, seq, last, "a stream repeats an event");
                return Ok(());
            }
            let filtered = self.follow.run_id.is_some() || !self.follow.kinds.is_empty();
            let covers_from = envelope.folded_from.unwrap_or(seq);
            if !filtered && covers_from > last + 1 {
                return Err(Broken::Fault(format!("event {seq} follows event {last}")));
            }
        }
        self.last = Some(seq);
        self.failures = 0;
        self.faults = 0;
        self.ready.push_back(Frame::Event(StreamEvent {
            session_seq: seq,
            kind: envelope.kind,
            event_id: envelope.event_id,
            session_id: envelope.session_id,
            run_id: envelope.run_id,
            timestamp: envelope.timestamp,
            data,
        }));
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
