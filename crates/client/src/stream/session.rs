//! Follows one session's log, whose events have numbers: a hole or a repetition is noticed.

use std::fmt;

use futures::Stream;
use serde_json::{Map, Value};
use tapedeck_domain::{LogId, SessionId};
use tapedeck_protocol::stream::{END, EndReason, LIVE, OPEN, StreamEnd, StreamOpen};
use tokio::time::Instant;

use super::frame::{Follow, Frame, Start, StreamEvent, StreamOptions};
use super::{Broken, Resuming, Source, Taken, parse};
use crate::call::Call;
use crate::connect::Client;
use crate::error::Error;
use crate::sse::RawFrame;

/// A session's stream that reconnects by itself. `next` may be dropped at any time without losing
/// anything.
pub struct Follower {
    stream: Resuming<SessionLog>,
}

/// The place in a session's log.
struct SessionLog {
    session_id: SessionId,
    follow: Follow,
    /// The last event that was yielded or is ready; `None` before the place of `Start::Head` is known.
    last: Option<u64>,
    /// The log that `last` is a number of, as the server named it.
    log_id: Option<LogId>,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = &self.stream.source;
        f.debug_struct("Follower")
            .field("session_id", &source.session_id)
            .field("last", &source.last)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Follows a session's log.
    ///
    /// Where the events around the cursor were folded into one meanwhile (410 `cursor_expired`), the
    /// stream ends with that error: the fold repeats what has been seen of a message, and only the
    /// caller knows what it did with that. [`Error::restart_after`] is the cursor with which a new
    /// stream gets the whole message; what came after it is to be forgotten.
    ///
    /// Where another log was put in this one's place while the stream was away (409 `log_changed`), it
    /// ends with that error, too: the same numbers are other events.
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
        let log = SessionLog {
            session_id,
            follow,
            last,
            log_id: None,
        };
        Follower {
            stream: Resuming::new(self, log, options),
        }
    }
}

impl Follower {
    /// The next frame; `None` after the end. An error is the end as well.
    pub async fn next(&mut self) -> Option<Result<Frame, Error>> {
        self.stream.next().await
    }

    /// Since when the server is away; none while a connection stands.
    pub fn away_since(&self) -> Option<Instant> {
        self.stream.away_since()
    }

    /// The number after which a new follower would go on.
    pub fn last_seq(&self) -> Option<u64> {
        let queued = self.stream.ready.iter().find_map(|frame| match frame {
            Frame::Event(event) => Some(event.session_seq - 1),
            Frame::Open(_) | Frame::Live(_) | Frame::End(_) => None,
        });
        queued.or(self.stream.source.last)
    }

    /// The same as a `Stream`.
    pub fn into_stream(self) -> impl Stream<Item = Result<Frame, Error>> + Send {
        futures::stream::unfold(self, |mut follower| async move {
            let item = follower.next().await?;
            Some((item, follower))
        })
    }
}

impl Source for SessionLog {
    type Frame = Frame;

    fn call(&self) -> Call {
        let id = self.session_id.to_string();
        let kinds = (!self.follow.kinds.is_empty()).then(|| self.follow.kinds.join(","));
        Call::get(&["sessions", &id, "events"])
            .query("after", self.last.is_none().then_some("head"))
            .query("run_id", self.follow.run_id)
            .query("kinds", kinds)
            .query("log_id", self.log_id)
            .last_event_id(self.last)
    }

    fn place(&self) -> String {
        format!("{} {:?}", self.session_id, self.last)
    }

    fn take(&mut self, raw: &RawFrame) -> Result<Taken<Frame>, Broken> {
        match raw.event.as_str() {
            // Only events have a number; a frame of the stream's own never does.
            _ if raw.id.is_some() => self.take_event(raw),
            OPEN => {
                let open: StreamOpen = parse(raw)?;
                self.last = self.last.or(Some(open.head_seq));
                self.log_id = self.log_id.or(open.log_id);
                Ok(Taken::Open(Frame::Open(open)))
            }
            LIVE => Ok(Taken::Beside(Frame::Live(parse(raw)?))),
            END => {
                let end: StreamEnd = parse(raw)?;
                match end.reason {
                    EndReason::Shutdown => Err(Broken::Lost("the server shuts down".to_owned())),
                    // The next request is told so, unless another token has come meanwhile.
                    EndReason::TokenEnded => Err(Broken::Lost("the token has ended".to_owned())),
                    EndReason::Settled | EndReason::Superseded | EndReason::Deleted => {
                        Ok(Taken::End(Frame::End(end)))
                    }
                }
            }
            // Frames of a later version.
            other if other.starts_with("stream.") => Ok(Taken::Nothing),
            _ => self.take_event(raw),
        }
    }
}

impl SessionLog {
    fn take_event(&mut self, raw: &RawFrame) -> Result<Taken<Frame>, Broken> {
        let data: Map<String, Value> = parse(raw)?;
        let (event, folded_from) = StreamEvent::read(data)?;
        let seq = event.session_seq;
        if raw.id.as_deref() != Some(&seq.to_string()) {
            return Err(Broken::Fault(format!(
                "event {seq} has the id {:?}",
                raw.id
            )));
        }
        if let Some(last) = self.last {
            if seq <= last {
                tracing::debug!(session.id = %self.session_id, seq, last, "a stream repeats an event");
                return Ok(Taken::Nothing);
            }
            let filtered = self.follow.run_id.is_some() || !self.follow.kinds.is_empty();
            let covers_from = folded_from.unwrap_or(seq);
            if !filtered && covers_from > last + 1 {
                return Err(Broken::Fault(format!("event {seq} follows event {last}")));
            }
        }
        self.last = Some(seq);
        Ok(Taken::Event(Frame::Event(event)))
    }
}
